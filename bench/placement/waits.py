"""The kept runs of pods that leave: how much demand waited, by load, seed and policy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.placement.departures import LOADS, stream, waiting_demand
from bench.placement.study import RESULTS, SEEDS, THREE, Job, Result, Study, fingerprint, repeated, standing

KEPT: Final = RESULTS.with_name("departures.json")
_ABOUT: Final = (
    "Runs of pods that come, wait and leave, by python -m bench.placement --plan. waiting: percent of the"
    " cluster's GPUs that were asked for and waiting, averaged over time. load: of the cluster's GPUs, if no"
    " pod had to wait. bench/placement/departures.py says the rest. Runs of commit ef0469e were kept to"
    " one decimal."
)


@dataclass(frozen=True, slots=True)
class Wait:
    """One run."""

    load: float
    seed: int
    policy: str

    @property
    def key(self) -> tuple[float, int, str]:
        """What tells runs apart."""
        return self.load, self.seed, self.policy


def plan() -> list[Wait]:
    """Every run that docs/placement.md quotes, seed by seed: a part of it is fair too."""
    return [Wait(LOADS[0], seed, policy) for seed in SEEDS for policy in THREE]


def measure(study: Study, wait: Wait) -> Result:
    """The figure, with the fingerprint of the code behind it."""
    nodes, coming = stream(study.trace("default"), wait.seed, wait.load)
    waits = waiting_demand(nodes, coming, study.policy(Job("default", wait.policy, wait.seed)))
    return {
        "load": wait.load,
        "seed": wait.seed,
        "policy": wait.policy,
        "waiting": round(waits, 4),
        "code": code(wait.policy),
    }


def code(policy: str) -> str:
    """The fingerprint of what such a run goes through."""
    return fingerprint(policy, "departures")


def load(path: Path = KEPT) -> list[Result]:
    """What the code as it is now has measured, or has repeated of other code; nothing without a file."""
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    known = repeated()
    return [run for run in runs if run["code"] in standing(code(run["policy"]), known)]


def pending(waits: Iterable[Wait], runs: Sequence[Result]) -> Iterator[Wait]:
    """Those whose result is not there yet."""
    done = {(run["load"], run["seed"], run["policy"]) for run in runs}
    return (wait for wait in waits if wait.key not in done)


def save(runs: Sequence[Result], path: Path = KEPT) -> None:
    """One run a line."""
    ordered = sorted(runs, key=lambda run: (run["load"], run["seed"], run["policy"]))
    lines = ",\n".join(json.dumps(run) for run in ordered)
    path.write_text(f'{{"about": {json.dumps(_ABOUT)},\n"runs": [\n{lines}\n]}}\n', encoding="utf-8")
