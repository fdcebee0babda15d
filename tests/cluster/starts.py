"""How much longer a pod takes to start with a share than the same pod without one.

From the request to the API server until the container's own command runs, by the kernel's clock: status in the
API comes later, when the kubelet next looks.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster import auditor
from tests.cluster.cluster import Cluster
from tests.cluster.pods import PATH, Pods, container, pod

PAIRS: Final = 30
CORES, UNITS = 30, 20
_TICK_MS: Final = 1000 / os.sysconf("SC_CLK_TCK")
_STARTED: Final = 19  # field of /proc/PID/stat after the name: ticks since boot (proc_pid_stat(5), 22)


@dataclass(frozen=True, slots=True)
class Starts:
    """Milliseconds of each start, one of a kind after the other."""

    shared: tuple[float, ...]
    plain: tuple[float, ...]

    @property
    def added_ms(self) -> float:
        """Difference of the medians."""
        return statistics.median(self.shared) - statistics.median(self.plain)

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return {
            "added_ms": round(self.added_ms),
            "plain_ms": round(statistics.median(self.plain)),
            "shared_ms": round(statistics.median(self.shared)),
            "pairs": len(self.plain),
        }


def measure(cluster: Cluster, pairs: int = PAIRS, seed: int = 1) -> Starts:
    """One pod at a time, the kinds alternating in a random order, on a node that is otherwise empty."""
    dice, pods = random.Random(seed), Pods(cluster)
    taken: dict[bool, list[float]] = {True: [], False: []}
    try:
        for number in range(pairs):
            for shared in dice.sample((True, False), k=2):
                name = f"start-{number}-{'shared' if shared else 'plain'}"
                taken[shared].append(_start(cluster, pods, name, shared=shared))
            sys.stdout.write(
                f"{number + 1:3} with {taken[True][-1]:.0f} ms, without {taken[False][-1]:.0f} ms\n"
            )
            sys.stdout.flush()
    finally:
        pods.clear()
    return Starts(tuple(taken[True]), tuple(taken[False]))


def _start(cluster: Cluster, pods: Pods, name: str, *, shared: bool) -> float:
    asked = (CORES, UNITS) if shared else (0, 0)
    return timed(cluster, pods, pod(name, container("c", *asked)))


def timed(cluster: Cluster, pods: Pods, manifest: Mapping[str, Any]) -> float:
    """Milliseconds from the request for a pod of one container until its command runs; the pod is taken away."""
    name = manifest["metadata"]["name"]
    began = time.clock_gettime(time.CLOCK_BOOTTIME) * 1000
    pods.create(manifest)
    found = pods.wait_running(name)
    [status] = found["status"]["containerStatuses"]
    number = status["containerID"].rpartition("/")[2]
    held = auditor.Held(name, found["metadata"]["uid"], "c", 0, 0, number, None)
    took = max(map(_began_ms, auditor.processes_of(held))) - began
    cluster.api.delete(f"{PATH}/{name}")
    pods.wait_gone(name)
    return took


def _began_ms(pid: int) -> float:
    """When the process began; 0 for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return 0.0
    return int(text.rpartition(")")[2].split()[_STARTED]) * _TICK_MS
