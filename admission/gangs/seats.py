"""Finds places for the missing members of a gang: for all of them, or for none.

The largest member chooses first, and among the nodes that would take it the one with the least fragments
left. Each place is kept in the cluster's accounting like that of a pod which its scheduler has placed, so
that the next member is judged beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.feasibility import FeasibilityJudge, Unfit
from admission.extender.many_nodes import candidates, judge_nodes
from admission.extender.ranking import BestFit, most_priced
from gpu_manager.domain.cluster.node_books import Used
from gpu_manager.domain.cluster.quota import NamespaceQuota
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube.constraints import PodConstraints
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.place import Placement
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import ZERO
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest

QuotaOf = Callable[[str, Priority], NamespaceQuota | None]


class SeatBooks(Protocol):
    """Where places are kept: the cluster's state, a copy of it, or a recorded one."""

    unit: int

    def snapshot(self) -> Snapshot:
        """The present state."""

    def expect(
        self, pod: PodView, node: str, at: Placement, now: float, most: float = ..., /, *, chosen: bool = ...
    ) -> None:
        """Count the pod as lying there."""

    def withdraw(self, uids: Iterable[PodUid]) -> None:
        """Release these places."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A member without a place. ``nodes``: the only ones allowed; None for all that its own constraints
    allow, which ``open`` lists once they are worked out.
    """

    pod: PodView
    nodes: Sequence[str] | None = None
    open: Sequence[str] | None = None

    @property
    def is_fixed(self) -> bool:
        """True if its scheduler has chosen its node already."""
        return self.nodes is not None and len(self.nodes) == 1


@dataclass(frozen=True, slots=True)
class Seated:
    """The places of all ``members``, by name, with the node of each; or the one that ``failed``, because of
    its quota if ``over_quota``. ``quotas`` are those that were asked for. No ``members``: one of them is
    illegal.
    """

    members: Sequence[Missing]
    quotas: Mapping[Priority, NamespaceQuota | None]
    places: Mapping[str, tuple[str, Placement]]
    failed: PodView | None = None
    over_quota: bool = False

    @property
    def refusal(self) -> str:
        """Which member has no place and why, for a sentence; empty if all have one."""
        if self.failed is None:
            return ""
        why = " within its namespace's quota (ExceedsGPUQuota)" if self.over_quota else ""
        return f"{printable(self.failed.pod.name)} has no place beside the others{why}"


@dataclass(frozen=True, slots=True)
class GangDecision:
    """Places sought for members of a ``gang`` in the state of generation ``turn``. ``without``: as if these
    pods had gone, and nothing was kept; None: in the books themselves. ``claimed`` as in
    :class:`~admission.cluster.snapshot.Snapshot`.
    """

    gang: str
    turn: int
    claimed: tuple[Used, Used]
    without: Sequence[PodUid] | None
    seated: Seated


class Seats:
    """Finds places in ``books``; the caller holds its lock. Places are kept for ``seconds``."""

    def __init__(
        self, books: SeatBooks, judge: FeasibilityJudge, quota: QuotaOf, cores: int, seconds: float
    ) -> None:
        self._books = books
        self._judge = judge
        self._quota_of = quota
        self._cores = cores
        self._seconds = seconds
        self._policy = BestFit()
        self._quotas: dict[Priority, NamespaceQuota | None] = {}
        self._open: dict[PodConstraints, Sequence[str]] = {}

    def take(self, missing: Iterable[Missing], now: float) -> Seated:
        """Keep a place for each member; if one has none, keep no more than before."""
        requests: dict[PodUid, PodRequest] = {}
        members = list(missing)
        for each in members:
            try:
                requests[each.pod.uid] = judged_request(each.pod.pod, self._books.unit, self._cores)
            except RequestInvalid:
                return Seated((), {}, {}, each.pod)
        members.sort(key=lambda one: (not one.is_fixed, *_size(requests[one.pod.uid]), one.pod.uid))
        members = [self._opened(each) for each in members]
        places: dict[str, tuple[str, Placement]] = {}
        taken: list[PodUid] = []
        for each in members:
            found = self._take(each, requests[each.pod.uid], now)
            if isinstance(found, bool):
                self._books.withdraw(taken)
                return Seated(members, self._quotas, {}, each.pod, found)
            places[each.pod.pod.name] = found
            taken.append(each.pod.uid)
        return Seated(members, self._quotas, places)

    def _take(self, member: Missing, request: PodRequest, now: float) -> tuple[str, Placement] | bool:
        """The node and the place on it; without one, True if that is because of the quota."""
        snapshot = self._books.snapshot()
        quota = self._quotas[request.priority] = self._quota_of(member.pod.pod.namespace, request.priority)
        question = self._judge.ask(member.pod, request, snapshot, quota)
        names = member.open or () if member.nodes is None else member.nodes
        verdicts = judge_nodes(question, [snapshot.nodes[name] for name in names if name in snapshot.nodes])
        most = most_priced(len(snapshot.nodes))
        # No more than would be there if nothing were known of these nodes: so the choice is a function.
        places = [each for _, each in islice(candidates(question, verdicts, most).items(), most)]
        if not places:
            return verdicts.says(Unfit.QUOTA)
        costs = self._policy.costs(request, places)
        view, fit = places[costs.index(min(costs))]
        placement = question.placement(view, fit)
        chosen = member.nodes is not None
        self._books.expect(member.pod, view.name, placement, now, self._seconds, chosen=chosen)
        return view.name, placement

    def _opened(self, member: Missing) -> Missing:
        """The member with the nodes that its constraints allow."""
        if member.nodes is not None or member.open is not None:
            return member
        constraints = member.pod.constraints
        if (names := self._open.get(constraints)) is None:
            nodes: Iterable[NodeView] = self._books.snapshot().nodes.values()
            names = self._open[constraints] = [v.name for v in nodes if not v.constraints.bars(constraints)]
        return replace(member, open=names)


def is_free(view: NodeView, uid: PodUid) -> bool:
    """False if the pod's cards there bear more than they have, together with what else holds them."""
    cards = {card for held in view.ledger.of_pod(uid).values() for card in held.cards}
    return all(ZERO.fits_in(view.ledger.free(card)) for card in cards)


def _size(request: PodRequest) -> tuple[int, int, int]:
    """For the largest first: its cards, then cores, then memory at most in one container, negative."""
    amounts = [c.request for c in request.containers]
    return (
        -max((one.cards for one in amounts), default=0),
        -max((one.amount.cores for one in amounts), default=0),
        -max((one.amount.memory for one in amounts), default=0),
    )
