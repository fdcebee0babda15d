"""Dynamic Resource Allocation: the project's model of what Kubernetes allocates, against its own allocator,
and the driver that prepares it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench import dra_order, dra_prepare, dra_quota, dra_said, dra_worst
from bench.rows import OUTPUT, Row
from tests.oracle.dra_cases import (
    ANSWERS,
    MINORS,
    RECORDED,
    answer,
    ask,
    build,
    digest,
    random_case,
    recorded_cases,
)

PARTS = ("agreement", "worst", "order", "shuffles", "prepare", "quota", "said")
CASES = {False: 2_000, True: 100_000}
_AT_ONCE = 2_000  # cases of one run of the allocator


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """The group's rows, or those of one part."""
    if only in {"", "agreement"}:
        yield _agreement(full=full)
    if only in {"", "worst"}:
        yield from dra_worst.rows(_directory(), full=full)
    if only in {"", "order"}:
        yield from dra_order.rows(full=full)
    if only in {"", "shuffles"}:
        yield from dra_prepare.shuffled(full=full)
    if only in {"", "prepare"}:
        yield dra_prepare.timed(full=full)
    if only in {"", "quota"}:
        yield from dra_quota.rows(full=full)
    if only in {"", "said"}:
        yield from dra_said.rows(full=full)


def _agreement(*, full: bool) -> Row:
    """It needs Go, and its module proxy the first time; without Go it is asked by the recorded answers."""
    name, bar = "dra_agreement", "= 0"
    if shutil.which("go") is None:
        return Row(name, _recorded(), "cases", bar, full=False, note=_RECORDED_NOTE)
    programs = {minor: build(minor, _directory()) for minor in MINORS}
    wrong: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for first in range(0, CASES[full], _AT_ONCE):
        cases = [random_case(random.Random(f"bench/{n}")) for n in range(first, first + _AT_ONCE)]
        for minor, program in programs.items():
            for case, told in zip(cases, ask(program, cases), strict=True):
                wrong[minor] += answer(case, minor) != told
                kinds[_outcome(told)] += 1
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    note = (
        f"of {CASES[full]} random nodes and pods with claims, asked of kube-scheduler's allocator of 1.36.3 "
        f"and of 1.37.2 ({found}); quantities within a step of 2^63 left out: 1.36 overflows there, and "
        "the model refuses them"
    )
    return Row(name, wrong.total(), "cases", bar, full=full, note=note)


def _recorded() -> int:
    told = json.loads(ANSWERS.read_text("utf-8"))
    cases = recorded_cases()
    if told["cases"] != digest(cases):
        raise RuntimeError("the recorded answers are not to these cases: python -m tests.oracle.dra_cases")
    return sum(
        answer(case, minor) != one
        for minor in MINORS
        for case, one in zip(cases, told[str(minor)], strict=True)
    )


_RECORDED_NOTE = (
    f"of {RECORDED} random nodes and pods with claims, by the recorded answers of kube-scheduler's allocator "
    "of 1.36.3 and of 1.37.2: Go is not installed, so that no others can be asked"
)


def _outcome(told: object) -> str:
    return "refused" if told is None else "ended the attempt" if told == "error" else "allocated"


def _directory() -> Path:
    place = OUTPUT.with_name("oracle")
    place.mkdir(parents=True, exist_ok=True)
    return place
