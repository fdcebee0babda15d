"""Rows of placement about links: the best set of the moment, sets that come and go, and how long it takes."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench.placement import online, topology
from bench.placement.bars import Rows
from bench.rows import Row
from gpu_manager.domain.placement.card_sets import PREPARED, grown_set
from gpu_manager.domain.topology import Topology


def links(row: Rows, folder: Path) -> Iterator[Row]:
    """Sets of cards on the recorded machines of this folder, and on machines with links by chance."""
    machines = topology.machines(folder)
    tries = 400 if row.full else 100
    chance = random.Random("single")
    got: dict[str, list[float]] = {}
    for parsed in machines.values():
        plain: dict[str, topology.Chooser] = {
            "ours": topology.exact,
            "first fit": topology.first_fit,
            "greedy pair": topology.greedy,
            "predecessor's tree": topology.tree(parsed),
        }
        for free, count in topology.singles(parsed.topology, chance, tries):
            most = topology.best(parsed.topology, free, count)
            for name, choose in plain.items():
                cards = choose(parsed.topology, free, count)
                got.setdefault(name, []).append(parsed.topology.sum(cards) / most)
    mean = {name: statistics.mean(found) for name, found in got.items()}
    others = ", ".join(f"{name} {value:.3f}" for name, value in mean.items() if name != "ours")
    note = (
        f"least of {len(got['ours'])} requests on {len(machines)} matrices, against every set tried;"
        f" mean of {others}"
    )
    yield row("topology_single", min(got["ours"]), note, round(mean["greedy pair"], 3))
    yield _sequences(row, machines)
    yield from _irregular_sequences(row)


def largest(row: Rows) -> Row:
    """The longest question about several cards of a machine of 64 with any links, the best of five each."""
    sizes, tries = (2, 4, 8, 16, 24, 32, 48, 62), range(6 if row.full else 3)
    took: list[float] = []
    near: list[float] = []
    for number in tries:
        chance = random.Random(number)
        large, small = topology.random_machine(64, chance), topology.random_machine(PREPARED, chance)
        took += [_best_of_five(large, frozenset(range(64)), count) for count in sizes]
        for count in range(2, PREPARED):
            free = frozenset(range(PREPARED))
            grown = small.sum(grown_set(small, free, count))
            near.append(grown / small.sum(topology.exact(small, free, count)))
    note = (
        f"slowest of {len(took)} questions on {len(tries)} machines of 64 cards with links by chance,"
        f" processor time, each the best of 5; on as many of {PREPARED} cards, of the most there is:"
        f" mean {statistics.mean(near):.4f}, least {min(near):.3f}"
    )
    return row("best_set_ms", max(took) * 1e3, note)


def _best_of_five(machine: Topology, free: frozenset[int], count: int) -> float:
    took: list[float] = []
    for _ in range(5):
        began = time.thread_time()
        topology.exact(machine, free, count)
        took.append(time.thread_time() - began)
    return min(took)


def _sequences(row: Rows, machines: topology.Machines) -> Row:
    seeds = range(40 if row.full else 8)
    got: dict[str, dict[str, float]] = {}
    for machine, parsed in machines.items():
        plain: dict[str, topology.Chooser] = {
            "first fit": topology.first_fit,
            "greedy pair": topology.greedy,
            "predecessor's tree": topology.tree(parsed),
        }
        found: dict[str, list[float]] = {}
        for seed in seeds:
            events = topology.sequence(parsed.topology.size, seed)
            most = topology.hindsight(parsed.topology, events)
            ours = topology.Product(parsed.topology)
            found.setdefault("ours", []).append(topology.achieved(parsed.topology, events, ours) / most)
            for name, choose in plain.items():
                other = topology.Plain(parsed.topology, choose)
                found.setdefault(name, []).append(topology.achieved(parsed.topology, events, other) / most)
        for name, ratios in found.items():
            got.setdefault(name, {})[machine] = statistics.mean(ratios)
    mean = {name: statistics.mean(each.values()) for name, each in got.items()}
    worst = min(got["ours"], key=lambda machine: got["ours"][machine])
    others = ", ".join(f"{name} {value:.3f}" for name, value in mean.items() if name != "ours")
    note = (
        "sum over requests that come and go, over the most that hindsight allows (exact);"
        f" {len(machines)} matrices, seeds 0 to {len(seeds) - 1};"
        f" least {got['ours'][worst]:.3f} ({worst}); {others}"
    )
    return row("topology_sequence", mean["ours"], note, round(mean["greedy pair"], 3))


def _irregular_sequences(row: Rows) -> Iterator[Row]:
    seeds = range(20 if row.full else 10)
    got: dict[str, dict[str, float]] = {"ours": {}, "greedy pair": {}, "in time": {}}
    expected: dict[str, float] = {}
    best_now: dict[str, float] = {}
    for name, machine in topology.irregular(50 if row.full else 20).items():
        found: dict[str, list[float]] = {policy: [] for policy in got}
        best = online.Best(machine)
        expected[name] = best.expected_of(online.product(machine)) / best.expected
        best_now[name] = best.expected_of_best_now / best.expected
        for seed in seeds:
            events = topology.sequence(machine.size, seed)
            most = topology.hindsight(machine, events)
            found["ours"].append(topology.achieved(machine, events, topology.Product(machine)) / most)
            greedy = topology.Plain(machine, topology.greedy)
            found["greedy pair"].append(topology.achieved(machine, events, greedy) / most)
            found["in time"].append(best.achieved(events) / most)
        for policy_name, ratios in found.items():
            got[policy_name][name] = statistics.mean(ratios)
    mean = {policy: statistics.mean(each.values()) for policy, each in got.items()}
    worst = min(got["ours"], key=lambda machine: got["ours"][machine])
    on = f"{len(expected)} machines with links by chance"
    note = (
        f"the same on {on}, seeds 0 to {len(seeds) - 1}: the worst ({worst}); mean {mean['ours']:.3f};"
        " the best choices of one who knows how often each request comes, but not which comes next (exact):"
        f" worst {min(got['in time'].values()):.3f}, mean {mean['in time']:.3f};"
        " baseline: greedy pair, its worst"
    )
    least = round(min(got["greedy pair"].values()), 3)
    yield row("topology_sequence_worst", got["ours"][worst], note, least)
    worst = min(expected, key=lambda machine: expected[machine])
    note = (
        "expected connectivity of requests that come and go, over the most that can be expected without"
        f" knowing which comes next (both exact); {on}; who always gives the best set of the moment reaches"
        f" {statistics.mean(best_now.values()):.3f} at most, on the worst machine"
        f" {min(best_now.values()):.3f}"
    )
    yield row("topology_in_time", statistics.mean(expected.values()), note)
    yield row("topology_in_time_worst", expected[worst], f"the same on the worst of them ({worst})")
