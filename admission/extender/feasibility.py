"""Does this pod fit this node, and why not: the domain's judgement over a snapshot, each case made once.

Placement sees of a node its cards' models, sizes, states, links and what is booked, which
:attr:`NodeView.state` numbers; of a pod what it asks for. So one answer serves all nodes alike and all pods
alike, and a call over thousands of nodes looks most of them up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView, named
from admission.cluster.snapshot import Snapshot
from admission.extender.free_cards import FreeCards
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.cluster.quota import EXCEEDED, NamespaceQuota, refusal
from gpu_manager.domain.cluster.terminating import with_terminating
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.placement.explain import LINE_LIMIT, Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.placement.place import Placement, PodPlacer, judge
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest

SEVERAL: Final = 32  # nodes of which nothing is remembered, above which they are judged in one go
LATE = "not judged in time: the pod has many containers, and the nodes differ much; it is asked about again"


class Unfit(Enum):
    """Why a node is left out; the value is its word for counts and metrics."""

    NODE = "node"  # no cards, no inventory, another unit
    REFUSED = "refused"  # the agent there refused this very amount a moment ago
    QUOTA = "quota"
    NEVER = "never"  # not even if it were empty
    ROOM = "room"
    LATE = "late"  # not judged: the question took too long

    @property
    def lasting(self) -> bool:
        """True if no preemption on the node can change it."""
        return self in (Unfit.NODE, Unfit.QUOTA, Unfit.NEVER)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Where the pod would lie: for each asking container the positions of its cards.

    ``taken`` is what that takes of each card, ``charge`` the same by model.
    """

    positions: tuple[tuple[int, ...], ...]
    taken: tuple[tuple[int, Amount], ...]
    charge: tuple[tuple[str, Amount], ...]


@dataclass(slots=True)
class _Shape:
    """One distinct request, and what was found for it: by node state, and by hardware for an empty node."""

    request: PodRequest
    placer: PodPlacer
    found: dict[tuple[int, frozenset[str]], Fit | None] = field(default_factory=dict)
    ever: dict[tuple[int, frozenset[str]], bool] = field(default_factory=dict)
    said: dict[int, Fit | Unfit] = field(default_factory=dict)  # by state, where there is no quota
    told: tuple[object, str] | None = None  # the last line of arithmetic, and what it was about

    @property
    def size(self) -> int:
        """What its answers take, counted in those for a pod of a few containers."""
        return len(self.found) * (1 + len(self.request.containers) // 8)

    def clear(self) -> None:
        """Forget the states of nodes, most of them long gone."""
        self.found.clear()
        self.said.clear()


class FeasibilityJudge:
    """Remembers answers. Thread-safe; what it says does not depend on what it remembers.

    ``most_shapes``: distinct requests remembered; ``most_answers``: answers in all, some 600 bytes each.
    """

    def __init__(self, most_shapes: int = 512, most_answers: int = 1 << 18) -> None:
        self._most_shapes, self._most_answers = most_shapes, most_answers
        self._lock = threading.Lock()
        self._shapes: dict[PodRequest, _Shape] = {}
        self._free = FreeCards()

    def ask(
        self, occupant: PodView, request: PodRequest, snapshot: Snapshot, quota: NamespaceQuota | None
    ) -> FeasibilityCheck:
        """One pod, and the cluster as it is. ``quota`` is that of its namespace, None if it has none."""
        containers = (replace(c, name=str(i)) for i, c in enumerate(request.containers))
        plain = replace(request, uid=PodUid(""), containers=tuple(containers), ceiling=None)
        with self._lock:
            shape = self._shapes.pop(plain, None) or _Shape(plain, PodPlacer(plain))
            self._make_room()
            if shape.size > self._most_answers // 2:
                shape.clear()
            self._shapes[plain] = shape  # the newest last
        return FeasibilityCheck(occupant, request, shape, snapshot, quota, self._free)

    def _make_room(self) -> None:
        """Forget the requests asked longest ago."""
        answers = sum(shape.size for shape in self._shapes.values())
        while self._shapes and (len(self._shapes) >= self._most_shapes or answers > self._most_answers):
            answers -= self._shapes.pop(next(iter(self._shapes))).size


class Verdicts(NamedTuple):
    """What was said of many nodes: each one's kind, and by kind a node of it and the answer for all: None
    where the pod fits and it was not worked out where.
    """

    kinds: Sequence[Hashable]
    found: Mapping[Hashable, tuple[NodeView | None, Fit | Unfit | None]]

    def refused(self) -> dict[Hashable, tuple[NodeView | None, Unfit]]:
        """The kinds of nodes on which the pod does not fit."""
        return {kind: (view, no) for kind, (view, no) in self.found.items() if isinstance(no, Unfit)}


class FeasibilityCheck:
    """One pod over one snapshot. Used by one thread."""

    def __init__(
        self,
        occupant: PodView,
        request: PodRequest,
        shape: _Shape,
        snapshot: Snapshot,
        quota: NamespaceQuota | None,
        free: FreeCards,
    ) -> None:
        self.request = request
        self._free = free
        self._pod = occupant.pod
        self._shape = shape
        self._quota = quota
        self._amounts = frozenset(c.request.amount for c in request.containers)
        self._own_node = snapshot.reserved.get(request.uid, "")
        self._used = dict(snapshot.used.get(occupant.pod.namespace, {}))
        self._own = snapshot.nodes[self._own_node] if self._own_node else None
        own = self._own.charges.get(request.uid) if self._own else None
        for model, amount in own.usage if own else ():
            self._used[model] = self._used.get(model, ZERO) - amount
        self._passed: dict[tuple[tuple[str, Amount], ...], Mapping[str, str]] = {}
        self._alike = not request.uuids and (quota is None or not quota.pools)
        # By state, for nodes of which nothing else matters.
        self._on: dict[int, Fit | Unfit] = shape.said if quota is None else {}

    def on(self, view: NodeView) -> Fit | Unfit:
        """Where the pod would lie on the node, or why it cannot."""
        if not self._is_like_others(view):
            return self._judge(view)
        found = self._on.get(view.state)
        if found is None:
            found = self._on[view.state] = self._judge(view)
        return found

    def _is_like_others(self, view: NodeView) -> bool:
        """True if the answer for the node is that for all nodes of its state."""
        if not self._alike or (self._own_node and view.name == self._own_node):
            return False
        return bool(view.kind) or not (view.problem or view.node.refused or view.nominated)

    def over(self, views: Sequence[NodeView | None], late: Callable[[], bool] = lambda: False) -> Verdicts:
        """:meth:`on` for many nodes, None for an unknown one: those of one kind are judged once.

        Once ``late`` says so, only what is remembered is answered: all other nodes are :attr:`Unfit.LATE`.
        """
        own = self._own
        # Per node only what runs in C, or nearly: there are thousands, of a few dozen kinds.
        kinds: list[Hashable] = (
            [view and (view.kind or view) for view in views] if self._alike else list(views)
        )
        if own is not None and own in views:
            kinds = [own if view is own else kind for view, kind in zip(views, kinds, strict=True)]
        first = dict(zip(reversed(kinds), reversed(views), strict=True))
        found: dict[Hashable, tuple[NodeView | None, Fit | Unfit | None]] = {}
        new: dict[Hashable, NodeView] = {}
        known_on = self._on.get
        for kind, view in first.items():
            if view is None:
                found[kind] = view, Unfit.NODE
            # A number says already that the node is like all of its state.
            elif (known := known_on(view.state)) is not None and (
                type(kind) is int or self._is_like_others(view)
            ):
                found[kind] = view, known
            else:
                new[kind] = view
        if len(new) > SEVERAL and len(self.request.containers) == 1 and self._alike and self._quota is None:
            found |= self._at_once(new)
        else:
            found |= {kind: (view, Unfit.LATE if late() else self.on(view)) for kind, view in new.items()}
        return Verdicts(kinds, found)

    def _at_once(
        self, new: Mapping[Hashable, NodeView]
    ) -> dict[Hashable, tuple[NodeView | None, Fit | Unfit | None]]:
        """Whether the one container fits these nodes, without looking for its cards on each."""
        views = [view for view in new.values() if self._is_like_others(view)]
        rooms = dict(
            zip(
                (view.state for view in views),
                self._free.with_room(self.request, views).tolist(),
                strict=True,
            )
        )
        found: dict[Hashable, tuple[NodeView | None, Fit | Unfit | None]] = {}
        for kind, view in new.items():
            if not self._is_like_others(view):
                found[kind] = view, self.on(view)
            elif rooms[view.state]:
                found[kind] = view, None
            else:
                no = self._on[view.state] = Unfit.ROOM if self._ever(view) else Unfit.NEVER
                found[kind] = view, no
        return found

    def candidates(self, verdicts: Verdicts, most: int) -> Mapping[Hashable, tuple[NodeView, Fit]]:
        """The nodes that fit, by kind, and where the pod would lie there, the most promising first.

        Where that was not worked out before it is now, for ``most`` of them: the others are left out.
        """
        found = verdicts.found
        kinds = [kind for kind, (view, no) in found.items() if view is not None and type(no) is not Unfit]
        if len(kinds) > most and not self.request.uuids:
            views = [view for kind in kinds if (view := found[kind][0]) is not None]
            kinds = list(map(kinds.__getitem__, self._free.promising(self.request, views).tolist()))
        chosen: dict[Hashable, tuple[NodeView, Fit]] = {}
        for kind in kinds:
            view, fit = found[kind]
            if type(fit) is Fit and view is not None:
                chosen[kind] = view, fit
            elif most > 0 and view is not None and isinstance(now := self.on(view), Fit):
                chosen[kind] = view, now
                most -= 1
        return chosen

    def _judge(self, view: NodeView) -> Fit | Unfit:
        no = self._before_cards(view)
        if no is not None:
            return no
        found = self._choose(view, self.ledger(view), self._used)
        if found is not None:
            return found
        return Unfit.ROOM if self._ever(view) else Unfit.NEVER

    def without(self, view: NodeView, gone: Collection[PodUid]) -> Fit | None:
        """Where the pod would lie if these pods had left the node; None if it would not fit even so."""
        if self._before_cards(view) is not None:
            return None
        used = dict(self._used)
        for uid in gone:
            charge = view.charges.get(uid)
            if charge is not None and charge.pod.namespace == self._pod.namespace:
                for model, amount in charge.usage:
                    used[model] = used.get(model, ZERO) - amount
        own = [self.request.uid] if view.name == self._own_node else []
        awaited = view.awaits(self.request.uid, self._pod.priority)
        found = self._choose(view, view.with_awaited(awaited, view.without([*gone, *own])), used)
        return found if isinstance(found, Fit) else None

    def _choose(self, view: NodeView, ledger: Ledger, used: Mapping[str, Amount]) -> Fit | Unfit | None:
        """The cards, but for those of models whose quota that would pass; None if there is no room."""
        closed: frozenset[str] = frozenset()
        while (fit := self._fit(view, ledger, closed)) is not None:
            passed = self._over(fit, used)
            if not passed:
                return fit
            closed = closed.union(passed)
        return Unfit.QUOTA if closed else None

    def placement(self, view: NodeView, fit: Fit) -> Placement:
        """The same as shares of this node's cards."""
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

    def refusal(self, view: NodeView) -> Refusal | None:
        """Card by card, why there is no room; None where the cards are not what keeps the pod out."""
        if self._before_cards(view) is not None:
            return None
        closed: dict[str, str] = {}
        while True:
            cards = _closed(view.node.cards, closed)
            found = judge(self.request, cards, view.node.topology, self.ledger(view))
            if isinstance(found, Refusal):
                return with_terminating(found, view.node.lingering, view.charges)
            taken = dict(_taken(self.request, found))
            charge = _by_model(
                (s.card.model, taken[s.card.uuid]) for s in view.node.cards if s.card.uuid in taken
            )
            passed = dict(self._quota.passed(self._used, dict(charge))) if self._quota else {}
            if not passed:
                return None
            closed |= {model: f"{EXCEEDED}: {why}" for model, why in passed.items()}

    def why(self, view: NodeView, limit: int = LINE_LIMIT) -> str:
        """One line: the rule, the arithmetic card by card, and what would fit."""
        if not self._alike or self._quota is not None or not view.kind or view.name == self._own_node:
            return self._why(view, limit)
        # A burst of pods alike is refused by the same full node, the first by name, again and again.
        about = view, limit, tuple(c.name for c in self.request.containers)
        told = self._shape.told
        if told is None or told[0] != about:
            told = self._shape.told = about, self._why(view, limit)
        return told[1]

    def _why(self, view: NodeView, limit: int) -> str:
        no = self.on(view)
        if not isinstance(no, Unfit):
            return ""
        if no in (Unfit.ROOM, Unfit.NEVER) and (refused := self.refusal(view)) is not None:
            awaited = view.awaits(self._pod.uid, self._pod.priority)
            held = (
                f"room is kept for {', '.join(named((o.pod for o in awaited[:3]), self._pod.namespace))}. "
                if awaited
                else ""
            )
            return held + refused.line(limit - len(held))
        return self.brief(view, no)[:limit]

    def brief(self, view: NodeView, no: Unfit) -> str:
        """The same in words that are equal for equal nodes, so that a scheduler can count them."""
        if no is Unfit.NODE:
            return view.problem or self._pool(view)
        if no is Unfit.REFUSED:
            return "its agent refused this amount less than a minute ago: its books are ahead of what is seen"
        if no is Unfit.QUOTA:
            return self._over_quota(view)
        if no is Unfit.LATE:
            return LATE
        never = " even on the empty node" if no is Unfit.NEVER else ""
        return f"no room on its cards{never} for {self._asked}"

    @cached_property
    def _asked(self) -> str:
        return describe(self.request)

    def ledger(self, view: NodeView) -> Ledger:
        """The node's books as this pod meets them: itself left out, those counted that it must wait for."""
        awaited = view.awaits(self.request.uid, self._pod.priority) if view.nominated else ()
        if view.name == self._own_node:
            return view.with_awaited(awaited, view.without([self.request.uid]))
        return view.with_awaited(awaited) if awaited else view.ledger

    def _before_cards(self, view: NodeView) -> Unfit | None:
        if view.problem:
            return Unfit.NODE
        if self._quota is not None and not self._quota.allows_pool(view.node.pool):
            return Unfit.QUOTA
        return Unfit.REFUSED if view.node.refused and self._amounts & view.node.refused else None

    def _fit(self, view: NodeView, ledger: Ledger, closed: frozenset[str]) -> Fit | None:
        if ledger is not view.ledger or self.request.uuids:
            return self._seek(view, ledger, closed)
        key = view.state, closed
        found = self._shape.found
        if key not in found:
            found[key] = self._seek(view, ledger, closed)
        return found[key]

    def _seek(self, view: NodeView, ledger: Ledger, closed: frozenset[str]) -> Fit | None:
        plain, cards = self._shape.request, _closed(view.node.cards, dict.fromkeys(closed, ""))
        trial = self._shape.placer.trial(cards, view.node.topology, ledger)
        if trial is None:
            return None
        taken = tuple(trial.taken().items())
        return Fit(
            positions=tuple(trial.positions[c.name] for c in plain.containers),
            taken=taken,
            charge=_by_model((cards[at].card.model, amount) for at, amount in taken),
        )

    def _ever(self, view: NodeView) -> bool:
        key = view.hardware, frozenset[str]()
        if self.request.uuids or key not in self._shape.ever:
            cards = tuple(replace(s, held="") for s in view.node.cards)  # who holds one whole gives it back
            empty = Ledger((s.card for s in cards), view.node.unit)
            could = self._shape.placer.trial(cards, view.node.topology, empty) is not None
            if self.request.uuids:
                return could
            self._shape.ever[key] = could
        return self._shape.ever[key]

    def _over(self, fit: Fit, used: Mapping[str, Amount]) -> Mapping[str, str]:
        """The models for which the quota is passed, and why."""
        if self._quota is None:
            return {}
        if used is not self._used:
            return self._quota.passed(used, dict(fit.charge))
        if fit.charge not in self._passed:
            self._passed[fit.charge] = self._quota.passed(self._used, dict(fit.charge))
        return self._passed[fit.charge]

    def _over_quota(self, view: NodeView) -> str:
        if pool := self._pool(view):
            return pool
        closed: dict[str, str] = {}
        while (fit := self._fit(view, self.ledger(view), frozenset(closed))) and (
            more := self._over(fit, self._used)
        ):
            closed |= more
        return refusal(self._pod.namespace, closed.values())

    def _pool(self, view: NodeView) -> str:
        if self._quota is None or self._quota.allows_pool(view.node.pool):
            return ""
        pools = ", ".join(map(printable, self._quota.pools))
        here = f"of pool {quoted(view.node.pool)}" if view.node.pool else "in no pool"
        return refusal(self._pod.namespace, [f"it may use pool {pools}; the node is {here}"])


def describe(request: PodRequest) -> str:
    """What a pod asks for, in a few words: the name is left out where there is but one container."""
    if len(request.containers) == 1:
        return str(request.containers[0].request)
    shown = "; ".join(f"{printable(c.name)}: {c.request}" for c in request.containers[:4])
    more = len(request.containers) - 4
    return f"{shown} and {more} more" if more > 0 else shown


def _closed(cards: Sequence[CardState], models: Mapping[str, str]) -> Sequence[CardState]:
    if not models:
        return cards
    return tuple(
        replace(s, cordoned=True, reason=models[s.card.model]) if s.card.model in models else s for s in cards
    )


def _taken(request: PodRequest, placement: Placement) -> list[tuple[CardUuid, Amount]]:
    """What the pod takes of each card at its worst moment."""
    held = [
        Allocation(request.uid, c.name, c.kind, c.order, placement[c.name])
        for c in request.containers
        if c.name in placement
    ]
    return [(card, peak(held, card)) for card in dict.fromkeys(card for a in held for card in a.cards)]


def _by_model(taken: Iterable[tuple[str, Amount]]) -> tuple[tuple[str, Amount], ...]:
    charge: dict[str, Amount] = {}
    for model, amount in taken:
        charge[model] = charge[model] + amount if model in charge else amount
    return tuple(sorted(charge.items()))
