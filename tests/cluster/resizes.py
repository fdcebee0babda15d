"""How long ``kubectl vcuda resize`` takes until the running container's own page has the new size.

From the start of the command, as a shell starts it: between lie the API server, the admission service's answer, the
agent's books on its disk, and the page. The command itself says so a little later; that is kept beside.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.cluster import auditor
from tests.cluster.auditor import Held
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod
from tests.cluster.shell import environment

PODS: Final = 8  # taken in turn: one pod gets at most one answer a second
CORES, UNITS = 30, 20  # three of a card
GIB: Final = 1 << 30
STEPS: Final[Mapping[str, tuple[str, tuple[int, int]]]] = {
    "more": ("--cores 33 --memory 8Gi", (33, 8 * GIB)),
    "fewer cores": ("--cores 20 --memory 8Gi", (20, 8 * GIB)),
    "less memory": ("--cores 20 --memory 2Gi", (20, 2 * GIB)),
    "the spec again": ("--reset", (CORES, 5 * GIB)),
}
"""Kind → what is typed, and the cores and bytes that it leads to."""
_LONGEST_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.005


@dataclass(slots=True)
class Resizes:
    """Seconds of each resize by kind, in the order in which they were asked for."""

    in_force: dict[str, list[float]] = field(default_factory=dict)
    said: dict[str, list[float]] = field(default_factory=dict)  # until the command has ended

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return {
            "count": sum(map(len, self.in_force.values())),
            "longest_seconds": round(max(map(max, self.in_force.values())), 3),
            "median_seconds": _medians(self.in_force),
            "said_seconds": _medians(self.said),
        }


def measure(cluster: Cluster, rounds: int = 2) -> Resizes:
    """Every kind on every pod, so many times; the books agree after each round."""
    result, pods = Resizes(), Pods(cluster)
    try:
        pods.run(*(pod(f"resized-{n}", container("c", CORES, UNITS)) for n in range(PODS)))
        auditor.settled(cluster)
        running = sorted(auditor.containers(cluster), key=lambda one: one.pod)
        for number in range(rounds):
            for kind, (words, size) in STEPS.items():
                for one in running:
                    in_force, said = timed(cluster, one, words, size)
                    result.in_force.setdefault(kind, []).append(in_force)
                    result.said.setdefault(kind, []).append(said)
            auditor.settled(cluster)
            sys.stdout.write(f"{number + 1:3} {result.as_json()}\n")
            sys.stdout.flush()
    finally:
        pods.clear()
    return result


def timed(cluster: Cluster, one: Held, words: str, size: tuple[int, int]) -> tuple[float, float]:
    """Resize once: seconds until the page says ``size``, and until the command has ended.

    Raises:
        AssertionError: the command fails, or the size is not in force after half a minute.
    """
    command = ["kubectl", "vcuda", "resize", one.pod, *words.split()]
    began = time.monotonic()
    with subprocess.Popen(
        command, env=environment(cluster), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as asking:
        while (now := auditor.size_in_force(one)) != size and asking.poll() in (None, 0):
            assert time.monotonic() - began < _LONGEST_SECONDS, f"{one}: {now} is in force, not {size}"
            time.sleep(_LOOK_SECONDS)
        in_force = time.monotonic() - began
        said = asking.communicate(timeout=_LONGEST_SECONDS)[0]
    assert asking.returncode == 0, f"{' '.join(command)}: {said}"
    return in_force, time.monotonic() - began


def _medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    return {kind: round(statistics.median(one), 3) for kind, one in seconds.items()}
