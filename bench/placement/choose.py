"""Derive the weights of what counts where pods leave: ``python -m bench.placement.choose --kept FILE``.

Every candidate is run over the cells of :data:`CELLS` with :data:`SEEDS`, on which no table is measured,
beside FGD and Best-Fit on the same pods. Chosen is the candidate whose worst cell is the best: the demand
that waits minus that under the better of the two, averaged over seeds. With a C++ compiler all but the
candidates without kept nodes take minutes; what was run is kept in FILE, so that it can be stopped and taken
up again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.placement import compiled, data
from bench.placement.departures import LAWS, Coming, lifetime, stream, waiting_demand
from bench.placement.ours import Ours
from bench.placement.replay import stock_of
from bench.placement.study import THREE, Job, Study
from bench.placement.trace import Node, arrivals, permuted, read
from gpu_manager.domain.score.scorer import ASSUMED, OPEN, PACK, Scorer

SEEDS: Final = tuple(range(1001, 1007))
CELLS: Final = tuple(product((0.8, 0.85, 0.9, 0.95, 0.98), LAWS, ("a lifetime", "endless")))
PART: Final = 16  # one node of so many


class Candidate(NamedTuple):
    """Weights of the scorer, whether nodes are kept for who waits, and departures assumed at the start."""

    pack: float
    open: float
    draining: bool = True
    assumed: float = ASSUMED


CANDIDATES: Final = (
    Candidate(PACK, OPEN),
    Candidate(1, 0, draining=False),  # as it was before both
    Candidate(PACK, OPEN, draining=False),
    Candidate(PACK, 0),
    *(Candidate(pack, OPEN) for pack in (1, 2, 4, 12, 16) if pack != PACK),
    *(Candidate(PACK, cpu) for cpu in (1, 2, 8)),
    *(Candidate(PACK, OPEN, assumed=assumed) for assumed in (0, 0.05, 0.1, 0.5, 1)),
)

Cell = tuple[float, str, str]
Waiting = Mapping[tuple[str, Cell, int], float]
"""Percent of the GPUs, by policy (a candidate's text), cell and seed."""


def leads(name: str, waits: Waiting, seeds: Iterable[int]) -> dict[Cell, float]:
    """For each cell that is there for all seeds: what waits minus that under the better published policy."""
    found: dict[Cell, float] = {}
    for cell in CELLS:
        mean = {
            each: statistics.mean(waits.get((each, cell, seed), math.nan) for seed in seeds)
            for each in (name, *THREE[1:])
        }
        lead = mean[name] - min(mean[each] for each in THREE[1:])
        if not math.isnan(lead):
            found[cell] = lead
    return found


def chosen(names: Iterable[str], waits: Waiting, seeds: Iterable[int]) -> str | None:
    """The candidate with the best worst cell, of those that were run in all cells; None if there is none."""
    seeds = list(seeds)
    worst = {name: leads(name, waits, seeds) for name in names}
    complete = {name: max(each.values()) for name, each in worst.items() if len(each) == len(CELLS)}
    return min(complete, key=complete.__getitem__, default=None)


def _run(study: Study, name: str, cell: Cell, seed: int) -> float:
    policy = next((each for each in CANDIDATES if str(each) == name), None)
    if not compiled.available() or (policy is not None and not policy.draining):
        return _by_python(study, policy or name, cell, seed)
    trace, (nodes, coming) = study.trace("default"), _coming(study, cell, seed)
    by, stock = "ours" if policy else name, stock_of(trace.nodes)
    scorer = partial(Scorer, **_options(policy)) if policy else Scorer
    return compiled.run(nodes, coming, by, _patience(study, cell), trace.pods, stock, scorer).waiting


def _by_python(study: Study, policy: Candidate | str, cell: Cell, seed: int) -> float:
    nodes, coming = _coming(study, cell, seed)
    judge = (
        study.policy(Job("default", policy, seed))
        if isinstance(policy, str)
        else Ours(stock_of(study.trace("default").nodes), draining=policy.draining, **_options(policy))
    )
    return waiting_demand(nodes, coming, judge, _patience(study, cell))


def _coming(study: Study, cell: Cell, seed: int) -> tuple[list[Node], list[Coming]]:
    load, law, _ = cell
    return stream(study.trace("default"), seed, load, law, PART)


def _patience(study: Study, cell: Cell) -> float:
    return lifetime(study.trace("default")) if cell[2] == "a lifetime" else math.inf


def _options(policy: Candidate) -> dict[str, Any]:
    return {"leaving": (policy.pack, policy.open), "assumed": policy.assumed}


def allocation(study: Study, policy: Candidate, seeds: Iterable[int]) -> str:
    """What a candidate allocates at 100 and 130 % arrived where nobody leaves, in the mean of the seeds."""
    trace = study.trace("default")
    runs = [
        compiled.stay(
            permuted(trace.nodes, seed),
            arrivals(trace, seed),
            "ours",
            trace.pods,
            stock_of(trace.nodes),
            partial(Scorer, **_options(policy)),
        )
        for seed in seeds
    ]
    return " / ".join(f"{statistics.mean(run.allocation[at] for run in runs):.2f}" for at in (100, 130))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.placement.choose", description=__doc__)
    parser.add_argument("--kept", type=Path, required=True, help="the runs, a line of JSON each")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument(
        "--arrivals", action="store_true", help="also what each allocates where nobody leaves"
    )
    given = parser.parse_args()
    folder = data("openb")
    if folder is None:
        print("needs the openb trace (folder of that name under $BENCH_DATA)", file=sys.stderr)
        return 1
    study = Study(read(folder / "openb_node_list_gpu_node.csv", folder / "openb_pod_list_default.csv"))
    seeds, names = SEEDS[: given.seeds], [str(each) for each in CANDIDATES]
    waits: dict[tuple[str, Cell, int], float] = {}
    if given.kept.exists():
        for line in given.kept.read_text(encoding="utf-8").splitlines():
            name, cell, seed, figure = json.loads(line)
            waits[name, tuple(cell), seed] = figure
    with given.kept.open("a", encoding="utf-8") as file:
        for name, seed, cell in product((*THREE[1:], *names), seeds, CELLS):
            if (name, cell, seed) not in waits:
                waits[name, cell, seed] = _run(study, name, cell, seed)
                print(json.dumps([name, cell, seed, waits[name, cell, seed]]), file=file, flush=True)
    for name in names:
        found = leads(name, waits, seeds)
        print(f"{name}: worst {max(found.values()):+.2f}, mean {statistics.mean(found.values()):+.2f}")
    for policy in CANDIDATES if compiled.available() and given.arrivals else ():
        print(f"{policy}: allocated where nobody leaves {allocation(study, policy, seeds)}", flush=True)
    print(f"chosen: {chosen(names, waits, seeds)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
