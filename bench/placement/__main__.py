"""Replay any trace in the form of openb's csv files: ``python -m bench.placement --nodes … --pods …``."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

from bench.placement.departures import LOADS, stream, waiting_demand
from bench.placement.study import (
    ABLATION,
    BASELINES,
    RESULTS,
    Job,
    Study,
    commit,
    full_plan,
    load,
    pending,
    save,
    valid,
)
from bench.placement.trace import read


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument(
        "--nodes", type=Path, required=True, help="csv: sn, cpu_milli, memory_mib, gpu, model"
    )
    parser.add_argument(
        "--pods", type=Path, required=True, help="csv: name, cpu_milli, memory_mib, num_gpu, …"
    )
    parser.add_argument("--seeds", default="42", help="of the pods' order, such as 42,43,44")
    parser.add_argument(
        "--policies", nargs="+", default=["ours", "FGD", "BestFit"], choices=ABLATION + BASELINES
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plan", action="store_true", help=f"every run of the docs, kept in {RESULTS.name}")
    parser.add_argument("--departures", action="store_true", help="pods leave: how much demand waits, in %%")
    given = parser.parse_args()
    study = Study(read(given.nodes, given.pods))
    if given.plan:
        runs = valid(load())
        for job in pending(full_plan(), runs):
            runs.append({**study.run(job), "commit": commit()})
            save(runs)
            print(job, runs[-1]["allocation"].get("100"), runs[-1]["allocation"].get("130"), flush=True)
        return 0
    if given.departures:
        return _departures(study, [int(seed) for seed in given.seeds.split(",")], given.policies)
    runs = []
    for seed in map(int, given.seeds.split(",")):
        for name in given.policies:
            runs.append(study.run(Job("given", name, seed)))
            shown = runs[-1]["allocation"]
            print(
                f"{name:20} seed {seed}: " + "  ".join(f"{at} % {value:.2f}" for at, value in shown.items())
            )
    if given.json:
        given.json.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    return 0


def _departures(study: Study, seeds: list[int], policies: list[str]) -> int:
    for busy, seed in product(LOADS, seeds):
        nodes, coming = stream(study.trace("given"), seed, busy)
        for name in policies:
            waits = waiting_demand(nodes, coming, study.policy(Job("given", name, seed)))
            print(
                f"load {busy:g}  seed {seed}  {name:20} {waits:.2f} % of the GPUs asked for and waiting",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
