"""What holding launches to a limit costs the launching thread, on a driver that does nothing."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.rows import Row
from tests.native.programs import built_interposer, compiled
from vcuda.page.limits import CardLimits, Limits, build_limits
from vcuda.page.usage import build_usage

EIGHT = 8
TURNS = 5
PACED = 6
"""So many times fewer launches where they are paced."""


@contextmanager
def container(core_limit: float | None) -> Iterator[dict[str, str]]:
    """The environment of a container with one card, whose driver is tests/native/core_driver.c."""
    with tempfile.TemporaryDirectory(prefix="vcuda-launch-") as name:
        root = Path(name)
        (root / "etc/vcuda").mkdir(parents=True)
        (root / "usr/local/vcuda/real").mkdir(parents=True)
        card = CardLimits(bytes(range(16)), 1 << 34, core_limit)
        (root / "etc/vcuda/limits").write_bytes(build_limits(Limits((card,))))
        (root / "etc/vcuda/usage").write_bytes(build_usage())
        (root / "usr/local/vcuda/real/libcuda.so.1").symlink_to(_driver())
        yield {"PATH": os.environ["PATH"], "VCUDA_ROOT": name}


def timed(
    library: Path, env: dict[str, str], launches: int, stream: str, how: str = "", count: int = 1
) -> tuple[float, float]:
    """Median and 99th percentile in ns a launch; the worst of ``count`` processes at once.

    ``how``: ``own`` (the thread's processor time), ``paced`` (2 us a launch), or nothing for full speed.
    """
    command = [str(compiled("core_time.c")), str(library), str(launches), stream, *([how] if how else [])]
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    results = []
    for process in running:
        out, _ = process.communicate(timeout=300)
        if process.returncode:
            raise RuntimeError(f"core_time ended with {process.returncode}")
        results.append(tuple(map(float, out.split())))
    return max(median for median, _ in results), max(high for _, high in results)


def _least(**runs: Callable[[], tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Least median and least 99th percentile of each of these runs, made in turns.

    A machine drifts by more than the library adds: what is compared ran side by side.
    """
    found = dict.fromkeys(runs, (math.inf, math.inf))
    for _ in range(TURNS):
        for name, run in runs.items():
            median, high = run()
            found[name] = min(found[name][0], median), min(found[name][1], high)
    return found


def rows(*, full: bool) -> Iterable[Row]:
    """Without a limit, with one, and eight processes of one container at once."""
    launches = (20_000_000 if full else 3_000_000) // TURNS
    driver, interposer = _driver(), built_interposer() / "sandbox/libcuda.so.1"
    how = f"the least of {TURNS} turns with the bare driver"
    with container(None) as env:
        one = partial(timed, env=env, launches=launches, stream="stream")
        found = _least(bare=partial(one, driver), ours=partial(one, interposer))
    bare, ours = found["bare"][0], found["ours"][0]
    yield Row("launch_unlimited_ns", round(ours - bare, 2), "ns", "≤ 5", bare, full,
              f"cuLaunchKernel, median of rounds of 100; {how}")  # fmt: skip
    with container(50.0) as env:
        fast = partial(timed, env=env, launches=launches, stream="stream")
        paced = partial(timed, env=env, launches=launches // PACED, stream="stream", how="paced")
        found = _least(
            bare=partial(paced, driver),
            ours=partial(paced, interposer),
            null=partial(paced, interposer, stream="null"),
            fast_bare=partial(fast, driver),
            fast=partial(fast, interposer),
        )
    bare, ours, null = (found[name][0] for name in ("bare", "ours", "null"))
    yield Row("launch_limited_ns", round(ours - bare, 2), "ns", "≤ 30", bare, full,
              f"credit at hand, events free, 2 us a launch; {null - bare:.1f} ns on the null stream, "
              f"{found['fast'][0] - found['fast_bare'][0]:.1f} ns at full speed; {how}")  # fmt: skip
    with container(50.0) as env:
        eight = partial(timed, env=env, launches=launches // EIGHT, stream="stream", how="own", count=EIGHT)
        found = _least(bare=partial(eight, driver), ours=partial(eight, interposer))
    bare, ours = found["bare"][1], found["ours"][1]
    yield Row("launch_8proc_p99_ns", round(ours - bare, 1), "ns", "≤ 150", bare, full,
              f"worst of 8 processes of one container on {os.cpu_count()} cores, "
              f"rounds of 100; {how}")  # fmt: skip


FEW, MANY, OWN = 4, 600, 0
"""Streams that launches take in turns; 0: one that is made for each launch and destroyed after it."""


def streams(*, full: bool) -> Iterable[Row]:
    """What the library adds to a launch where streams are many, over what it adds where they are few."""
    added: dict[int, float] = {}
    command = [str(compiled("core_streams.c"))]
    with container(50.0) as env:
        for _ in range(15 if full else 5):
            for count in (FEW, MANY, OWN):
                bare, interposer = (
                    float(subprocess.check_output([*command, str(library), "12000", str(count)], env=env))
                    for library in (_driver(), built_interposer() / "sandbox/libcuda.so.1")
                )
                added[count] = min(added.get(count, math.inf), interposer - bare)
    worst = max(added[MANY], added[OWN]) / added[FEW]
    yield Row("many_streams_ratio", round(worst, 2), "ratio", "≤ 2", round(added[FEW], 1), full,
              f"a launch costs {added[FEW]:.0f} ns more on {FEW} streams, {added[MANY]:.0f} on {MANY}, "
              f"{added[OWN]:.0f} with making and destroying its own; events free, 2 us a launch")  # fmt: skip


def _driver() -> Path:
    return compiled("core_driver.c", "-shared", "-fPIC")
