"""Is core time GPU time whatever the program's rhythm? Programs that dispatch slower than the card runs.

Each is measured bare and in containers at 99, 50 and 30, in the same run; the modelled card says what it
served them. All 576 cells are replayed as traces by tests/native/test_replay.py; here they run in real time:
24 named cells, with ``full`` all of them. All take 45 minutes, so that a call measures for five and keeps
what it has under ``build/dispatch``, with a digest of the code; the next call goes on, and the note counts.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.rows import OUTPUT, Row
from tests.native.dispatch import ALL, LIMITS, NAMED, Cell, Shape, UnsteadyError, Use, cells

SECONDS: Final = 2.5
CALL_SECONDS: Final = 300.0
KEPT: Final = OUTPUT.with_name("dispatch")
MEMORY: Final = frozenset(
    (
        *("array", "exported", "granule_gap", "imported", "mem", "multicast", "vmm"),
        *("pool", "pool_account", "pool_table"),
        *("graph_backlog", "graph_memory", "graph_peak", "graph_pool", "graph_profile"),
    )
)
"""Sources of library and stand-in that a program which launches and allocates nothing does not come to."""
_HOOKED_MEMORY: Final = re.compile(rb"^(?:HOOK|CALL)\(CUresult, cuMem\w+,.*\n(?: .*\n)*", re.MULTILINE)
"""A line of hooks.def, with those that go on with it, for a function of that memory."""
ROOT: Final = Path(__file__).resolve().parents[1]
Measure = Callable[[Shape], Iterable[Cell]]


def rows(*, full: bool) -> Iterable[Row]:
    """The worst accounted error, delivered ratio and fullest second over all cells."""
    unsteady: list[UnsteadyError] = []
    if full:
        ends = time.monotonic() + CALL_SECONDS
        found = list(kept_cells(_measure, unsteady.append, lambda: time.monotonic() < ends, KEPT, _digest()))
    else:
        found = [cell for shape in NAMED for cell in _steady(_measure, shape, unsteady.append)]
    return rows_of(found, unsteady, wanted=len(LIMITS) * len(ALL if full else NAMED), full=full)


def rows_of(
    found: Sequence[Cell], unsteady: Sequence[UnsteadyError], *, wanted: int, full: bool
) -> Iterator[Row]:
    """The rows of these cells of ``wanted``; without a figure where the machine was too busy to judge."""
    names = ("dispatch_accounted_error_points", "dispatch_delivered_ratio", "dispatch_over_points")
    units, bars = ("points", "ratio", "points"), ("≤ 2", "≥ 0.97", "≤ 1")
    if unsteady or not found:
        why = f"not judged, the machine was too busy: {unsteady[0]}" if unsteady else "no cell was measured"
        why += f"; and {len(unsteady) - 1} more" if len(unsteady) > 1 else ""
        for name, unit, bar in zip(names, units, bars, strict=True):
            yield Row(name, None, unit, bar, None, full, why)
        return
    full = full and len(found) == wanted
    error = max(found, key=lambda cell: cell.accounted_error)
    delivered = min(found, key=lambda cell: cell.delivered)
    over = max(found, key=lambda cell: cell.over)
    figures = (round(error.accounted_error, 2), round(delivered.delivered, 3), round(max(0.0, over.over), 2))
    notes = (
        f"worst: {error}; {len(found)} of {wanted} cells on the stand-in driver: a model, not yet a card",
        f"worst: {delivered}",
        f"worst: {over}; the fullest of all windows of 1 s",
    )
    for name, figure, unit, bar, note in zip(names, figures, units, bars, notes, strict=True):
        yield Row(name, figure, unit, bar, None, full, note)


def kept_cells(
    measure: Measure,
    unsteady: Callable[[UnsteadyError], object],
    goes_on: Callable[[], bool],
    kept: Path,
    code: str,
) -> Iterator[Cell]:
    """The cells of all shapes that are ``kept`` of this code, and of those measured now while it ``goes_on``.

    In an order of chance, always the same, so that a part of them is a sample of all.
    """
    for shape in random.Random(1).sample(ALL, len(ALL)):
        path = kept / f"{code}-{ALL.index(shape)}.json"
        if not path.exists() and goes_on():
            found = _steady(measure, shape, unsteady)
            if found:
                kept.mkdir(parents=True, exist_ok=True)
                told = [{"limit": c.limit, "need": c.need, "use": asdict(c.use)} for c in found]
                path.write_text(json.dumps(told) + "\n", encoding="utf-8")
        if path.exists():
            for one in json.loads(path.read_text("utf-8")):
                yield Cell(shape, one["limit"], one["need"], Use(**one["use"]))


def _steady(measure: Measure, shape: Shape, unsteady: Callable[[UnsteadyError], object]) -> list[Cell]:
    try:
        return list(measure(shape))
    except UnsteadyError as busy:
        unsteady(busy)
        return []


def _measure(shape: Shape) -> Iterable[Cell]:
    return cells(shape, LIMITS, SECONDS)


def _digest() -> str:
    """Twelve hex digits of the C sources that the programs run: of all but what memory alone goes through."""
    digest = hashlib.sha256()
    library, tests = ROOT / "vcuda/lib", ROOT / "tests/native"
    sources = [tests / name for name in ("core_dispatch.c", "core_program.h", "core_watch.c")]
    for folder in (library / "src", library / "include", library / "test/standin"):
        sources += [path for path in folder.rglob("*.*") if path.suffix in {".c", ".h", ".S", ".def"}]
    for path in sorted(path for path in sources if path.stem not in MEMORY):
        text = path.read_bytes()
        digest.update(_HOOKED_MEMORY.sub(b"", text) if path.name == "hooks.def" else text)
    return digest.hexdigest()[:12]
