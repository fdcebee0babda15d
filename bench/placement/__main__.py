"""Replay any trace in the form of openb's csv files: ``python -m bench.placement --nodes … --pods …``."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

from bench.placement import waits
from bench.placement.departures import LOADS, stream, waiting_demand
from bench.placement.study import (
    ABLATION,
    BASELINES,
    RESULTS,
    SECOND,
    Job,
    Study,
    commit,
    full_plan,
    load,
    pending,
    repeated,
    repeats,
    sample,
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
    parser.add_argument(
        "--repeat",
        action="store_true",
        help="after a change of code that leaves the figures: a sample of the kept",
    )
    parser.add_argument("--departures", action="store_true", help="pods leave: how much demand waits, in %%")
    parser.add_argument(
        "--second",
        type=Path,
        help=f"with --plan: the pods of {SECOND}; without them its runs wait",
    )
    given = parser.parse_args()
    others = {SECOND: read(given.nodes, given.second)} if given.second else {}
    study = Study(read(given.nodes, given.pods), others)
    if given.plan:
        return _plan(study)
    if given.repeat:
        return _repeat(study)
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


def _repeat(study: Study) -> int:
    """Only if every run of the sample comes out the same do the others of that code stand."""
    runs = load()
    chosen = sample(runs)
    known, differ = repeats(study, chosen, repeated())
    known, others = waits.repeats(study, known)
    for run in others:
        print(f"another figure now: pods that leave, {run['policy']}, seed {run['seed']}", file=sys.stderr)
    for run in differ:
        print(f"another figure now: {run['trace']}, {run['policy']}, seed {run['seed']}", file=sys.stderr)
    save(runs, again=known)
    print(f"{len(chosen) - len(differ)} of {len(chosen)} runs repeated to the last digit")
    return 1 if differ or others else 0


def _plan(study: Study) -> int:
    """What is not kept yet, each run kept as it ends: it can be stopped and taken up again."""
    runs = valid(load())
    wanted = list(pending(full_plan(), runs))
    for job in filter(lambda job: study.has(job.trace), wanted):
        runs.append({**study.run(job), "commit": commit()})
        save(runs)
        print(job, runs[-1]["allocation"].get("100"), runs[-1]["allocation"].get("130"), flush=True)
    kept = waits.load()
    for wait in waits.pending(waits.plan(), kept):
        kept.append({**waits.measure(study, wait), "commit": commit()})
        waits.save(kept)
        print(wait, kept[-1]["waiting"], flush=True)
    left = sum(not study.has(job.trace) for job in wanted)
    if left:
        print(f"not run: {left} runs of {SECOND}; give its pods with --second", file=sys.stderr)
    return 0


def _departures(study: Study, seeds: list[int], policies: list[str]) -> int:
    for busy, seed in product(LOADS, seeds):
        nodes, coming = stream(study.trace("given"), seed, busy)
        for name in policies:
            waiting = waiting_demand(nodes, coming, study.policy(Job("given", name, seed)))
            print(
                f"load {busy:g}  seed {seed}  {name:20} {waiting:.2f} % of the GPUs asked for and waiting",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
