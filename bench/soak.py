"""The association bench at full size: 100,000 admissions in twenty slices, each of a seed of its own.

A slice that has ended is kept under ``build/soak`` with a digest of the code that it ran on. An interrupted
soak goes on with the slices that are missing; a change of the code makes all of them missing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.code_digest import code_digest
from bench.rows import OUTPUT

SLICES: Final = 20
ADMISSIONS: Final = 5_000  # of a slice: what a quick run has too
SEEDS: Final = "BENCH_SEEDS"  # the variable of the environment that names some of the slices, as 3-7
KEPT: Final = OUTPUT.with_name("soak")
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to."""

    seed: int
    counts: Mapping[str, int]  # by what happened: admissions, judged, wrong, …
    leaked: int  # shares, directories and ids left behind
    seconds: float


def run(
    measure: Callable[[int], Outcome],
    seeds: range,
    kept: Path = KEPT,
    pool: Executor | None = None,
    files: Iterable[Path] = (),
) -> list[Outcome]:
    """The slices of these seeds: those of this code that are ``kept``, and those that are measured now.

    A slice keeps about one processor at work, so that as many run at once as the machine has, each in a
    process of its own; ``pool`` runs them otherwise. ``files``: the code; by default, what the agent runs.
    """
    code, found = code_digest(files or sorted(_files())), []
    workers = pool or ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
    try:
        for one in workers.map(partial(_slice, measure, kept, code), seeds):
            print(f"slice {one.seed}: {one.counts}, {one.leaked} leaked", file=sys.stderr)
            found.append(one)
    finally:
        workers.shutdown(cancel_futures=True)
    return found


def _slice(measure: Callable[[int], Outcome], kept: Path, code: str, seed: int) -> Outcome:
    path = kept / f"{code}-{seed}.json"
    if not path.exists():
        _keep(path, measure(seed))
    return Outcome(**json.loads(path.read_text("utf-8")))


def wanted() -> range:
    """The seeds that the environment names, as ``first-last`` or one number; all of them if it names none.

    Raises:
        ValueError: these are no slices.
    """
    text = os.environ.get(SEEDS, "")
    first, _, last = text.partition("-")
    seeds = range(int(first), int(last or first) + 1) if text else range(1, SLICES + 1)
    if not seeds or seeds[0] < 1 or seeds[-1] > SLICES:
        raise ValueError(f"{SEEDS}={text}: slices are 1 to {SLICES}")
    return seeds


def _keep(path: Path, outcome: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(outcome)) + "\n", encoding="utf-8")
    draft.replace(path)


def _files() -> Iterator[Path]:
    """What an admission of the bench goes through: agent, pages, stand-ins and the bench itself."""
    for room in ("gpu_manager", "vcuda", "sandbox/kubelet", "sandbox/api"):
        yield from (ROOT / room).rglob("*.py")
    yield from (ROOT / "bench" / name for name in ("association.py", "world.py"))
