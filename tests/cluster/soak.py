"""Pods come and go for minutes on the real cluster, and every book is audited while they do.

Prints a line a round and writes ``build/cluster/soak.json``: starts, wrong, refused though they fitted, leaks.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.cluster import auditor, product, record
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod, sidecar

SHAPES: Final = ("one", "pair", "staged", "flanked", "whole")
BATCH: Final = 12
MOST_CORES: Final = 500  # of 800: a pod that the scheduler lets through must fit


@dataclass(slots=True)
class Result:
    """What the soak counts; the bars are 0 but for the starts."""

    seconds: float = 0.0
    starts: int = 0
    wrong: int = 0
    unexpected_admission_errors: int = 0
    leaks: int = 0


def run(cluster: Cluster, minutes: float, seed: int | None = None) -> Result:
    """Soak; the seed is printed, so that a failure can be had again."""
    seed = seed if seed is not None else int(time.time())
    dice, result, pods = random.Random(seed), Result(), Pods(cluster)
    sys.stdout.write(f"seed {seed}\n")
    began, alive, number = time.monotonic(), {}, 0
    try:
        while time.monotonic() - began < 60 * minutes:
            made: dict[str, int] = {}
            while len(made) < BATCH and sum(alive.values()) + sum(made.values()) < MOST_CORES:
                manifest, cores = draw(dice, f"soak-{number}")
                made |= dict.fromkeys(pods.create(manifest), cores)
                number += 1
            for name in made:
                _await(pods, name, result)
            alive |= made
            result.starts += len(made)
            found = _audit(cluster)
            result.wrong += len(found)
            gone = dice.sample(sorted(alive), k=min(len(alive), len(made)))
            for name in gone:
                alive.pop(name)
            # By force is another matter: what still runs keeps its card, though the API has forgotten it.
            pods.delete(*gone, grace=dice.choice((1, None)))
            result.seconds = time.monotonic() - began
            sys.stdout.write(
                f"{result.seconds:6.0f} s  {asdict(result)}\n" + "".join(f"  {x}\n" for x in found)
            )
            sys.stdout.flush()
    finally:
        pods.clear()
    try:
        auditor.settled(cluster, 90, leaks=True)
    except AssertionError as error:
        result.leaks = len(str(error).splitlines())
        sys.stdout.write(f"{error}\n")
    record.keep("soak", asdict(result), cluster.parts)
    return result


def draw(dice: random.Random, name: str) -> tuple[dict[str, Any], int]:
    """A pod of a shape, and the cores that it takes."""
    a, b = dice.randint(1, 40), dice.randint(1, 40)
    first, second = container("a", a, dice.randint(1, 60)), container("b", b, dice.randint(1, 60))
    shape = dice.choice(SHAPES)
    if shape == "pair":
        return pod(name, first, second), a + b
    if shape == "staged":
        return pod(name, first, init=[container("init", b, dice.randint(1, 60), args=("true",))]), max(a, b)
    if shape == "flanked":
        return pod(name, first, init=[sidecar("side", b, dice.randint(1, 60))]), a + b
    if shape == "whole":
        return pod(name, container("a", 100)), 100
    return pod(name, first), a


def _await(pods: Pods, name: str, result: Result) -> None:
    try:
        pods.wait_running(name, 90)
    except AssertionError as error:
        result.unexpected_admission_errors += 1
        sys.stdout.write(f"  {error}\n")


def _audit(cluster: Cluster) -> list[str]:
    """What still disagrees after the write-back has had its time."""
    try:
        auditor.settled(cluster, 10)
    except AssertionError as error:
        return str(error).splitlines()
    return []


def main(minutes: float) -> int:
    """Exit code 1 if a bar does not hold."""
    cluster = Cluster()
    cluster.up()
    product.install(cluster, admission=True)
    result = run(cluster, minutes)
    return 1 if result.wrong or result.unexpected_admission_errors or result.leaks else 0
