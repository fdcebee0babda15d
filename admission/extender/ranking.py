"""The choice among the nodes that fit: costs without a history, and the scores that encode a choice.

A node whose cards hold tenants that do not suit the pod's priority is ranked lower.

The cost of a node is a tuple whose first part decides (:mod:`gpu_manager.domain.score.scorer`). That part and
the slots that the pod would take there lie in a :class:`PriceColumn`, by the number that
:class:`~admission.extender.many_nodes.Verdicts` gives the node's kind. So the totals at present prices are
one product, and only nodes near the least total are compared in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import Fit
from admission.extender.node_rooms import NodeContent
from admission.extender.wire import NodeNames
from gpu_manager.domain.priority import Priority, unprotected_beside
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest
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


BEST, SECOND = 10, 8  # scores: the gap is what a scheduler's weight must carry over its other scores
RANKED: Final = 2  # parts of a cost that count in the scores of all but the best
MOST_PRICED: Final = 256  # nodes that one question prices while the scheduler waits
_LARGE: Final = 1250  # nodes of a cluster; in a larger one a question prices fewer, since it examines more
_LEAST_PRICED: Final = 16
_MOST = 1 << 16  # cached costs

Cost = tuple[Any, ...]  # comparable only within one call
Scores = npt.NDArray[np.uint8]


RankedNode = tuple[NodeView, Fit]
"""A node on which the pod fits, and where it would lie there."""


def most_priced(nodes: int) -> int:
    """How many nodes one question prices in a cluster of ``nodes`` nodes without delaying the scheduler.

    The next question of the same kind prices further ones.
    """
    return max(_LEAST_PRICED, min(MOST_PRICED, MOST_PRICED * _LARGE**2 // max(1, nodes) ** 2))


@dataclass(slots=True)
class PriceTerms:
    """What the costs of one question follow from beside the nodes; the policy fills it in when it first needs
    it, so that all costs of the question agree.

    ``basis`` is that of the policy, ``prices`` are those of lost slots in the generation ``turn``, ``kept``
    the drained nodes by content, ``cpu`` the host CPU that the pod requests, in thousandths.
    """

    basis: Any = None
    prices: Sequence[float] = ()
    kept: Mapping[NodeContent, int] = field(default_factory=dict)
    turn: int = 0
    cpu: int = 0


class BestFit:
    """Leaves the fewest fragments: no idle card is broken while a broken one has room; then the fullest card.

    Compared in this order: idle cards that a part of a card would break; what stays free on the cards taken;
    idle cards and free cores left on the node. Under ``spread`` the emptiest card, then the emptiest node;
    under ``topology`` the best-joined cards first. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[Fit, Cost] = {}

    def costs(self, request: PodRequest, candidates: Sequence[RankedNode]) -> list[Cost]:
        """One cost per candidate; the lowest wins."""
        known = self._known
        if len(known) > _MOST:
            known.clear()
        return [
            known.get(fit) or known.setdefault(fit, _cost(request, view, fit)) for view, fit in candidates
        ]


def _cost(request: PodRequest, view: NodeView, fit: Fit) -> Cost:
    node, ledger = view.node, view.ledger
    taken = dict(fit.taken)
    broken, idle, left, free, content = 0, 0, ZERO, 0, list[float]()
    for at, state in enumerate(node.cards):
        room = ledger.free(state.card.uuid)
        is_idle = ledger.idle(state.card.uuid) and state.open
        take = taken.get(at)
        if take is not None:
            broken += is_idle and take.cores < CORES_PER_CARD
            left += Amount(room.cores - take.cores, room.memory - take.memory)
        idle += is_idle and take is None
        free += room.cores - (take.cores if take else 0) if state.open else 0
        content += (room.cores, room.memory, crc32(state.card.model.encode()))
    fill: Cost = (broken, left.cores, left.memory, idle, free)
    if request.placement is PlacementPolicy.SPREAD:
        fill = (-left.cores, -left.memory, -idle, -free)
    elif request.placement is PlacementPolicy.TOPOLOGY:
        fill = (-node.topology.sum({at for at, _ in fit.taken}), *fill)
    return (fill, len(node.cards), *content)


def scores(
    names: NodeNames, numbers: npt.NDArray[np.int32], costs: Mapping[int, Cost], totals: Totals | None = None
) -> Scores:
    """The score of each node: exactly one 10, the others 0 to 8 by rank, 0 where the pod does not fit.

    ``numbers`` has the kind of each node, ``costs`` the costs of the kinds on which the pod fits; some node
    has each kind. The rank depends on the first :data:`RANKED` parts of the cost, so that nodes of equal cost
    get equal scores, except the best one: the least by the whole cost, then the first by name. Nodes tied up
    to there are alike in everything that the policy reads. With ``totals`` ``costs`` are those of
    the nodes near the least, and the others rank by their totals.
    """
    if not costs:
        return np.zeros(len(numbers), np.uint8)
    least = min(costs.values())
    if totals is None:
        ranked = sorted({cost[:RANKED] for cost in costs.values()})
        rank_of = {part: rank for rank, part in enumerate(ranked)}
        known = np.fromiter(costs, np.int64, len(costs))
        ranks = np.array([rank_of[cost[:RANKED]] for cost in costs.values()])
    else:
        there = np.zeros(len(totals), np.bool_)
        there[numbers] = True
        known = np.flatnonzero(there & ~np.isnan(totals))
        ranks = np.unique(totals[known], return_inverse=True)[1]
    given = np.zeros(int(numbers.max()) + 1, np.uint8)
    given[known] = SECOND - SECOND * ranks // max(1, ranks.max())
    given[[number for number, cost in costs.items() if cost == least]] = BEST
    answer: Scores = given[numbers]
    best = np.flatnonzero(answer == BEST)
    answer[best] = SECOND
    answer[names.least(best)] = BEST
    return answer


def unsuited(request: PodRequest, candidates: Sequence[RankedNode]) -> list[int]:
    """For each candidate, the steps by which it suits the pod less, summed over the cards that it would take;
    empty if no priority matters.
    """
    plain = request.priority is Priority.NORMAL
    if plain and not any(view.ledger.prioritised for view, _ in candidates):
        return []
    found = []
    for view, fit in candidates:
        ledger, steps = view.ledger, 0
        if not plain or ledger.prioritised:
            uuids = [view.node.cards[at].card.uuid for at, _ in fit.taken]
            own = request.uid if ledger.of_pod(request.uid) else None
            steps = sum(unprotected_beside(request.priority, ledger.priorities(uuid, own)) for uuid in uuids)
        found.append(steps)
    return found
