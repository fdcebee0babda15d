"""What a check is, and what it may say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(Enum):
    """``trouble`` keeps pods from their shares or the shares from being held; ``warning`` will, or may."""

    TROUBLE = "trouble"
    WARNING = "warning"


class Unseen(Exception):  # noqa: N818  # no error: the answer "this cannot be judged from here"
    """The one fact that a check needs is not known; the text says why."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing that may be wrong. ``group`` names the part of :class:`Facts` that ``judge`` receives.

    ``what`` says what it means, ``cure`` what to do; ``judge`` yields a sentence for each case found, and
    raises :class:`Unseen` where it cannot tell. It receives the group and the time (seconds since 1970).
    """

    id: str
    group: str
    severity: Severity
    what: str
    cure: str
    judge: Callable[[Any, float], Iterable[str]]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One case found: which check, and the sentence with its values."""

    check: DoctorCheck
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Checks that could not be made, all for one reason."""

    checks: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, which checks passed, what could not be looked at. ``notes`` are facts worth saying."""

    findings: tuple[DoctorFinding, ...]
    passed: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """True if nothing found is trouble; warnings do not count."""
        return not any(f.check.severity is Severity.TROUBLE for f in self.findings)
