"""The cost of a request on a node: how much less useful the node's free cards become for the mix of requests.

    cost = V(after) - V(before)  +  0.5 · L(model) · cores  +  20 · host CPU left / 128 cores (no card asked)
           +  the prices of the places lost
           +  turnover · 8 · cards' worth left free on the node
           +  (departures + 0.2) / (arrivals + 0.4) · 4 · host CPUs of an idle node broken

V is :class:`~gpu_manager.domain.score.fragmentation.Fragmentation`; L is the model's price, by how much of
the demand can only, or also, go to its cards; cores is the number taken. The lowest cost wins. All parts but
the price of slots depend on the node alone and are cached; that price depends on how many the cluster has
left (:class:`~gpu_manager.domain.score.multi_gpu_slots.MultiGpuSlots`) and is added at each decision, by
:func:`in_all`. Where pods leave, the fuller node goes first: one on which little lies will soon be empty. Of
idle nodes the one with the least host CPU is broken first: requests for several cards may ask for much. That
counts before any pod has left, too: which nodes the first pods break is not mended by what is seen later.
Kept nodes and neighbours that do not suit a pod's priority cost more, outside of what is cached here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.fragmentation import ALONE, Fragmentation, RollOutRoutine
from gpu_manager.domain.score.multi_gpu_slots import ALWAYS, IDLE, MISSED, Loss, MultiGpuSlots, Rooms
from gpu_manager.domain.score.request_mix import Mix, Stock

FILL_UP: Final = 0.03
ROLL_OUT: Final = 1.0
PRICE: Final = 0.5
PACK: Final = 8.0  # cores for each card's worth left free, once all arrivals have left again
OPEN: Final = 4.0  # cores for each host CPU of a broken idle node, once all have left again
ASSUMED: Final = 0.2  # departures, and staying arrivals, assumed for OPEN before any pod has left
CPU_LEFT: Final = 20 / 128_000  # cores per thousandth of host CPU, for a pod that requests no card
_DIGITS: Final = 2  # finer differences are noise of the draw; ties are broken by the node's content

Cost = tuple[float, int, tuple[tuple[tuple[int, int], ...], ...], Rooms, Rooms]


def prices(mix: Mix, stock: Mapping[str, Stock]) -> dict[str, float]:
    """Return the relative demand for each model: 1 on average over the cards; 1 for all if no pod names one.

    The demand of a shape that names models is spread over those whose cards have the memory, in proportion to
    their cards. One that names none tells no cards apart, whatever its memory: it adds the same to all.
    """
    loads = dict.fromkeys(stock, 0.0)
    for shape, count in mix.counts:
        # What a large card is worth to a request for memory is in V. Counted here too, whole cards, which are
        # as well off on any, would leave large ones to fractions that strand most of their cores.
        named = [
            model
            for model, each in stock.items()
            if not shape.models or (shape.allows(model) and shape.memory <= each.memory)
        ]
        cards = sum(stock[model].cards for model in named)
        for model in named:
            loads[model] += count * shape.cores * stock[model].cards / cards if cards else 0.0
    total, cards = sum(loads.values()), sum(s.cards for s in stock.values())
    if not total:
        return dict.fromkeys(stock, 1.0)
    return {model: load / stock[model].cards * cards / total for model, load in loads.items()}


class Scorer:
    """Computes and caches costs under one mix. Costs depend on a node's content, never on its name."""

    def __init__(
        self,
        mix: Mix,
        stock: Mapping[str, Stock],
        *,
        parts: tuple[float, float] = (FILL_UP, ROLL_OUT),
        price: float = PRICE,
        cpu_left: float = CPU_LEFT,
        places: tuple[float, float, float] = (ALWAYS, MISSED, IDLE),
        leaving: tuple[float, float] = (PACK, OPEN),
        assumed: float = ASSUMED,
        alone: tuple[float, float, float] = ALONE,
        routine: RollOutRoutine | None = None,
    ) -> None:
        """``stock``: the cluster's cards by model; rooms of other models cannot be scored. ``leaving``:
        weights of the terms for departures; ``assumed``: departures assumed for the second of them before any
        pod has left. ``alone``, ``routine``: as for
        :class:`~gpu_manager.domain.score.fragmentation.Fragmentation`.
        """
        self.mix = mix
        self.stock = dict(stock)
        self.waste = Fragmentation(mix, stock, parts, alone=alone, routine=routine)
        self.places = MultiGpuSlots(mix, stock, places)
        self._prices = {model: price * each for model, each in prices(mix, stock).items()}
        self._cpu_left = cpu_left
        pack, open_ = leaving
        self._pack = pack * mix.turnover / CORES_PER_CARD
        came = mix.total + 2 * assumed
        self._open = open_ * (mix.turnover * mix.total + assumed) / came / 1000 if came else 0.0

    def costs(self, moves: Sequence[tuple[Rooms, Rooms]]) -> list[Cost]:
        """Return a cost for each (before, after); the lowest wins.

        Ties to a hundredth of a core go to less free host CPU, emptier cards, then model and number of cards.
        """
        # Hashing what lies on all cards of a node takes a microsecond: waste.of does it, once for each.
        values = iter(self.waste.of([room for move in moves for rooms in move for room in rooms]))
        wasted = [[sum(next(values) for _ in rooms) for rooms in move] for move in moves]
        return [
            self._cost(*move, after - before) for move, (before, after) in zip(moves, wasted, strict=True)
        ]

    def _cost(self, before: Rooms, after: Rooms, lost: float) -> Cost:
        # The waste falls by whatever a request fills.
        taken = 0
        for old, new in zip(before, after, strict=True):
            cores = old.cores - new.cores
            lost += self._prices[old.model] * cores
            taken += cores
        cpu = before[0].cpu if before else None
        if taken and self._pack:
            lost += self._pack * sum(room.cores for room in after)
        if taken and self._open and cpu and _all_idle(before):
            lost += self._open * cpu
        if not taken and after and after[0].cpu is not None:
            lost += self._cpu_left * after[0].cpu
        free = tuple(room.free for room in before)
        return (round(lost, _DIGITS), -1 if cpu is None else cpu, free, before, after)


def _all_idle(node: Rooms) -> bool:
    return all(card == (CORES_PER_CARD, room.memory) for room in node for card in room.free)


def in_all(cost: tuple[Any, ...], loss: Loss, prices: Sequence[float]) -> tuple[Any, ...]:
    """Return a cost plus the current price of the slots lost."""
    if not loss:
        return cost
    return (round(cost[0] + sum(n * prices[at] for at, n in loss), _DIGITS), *cost[1:])


BESIDE: Final = 10.0  # cores for each step by which a card suits less


def with_neighbours(cost: tuple[Any, ...], unsuited: int) -> tuple[Any, ...]:
    """Return the cost of a pod on cards that suit it less by ``unsuited`` steps in total."""
    return (cost[0] + BESIDE * unsuited, *cost[1:]) if unsuited else cost
