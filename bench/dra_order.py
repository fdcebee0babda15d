"""openb with claims on every node: is the published order of devices worth publishing?

kube-scheduler chooses the node by its own scores of host CPU and memory, since it has none for devices, and
takes the first devices that fit in the order of the node's slice. Plain order is by index; ours is
:func:`~gpu_manager.domain.dra.device.published_devices`, published five seconds after the last at the
earliest.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from bench.placement import data
from bench.placement.study import SEEDS
from bench.placement.trace import MOST_PODS, Node, Pod, Trace, arrivals, read
from bench.rows import Row
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.dra.device import device_names, published_devices
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, Amount
from gpu_manager.domain.rules.request import PlacementPolicy

PUBLISH_SECONDS: Final = 5
_UNIT: Final = GIB
"""The trace has no memory of cards."""


def rows(*, full: bool) -> Iterator[Row]:
    """What is allocated when pods have asked for 100 and 130 % of the cards, and the same in plain order."""
    openb = data("openb")
    if openb is None:
        for fill in (100, 130):
            yield Row(f"dra_openb_{fill}", None, "%", "≥ 0", full=full, note="the openb trace is not here")
        return
    trace = read(openb / "openb_node_list_gpu_node.csv", openb / "openb_pod_list_default.csv")
    seeds = SEEDS if full else SEEDS[:1]
    ours, plain = ([replay(trace, seed, is_ours=is_ours) for seed in seeds] for is_ours in (True, False))
    for place, fill in enumerate((100, 130)):
        figure, baseline = (statistics.fmean(run[place] for run in runs) for runs in (ours, plain))
        least = min(a[place] - b[place] for a, b in zip(ours, plain, strict=True))
        yield Row(
            f"dra_openb_{fill}",
            round(figure, 2),
            "%",
            f"≥ {baseline:.2f}",
            round(baseline, 2),
            full,
            f"of all cores, by first fit in published order over {len(seeds)} seeds; plain order beside, at "
            f"worst {least:+.2f} points; nodes by LeastAllocated and BalancedAllocation",
        )


@dataclass
class _Slice:
    """A node's devices in the order that is published, by index."""

    cards: tuple[CardState, ...]
    order: list[int]
    published: float = -PUBLISH_SECONDS
    changed: float | None = None
    names: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        names = device_names([state.card for state in self.cards])
        self.names = {names[state.card.uuid]: state.card.index for state in self.cards}

    def catch_up(self, now: float, free: Sequence[int]) -> None:
        """Publish what changed, if that was due by now. ``free``: cores of each card until now."""
        if self.changed is None or (due := max(self.changed, self.published + PUBLISH_SECONDS)) > now:
            return
        used = {s.card.uuid: Amount(CORES_PER_CARD - free[s.card.index], 0) for s in self.cards}
        devices = published_devices(self.cards, used, PlacementPolicy.BINPACK, _UNIT, 1)
        self.order = [self.names[device.name] for device in devices]
        self.published, self.changed = due, None


def replay(trace: Trace, seed: int, *, is_ours: bool) -> tuple[float, float]:
    """Return the share of all cores, in percent, allocated at 100 and at 130 % of demand."""
    pods = arrivals(trace, seed)
    times = sorted(pod.born for pod in trace.pods)
    nodes = _Nodes(trace.nodes)
    asked, found = 0, [0.0, 0.0]
    for number, pod in enumerate(pods):
        asked += pod.cores
        if (at := nodes.best(pod)) is not None:
            nodes.take(at, pod, times[min(number, len(times) - 1)], is_ours=is_ours)
        share = 100 * nodes.allocated / trace.capacity
        if asked <= trace.capacity:
            found[0] = share
        found[1] = share
    return found[0], found[1]


class _Nodes:
    def __init__(self, nodes: Sequence[Node]) -> None:
        most = max(node.cards for node in nodes)
        self.cpu = np.array([node.cpu for node in nodes], float)
        self.memory = np.array([node.memory for node in nodes], float)
        self.cpu_used, self.memory_used = np.zeros(len(nodes)), np.zeros(len(nodes))
        self.free = np.array([[CORES_PER_CARD * (c < n.cards) for c in range(most)] for n in nodes])
        self.models = np.array([node.model for node in nodes])
        self.pods = np.zeros(len(nodes), int)
        self.slices = [_Slice(_cards(node), list(range(node.cards))) for node in nodes]
        self.allocated = 0

    def best(self, pod: Pod) -> int | None:
        """The node that kube-scheduler's scores choose, the first of equal ones; None if none has room."""
        cpu = (self.cpu_used + pod.shape.cpu) / self.cpu
        memory = (self.memory_used + pod.host_memory) / self.memory
        fits = (cpu <= 1) & (memory <= 1) & (self.pods < MOST_PODS)
        if pod.shape.models:
            fits &= np.isin(self.models, pod.shape.models)
        if pod.shape.cards:
            fits &= (self.free == CORES_PER_CARD).sum(1) >= pod.shape.cards
        elif pod.cores:
            fits &= (self.free >= pod.cores).any(1)
        if not fits.any():
            return None
        least_allocated = np.floor(50 * (1 - cpu)) + np.floor(50 * (1 - memory))
        balanced = np.floor(100 * (1 - abs(cpu - memory) / 2))
        return int(np.where(fits, least_allocated + balanced, -1).argmax())

    def take(self, at: int, pod: Pod, now: float, *, is_ours: bool) -> None:
        """Bind the pod to the node: the first devices that fit, in the order that is published by now."""
        self.cpu_used[at] += pod.shape.cpu
        self.memory_used[at] += pod.host_memory
        self.pods[at] += 1
        if not pod.cores:
            return
        shown, free = self.slices[at], self.free[at]
        if is_ours:
            shown.catch_up(now, free.tolist())
        each, count = (CORES_PER_CARD, pod.shape.cards) if pod.shape.cards else (pod.cores, 1)
        chosen = [card for card in shown.order if free[card] >= each][:count]
        free[chosen] -= each
        self.allocated += each * count
        if shown.changed is None:
            shown.changed = now


def _cards(node: Node) -> tuple[CardState, ...]:
    return tuple(
        CardState(Card(index, CardUuid(f"GPU-{index:08x}"), node.model, GIB)) for index in range(node.cards)
    )
