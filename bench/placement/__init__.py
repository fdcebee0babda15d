"""Placement: the openb experiment with the product's scorer and the published policies beside it, and links.

FGD and Best-Fit are run in the same replay; where they are more than half a point from their published
means, the replay is wrong and says so in place of a figure. Popularity comes from pods that have arrived.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from bench.placement import departures, fractions, link_rows, memory_mix, priorities, waits, whole_nodes, wire
from bench.placement.bars import Rows
from bench.placement.ours import Ours
from bench.placement.policies import Fgd, Fragments
from bench.placement.replay import replay, stock_of
from bench.placement.study import KIN, ROOT, SEEDS, Job, Result, Study, load, pending, valid
from bench.placement.trace import Trace, arrivals, permuted, read
from bench.rows import Row, percentile

PUBLISHED: Final = {"FGD": (95.23, 95.39), "BestFit": (92.86, 93.08)}  # allocation at 100 and 130 %
_NEAR: Final = 0.5
_CALL_SECONDS: Final = 300.0  # of a part that goes on where the last call ended


def data(folder: str) -> Path | None:
    """A folder of public data: under ``BENCH_DATA``, else beside the project; None if it is not there."""
    for root in (os.environ.get("BENCH_DATA"), ROOT.parent / "shared" / "data"):
        if root and (Path(root) / folder).is_dir():
            return Path(root) / folder
    return None


# What can be measured alone, and the rows of it. Of all of these only decisions depends on the machine.
_STARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": ("openb_default_", "openb_permuted_", "frag_"),
    "wire": ("openb_wire_",),
    "priorities": ("priority_",),
    "fractions": ("fractions_",),
    "whole": ("nodes_",),
    "kin": ("kin_",),
    "memory": ("memory_mix_",),
    "restart": ("restart_",),
    "departures": ("departures_",),
    "decisions": ("decision_",),
    "links": ("topology_",),
    "sets": ("best_set_",),
}
PARTS: Final = tuple(_STARTS)


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """The group's table, or one part of it."""
    row = Rows(full)
    parts = [part for part in PARTS if only in ("", part)]
    openb, links = data("openb"), data("topologies")
    trace = None
    if openb and not {"links", "sets", "fractions", "whole"}.issuperset(parts):
        trace = read(openb / "openb_node_list_gpu_node.csv", openb / "openb_pod_list_default.csv")
    figures = None if trace is None else _Figures(Study(trace), full=full)
    for part in parts:
        if part == "sets":
            yield link_rows.largest(row)
        elif part == "fractions":
            yield from _fractions(row)
        elif part == "whole":
            yield from whole_nodes.rows(row)
        elif part == "links" and links:
            yield from link_rows.links(row, links)
        elif part == "links":
            yield from row.missing(*_STARTS[part], note="needs recorded nvidia-smi topo -m matrices")
        elif trace and figures:
            yield from _OPENB[part](row, figures, trace)
        else:
            yield from row.missing(*_STARTS[part], note="needs the openb trace")


class _Figures:
    """Runs of a study: those kept by this very code, and what else is needed, measured now."""

    def __init__(self, study: Study, *, full: bool) -> None:
        self._study = study
        self._runs = valid(load()) if full else []

    def of(self, jobs: Sequence[Job]) -> list[Result]:
        self._runs += [self._study.run(job) for job in pending(jobs, self._runs)]
        known = {(r["trace"], r["policy"], r["seed"], r["order"]): r for r in self._runs}
        return [known[job.key] for job in jobs]

    def mean(self, trace: str, policy: str, seeds: Sequence[int], what: str, at: int) -> float:
        runs = self.of([Job(trace, policy, seed) for seed in seeds])
        return statistics.mean(float(run[what][str(at)]) for run in runs)


def _default_trace(row: Rows, figures: _Figures, _trace: Trace) -> Iterator[Row]:
    seeds = SEEDS if row.full else SEEDS[:2]
    yield from _default(row, figures, seeds)
    yield _orders(row, figures)
    for at in (80, 100):
        ours, fgd = (figures.mean("default", p, seeds, "fragmentation", at) for p in ("ours", "FGD"))
        note = f"FGD's own measure, % of capacity, at {at} % arrived; baseline: FGD; {_said(seeds)}"
        yield row(f"frag_default_{at}", ours, note, round(fgd, 2))


def _kin_traces(row: Rows, figures: _Figures, _trace: Trace) -> Iterator[Row]:
    for name in KIN:
        yield _kin(row, figures, name, SEEDS if row.full else SEEDS[:1])


def _said(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of seeds {seeds[0]} to {seeds[-1]}"


def _default(row: Rows, figures: _Figures, seeds: Sequence[int]) -> Iterator[Row]:
    for place, at in enumerate((100, 130)):
        mean = {p: figures.mean("default", p, seeds, "allocation", at) for p in ("ours", *PUBLISHED)}
        near = all(abs(mean[p] - PUBLISHED[p][place]) <= _NEAR for p in PUBLISHED)
        here = ", ".join(f"{p} {mean[p]:.2f} (published {PUBLISHED[p][place]})" for p in PUBLISHED)
        runs = figures.of([Job("default", "ours", seed) for seed in seeds])
        spread = statistics.pstdev(run["allocation"][str(at)] for run in runs)
        lost = statistics.mean(run["rejected_without_gpu"] for run in runs)
        note = (
            f"GPU allocation at {at} % arrived, {_said(seeds)}, sd {spread:.2f}; here {here};"
            f" pods without a GPU turned away: {lost:g}; baseline: FGD"
        )
        if not near:
            note = f"the replay is wrong: {here}"
        yield row(f"openb_default_{at}", mean["ours"] if near else None, note, round(mean["FGD"], 2))


def _orders(row: Rows, figures: _Figures) -> Row:
    orders = range(10 if row.full else 3)
    spread: dict[str, float] = {}
    for policy in ("ours", "FGD"):
        runs = figures.of([Job("default", policy, SEEDS[0], order) for order in orders])
        found = [run["allocation"]["100"] for run in runs]
        spread[policy] = max(found) - min(found)
    note = f"most minus least at 100 % over {len(orders)} orders of the nodes' names; baseline: FGD"
    return row("openb_permuted_spread", spread["ours"], note, round(spread["FGD"], 2))


def _kin(row: Rows, figures: _Figures, name: str, seeds: Sequence[int]) -> Row:
    at = 100 if name == "spec" else 130
    mean = {p: figures.mean(name, p, seeds, "allocation", at) for p in ("ours", "FGD", "BestFit")}
    lost = {
        p: statistics.mean(r["rejected_without_gpu"] for r in figures.of([Job(name, p, s) for s in seeds]))
        for p in ("ours", "FGD")
    }
    note = (
        f"ours {mean['ours']:.2f}, FGD {mean['FGD']:.2f}, BestFit {mean['BestFit']:.2f}; {_said(seeds)};"
        f" pods without a GPU turned away: {lost['ours']:g}, by FGD {lost['FGD']:g}"
    )
    return row(f"kin_{name}_{at}", mean["ours"] - mean["FGD"], note)


def _wire(row: Rows, _figures: _Figures, trace: Trace) -> Iterator[Row]:
    """An eighth of the cluster unless full; the same pods, in process and over the wire."""
    lost: list[float] = []
    uneven, spread = 0, 0.0
    seeds = SEEDS[:1] if row.full else SEEDS[:2]
    study = Study(trace)
    for seed in seeds:
        nodes, pods = permuted(trace.nodes, seed), arrivals(trace, seed)
        if not row.full:
            nodes, pods = wire.few(nodes, pods, 8)
        small = Study(Trace(tuple(nodes), trace.pods))
        inside = replay(nodes, pods, small.policy(Job("given", "ours", seed)), study.fragments("default"))
        over = wire.Wire(nodes, seed)
        lost.append(inside.allocation[100] - wire.replay(nodes, pods, over)[100])
        uneven += over.uneven
    if not row.full:
        other = wire.replay(nodes, pods, wire.Wire(nodes, seeds[-1], spread=True))
        spread = inside.allocation[100] - other[100]
    size = "" if row.full else ", an eighth of the nodes"
    note = (
        f"points below the same run in process, {_said(seeds)}{size};"
        f" answers without exactly one 10: {uneven};"
        " pods without a GPU never reach the extender and are placed as in process"
    )
    if not row.full:
        note += f" (by kube-scheduler's own LeastAllocated it would be {spread:.1f} points)"
    yield row("openb_wire_100", statistics.mean(lost), note)


def _decisions(row: Rows, _figures: _Figures, trace: Trace) -> Iterator[Row]:
    seed, study = SEEDS[0], Study(trace)
    policy = study.policy(Job("default", "ours", seed))
    fragments = study.fragments("default")
    run = replay(permuted(trace.nodes, seed), arrivals(trace, seed), policy, fragments, warm=True)
    beside = f"{len(run.refreshes)} refreshes beside it took {sum(run.refreshes):.1f} s in all"
    for percent in (50, 99):
        figure = percentile(run.decisions, percent) * 1e3
        note = (
            f"filter and score over {len(trace.nodes)} nodes, {len(run.decisions)} decisions, processor time"
            f" of the thread; most {max(run.decisions) * 1e3:.1f} ms; {beside}; true of a quiet machine only"
        )
        yield row(f"decision_p{percent}_ms", figure, note)


def _restart(row: Rows, _figures: _Figures, trace: Trace) -> Iterator[Row]:
    """The extender starts anew halfway: what is rejected after that, beside a run in which it goes on."""
    seeds = SEEDS if row.full else SEEDS[:1]
    added: dict[str, list[float]] = {"estimated": [], "forgotten": []}
    for seed in seeds:
        nodes, coming = departures.stream(trace, seed, departures.LOADS[0])
        without = departures.run(nodes, coming, Ours(stock_of(nodes))).rejected
        for name, found in added.items():
            ours = Ours(stock_of(nodes))

            def halfway(
                running: Sequence[departures.Coming],
                waiting: Sequence[departures.Coming],
                name: str = name,
                ours: Ours = ours,
            ) -> None:
                created = [each.at for each in running] if name == "estimated" else []
                ours.restart([each.pod.shape for each in (*running, *waiting)], created)

            found.append(departures.run(nodes, coming, ours, halfway).rejected - without)
    note = (
        f"of the GPU demand that came after a restart of the extender, what gave up, minus the same without a"
        f" restart; load {departures.LOADS[0]:g}, {_said(seeds)}, worst {max(added['estimated']):.2f};"
        " baseline: who left before the restart is forgotten"
    )
    yield row(
        "restart_rejected_points",
        statistics.mean(added["estimated"]),
        note,
        round(statistics.mean(added["forgotten"]), 2),
    )


def _memory(row: Rows, _figures: _Figures, trace: Trace) -> Iterator[Row]:
    """Fractions that ask for memory of their card: the worst of the mixes."""
    seeds = SEEDS if row.full else SEEDS[:2]
    cores: dict[str, float] = {}
    refused: dict[str, float] = {}
    for mix in memory_mix.MIXES:
        given = memory_mix.with_memory(trace, mix)
        fragments = Fragments(given.pods)
        pairs = [
            (
                memory_mix.replay(given, seed, Ours(memory_mix.stock_of(given.nodes))),
                memory_mix.replay(given, seed, Fgd(fragments)),
            )
            for seed in seeds
        ]
        cores[mix] = statistics.mean(ours.cores - fgd.cores for ours, fgd in pairs)
        refused[mix] = statistics.mean(fgd.refused - ours.refused for ours, fgd in pairs)
    on = f"one node of {memory_mix.PART}, 130 % arrived, {_said(seeds)}"
    for name, found, what in (
        ("memory_mix_points", cores, "allocated cores, % of the cluster, above FGD's"),
        ("memory_mix_refused_points", refused, "pods with a request for cores refused, %, below FGD's"),
    ):
        each = ", ".join(f"{mix} {points:+.2f}" for mix, points in found.items())
        yield row(
            name, min(found.values()), f"{what}: the worst of {len(found)} mixes of memory; {each}; {on}"
        )


def _departures(row: Rows, _figures: _Figures, trace: Trace) -> Iterator[Row]:
    """The cells kept in the repository; with ``full`` five minutes of those that are missing are added.

    Without all of them there is no figure: the worst of some cells says nothing of the others.
    """
    ends = time.monotonic() + (_CALL_SECONDS if row.full else 0.0)
    dlrm, full = data(departures.OBSERVED), row.full
    lives = departures.observed_lifetimes(dlrm / "gpu_instances.csv.gz") if dlrm else []
    study = Study(trace, observed=lives)
    for wanted, names in (
        (waits.cells(), ("departures_waiting_points", "departures_waiting_upper")),
        (waits.observed_cells(), ("departures_observed_points",)),
    ):
        can = full and (lives or wanted[0].law != departures.OBSERVED)
        until = ends if can else 0.0
        runs = waits.measured(study, wanted, partial(_before, until))
        row.full = full
        yield from _leads(row, names, wanted, runs)


def _before(end: float) -> bool:
    return time.monotonic() < end


def _leads(
    row: Rows, names: Sequence[str], wanted: Sequence[waits.Wait], runs: list[Result]
) -> Iterator[Row]:
    found = waits.leads(runs)
    if not found:
        why = f"{len(runs)} of {len(wanted)} runs are kept, of no cell those of all policies"
        for name in names:
            yield from row.missing(name, note=why)
        return
    whole = len({wait.cell for wait in wanted})
    complete = row.full = len(runs) == len(wanted)
    for name in names:
        upper = name.endswith("upper")
        worst = max(found, key=attrgetter("upper" if upper else "mean"))
        cell = worst.cell
        figure = worst.upper if upper else worst.mean
        so_far = "" if complete else f"; {figure:+.2f} so far"
        note = (
            f"of the cluster's GPUs, demand that waits under ours minus under the better of FGD and Best-Fit;"
            f" worst of {len(found)} of {whole} cells: load {cell.load:g}, {cell.law} lifetimes, patience"
            f" {cell.patience}, one node of {cell.part}, {worst.seeds} seeds;"
            f" mean of the cells {statistics.mean(lead.mean for lead in found):+.2f},"
            f" {sum(lead.mean > 0 for lead in found)} of them above 0;"
            f" {len(runs)} of {len(wanted)} runs{so_far}"
        )
        yield row(name, figure if complete else None, note)


_OPENB: Final[Mapping[str, Callable[[Rows, _Figures, Trace], Iterator[Row]]]] = {
    "default": _default_trace,
    "wire": _wire,
    "priorities": lambda row, _figures, trace: priorities.rows(row, trace),
    "kin": _kin_traces,
    "memory": _memory,
    "restart": _restart,
    "departures": _departures,
    "decisions": _decisions,
}


def _fractions(row: Rows) -> Iterator[Row]:
    repeats = 20 if row.full else 3
    ratios: list[float] = []
    spread, said = 0, list[str]()
    for name, sizes in fractions.SIZES.items():
        coming = fractions.pods(sizes)
        bound = fractions.volume_bound(coming)
        used = [fractions.nodes_used(coming, repeat) for repeat in range(repeats)]
        ratios += [each / bound for each in used]
        spread = max(spread, max(used) - min(used))
        said.append(f"{name}: {max(used)} for a bound of {bound}")
    note = (
        f"nodes in use over the fewest that have the cores; {fractions.PODS} fractions,"
        f" {fractions.NODES} idle nodes of {fractions.CARDS} cards, through filter and prioritize;"
        f" {'; '.join(said)};"
        f" {repeats} repeats with other names, lots and timing"
    )
    yield row("fractions_nodes_ratio", max(ratios), f"most {note}")
    yield row("fractions_nodes_spread", spread, f"most minus least {note}")
