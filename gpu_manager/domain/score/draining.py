"""Nodes left to drain: room for requests for several cards that wait.

A request for eight cards of one node may wait for ever: whenever a card of a nearly idle node is free again,
a fraction that came later takes it. So while such requests wait, a node is kept for each of the first two,
the one with the least to end on it. Smaller requests cost more there, so that they go elsewhere if they
can, and the node runs empty. It is a preference: where nothing else takes them, they still go there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final, TypeVar

from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.multi_gpu_slots import Rooms
from gpu_manager.domain.score.request_mix import RequestShape

KEPT: Final = 10_000  # cores that a smaller request costs more on a node that is kept: above all other prices
MOST: Final = 2  # nodes that are kept: more of them drain one another's room away

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
    """Return the nodes that are kept, and for how many cards each.

    ``waiting``: of each request the number of cards, and the nodes that are large enough for it, those with
    the least to end first; the request that came first goes first.
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
    """Return the cost of a request for ``cards`` whole cards on a node that is kept for ``kept`` of them."""
    return (cost[0] + KEPT, *cost[1:]) if cards < kept else cost
