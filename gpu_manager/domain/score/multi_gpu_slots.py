"""Slots: how many requests for several cards the nodes can still hold, and the cost of losing a slot.

A request of eight cards needs eight idle cards of one node. Any small pod on such a node takes that slot, and
the cluster may be half empty when the last slot is taken. So a slot has a price: the cores of the request,
times the probability that the slot will be missed, which is that at least as many such requests arrive as
there are slots left before all free cards are requested. With plenty of slots that is 0; a small price in
proportion to the request's part of the demand then keeps slots together.

The mix contains no requests that have not come yet, so an idle node has a price of its own: all of its cores,
as long as nodes in use have idle cards to spare. It is then broken only if no node in use takes the request.
Once they have no more than a hundredth of their model's cards to spare that price is 0: a few open cards to
choose from leave less waste.

**Nodes left to drain.** A request for eight cards of one node may wait for ever: whenever a card of a nearly
idle node is free again, a later fraction takes it. So while such requests wait, a node is drained for each of
the first two, the one with the least to end on it. Smaller requests cost more there, so they go elsewhere if
they can, and the node runs empty. It is a preference: if nothing else takes them, they still go there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import FreeShape, Mix, RequestShape, Stock

ALWAYS: Final = 0.15  # times the request's cores and its part of the demand for cards; applies always
MISSED: Final = 1.0  # times the request's cores and the probability that its slot will be missed
STAY: Final = 3  # times that free room is requested besides, before taken room is returned, if all pods leave
IDLE: Final = 100.0  # cores for each card of a broken idle node, while there are cards to spare
SPARE: Final = 0.01  # of the cards of a model: with more idle cards on nodes in use there are some to spare
_COUNTED: Final = 30  # requests expected; above, the normal curve is near enough
_SIGMAS: Final = 8  # beyond that many the probability is 0 or 1

Rooms = tuple[FreeShape, ...]  # a node: its cards by model, in the order of the models' names
Loss = tuple[tuple[int, int], ...]  # (place among the counts, how many less)


class MultiGpuSlots:
    """The slots and prices of a mix's requests for several cards, and of idle nodes. Results per node are
    cached.

    After the counts of slots come two for each model: the cards of an idle node; and of a node in use the
    idle ones for which it has the host CPU that a request for up to one card asks for on average.
    """

    def __init__(
        self,
        mix: Mix,
        stock: Mapping[str, Stock],
        weights: tuple[float, float, float] = (ALWAYS, MISSED, IDLE),
    ) -> None:
        """``stock``: the cluster's cards by model. ``weights``: of the constant price of a slot, of its price
        by the probability that it is missed, and of the price of a card of an idle node.
        """
        always, missed, self._idle = weights
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
        single = [(shape.cpu, n) for shape, n in mix.counts if 0 < shape.cores <= CORES_PER_CARD]
        self._cpu = max(1, sum(cpu * n for cpu, n in single) // max(1, sum(n for _, n in single)))
        self._models = {model: at for at, model in enumerate(sorted(stock), len(several))}
        self._spare = [max(1.0, SPARE * stock[model].cards) for model in self._models]
        self._known: dict[Rooms, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._shapes) + 2 * len(self._models)

    def of(self, node: Rooms) -> tuple[int, ...]:
        """Return for each shape how many requests of it alone the node can hold, then its idle cards."""
        known = self._known.get(node)
        if known is None:
            held, kinds = [0] * len(self), len(self._models)
            in_use = any(room.free.count((CORES_PER_CARD, room.memory)) < len(room.free) for room in node)
            for room in node:
                idle = room.free.count((CORES_PER_CARD, room.memory))
                for at, shape in enumerate(self._shapes if idle > 1 else ()):
                    fit = idle // shape.cards
                    if fit and shape.cpu and room.cpu is not None:
                        fit = min(fit, max(0, room.cpu) // shape.cpu)
                    if fit and shape.allows(room.model):
                        held[at] += fit
                place = self._models.get(room.model)
                if place is None:  # a model that came since: the next mix counts it
                    continue
                if not in_use:
                    held[place] += idle
                elif room.cpu is None:
                    held[place + kinds] += idle
                else:
                    held[place + kinds] += min(idle, max(0, room.cpu) // self._cpu)
            known = self._known[node] = tuple(held)
        return known

    def lost(self, before: Rooms, after: Rooms) -> Loss:
        """Return the slots, and cards of idle nodes, that a change of the node removes."""
        priced = len(self._shapes) + len(self._models)
        had, has = self.of(before)[:priced], self.of(after)[:priced]
        pairs = enumerate(zip(had, has, strict=True)) if had != has else ()
        return tuple((at, old - new) for at, (old, new) in pairs if old > new)

    def prices(self, free: int, places: Sequence[int]) -> list[float]:
        """Return the cost of losing one, in cores, by slot, then by card of an idle node of each model.
        ``free`` and ``places`` are the cluster's.
        """
        parts = zip(self._rate, self._missed, self._always, places, strict=False)
        costs = [missed * _more_than(free * rate, left) + always for rate, missed, always, left in parts]
        some = places[-len(self._models) :]
        return [*costs, *(self._idle * (n >= least) for n, least in zip(some, self._spare, strict=True))]


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


KEPT: Final = 10_000  # cores that a smaller request costs more on a drained node: above all other prices
MOST: Final = 2  # drained nodes: more of them would drain one another's room

_Node = TypeVar("_Node", bound=Hashable)


def left_to_end(shape: RequestShape, node: Rooms, cpu: int | None) -> int | None:
    """Return the cores that must end before the request fits on the node's emptiest cards; None if the node
    is too small for it. ``cpu``: the node's host CPU, used or not, in thousandths; None if unknown.
    """
    if cpu is not None and cpu < shape.cpu:
        return None
    held = (
        sum(CORES_PER_CARD - cores for cores, _ in room.free[-shape.cards :])
        for room in node
        if len(room.free) >= shape.cards and shape.allows(room.model)
    )
    return min(held, default=None)


def drained(waiting: Iterable[tuple[int, Iterable[_Node]]]) -> dict[_Node, int]:
    """Return the nodes to drain, and for how many cards each.

    ``waiting``: for each request the number of cards, and the nodes that are large enough for it, those with
    the least to end first; the oldest request first.
    """
    kept: dict[_Node, int] = {}
    for cards, nearest in waiting:
        node = next((node for node in nearest if node not in kept), None)
        if node is not None:
            kept[node] = cards
        if len(kept) == MOST:
            break
    return kept


def with_kept(cost: tuple[Any, ...], cards: int, kept: int) -> tuple[Any, ...]:
    """Return the cost of a request for ``cards`` whole cards on a node that is drained for ``kept`` of
    them.
    """
    return (cost[0] + KEPT, *cost[1:]) if cards < kept else cost
