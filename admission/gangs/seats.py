"""Finds places for the missing members of a gang: for all of them, or for none.

The largest member chooses first, and among the nodes that would take it the one with the least fragments
left. Each place is kept in the cluster's accounting like that of a pod which its scheduler has placed, so
that the next member is judged beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import FeasibilityJudge, Unfit
from admission.extender.many_nodes import candidates, judge_nodes
from admission.extender.ranking import BestFit, most_priced
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.constraints import PodConstraints
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest


@dataclass(frozen=True, slots=True)
class Missing:
    """A member without a place. ``nodes``: the only ones allowed; None for all that its own constraints
    allow.
    """

    pod: PodView
    nodes: Sequence[str] | None = None

    @property
    def is_fixed(self) -> bool:
        """True if its scheduler has chosen its node already."""
        return self.nodes is not None and len(self.nodes) == 1


class Seats:
    """Finds places in the cluster's state, whose lock the caller holds. ``seconds``: how long they are
    kept.
    """

    def __init__(
        self, books: ClusterState, judge: FeasibilityJudge, quota: Quota | None, cores: int, seconds: float
    ) -> None:
        self._books = books
        self._judge = judge
        self._quota = quota
        self._cores = cores
        self._seconds = seconds
        self._policy = BestFit()
        self.over_quota = False  # why the last member that found no place found none
        self._open: dict[PodConstraints, Sequence[str]] = {}

    def take(self, missing: Iterable[Missing], now: float) -> PodView | None:
        """Keep a place for each member; if one has none, keep no more than before, and return that member."""
        requests: dict[PodUid, PodRequest] = {}
        members = list(missing)
        for each in members:
            try:
                requests[each.pod.uid] = judged_request(each.pod.pod, self._books.unit, self._cores)
            except RequestInvalid:
                return each.pod
        members.sort(key=lambda one: (not one.is_fixed, *_size(requests[one.pod.uid]), one.pod.uid))
        taken: list[PodUid] = []
        for each in members:
            if not self._take(each, requests[each.pod.uid], now):
                self._books.withdraw(taken)
                return each.pod
            taken.append(each.pod.uid)
        return None

    def _take(self, member: Missing, request: PodRequest, now: float) -> bool:
        snapshot = self._books.snapshot()
        quota = self._quota.of(member.pod.pod.namespace, request.priority) if self._quota else None
        question = self._judge.ask(member.pod, request, snapshot, quota)
        verdicts = judge_nodes(question, self._views(member, snapshot))
        fitting = candidates(question, verdicts, most_priced(len(snapshot.nodes)))
        if not fitting:
            self.over_quota = verdicts.says(Unfit.QUOTA)
            return False
        places = list(fitting.values())
        costs = self._policy.costs(request, places)
        view, fit = places[costs.index(min(costs))]
        placement = question.placement(view, fit)
        chosen = member.nodes is not None
        self._books.expect(member.pod, view.name, placement, now, self._seconds, chosen=chosen)
        return True

    def _views(self, member: Missing, snapshot: Snapshot) -> list[NodeView]:
        names = member.nodes
        if names is None:
            constraints = member.pod.constraints
            names = self._open.get(constraints)
            if names is None:
                open_ = [v.name for v in snapshot.nodes.values() if not v.constraints.bars(constraints)]
                names = self._open[constraints] = open_
        return [view for name in names if (view := snapshot.nodes.get(name)) is not None]


def _size(request: PodRequest) -> tuple[int, int, int]:
    """For the largest first: its cards, then cores, then memory at most in one container, negative."""
    amounts = [c.request for c in request.containers]
    return (
        -max((one.cards for one in amounts), default=0),
        -max((one.amount.cores for one in amounts), default=0),
        -max((one.amount.memory for one in amounts), default=0),
    )
