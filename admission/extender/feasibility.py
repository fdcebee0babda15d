"""Decides whether a pod fits a node: the domain's judgement over a snapshot, cached per distinct case.

Placement depends on the node's cards (models, sizes, states, links, bookings), numbered by
:attr:`NodeView.state`, and on the pod's request. So one answer serves all equal nodes and equal pods, and a
call over thousands of nodes (:mod:`admission.extender.many_nodes`) mostly reads cached answers.
:mod:`admission.extender.refusal_lines` writes the reasons for people.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from admission.cluster.node_view import KeptFor, NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.free_cards import FreeCards
from gpu_manager.domain.card import CardState
from gpu_manager.domain.cluster.pod_charges import Charge
from gpu_manager.domain.cluster.quota import NamespaceQuota
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import Placement, PodPlacer
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest

_MOST_TRIES: Final = 48  # for one pod on one node of several models
_UNBOUND: Final = Amount(1 << 60, 1 << 60)
_NOBODY: Final = PodUid("held back by a quota")


class Unfit(Enum):
    """Why a node is left out; the value is the label in counts and metrics."""

    NODE = "node"  # no cards, no inventory, another memory unit, or an agent that cannot serve it
    REFUSED = "refused"  # the agent there refused this very amount a moment ago
    QUOTA = "quota"
    NEVER = "never"  # not even if the node were empty
    KEPT = "kept"  # closed to smaller pods, for a pod that waits
    ROOM = "room"
    LATE = "late"  # not judged: the call ran out of time

    @property
    def lasting(self) -> bool:
        """True if no preemption on the node can change it."""
        return self in (Unfit.NODE, Unfit.QUOTA, Unfit.NEVER, Unfit.KEPT)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Where the pod would be placed: for each container that requests cards, the positions of its cards.

    ``taken`` is the amount on each card, ``charge`` the same amounts summed by model.
    """

    positions: tuple[tuple[int, ...], ...]
    taken: tuple[tuple[int, Amount], ...]
    charge: tuple[tuple[str, Amount], ...]


SOMEWHERE: Final = Fit((), (), ())
"""The pod fits; where it would lie was not worked out."""


@dataclass(slots=True)
class RequestAnswers:
    """Cached answers for one distinct request: by node state, and by hardware for empty nodes."""

    request: PodRequest
    placer: PodPlacer
    found: dict[tuple[int, frozenset[str]], Fit | None] = field(default_factory=dict)
    ever: dict[int, bool] = field(default_factory=dict)
    said: dict[int, Fit | Unfit] = field(default_factory=dict)  # by state, where there is no quota
    told: tuple[object, str] | None = None  # the last explanation, and what it was for
    counted: int = 0  # its size when it was last counted

    @property
    def size(self) -> int:
        """The size of the answers, as a multiple of the answers for a pod of a few containers."""
        return len(self.found) * (1 + len(self.request.containers) // 8) + len(self.said) // 8

    def clear(self) -> None:
        """Drop the answers by node state, most of which no node has any more."""
        self.found.clear()
        self.said.clear()


class FeasibilityJudge:
    """Judges pods and caches the answers. Thread-safe; answers do not depend on the cache.

    ``most_shapes``: distinct requests cached; ``most_answers``: cached answers in all, some 600 bytes each.
    """

    def __init__(self, most_shapes: int = 512, most_answers: int = 1 << 18) -> None:
        self._most_shapes, self._most_answers = most_shapes, most_answers
        self._lock = threading.Lock()
        self._shapes: dict[PodRequest, RequestAnswers] = {}
        self._answers = 0  # number of cached answers, over all requests
        self._latest: RequestAnswers | None = None  # used last, grown since it was counted
        self._plain: tuple[PodRequest, PodRequest] | None = None  # of the last question
        self._free = FreeCards()

    def ask(
        self,
        occupant: PodView,
        request: PodRequest,
        snapshot: Snapshot,
        quota: NamespaceQuota | None,
        *,
        chosen: bool = False,
    ) -> FeasibilityCheck:
        """Begin to judge one pod over a snapshot. ``quota`` is that of its namespace, None if it has none.

        ``chosen``: the scheduler already picked a node from our filter result, so a node closed since then is
        still allowed.
        """
        before = self._plain
        plain = before[1] if before is not None and before[0] is request else _plain(request)
        self._plain = request, plain
        with self._lock:
            self._count(self._latest)
            shape = self._shapes.pop(plain, None) or RequestAnswers(plain, PodPlacer(plain))
            self._answers -= shape.counted
            shape.counted = 0
            self._make_room()
            if shape.size > self._most_answers // 2:
                shape.clear()
            self._shapes[plain] = self._latest = shape  # the newest last
            self._count(shape)
        return FeasibilityCheck(occupant, request, shape, snapshot, quota, self._free, chosen=chosen)

    def prepare(self, snapshot: Snapshot) -> None:
        """Compute the free cards of each node ahead of the next question, which would otherwise have to."""
        self._free.read(list(snapshot.nodes.values()))

    def _count(self, shape: RequestAnswers | None) -> None:
        if shape is not None:
            before, shape.counted = shape.counted, shape.size
            self._answers += shape.counted - before

    def _make_room(self) -> None:
        """Drop the least recently used requests."""
        shapes = self._shapes
        while shapes and (len(shapes) >= self._most_shapes or self._answers > self._most_answers):
            self._answers -= shapes.pop(next(iter(shapes))).counted


class FeasibilityCheck:
    """One pod over one snapshot. Used by one thread.

    ``turn`` is the snapshot's generation, ``claimed`` its :attr:`Snapshot.claimed`.
    ``used`` is what the pod's namespace holds without the pod, by model of card; ``protected`` the part of
    that in protected shares; ``own`` the node on which the pod is already counted, None if on none.
    ``on_state`` has the answers so far by :attr:`NodeView.state`, for nodes where only the state matters
    (:data:`SOMEWHERE`: fits, cards not worked out). ``alike`` is False if there are no such nodes, because
    the pod names cards or pools.
    """

    def __init__(
        self,
        occupant: PodView,
        request: PodRequest,
        shape: RequestAnswers,
        snapshot: Snapshot,
        quota: NamespaceQuota | None,
        free: FreeCards,
        *,
        chosen: bool = False,
    ) -> None:
        self.request = request
        self.free = free
        self.occupant, self.pod = occupant, occupant.pod
        self.turn, self.claimed = snapshot.turn, snapshot.claimed
        self.shape = shape
        self.quota = quota
        self._chosen, self._nominated = chosen, occupant.nominated
        self._amounts = frozenset(c.request.total for c in request.containers)
        self._own_node = snapshot.reserved.get(request.uid, "")
        self.used = dict(snapshot.used.get(occupant.pod.namespace, {}))
        self.own = snapshot.nodes[self._own_node] if self._own_node else None
        self.protected = dict(snapshot.protected.get(occupant.pod.namespace, {}))
        own = self.own.charges.get(request.uid) if self.own else None
        if own is not None:
            _take_off(own, self.used, self.protected)
        self._passed: dict[tuple[tuple[str, Amount], ...], Mapping[str, str]] = {}
        self.alike = not request.uuids and (quota is None or not quota.pools)
        self._plain = self.alike and not self._own_node
        self.on_state: dict[int, Fit | Unfit] = shape.said if quota is None else {}

    def on(self, view: NodeView) -> Fit | Unfit:
        """Where the pod would be placed on the node, or why it does not fit."""
        if not self.is_like_others(view):
            return self._judge(view)
        found = self.on_state.get(view.state)
        if found is None or found is SOMEWHERE:
            found = self.on_state[view.state] = self._judge(view)
        return found

    def is_like_others(self, view: NodeView) -> bool:
        """True if the answer for the node is that for all nodes of its state."""
        if self._plain and view.kind:
            return True
        if not self.alike or (self._own_node and view.name == self._own_node):
            return False
        return bool(view.kind) or not (view.problem or view.node.refused or view.nominated or view.kept)

    def _judge(self, view: NodeView) -> Fit | Unfit:
        no = self.before_cards(view)
        if no is not None:
            return no
        found = self._choose(view, self.ledger(view), self.used, self.protected)
        if found is not None:
            return found
        return Unfit.ROOM if self.ever(view) else Unfit.NEVER

    def without(self, view: NodeView, gone: Collection[PodUid]) -> Fit | None:
        """Where the pod would be placed if these pods had left the node; None if it would not fit even
        then.
        """
        if self.before_cards(view) is not None:
            return None
        used, protected = dict(self.used), dict(self.protected)
        for uid in gone:
            charge = view.charges.get(uid)
            if charge is not None and charge.pod.namespace == self.pod.namespace:
                _take_off(charge, used, protected)
        own = [self.request.uid] if view.name == self._own_node else []
        awaited = view.awaits(self.request.uid, self.pod.priority)
        ledger = view.with_awaited(awaited, view.without([*gone, *own]))
        found = self._choose(view, ledger, used, protected)
        return found if isinstance(found, Fit) else None

    def _choose(
        self, view: NodeView, ledger: Ledger, used: Mapping[str, Amount], protected: Mapping[str, Amount]
    ) -> Fit | Unfit | None:
        """Choose cards, except of models whose quota they would exceed; None if there is no room."""
        closed: frozenset[str] = frozenset()
        while (fit := self.fit(view, ledger, closed)) is not None:
            passed = self.over_quota(fit, used, protected)
            if not passed:
                return fit
            closed = closed.union(passed)
        if not closed:
            return None
        return self._within_rooms(view, ledger, used, protected) or Unfit.QUOTA

    def _within_rooms(
        self, view: NodeView, ledger: Ledger, used: Mapping[str, Amount], protected: Mapping[str, Amount]
    ) -> Fit | None:
        """Choose cards of several models such that no model exceeds its quota; None if no such choice is
        found.

        Some card of a model over its quota must take less: each such card is tried until no quota is
        exceeded. Exact except for the limit on the number of tries.
        """
        pieces = sum(c.request.width for c in self.request.containers)
        if pieces < 2 or len({state.card.model for state in view.node.cards}) < 2:
            return None
        tried: set[tuple[tuple[int, Amount], ...]] = set()
        open_: list[tuple[tuple[int, Amount], ...]] = [()]
        while open_ and len(tried) < _MOST_TRIES:
            caps = open_.pop(0)
            fit = self._seek(view, _capped(ledger, view, dict(caps)), frozenset())
            passed = self.over_quota(fit, used, protected) if fit is not None else {}
            if fit is None or not passed:
                if fit is not None:
                    return fit
                continue
            for at, taken in fit.taken:
                if view.node.cards[at].card.model in passed:
                    for less in self._less(dict(caps).get(at, _UNBOUND), taken):
                        further = tuple(sorted({**dict(caps), at: less}.items(), key=lambda cap: cap[0]))
                        if further not in tried:
                            tried.add(further)
                            open_.append(further)
        return None

    def _less(self, cap: Amount, taken: Amount) -> Iterator[Amount]:
        """Yield the amounts just below what was taken of a card, one for each amount that the quota
        limits.
        """
        quota = self.quota
        if quota is not None and (quota.cores is not None or quota.protected is not None):
            yield Amount(taken.cores - 1, cap.memory)
        if quota is not None and quota.memory is not None:
            yield Amount(cap.cores, taken.memory - 1)

    def placement(self, view: NodeView, fit: Fit) -> Placement:
        """The fit as shares of this node's cards."""
        node = view.node
        return {
            c.name: tuple(
                Share(
                    node.cards[at].card.uuid,
                    node.cards[at].card.capacity(node.unit) if c.request.cards else c.request.amount,
                )
                for at in positions
            )
            for c, positions in zip(self.request.containers, fit.positions, strict=True)
        }

    def ledger(self, view: NodeView) -> Ledger:
        """The node's ledger for this pod: without the pod itself, and with the pods that it must wait for.

        A pod that its scheduler binds where its place is kept waits for nobody: pods were evicted for the
        others beside that place.
        """
        mine = view.name == self._own_node
        awaited = view.awaits(self.request.uid, self.pod.priority) if view.nominated else ()
        if mine and self._chosen:
            awaited = ()
        if mine:
            return view.with_awaited(awaited, view.without([self.request.uid]))
        return view.with_awaited(awaited) if awaited else view.ledger

    def before_cards(self, view: NodeView) -> Unfit | None:
        """Why the node is left out whatever its cards hold; None if the cards decide."""
        if view.problem or view.node.lacks(self.request):
            return Unfit.NODE
        if self.quota is not None and not self.quota.allows_pool(view.node.pool):
            return Unfit.QUOTA
        if view.kept is not None and self._is_kept_out(view, view.kept):
            return Unfit.KEPT
        return Unfit.REFUSED if view.node.refused and self._amounts & view.node.refused else None

    def _is_kept_out(self, view: NodeView, kept: KeptFor) -> bool:
        """True if the node is closed to this pod. A pod that was already sent there, or for which pods were
        evicted there, may still come.
        """
        if self._chosen or view.name in (self._own_node, self._nominated):
            return False
        return kept.refuses(self.pod, max(c.request.cards for c in self.request.containers))

    def fit(self, view: NodeView, ledger: Ledger, closed: frozenset[str]) -> Fit | None:
        """Where the pod would be placed with this ledger; cards of the ``closed`` models are left out."""
        if ledger is not view.ledger or self.request.uuids:
            return self._seek(view, ledger, closed)
        key = view.state, closed
        found = self.shape.found
        if key not in found:
            found[key] = self._seek(view, ledger, closed)
        return found[key]

    def _seek(self, view: NodeView, ledger: Ledger, closed: frozenset[str]) -> Fit | None:
        if self.lack_of_ids(view, ledger):
            return None
        plain, cards = self.shape.request, with_closed(view.node.cards, dict.fromkeys(closed, ""))
        trial = self.shape.placer.trial(cards, view.node.topology, ledger)
        if trial is None:
            return None
        taken = tuple(trial.taken().items())
        return Fit(
            positions=tuple(trial.positions[c.name] for c in plain.containers),
            taken=taken,
            charge=by_model((cards[at].card.model, amount) for at, amount in taken),
        )

    def lack_of_ids(self, view: NodeView, ledger: Ledger) -> str:
        """Why the kubelet would have no device ids for the pod beside this ledger's; empty if it has.

        Only pods that shrank can leave fewer ids than room, and only pods on other NUMA nodes than their ids
        can leave fewer than the kubelet's policy needs on one. kube-scheduler counts ids before it calls the
        extender.
        """
        counts = (view.ids, view.numa_ids)
        lacks = (count.lack(self.request, ledger.pods) for count in counts if count is not None)
        return next(filter(None, lacks), "")

    def ever(self, view: NodeView) -> bool:
        """True if the pod would fit were the node empty."""
        known = self.shape.ever
        if self.request.uuids or view.hardware not in known:
            cards = tuple(replace(s, held="") for s in view.node.cards)  # whole-card holders have left
            empty = Ledger((s.card for s in cards), view.node.unit)
            could = self.shape.placer.trial(cards, view.node.topology, empty) is not None
            if self.request.uuids:
                return could
            known[view.hardware] = could
        return known[view.hardware]

    def when_empty(self, view: NodeView) -> Fit | Unfit:
        """Where the pod would be placed were the node empty and none of its namespace's quota in use."""
        if view.problem or view.node.lacks(self.request):
            return Unfit.NODE
        if self.quota is not None and not self.quota.allows_pool(view.node.pool):
            return Unfit.QUOTA
        cards = tuple(replace(s, held="") for s in view.node.cards)  # as in `ever`
        free = replace(view, node=replace(view.node, cards=cards))
        return self._choose(free, Ledger((s.card for s in cards), view.node.unit), {}, {}) or Unfit.NEVER

    def when_ended(self, view: NodeView) -> Fit | None:
        """Where the pod would be placed had its namespace's pods ended; None if it would not fit even
        then.
        """
        mine = [uid for uid, one in view.bound.items() if one.pod.namespace == self.pod.namespace]
        found = self._choose(view, view.without(mine), {}, {})
        return found if isinstance(found, Fit) else None

    def over_quota(
        self, fit: Fit, used: Mapping[str, Amount], protected: Mapping[str, Amount]
    ) -> Mapping[str, str]:
        """The models whose quota is exceeded, each with the reason."""
        if self.quota is None:
            return {}
        if used is not self.used:
            return self.quota.passed(used, dict(fit.charge), protected)
        if fit.charge not in self._passed:
            self._passed[fit.charge] = self.quota.passed(self.used, dict(fit.charge), self.protected)
        return self._passed[fit.charge]


def _capped(ledger: Ledger, view: NodeView, caps: Mapping[int, Amount]) -> Ledger:
    """The ledger with no more than these amounts left on the cards, as if another pod held the rest."""
    if not caps:
        return ledger
    books = ledger.copy()
    for at, cap in caps.items():
        uuid = view.node.cards[at].card.uuid
        left = Amount(*books.room(uuid).left)
        held = Amount(max(0, left.cores - cap.cores), max(0, left.memory - cap.memory))
        books.commit((Allocation(_NOBODY, str(at), ContainerKind.APP, 0, (Share(uuid, held),)),))
    return books


def _plain(request: PodRequest) -> PodRequest:
    """The request without the pod's own names, so that equal requests compare equal."""
    containers = (replace(c, name=str(i)) for i, c in enumerate(request.containers))
    return replace(request, uid=PodUid(""), containers=tuple(containers), ceiling=None)


def with_closed(cards: Sequence[CardState], models: Mapping[str, str]) -> Sequence[CardState]:
    """The cards, with cards of these models closed; the mapping gives the reason for each model."""
    if not models:
        return cards
    return tuple(
        replace(s, cordoned=True, reason=models[s.card.model]) if s.card.model in models else s for s in cards
    )


def _take_off(charge: Charge, used: dict[str, Amount], protected: dict[str, Amount]) -> None:
    """Subtract a pod's charge."""
    for sums, held in ((used, charge.usage), (protected, charge.protected)):
        for model, amount in held:
            sums[model] = sums.get(model, ZERO) - amount


def by_model(taken: Iterable[tuple[str, Amount]]) -> tuple[tuple[str, Amount], ...]:
    """Sum amounts by model of card."""
    charge: dict[str, Amount] = {}
    for model, amount in taken:
        charge[model] = charge[model] + amount if model in charge else amount
    return tuple(sorted(charge.items()))
