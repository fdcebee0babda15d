"""``make test`` twenty times: another seed and order in each run, beside other work, as a background job.

A run that has ended is kept under ``build/steady`` with a digest of the code, as the slices of a soak are.
The tests that failed are printed, and the whole output of such a run lies beside it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final

from bench import soak
from bench.rows import OUTPUT, Row
from bench.soak import Outcome

KEPT: Final = OUTPUT.with_name("steady")
LOAD: Final = 20  # programs that always compute, beside every second run
BACKGROUND: Final = frozenset({7, 14})  # as a shell starts a job: one run beside the load, and one without
ROOMS: Final = ("admission", "bench", "gpu_manager", "sandbox", "tests", "tools", "vcuda")
_IGNORING: Final = ("sh", "-c", 'trap "" INT HUP QUIT; exec "$@"', "sh")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+|\S+\.py)", re.MULTILINE)


def rows(*, full: bool) -> list[Row]:
    """One row: the tests that failed, over all runs."""
    kept = [path for room in ROOMS for path in sorted((soak.ROOT / room).rglob("*.py"))]
    with ThreadPoolExecutor(1) as one_after_another:
        found = soak.run(measure, soak.wanted(), KEPT, one_after_another, kept)
    return [row(found, full=full)]


def row(found: Sequence[Outcome], *, full: bool) -> Row:
    """The failures of these runs; the note says how many runs they were, and of which kind."""
    kinds = [kind for one in found for kind in one.counts if kind != "failures"]
    said = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    note = f"{len(found)} of {soak.SLICES} runs ({said}), {sum(one.seconds for one in found):.0f} s"
    failed = sum(one.counts["failures"] for one in found)
    return Row("steady_failures", failed, "count", "= 0", full=full, note=note)


def measure(seed: int) -> Outcome:
    """One run of ``make test`` with this seed."""
    background, loaded, began = seed in BACKGROUND, seed % 2 == 0, time.monotonic()
    with ExitStack() as beside:
        if loaded:
            beside.enter_context(load(LOAD))
        done = subprocess.run(
            [*(_IGNORING if background else ()), "make", "--keep-going", "test"],
            cwd=soak.ROOT,
            env={**{k: v for k, v in os.environ.items() if k != soak.SEEDS}, "STEADY_SEED": str(seed)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            start_new_session=background,
        )
    failed = failures(done.returncode, done.stdout)
    if failed:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"failed-{seed}.log").write_text(done.stdout, encoding="utf-8")
    for test in failed:
        print(f"STEADY_SEED={seed}: {test}", file=sys.stderr)
    kinds = {"under load": loaded, "in the background": background}
    counts = {kind: 1 for kind, holds in kinds.items() if holds}
    return Outcome(seed, {"failures": len(failed), **counts}, leaked=0, seconds=time.monotonic() - began)


def failures(code: int, said: str) -> list[str]:
    """The tests that a run of ``make test`` names as failed; one that fails and names none counts as one."""
    named = sorted(set(_FAILED.findall(said)))
    return named or ([f"make test ended with {code}"] if code else [])


@contextmanager
def load(programs: int) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """So many programs that compute until the end of the block."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield running
    finally:
        for program in running:
            program.kill()
            program.wait()
