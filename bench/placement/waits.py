"""The kept runs of pods that leave: how much demand waited under a policy, for each cluster and stream of
pods.

The runs of :func:`plan` are those of the docs' table; those of :func:`cells` say where another policy is
better than ours, by the compiled replay where there is a compiler: a call measures for five minutes.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Final

from bench.placement import compiled
from bench.placement.departures import (
    LAWS,
    LOADS,
    OBSERVED,
    PART,
    PATIENCE,
    lifetime,
    stream,
    waiting_demand,
)
from bench.placement.replay import stock_of
from bench.placement.study import (
    RESULTS,
    SEEDS,
    THREE,
    Job,
    Repeated,
    Result,
    Study,
    compiled_key,
    compiled_stands,
    fingerprint,
    repeated,
    standing,
)

KEPT: Final = RESULTS.with_name("departures.json")
_ABOUT: Final = (
    "Runs of pods that come, wait and leave, by python -m bench.placement --plan. waiting: percent of the"
    " cluster's GPUs that were asked for and waiting, averaged over time. load: of the cluster's GPUs, if no"
    " pod had to wait; law of their lifetimes; patience of a pod; part: one node of so many."
    " bench/placement/departures.py says the rest. compiled: of the replay in C++, whose figures are those of"
    " the one in Python to the last digit; runs without it are of that one. Runs of commit ef0469e were kept"
    " to one decimal."
)


@dataclass(frozen=True, slots=True)
class Wait:
    """One run. ``patience`` is of :data:`PATIENCES`."""

    load: float
    seed: int
    policy: str
    law: str = LAWS[0]
    patience: str = "an hour"
    part: int = PART

    @classmethod
    def of(cls, run: Result) -> Wait:
        """The one whose result this is."""
        return cls(**{field.name: run[field.name] for field in fields(cls) if field.name in run})

    @property
    def cell(self) -> Wait:
        """The same for all seeds and policies."""
        return replace(self, seed=0, policy="")


def plan() -> list[Wait]:
    """Every run that the placement study quotes, seed by seed: a part of it is fair too."""
    return [Wait(LOADS[0], seed, policy) for seed in SEEDS for policy in THREE]


def cells() -> list[Wait]:
    """Every run of the cells: first all seeds of those that were the worst on the seeds of
    :mod:`bench.placement.choose`, then one seed after the other of all.
    """
    cross = product(SEEDS, (16, 8, 4), (0.90, 0.80, 0.98, 0.85, 0.95), LAWS, ("a lifetime", "endless"), THREE)
    every = [
        Wait(load, seed, policy, law, patience, part) for seed, part, load, law, patience, policy in cross
    ]
    return sorted(every, key=lambda wait: _WORST.index(wait.cell) if wait.cell in _WORST else len(_WORST))


def observed_cells() -> list[Wait]:
    """The same for lifetimes observed elsewhere, on one node of 16: three loads and both patiences."""
    cross = product(SEEDS, (0.90, 0.98, 0.80), ("a lifetime", "endless"), THREE)
    return [Wait(load, seed, policy, OBSERVED, patience) for seed, load, patience, policy in cross]


_WORST: Final = (
    *(Wait(0.98, 0, "", law, "endless") for law in LAWS[:2]),
    *(Wait(load, 0, "", "exponential", "endless") for load in (0.9, 0.8)),
    Wait(0.9, 0, "", "bimodal", "endless"),
)


def measure(study: Study, wait: Wait) -> Result:
    """The figure, with the fingerprint of the code behind it: by the compiled replay where there is a
    compiler.
    """
    trace = study.trace("default")
    nodes, coming = stream(trace, wait.seed, wait.load, wait.law, wait.part, study.observed)
    patience = {"an hour": PATIENCE, "a lifetime": lifetime(trace), "endless": math.inf}[wait.patience]
    by: Result = {}
    if compiled.available():
        by["compiled"] = compiled.digest()
        stock = stock_of(trace.nodes)
        waits = compiled.run(nodes, coming, wait.policy, patience, trace.pods, stock).waiting
    else:
        waits = waiting_demand(nodes, coming, study.policy(Job("default", wait.policy, wait.seed)), patience)
    return {**asdict(wait), "waiting": round(waits, 4), "code": code(wait.policy), **by}


def measured(
    study: Study, waits: Sequence[Wait], goes_on: Callable[[], bool], path: Path = KEPT
) -> list[Result]:
    """Those of the results that are kept, and those measured and kept now while it ``goes_on``."""
    kept = load(path)
    for wait in pending(waits, kept):
        if not goes_on():
            break
        kept.append(measure(study, wait))
        save(kept, path)
    wanted = set(waits)
    return [run for run in kept if Wait.of(run) in wanted]


@dataclass(frozen=True, slots=True)
class Lead:
    """Demand that waits under ours minus that under the better of the others, in percent of a cluster's GPUs:
    the mean over seeds, and the upper end of its 95 % interval, infinite for one seed.
    """

    cell: Wait
    mean: float
    upper: float
    seeds: int


# Student's t: 95 % of the distribution lie within so many deviations, by degrees of freedom.
_T: Final = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def leads(runs: Iterable[Result]) -> list[Lead]:
    """One for each cell with seeds that all policies have, paired by seed."""
    by_cell: dict[Wait, dict[int, dict[str, float]]] = {}
    for run in runs:
        wait = Wait.of(run)
        by_cell.setdefault(wait.cell, {}).setdefault(wait.seed, {})[wait.policy] = run["waiting"]
    found: list[Lead] = []
    for cell, by_seed in by_cell.items():
        complete = [each for each in by_seed.values() if len(each) == len(THREE)]
        if complete:
            found.append(_lead(cell, complete))
    return found


def _lead(cell: Wait, seeds: Sequence[Mapping[str, float]]) -> Lead:
    ours, *others = THREE
    better = min(others, key=lambda policy: statistics.mean(each[policy] for each in seeds))
    more = [each[ours] - each[better] for each in seeds]
    mean, count = statistics.mean(more), len(more)
    deviation = statistics.stdev(more) / math.sqrt(count) if count > 1 else math.inf
    return Lead(cell, mean, mean + _T[min(count, len(_T)) - 1] * deviation, count)


def code(policy: str) -> str:
    """The fingerprint of what such a run goes through."""
    return fingerprint(policy, "departures")


def load(path: Path = KEPT) -> list[Result]:
    """What the code as it is now has measured, or has repeated of other code; nothing without a file."""
    known = repeated()
    return [run for run in _kept(path) if _stands(run, known)]


def _kept(path: Path) -> list[Result]:
    return list(json.loads(path.read_text(encoding="utf-8"))["runs"]) if path.exists() else []


def _stands(run: Result, known: Repeated) -> bool:
    return run["code"] in standing(code(run["policy"]), known) and compiled_stands(run, known)


def repeats(study: Study, again: Repeated, path: Path = KEPT) -> tuple[Repeated, list[Result]]:
    """Measure again, where they are of other code, the first run of each policy of the table, and one of each
    policy and cell of the smallest cluster. ``again`` with those of a policy added if all came out the same;
    and those that did not.
    """
    known = {now: dict(each) for now, each in again.items()}
    asked = {*plan()[: len(THREE)], *(wait for wait in cells() if (wait.seed, wait.part) == (SEEDS[0], PART))}
    chosen = [run for run in _kept(path) if Wait.of(run) in asked and not _stands(run, again)]
    differ = [run for run in chosen if measure(study, Wait.of(run))["waiting"] != run["waiting"]]
    changed = {run["policy"] for run in differ}
    for run in chosen:
        if run["policy"] in changed:
            continue
        words = "departures " + " ".join(map(str, astuple(Wait.of(run))))
        known.setdefault(code(run["policy"]), {}).setdefault(run["code"], []).append(words)
        if "compiled" in run:
            old, new = (compiled_key(run["policy"], each) for each in (run["compiled"], compiled.digest()))
            known.setdefault(new, {}).setdefault(old, []).append(words)
    return known, differ


def pending(waits: Iterable[Wait], runs: Sequence[Result]) -> Iterator[Wait]:
    """Those whose result is not there yet."""
    done = set(map(Wait.of, runs))
    return (wait for wait in waits if wait not in done)


def save(runs: Sequence[Result], path: Path = KEPT) -> None:
    """One run a line."""
    ordered = sorted(runs, key=lambda run: astuple(Wait.of(run)))
    lines = ",\n".join(json.dumps(run) for run in ordered)
    path.write_text(f'{{"about": {json.dumps(_ABOUT)},\n"runs": [\n{lines}\n]}}\n', encoding="utf-8")
