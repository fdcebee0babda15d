"""Tables and picture of the placement study, from the kept runs: ``python -m bench.placement.page``."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from bench.placement import waits
from bench.placement.plot import PICTURE, draw
from bench.placement.study import ABLATION, BASELINES, KIN, ROOT, SECOND, SEEDS, THREE, Result, load

PAGE: Final = ROOT / "docs" / "internals" / "placement-study.md"
_PUBLISHED: Final = {
    "FGD": "95.23 / 95.39",
    "BestFit": "92.86 / 93.08",
    "GpuPacking": "91.78 / 92.00",
    "GpuClustering": "91.65 / 91.88",
    "DotProd": "90.62 / 90.85",
    "Random": "86.30 / 87.47",
}


class Runs:
    """The kept runs, by trace and policy."""

    def __init__(self, runs: Sequence[Result]) -> None:
        self._runs = runs

    def of(self, trace: str, policy: str, seeds: Iterable[int] = SEEDS) -> list[Result]:
        """Those with the nodes in the seed's own order."""
        wanted = set(seeds)
        return [
            r
            for r in self._runs
            if (r["trace"], r["policy"]) == (trace, policy)
            and r["order"] == r["seed"]
            and r["seed"] in wanted
        ]

    def seeds(self, trace: str, policies: Iterable[str]) -> list[int]:
        """Those that all the policies were run with."""
        each = [{r["seed"] for r in self.of(trace, policy)} for policy in policies]
        return sorted(set.intersection(*each))

    def mean(self, trace: str, policy: str, what: str, at: int, seeds: Iterable[int]) -> float:
        """Over the seeds."""
        return statistics.mean(float(r[what][str(at)]) for r in self.of(trace, policy, seeds))

    def pair(self, trace: str, policy: str, seeds: Iterable[int]) -> str:
        """Allocation at 100 and 130 %."""
        return " / ".join(f"{self.mean(trace, policy, 'allocation', at, seeds):.2f}" for at in (100, 130))


def default(runs: Runs) -> list[str]:
    """Every policy on the trace itself."""
    lines = [
        "| policy | seeds | allocated at 100 / 130 % | published | fragmentation at 80 / 100 / 130 % |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for policy in ("ours", "ours, mix known", *BASELINES):
        found = [r["seed"] for r in runs.of("default", policy)]
        if found:
            lost = " / ".join(
                f"{runs.mean('default', policy, 'fragmentation', at, found):.2f}" for at in (80, 100, 130)
            )
            pair = runs.pair("default", policy, found)
            lines.append(f"| {policy} | {len(found)} | {pair} | {_PUBLISHED.get(policy, '')} | {lost} |")
    return lines


def kin(runs: Runs) -> list[str]:
    """Ours, FGD and Best-Fit on the resampled traces, over the seeds that all three have."""
    lines = [
        "| kin | seeds | ours | FGD | Best-Fit | over FGD, 100 / 130 % | CPU-only pods refused: ours, FGD |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in KIN:
        if not all(runs.of(name, policy) for policy in THREE):
            continue
        seeds = runs.seeds(name, THREE)
        over = " / ".join(
            "{:+.2f}".format(
                runs.mean(name, "ours", "allocation", at, seeds)
                - runs.mean(name, "FGD", "allocation", at, seeds)
            )
            for at in (100, 130)
        )
        away = ", ".join(
            f"{statistics.mean(r['rejected_without_gpu'] for r in runs.of(name, p, seeds)):.0f}"
            for p in THREE[:2]
        )
        cells = " | ".join(runs.pair(name, policy, seeds) for policy in THREE)
        lines.append(f"| {name} | {len(seeds)} | {cells} | {over} | {away} |")
    return lines


def ablation(runs: Runs) -> list[str]:
    """What each term brings: over the seeds that every variant of a trace has."""
    traces = ["default", *KIN]
    named = [v for v in ("FGD", *ABLATION) if v != "ours, mix known"]
    variants = [v for v in named if any(runs.of(t, v) for t in traces)]
    seeds = {t: runs.seeds(t, [v for v in variants if runs.of(t, v)]) for t in traces}
    heads = " | ".join(f"{t} ({len(seeds[t])})" for t in traces)
    lines = [f"| variant (seeds) | {heads} |", "| --- |" + " ---: |" * len(traces)]
    for variant in variants:
        cells = [
            runs.pair(t, variant, seeds[t]) if runs.of(t, variant, seeds[t]) else "not run" for t in traces
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return lines


def second(runs: Runs) -> list[str]:
    """The other trace of which the pods were published, over the seeds that all three have."""
    seeds = runs.seeds(SECOND, THREE)
    if not seeds:
        return ["Not run yet."]
    lines = ["| policy | seeds | allocated at 100 / 130 % | fragmentation at 80 / 100 % |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for policy in THREE:
        lost = " / ".join(f"{runs.mean(SECOND, policy, 'fragmentation', at, seeds):.2f}" for at in (80, 100))
        lines.append(f"| {policy} | {len(seeds)} | {runs.pair(SECOND, policy, seeds)} | {lost} |")
    return lines + _not_run(seeds)


def departures(kept: Sequence[Result]) -> list[str]:
    """Who waits where pods leave, seed by seed that all three have."""
    cell = waits.plan()[0].cell
    found = {
        (run["seed"], run["policy"]): float(run["waiting"]) for run in kept if waits.Wait.of(run).cell == cell
    }
    seeds = [seed for seed in SEEDS if all((seed, policy) in found for policy in THREE)]
    if not seeds:
        return ["Not run yet."]
    lines = ["| seed | ours | FGD | Best-Fit |", "| --- | ---: | ---: | ---: |"]
    rows = [(str(seed), [found[seed, policy] for policy in THREE]) for seed in seeds]
    rows.append(("mean", [statistics.mean(found[seed, policy] for seed in seeds) for policy in THREE]))
    lines += [f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |" for name, values in rows]
    return lines + _not_run(seeds)


def _not_run(seeds: Sequence[int]) -> list[str]:
    left = [str(seed) for seed in SEEDS if seed not in seeds]
    return ["", f"Not run: seeds {', '.join(left)}."] if left else []


def _between(text: str, name: str, table: Sequence[str]) -> str:
    begin, end = f"<!-- {name}: written by python -m bench.placement.page -->", f"<!-- end of {name} -->"
    head, _, rest = text.partition(begin)
    body = "\n".join(table)
    return f"{head}{begin}\n{body}\n{end}{rest.partition(end)[2]}"


def main() -> int:
    """Write what has been measured between its markers."""
    kept = load()
    if not kept:
        sys.stderr.write("there are no runs yet: python -m bench.placement --plan …\n")
        return 1
    runs = Runs(kept)
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("default", default), ("kin", kin), ("second", second), ("ablation", ablation)):
        text = _between(text, name, table(runs))
    text = _between(text, "departures", departures(waits.load()))
    PAGE.write_text(text, encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(kept, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
