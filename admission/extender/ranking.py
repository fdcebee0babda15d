"""Which of the nodes that fit: a policy behind one method, and the scores that encode its choice on the wire.

A node whose cards hold tenants that do not suit the pod's priority is ranked lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import Fit
from admission.extender.node_names import NodeNames
from gpu_manager.domain.priority import Priority, unprotected_beside
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest

BEST, SECOND = 10, 8  # scores: the gap is what a scheduler's weight must carry over its other scores
RANKED: Final = 2  # parts of a cost that count in the scores of all but the best
MOST_PRICED: Final = 256  # nodes that one question works out: the scheduler waits for the answer
_LARGE: Final = 1250  # nodes of a cluster; in a larger one a question works out fewer, for it looks at more
_LEAST_PRICED: Final = 64
_MOST = 1 << 16  # costs remembered

Cost = tuple[Any, ...]  # compared with those of the same call alone
Scores = npt.NDArray[np.uint8]


RankedNode = tuple[NodeView, Fit]
"""A node on which the pod fits, and where it would lie there."""


def most_priced(nodes: int) -> int:
    """How many nodes one question works out in a cluster of so many, that the scheduler waits no longer.

    The next question of the same kind works out further ones.
    """
    return max(_LEAST_PRICED, min(MOST_PRICED, MOST_PRICED * _LARGE // max(1, nodes)))


class NodePolicy(Protocol):
    """The choice among nodes."""

    def costs(self, request: PodRequest, candidates: Sequence[RankedNode]) -> Sequence[Cost | None]:
        """One cost for each, the lowest wins. It depends on what the nodes hold, never on their names.

        ``candidates`` come with the most promising first: where only so many can be worked out, the others
        get None, and their turn when the kind of request is asked about again.
        """

    def prepare(self, request: PodRequest, candidates: Sequence[RankedNode]) -> None:
        """Work out a few of the costs that will be asked for next. Changes no answer."""


class BestFit:
    """Least left in pieces: no idle card is broken while a broken one has room; of those, the fullest.

    In this order: idle cards that a part of a card would break; what stays free on the cards taken; idle
    cards and free cores left on the node. Under ``spread`` the emptiest card, then the emptiest node;
    under ``topology`` the best-joined cards first. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[Fit, Cost] = {}

    def costs(self, request: PodRequest, candidates: Sequence[RankedNode]) -> list[Cost]:
        """See :class:`NodePolicy`."""
        known = self._known
        if len(known) > _MOST:
            known.clear()
        return [
            known.get(fit) or known.setdefault(fit, _cost(request, view, fit)) for view, fit in candidates
        ]

    def prepare(self, request: PodRequest, candidates: Sequence[RankedNode]) -> None:
        """See :class:`NodePolicy`: a cost is worked out in no time."""


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


def scores(names: NodeNames, numbers: npt.NDArray[np.int32], costs: Mapping[int, Cost]) -> Scores:
    """What each node gets: exactly one 10, the others 0 to 8 by rank, 0 where the pod does not fit.

    ``numbers`` has the kind of each node, ``costs`` those of the kinds on which it fits; each is of a node.
    The rank goes by the first :data:`RANKED` parts of the cost, so that nodes of equal cost get equal scores,
    but for the one chosen among the best: the least by the whole cost, then the first by name. Those are
    alike in all that the policy sees, so that the name decides nothing.
    """
    if not costs:
        return np.zeros(len(numbers), np.uint8)
    parts = {number: cost[:RANKED] for number, cost in costs.items()}
    ranked = sorted(set(parts.values()))
    steps = max(1, len(ranked) - 1)
    score = {part: SECOND - SECOND * rank // steps for rank, part in enumerate(ranked)}
    least = min(costs[number] for number, part in parts.items() if part == ranked[0])
    given = bytearray(int(numbers.max()) + 1)
    for number, part in parts.items():
        given[number] = BEST if part == ranked[0] and costs[number] == least else score[part]
    answer: Scores = np.frombuffer(given, np.uint8)[numbers]
    best = np.flatnonzero(answer == BEST)
    answer[best] = SECOND
    answer[names.least(best)] = BEST
    return answer


def unsuited(request: PodRequest, candidates: Sequence[RankedNode]) -> list[int]:
    """Return the steps by which each candidate suits less, summed over the cards that it would take; empty
    where no priority is in play.
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
