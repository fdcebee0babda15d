"""Derive how bags follow the fractions' part of the demand: ``python -m bench.placement.choose_bags``.

Traces are resampled from openb with more of the GPU demand in fractions, up to all of it. Every candidate is
run over all of them with :data:`SEEDS`, on which no table is measured, beside one length of bags for all
mixes. Of those that refuse at most one in a thousand more pods than that, over all traces, the one is chosen
that gains the most, by what is allocated at 100 and at 130 % arrived. It needs a C++ compiler and minutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from bench.placement import compiled, data
from bench.placement.replay import stock_of
from bench.placement.trace import Trace, arrivals, kin, permuted, read
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.fragmentation import ALONE, BAG, SPREAD
from gpu_manager.domain.score.scorer import Scorer

SEEDS: Final = (1001, 1002, 1003, 1004)
MORE: Final = 1.001  # times the pods that one length of bags refuses
PARTS: Final = (0.6, 0.75, 0.85, 0.95)  # of the demand in fractions; all of it is the kin "share"


class Bags(NamedTuple):
    """Where fractions alone are asked for: the middle bag, its spread, and what is left of the fill-up."""

    middle: float
    spread: float
    fill: float


ONE_LENGTH: Final = Bags(BAG, SPREAD, 1.0)
CANDIDATES: Final = (
    Bags(*ALONE),
    Bags(12, 1.5, 0.0),
    Bags(12, 2.0, 0.0),
    Bags(16, 2.0, 0.0),
    Bags(16, 3.0, 0.0),
    Bags(20, 1.5, 0.0),
    Bags(20, 2.0, 0.5),
    Bags(20, 2.0, 1.0),
    Bags(24, 2.0, 0.0),
    Bags(28, 3.0, 0.0),
    Bags(48, 1.5, 0.0),
)


class Figures(NamedTuple):
    """What is allocated at 100 and at 130 % arrived, in percent of the GPUs, and the pods refused."""

    first: float
    second: float
    refused: float


def mostly_fractions(trace: Trace, part: float) -> Trace:
    """The trace resampled with this part of its GPU demand in fractions; pods without a GPU as they are."""
    chance = random.Random(f"fractions {part}")
    pods = [pod for pod in trace.pods if not pod.cores]
    fractions = [pod for pod in trace.pods if 0 < pod.cores < CORES_PER_CARD]
    whole = [pod for pod in trace.pods if pod.cores >= CORES_PER_CARD]
    for group, share in ((fractions, part), (whole, 1 - part)):
        asked = 0
        while asked < trace.demand * share:
            pods.append(chance.choice(group))
            asked += pods[-1].cores
    return Trace(
        trace.nodes, tuple(replace(pod, name=f"pod-{number:06d}") for number, pod in enumerate(pods))
    )


def figures(trace: Trace, bags: Bags, seeds: Iterable[int]) -> Figures:
    """The mean over seeds."""
    scorer, stock = partial(Scorer, alone=tuple(bags)), stock_of(trace.nodes)
    found: list[Figures] = []
    for seed in seeds:
        nodes, pods = permuted(trace.nodes, seed), arrivals(trace, seed)
        run = compiled.stay(nodes, pods, "ours", trace.pods, stock, scorer)
        found.append(Figures(run.allocation[100], run.allocation[130], run.rejected))
    return Figures(*map(statistics.mean, zip(*found, strict=True)))


def chosen(found: Mapping[Bags, Mapping[str, Figures]]) -> Bags:
    """The one that allocates the most of those that refuse hardly more pods than one length of bags does."""

    def total(bags: Bags, at: int) -> float:
        return sum(each[at] for each in found[bags].values())

    able = [bags for bags in found if total(bags, 2) <= MORE * total(ONE_LENGTH, 2)]
    return max(able, key=lambda bags: total(bags, 0) + total(bags, 1))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.placement.choose_bags", description=__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    seeds = SEEDS[: parser.parse_args().seeds]
    folder = data("openb")
    if folder is None or not compiled.available():
        print("needs the openb trace (folder of that name under $BENCH_DATA) and g++", file=sys.stderr)
        return 1
    trace = read(folder / "openb_node_list_gpu_node.csv", folder / "openb_pod_list_default.csv")
    traces = {f"{part:.0%} fractions": mostly_fractions(trace, part) for part in PARTS}
    traces["share"] = kin(trace, "share")
    found: dict[Bags, dict[str, Figures]] = {}
    for bags in (ONE_LENGTH, *CANDIDATES):
        found[bags] = {name: figures(each, bags, seeds) for name, each in traces.items()}
        shown = "  ".join(f"{n} {a:.2f} / {b:.2f}, {lost:.0f}" for n, (a, b, lost) in found[bags].items())
        print(f"{tuple(bags)}: {shown}", flush=True)
    print(f"chosen: {chosen(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
