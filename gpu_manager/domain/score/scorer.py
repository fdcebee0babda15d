"""What it costs to put a request on a node: what the node's free cards lose in use for the mix of requests.

    cost = V(after) - V(before)  +  0.5 · L(model) · cores  +  20 · host CPU left / 128 cores (no card asked)

V is :class:`~gpu_manager.domain.score.waste.Waste`; L the model's price, how much of the demand can only,
or also, go to its cards; cores what is taken of them. The lowest cost wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu_manager.domain.score.shapes import Mix, Room, Stock
from gpu_manager.domain.score.waste import Waste

FILL_UP: Final = 0.15
ROLL_OUT: Final = 1.0
PRICE: Final = 0.5
CPU_LEFT: Final = 20 / 128_000  # cores a thousandth of host CPU, for a pod that asks for no card
_DIGITS: Final = 2  # finer differences are noise of the bags; what then is equal, the content decides

Rooms = tuple[Room, ...]  # a node: its cards by model, in the order of the models' names
Cost = tuple[float, int, tuple[tuple[tuple[int, int], ...], ...], Rooms, Rooms]


def prices(mix: Mix, stock: Mapping[str, Stock]) -> dict[str, float]:
    """How sought each model is: 1 on average over the cards; 1 for all where nobody names a model.

    Each shape's demand is spread over the models it allows, in proportion to their cards.
    """
    loads = dict.fromkeys(stock, 0.0)
    for shape, count in mix.counts:
        allowed = [model for model in stock if shape.allows(model)]
        cards = sum(stock[model].cards for model in allowed)
        for model in allowed:
            loads[model] += count * shape.cores * stock[model].cards / cards if cards else 0.0
    total, cards = sum(loads.values()), sum(s.cards for s in stock.values())
    if not total:
        return dict.fromkeys(stock, 1.0)
    return {model: load / stock[model].cards * cards / total for model, load in loads.items()}


class Scorer:
    """Costs under one mix, remembered. Deterministic: the content of a node decides, never its name."""

    def __init__(
        self,
        mix: Mix,
        stock: Mapping[str, Stock],
        *,
        parts: tuple[float, float] = (FILL_UP, ROLL_OUT),
        price: float = PRICE,
        cpu_left: float = CPU_LEFT,
    ) -> None:
        """``stock``: the cluster's cards by model; rooms of other models cannot be scored."""
        self.mix = mix
        self.stock = dict(stock)
        self.waste = Waste(mix, stock, parts)
        self._prices = {model: price * each for model, each in prices(mix, stock).items()}
        self._cpu_left = cpu_left

    def costs(self, moves: Sequence[tuple[Rooms, Rooms]]) -> list[Cost]:
        """One for each (before, after), the lowest wins. Equal ones lose nothing over each other.

        Where the costs agree to a hundredth of a core: less free host CPU, emptier cards, then model and
        number of cards.
        """
        wasted = self._wasted([rooms for move in moves for rooms in move])
        return [self._cost(*move, wasted[move[1]] - wasted[move[0]]) for move in moves]

    def _wasted(self, nodes: Sequence[Rooms]) -> dict[Rooms, float]:
        distinct = dict.fromkeys(nodes)
        values = iter(self.waste.of([room for rooms in distinct for room in rooms]))
        return {rooms: sum(next(values) for _ in rooms) for rooms in distinct}

    def _cost(self, before: Rooms, after: Rooms, lost: float) -> Cost:
        # The waste falls by whatever a request fills.
        taken = 0
        for old, new in zip(before, after, strict=True):
            cores = old.cores - new.cores
            lost += self._prices[old.model] * cores
            taken += cores
        cpu = before[0].cpu if before else None
        if not taken and after and after[0].cpu is not None:
            lost += self._cpu_left * after[0].cpu
        free = tuple(room.free for room in before)
        return (round(lost, _DIGITS), -1 if cpu is None else cpu, free, before, after)
