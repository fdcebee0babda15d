"""Prices of one kind of request on thousands of nodes, as arrays: most nodes need not be compared one by one.

The cost of a node is a tuple whose first part decides (:mod:`gpu_manager.domain.score.scorer`). That part and
the slots that the pod would take there lie here, by the number that
:class:`~admission.extender.many_nodes.Verdicts` gives the node's kind. So the totals at present prices are
one product, and only nodes near the least total are compared in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import Fit
from admission.extender.node_rooms import NodeContent
from gpu_manager.domain.score.multi_gpu_slots import KEPT, Loss

_DIGITS: Final = 2
_NEAR: Final = 0.02  # cores: totals are rounded to a hundredth, so the least lies within it

_prioritised: Final = attrgetter("prioritised")

Totals = npt.NDArray[np.float64]
PriceKey = tuple[Fit, int | None, int]
"""A placement, the host CPU free there, and the host CPU requested."""


class PriceColumn:
    """Prices by number, under one scorer. Used by one thread at a time.

    ``keys``: what each price was computed from. ``prioritised``: some node holds pods of a priority, so that
    its neighbourhood has a price, too.
    """

    def __init__(self) -> None:
        self.keys: dict[int, PriceKey] = {}
        self.prioritised = False
        self._cost: Totals = np.full(0, np.nan)
        self._lost: npt.NDArray[np.int32] = np.zeros(0, np.int32)  # at most nodes the same few slots are lost
        self._losses: dict[Loss, int] = {}
        self._views: list[NodeView | None] = []

    def follow(self, views: Sequence[NodeView | None]) -> None:
        """These are the kinds by number now: the known ones, and further ones after them."""
        new = views[len(self._views) :]
        self.prioritised |= any(map(_prioritised, filter(None, new)))
        self._views += new
        if len(self._views) > len(self._cost):
            more = len(self._views) * 9 // 8 - len(self._cost)
            self._cost = np.concatenate((self._cost, np.full(more, np.nan)))
            self._lost = np.concatenate((self._lost, np.zeros(more, np.int32)))

    def only(self, numbers: npt.NDArray[np.intp]) -> PriceColumn:
        """The prices of these numbers, which are numbered anew in this order."""
        other = PriceColumn()
        known = numbers[numbers < len(self._views)]
        other._cost, other._lost, other._losses = self._cost[known], self._lost[known], self._losses
        other._views = [self._views[number] for number in known.tolist()]
        other.prioritised = any(map(_prioritised, filter(None, other._views)))
        place = dict(zip(known.tolist(), range(len(known)), strict=True))
        other.keys = {place[number]: key for number, key in self.keys.items() if number in place}
        return other

    def put(self, number: int, key: PriceKey, cost: float, lost: Loss) -> None:
        """The price on nodes of that number: the first part of its cost, and the slots lost."""
        self.keys[number] = key
        self._cost[number] = cost
        self._lost[number] = self._losses.setdefault(lost, len(self._losses))

    def totals(self, prices: Sequence[float], kept: Mapping[NodeContent, int], cards: int) -> Totals:
        """The first part of each cost at these prices of slots; not a number where none is known.

        ``kept``: nodes drained for so many cards, by content; a pod of fewer ``cards`` pays for them.
        """
        count = len(self._views)
        slots = np.array([sum(n * prices[at] for at, n in lost) for lost in self._losses] or [0.0])
        found: Totals = np.round(self._cost[:count] + slots[self._lost[:count]], _DIGITS)
        dear = {content for content, drained in kept.items() if cards < drained}
        for at, view in enumerate(self._views if dear else ()):
            if view is not None and (view.state, view.cpu) in dear:
                found[at] += KEPT
        return found


def near_least(totals: Totals, open_: npt.NDArray[np.intp], most: int) -> npt.NDArray[np.intp]:
    """Those of the numbers ``open_`` whose totals may be the least, at most so many."""
    there = totals[open_]
    least = np.nanmin(there, initial=np.inf)
    near = np.flatnonzero(there <= least + _NEAR)
    return open_[near[np.argsort(there[near], kind="stable")][:most]]
