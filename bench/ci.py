"""Minutes of ``make ci`` from a fresh clone, target by target: each runs, also behind one that failed.

The clone has what is committed. Outputs are kept as ``build/ci/<target>.log``. The caller keeps the machine
quiet.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rows import OUTPUT, Row

ROOT: Final = Path(__file__).resolve().parents[1]
LOGS: Final = OUTPUT.with_name("ci")
SHARED: Final = "shared"  # inputs beside a checkout, which tests read where they are there
RECIPE: Final = re.compile(r"^ci: \$\(STAMP\) (?P<first>[^#\n]*?) ##.*\n(?P<rest>(?:\t.*\n)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ran:
    """One call of make: its arguments, how long it took, and how it ended."""

    target: str
    seconds: float
    code: int


def steps(makefile: str) -> list[str]:
    """The arguments of each call of make that ``make ci`` comes to, in order, with the set-up as the first.

    Raises ValueError if ``makefile`` has no such recipe.
    """
    found = RECIPE.search(makefile)
    if not found:
        raise ValueError("the Makefile has no target ci that this reads")
    called = [line.strip().removeprefix("$(MAKE) ") for line in found["rest"].splitlines()]
    return ["setup", *found["first"].split(), *called]


def rows(*, full: bool) -> list[Row]:
    """One row: minutes of all targets; the note says how they are made up, and which failed."""
    with tempfile.TemporaryDirectory(prefix="vcuda-ci-") as name:
        Path(name).chmod(0o755)  # some tests run programs of the clone as another user
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if (beside := ROOT.parent / SHARED).exists():
            clone.with_name(SHARED).symlink_to(beside.resolve())
        environment = {
            key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "MAKEFLAGS"}
        }
        return [
            row(
                [ran(step, clone, environment) for step in steps((clone / "Makefile").read_text("utf-8"))],
                full=full,
            )
        ]


def ran(step: str, clone: Path, environment: Mapping[str, str]) -> Ran:
    """Run make with these arguments there, and keep what it said."""
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (LOGS / f"{_short(step)}.log").open("wb") as said:
        done = subprocess.run(
            ["make", "--keep-going", *step.split()], cwd=clone, env=environment,
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    found = Ran(step, time.monotonic() - began, done.returncode)
    print(f"{found.target}: {found.seconds:.0f} s, {'failed' if found.code else 'passed'}", file=sys.stderr)
    return found


def row(found: Sequence[Ran], *, full: bool) -> Row:
    """The minutes of these calls together."""
    each = ", ".join(f"{_short(one.target)} {one.seconds / 60:.1f}" for one in found)
    failed = ", ".join(_short(one.target) for one in found if one.code)
    minutes = round(sum(one.seconds for one in found) / 60, 1)
    return Row(
        "ci_minutes", minutes, "min", "≤ 15", full=full, note=each + (f"; failed: {failed}" if failed else "")
    )


def _short(step: str) -> str:
    """The targets of a call, without options and variables."""
    return "+".join(word for word in step.split() if not word.startswith("-") and "=" not in word)
