"""Slots: how many requests for several cards the nodes can still hold, and the cost of losing a slot.

A request of eight cards needs eight idle cards of one node. Any small pod on such a node takes that slot, and
the cluster may be half empty when the last slot goes. So a slot has a price: the cores of the request, times
the probability that the slot will be missed, which is that as many such requests arrive as there are slots
left before all free cards are requested. With plenty of slots that is 0; a small price by the request's part
of the demand then keeps slots together.

Where hardly anybody has asked for whole cards yet, the mix says nothing about idle nodes. Each then has a
price of its own, so that fractions alone fill the nodes in use before they break an idle one. It falls with
the idle nodes' part of the cluster: the more open cards to choose from, the better the last ones are filled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import FreeShape, Mix

ALWAYS: Final = 0.15  # times the request's cores and its part of the demand for cards; applies always
MISSED: Final = 1.0  # times the request's cores and the probability that its slot will be missed
STAY: Final = (
    3  # times what is free is asked for besides, before room taken is free again, where all pods leave
)
IDLE: Final = 1.0  # cores for each card of an idle node that is broken, where all nodes are idle
WHOLE: Final = 0.05  # whole cards' part of the demand from which on the mix prices idle nodes
_COUNTED: Final = 30  # requests expected; above, the normal curve is near enough
_SIGMAS: Final = 8  # beyond so many the chance is 0 or 1

Rooms = tuple[FreeShape, ...]  # a node: its cards by model, in the order of the models' names
Loss = tuple[tuple[int, int], ...]  # (place among the counts, how many less)


class MultiGpuSlots:
    """The slots and prices of a mix's requests for several cards. Results per node are cached.

    While idle nodes have a price of their own, the last count of a node is its cards if all are idle.
    """

    def __init__(self, mix: Mix, cards: int, weights: tuple[float, float] = (ALWAYS, MISSED)) -> None:
        """``cards``: in the cluster. ``weights``: of the constant price of a slot, and of its price by the
        probability to be missed.
        """
        always, missed = weights
        several = [(shape, n) for shape, n in mix.counts if shape.cards > 1]
        asking = sum(n for shape, n in mix.counts if shape.cores)
        asked = sum(shape.cores * n for shape, n in mix.counts)
        spread = mix.total * sum(n * max(1, s.cards) for s, n in mix.counts if s.cores)
        self._shapes = [shape for shape, _ in several]
        self._always = [s.cores * always * asking * n * s.cards / spread for s, n in several]
        # All shapes that need as many cards or more compete for a slot, and share its price.
        rivals = [sum(n * o.cards for o, n in several if o.cards >= s.cards) / s.cards for s, _ in several]
        self._rate = [(1 + STAY * mix.turnover) * each / asked for each in rivals]
        self._missed = [s.cores * missed * n / each for (s, n), each in zip(several, rivals, strict=True)]
        whole = sum(shape.cores * n for shape, n in mix.counts if shape.cards)
        unknown = max(0.0, 1 - whole / asked / WHOLE) if asked else 0.0
        self._idle, self._cards = IDLE * unknown, max(1, cards)
        self._known: dict[Rooms, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._shapes) + bool(self._idle)

    def of(self, node: Rooms) -> tuple[int, ...]:
        """Return for each shape how many requests of it alone the node can hold, then its count if idle."""
        known = self._known.get(node)
        if known is None:
            held = [0] * len(self._shapes)
            free = 0
            for room in node:
                idle = room.free.count((CORES_PER_CARD, room.memory))
                free += idle
                for at, shape in enumerate(self._shapes if idle > 1 else ()):
                    fit = idle // shape.cards
                    if fit and shape.cpu and room.cpu is not None:
                        fit = min(fit, max(0, room.cpu) // shape.cpu)
                    if fit and shape.allows(room.model):
                        held[at] += fit
            if self._idle:
                held.append(free if free == sum(len(room.free) for room in node) else 0)
            known = self._known[node] = tuple(held)
        return known

    def lost(self, before: Rooms, after: Rooms) -> Loss:
        """Return the slots that a change of the node removes."""
        if not len(self):
            return ()
        pairs = enumerate(zip(self.of(before), self.of(after), strict=True))
        return tuple((at, old - new) for at, (old, new) in pairs if old > new)

    def prices(self, free: int, places: Sequence[int]) -> list[float]:
        """Return the cost of one less, in cores, by count. ``free`` and ``places`` are the cluster's."""
        parts = zip(self._rate, self._missed, self._always, places, strict=False)
        costs = [missed * _more_than(free * rate, left) + always for rate, missed, always, left in parts]
        return [*costs, self._idle * places[-1] / self._cards] if self._idle else costs


def _more_than(expected: float, places: int) -> float:
    """Return the probability of at least ``places`` arrivals with this expectation (Poisson)."""
    far = _SIGMAS * math.sqrt(expected) + _SIGMAS
    if places > expected + far:
        return 0.0
    if expected > _COUNTED:
        return math.erfc((places - 0.5 - expected) / math.sqrt(2 * expected)) / 2
    chance, fewer = math.exp(-expected), 0.0
    for number in range(places):
        fewer += chance
        chance *= expected / (number + 1)
    return max(0.0, 1 - fewer)
