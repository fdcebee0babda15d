"""Many runs, kept one by one in a file of results, so that a long study can be stopped and taken up again."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from bench.code_digest import code_digest
from bench.placement import compiled
from bench.placement.ours import Ours
from bench.placement.policies import (
    BestFit,
    DotProd,
    Fgd,
    Fragments,
    GpuClustering,
    GpuPacking,
    Policy,
)
from bench.placement.replay import Run, replay, stock_of
from bench.placement.trace import Trace, arrivals, kin, permuted
from gpu_manager.domain.score.fragmentation import BAG, SPREAD
from gpu_manager.domain.score.multi_gpu_slots import ALWAYS, IDLE, MISSED
from gpu_manager.domain.score.scorer import FILL_UP, ROLL_OUT, Scorer

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "placement.json"
SEEDS: Final = tuple(range(42, 52))
KIN: Final = ("share", "cpu", "multi", "spec")
SECOND: Final = "gpushare20"  # the other trace of which the authors gave the pods
THREE: Final = ("ours", "FGD", "BestFit")
SHOWN: Final = (50, 80, 100, 130)  # percent of arrived demand
CURVE: Final = tuple(range(5, 131, 5))
Result = dict[str, Any]
Repeated = dict[str, dict[str, list[str]]]
"""Fingerprint → fingerprint of other code → its runs (trace, policy, seed, order) that came out the same."""

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "ours": {},
    "ours, mix known": {},
    "ours, card by score": {"every_card": True},
    "without roll-out": {"parts": (FILL_UP, 0.0)},
    "without fill-up": {"parts": (0.0, ROLL_OUT)},
    "without places": {"places": (0.0, 0.0, IDLE)},
    "places at a fixed price": {"places": (ALWAYS, 0.0, IDLE)},
    "idle nodes for nothing": {"places": (ALWAYS, MISSED, 0.0)},
    "without price": {"price": 0.0},
    "without CPU term": {"cpu_left": 0.0},
    "one length of bags": {"alone": (BAG, SPREAD, 1.0)},
}
_COMPILED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{name: (name, {}) for name in compiled.POLICIES[1:]},
    **{
        name: (compiled.POLICIES[0], options)
        for name, options in _OPTIONS.items()
        if name not in ("ours, mix known", "ours, card by score")
    },
}  # what the compiled replay does: as which policy, and with which options of the scorer
ABLATION: Final = tuple(_OPTIONS)
TERMS: Final = tuple(name for name in ABLATION if not name.startswith("ours"))  # each without one of them
BASELINES: Final = ("FGD", "BestFit", "GpuPacking", "GpuClustering", "DotProd", "Random")


@dataclass(frozen=True, slots=True)
class Job:
    """One run. ``order``: the seed of the nodes' order, that of the pods unless said."""

    trace: str
    policy: str
    seed: int
    order: int | None = None

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells runs apart."""
        return self.trace, self.policy, self.seed, self.seed if self.order is None else self.order


class Study:
    """Runs jobs over one base trace, its kin, and ``others`` by their names. ``observed``: lifetimes in
    seconds, for pods that leave.
    """

    def __init__(
        self, base: Trace, others: Mapping[str, Trace] | None = None, observed: Sequence[float] = ()
    ) -> None:
        self._base, self._others, self.observed = base, others or {}, observed
        self.trace = cache(self._trace)
        self.fragments = cache(lambda name: Fragments(self.trace(name).pods))

    def _trace(self, name: str) -> Trace:
        return kin(self._base, name) if name in KIN else self._others.get(name, self._base)

    def has(self, name: str) -> bool:
        """False for a trace of the plan that was not given."""
        return name != SECOND or name in self._others

    def policy(self, job: Job) -> Policy:
        """A new one for the run."""
        trace = self.trace(job.trace)
        if job.policy in _OPTIONS:
            known = trace.pods if job.policy == "ours, mix known" else ()
            return Ours(stock_of(trace.nodes), known=known, **_OPTIONS[job.policy])
        plain: dict[str, Callable[[], Policy]] = {
            "FGD": partial(Fgd, self.fragments(job.trace)),
            "BestFit": BestFit,
            "GpuPacking": GpuPacking,
            "GpuClustering": GpuClustering,
            "DotProd": DotProd,
            "Random": BestFit,
        }
        return plain[job.policy]()

    def run(self, job: Job) -> Result:
        """The figures."""
        trace = self.trace(job.trace)
        chance = random.Random(f"any node {job.seed}") if job.policy == "Random" else None
        nodes, pods = permuted(trace.nodes, job.key[3]), arrivals(trace, job.seed)
        by: Result = {}
        if job.policy in _COMPILED and compiled.available():
            by["compiled"] = compiled.digest()
            name, options = _COMPILED[job.policy]
            scorer = partial(Scorer, **options)
            run: Run = compiled.stay(nodes, pods, name, trace.pods, stock_of(trace.nodes), scorer)
        else:
            run = replay(nodes, pods, self.policy(job), self.fragments(job.trace), chance)
        return {
            "trace": job.trace,
            "policy": job.policy,
            "seed": job.seed,
            "order": job.key[3],
            "allocation": {str(at): round(run.allocation[at], 4) for at in CURVE if at in run.allocation},
            "fragmentation": {
                str(at): round(run.fragmentation[at], 4) for at in CURVE if at in run.fragmentation
            },
            "rejected": run.rejected,
            "rejected_without_gpu": run.rejected_cpu,
            "code": fingerprint(job.policy),
            **by,
        }


def load(path: Path = RESULTS) -> list[Result]:
    """What has been measured; nothing if there is no such file."""
    return list(_file(path).get("runs", ()))


def repeated(path: Path = RESULTS) -> Repeated:
    """Which code has repeated runs of which other to the last digit, and which runs those were."""
    return dict(_file(path).get("repeated", {}))


def _file(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def valid(runs: Iterable[Result], again: Repeated | None = None) -> list[Result]:
    """Those that the code as it is now would measure again: its own, and of code that it has repeated."""
    known = repeated() if again is None else again
    return [
        run
        for run in runs
        if run.get("code") in standing(fingerprint(run["policy"]), known) and compiled_stands(run, known)
    ]


def compiled_key(policy: str, digest: str) -> str:
    """What tells compiled replays apart among what was repeated: each policy by itself."""
    return f"{digest} {policy}"


def compiled_stands(run: Result, again: Repeated) -> bool:
    """True of a run in Python, or by the compiled replay as it is now, or by one whose runs it repeated."""
    if "compiled" not in run:
        return True
    now, names = compiled.digest(), [run["policy"]]
    if "trace" in run:  # that those who stay came out the same says nothing of those who leave
        names.append(_staying(run["policy"]))
    return any(compiled_key(n, run["compiled"]) in standing(compiled_key(n, now), again) for n in names)


def _staying(policy: str) -> str:
    return f"{policy}, pods that stay"


def standing(now: str, again: Repeated) -> set[str]:
    """The code itself, and all that gave the same figures, from one to the next."""
    found, waiting = {now}, [now]
    while waiting:
        at = waiting.pop()
        new = {*again.get(at, ()), *(code for code, each in again.items() if at in each)} - found
        found |= new
        waiting += new
    return found


def sample(runs: Sequence[Result]) -> list[Result]:
    """Of the runs that other code made one for each trace and policy: what the present code has to repeat."""
    others = [run for run in runs if run.get("code") != fingerprint(run["policy"])]
    chosen = {(run["trace"], run["policy"]): run for run in sorted(others, key=lambda run: -run["seed"])}
    return list(chosen.values())


def repeats(study: Study, runs: Sequence[Result], again: Repeated) -> tuple[Repeated, list[Result]]:
    """Run these again. ``again`` with those that came out the same added, and those that did not."""
    found = {now: {old: list(keys) for old, keys in each.items()} for now, each in again.items()}
    differ: list[Result] = []
    for run in runs:
        job = Job(run["trace"], run["policy"], run["seed"], run["order"])
        new = study.run(job)
        if any(new[what] != run[what] for what in new if what not in ("code", "compiled")):
            differ.append(run)
            continue
        words = " ".join(map(str, job.key))
        found.setdefault(new["code"], {}).setdefault(run["code"], []).append(words)
        if "compiled" in new and run.get("compiled", new["compiled"]) != new["compiled"]:
            key, before = (compiled_key(_staying(job.policy), each["compiled"]) for each in (new, run))
            found.setdefault(key, {}).setdefault(before, []).append(words)
    old = {run["code"] for run in differ}
    old |= {compiled_key(_staying(run["policy"]), run["compiled"]) for run in differ if "compiled" in run}
    return {now: {c: keys for c, keys in each.items() if c not in old} for now, each in found.items()}, differ


def save(runs: Sequence[Result], path: Path = RESULTS, again: Repeated | None = None) -> None:
    """One run a line, so that a difference can be read."""
    ordered = sorted(runs, key=lambda r: (r["trace"], r["policy"], r["seed"], r["order"]))
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in ordered)
    about = (
        "Runs of the openb experiment by python -m bench.placement. seed: of the pods' order; order: of the"
        " nodes' names. allocation and fragmentation: percent of the cluster's GPUs, by percent of arrived"
        " demand. Kin are resampled from default as bench/placement/trace.py says, with seed 7."
        " repeated: a fingerprint of the code, that of other code, and the runs of the latter which the"
        " former repeated to the last digit (python -m bench.placement --repeat): the others stand on that."
        " Runs of the published policies of commits before d2c98cf stand likewise."
    )
    known = json.dumps(repeated(path) if again is None else again, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{"about": {json.dumps(about)},\n"repeated": {known},\n"runs": [\n{lines}\n]}}\n'
    path.write_text(text, encoding="utf-8")


def pending(jobs: Iterable[Job], runs: Sequence[Result]) -> Iterator[Job]:
    """The jobs whose result is not there yet."""
    done = {(r["trace"], r["policy"], r["seed"], r["order"]) for r in runs}
    return (job for job in jobs if job.key not in done)


def full_plan() -> list[Job]:
    """Every run that the placement study quotes, what matters most first: a part of it is fair too."""
    jobs = [Job(name, policy, SEEDS[0]) for name in ("default", *KIN) for policy in THREE]
    jobs += [Job("default", policy, seed) for seed in SEEDS for policy in THREE]
    jobs += [Job(name, policy, seed) for seed in SEEDS for name in KIN for policy in THREE]
    jobs += [Job("default", policy, SEEDS[0], order) for order in range(10) for policy in THREE[:2]]
    jobs += [Job(name, policy, SEEDS[0]) for policy in TERMS for name in ("default", *KIN)]
    jobs += [Job(SECOND, policy, seed) for seed in SEEDS for policy in THREE]
    for seeds in (SEEDS[:1], SEEDS[:3], SEEDS):
        jobs += [Job("default", policy, seed) for seed in seeds for policy in BASELINES]
        jobs += [Job("default", policy, seed) for seed in seeds[:3] for policy in ABLATION]
    jobs += [Job(name, policy, SEEDS[0]) for name in KIN for policy in ABLATION]
    return list({job.key: job for job in jobs}.values())


@cache
def fingerprint(policy: str = "ours", *more: str) -> str:
    """Of the code that a run's figures come from, without its words: docstrings, comments and layout.

    The published policies know nothing of the product's scorer: a change of it leaves their runs valid.
    ``more``: files of the bench that the run went through besides.
    """
    score, bench = ROOT / "gpu_manager" / "domain" / "score", ROOT / "bench" / "placement"
    files = [score / "request_mix.py", *(bench / f"{name}.py" for name in ("trace", "policies", "replay"))]
    if policy in ABLATION:
        files += [
            score / "multi_gpu_slots.py",
            score / "closing.py",
            score / "scorer.py",
            score / "fragmentation.py",
            bench / "ours.py",
        ]
    files += [bench / f"{name}.py" for name in more]
    return code_digest(files)


def commit() -> str:
    """The state of the project, short."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() or "unknown"
