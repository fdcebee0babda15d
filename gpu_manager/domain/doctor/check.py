"""Types of the doctor: checks, findings, reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(Enum):
    """``trouble`` keeps pods from their shares, or shares from being enforced; ``warning`` will, or may."""

    TROUBLE = "trouble"
    WARNING = "warning"


class Unseen(Exception):  # noqa: N818  # no error: the answer "this cannot be judged from here"
    """A fact that a check needs is unknown; the text says why."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check for one problem. ``group`` names the part of :class:`Facts` that ``judge`` receives.

    ``what`` explains the problem, ``cure`` says what to do. ``judge`` receives the group and the time
    (seconds since 1970), yields a sentence for each case, and raises :class:`Unseen` if it cannot decide.
    """

    id: str
    group: str
    severity: Severity
    what: str
    cure: str
    judge: Callable[[Any, float], Iterable[str]]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A case that a check found, as a sentence with its values."""

    check: DoctorCheck
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Checks that could not run, all for the same reason."""

    checks: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """The findings, the checks that passed, the checks that could not run, and remarks (``notes``)."""

    findings: tuple[DoctorFinding, ...]
    passed: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """True if no finding is trouble; warnings do not count."""
        return not any(f.check.severity is Severity.TROUBLE for f in self.findings)
