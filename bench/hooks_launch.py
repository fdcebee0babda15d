"""What holding launches to a limit costs the launching thread, on a driver that does nothing."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.rows import Row
from tests.native.core_world import built_interposer, compiled
from vcuda.page.limits import CardLimits, Limits, build_limits
from vcuda.page.usage import build_usage

EIGHT = 8
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


def rows(*, full: bool) -> Iterable[Row]:
    """Without a limit, with one, and eight processes of one container at once."""
    launches = 20_000_000 if full else 3_000_000
    interposer = built_interposer() / "sandbox/libcuda.so.1"
    with container(None) as env:
        bare, _ = timed(_driver(), env, launches, "stream")
        unlimited, _ = timed(interposer, env, launches, "stream")
    yield Row("launch_unlimited_ns", round(unlimited - bare, 2), "ns", "≤ 5", bare, full,
              "cuLaunchKernel, median of rounds of 100")  # fmt: skip
    with container(50.0) as env:
        bare_paced, _ = timed(_driver(), env, launches // PACED, "stream", "paced")
        limited, _ = timed(interposer, env, launches // PACED, "stream", "paced")
        null, _ = timed(interposer, env, launches // PACED, "null", "paced")
        at_once, _ = timed(interposer, env, launches, "stream")
    yield Row("launch_limited_ns", round(limited - bare_paced, 2), "ns", "≤ 30", bare_paced, full,
              f"credit at hand, events free, 2 us a launch; {null - bare_paced:.1f} ns on the null stream, "
              f"{at_once - bare:.1f} ns at full speed")  # fmt: skip
    with container(50.0) as env:
        _, bare_high = timed(_driver(), env, launches // EIGHT, "stream", "own", EIGHT)
        _, high = timed(interposer, env, launches // EIGHT, "stream", "own", EIGHT)
    yield Row("launch_8proc_p99_ns", round(high - bare_high, 1), "ns", "≤ 150", bare_high, full,
              f"worst of 8 processes of one container on {os.cpu_count()} cores, rounds of 100")  # fmt: skip


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
