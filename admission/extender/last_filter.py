"""The answers of filter that later requests need: prioritize, bind, and filter for the next equal pod.

Prioritize asks about the same pod and nodes a moment later. Bind accepts only a node that filter offered to
the pod; an offer lasts as long as the pod waits, since volumes and gangs are bound minutes later, and bind
judges the node anew in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import FeasibilityCheck, Unfit
from admission.extender.many_nodes import Verdicts
from admission.extender.node_names import NodeNames
from gpu_manager.domain.kube.pod import PodUid

_MOST_NUMBERS: Final = 1024  # of kinds beyond the number of nodes: most are of no node any more
_MOST_KEPT: Final = 32  # kinds of request
_FEW: Final = 16  # nodes that changed, up to which the others stand in any case


@dataclass(frozen=True, slots=True, eq=False)
class LastFilter:
    """One answer of filter: a scheduler has its nodes prioritized next, as a rule before much changes."""

    occupant: PodView
    snapshot: Snapshot
    quota: object
    names: NodeNames
    verdicts: Verdicts

    def about(self, occupant: PodView, quota: object, names: NodeNames) -> bool:
        """True if the same pod is asked about for just these nodes, under the same quotas."""
        same = self.names is names or self.names == names
        return same and self.occupant is occupant and self.quota is quota

    def now(
        self, question: FeasibilityCheck, snapshot: Snapshot, changed: Sequence[NodeView]
    ) -> Verdicts | None:
        """The verdicts in a newer snapshot, in which these nodes were built anew: only they are judged. None
        if more may have changed: what a namespace with a quota holds, or which nodes there are.
        """
        if question.quota is not None or self.names.repeated:
            return None
        if (
            snapshot.names_turn > self.snapshot.turn
            or len(self.verdicts.said) > len(self.names) + _MOST_NUMBERS
        ):
            return None
        place = self.names.places.get
        here = [(at, view) for view in changed if (at := place(view.name)) is not None]
        return self.verdicts.with_changed(question, here) if here else self.verdicts


class LastAnswers:
    """Filter's last answers: for the pod that was asked about last, and by kind of request, for pods of which
    no node knows anything. The answer for the next such pod differs only on nodes that changed. Thread-safe.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._offered: LastFilter | None = None
        self._alike: dict[Hashable, LastFilter] = {}

    def offered(self, answer: LastFilter) -> None:
        """Remember the nodes that fit: what a scheduler asks about next."""
        self._offered = answer

    def judged(self, question: FeasibilityCheck, answer: LastFilter) -> None:
        """Remember it for the next pod that asks for the same, unless it depends on more than that."""
        verdicts = answer.verdicts
        of_all = not any(view is not None and view.nominated for view in verdicts.views)
        if _is_like_others(question) and of_all and Unfit.LATE not in verdicts.said:
            self._keep(question, answer)

    def for_same_pod(
        self, question: FeasibilityCheck, occupant: PodView, quota: object, names: NodeNames, now: Snapshot
    ) -> Verdicts | None:
        """What is said of the nodes that were offered for the pod; None if that is not known."""
        last = self._offered
        if last is None or not last.about(occupant, quota, names):
            return None
        return last.verdicts if last.snapshot is now else self._changed(last, question, now, _FEW)

    def for_same_request(
        self, question: FeasibilityCheck, names: NodeNames, now: Snapshot
    ) -> Verdicts | None:
        """What is said of these nodes for a pod that asks for this; None if that is not known."""
        last = self._alike.get(_kind(question)) if _is_like_others(question) else None
        verdicts = (
            None if last is None else self._changed(last, question, now, max(_FEW, len(last.names) // 4))
        )
        if last is None or verdicts is None:
            return None
        # kube-scheduler looks at nodes side by side, so that their order differs each time; and in a large
        # cluster it asks about some of them.
        same = last.names is names or last.names == names
        try:
            at = (
                None if same else np.fromiter(map(last.names.places.__getitem__, names), np.int64, len(names))
            )
        except KeyError:
            return None
        self._keep(question, replace(last, snapshot=now, verdicts=verdicts))
        return verdicts if at is None else verdicts.at(at)

    def _keep(self, question: FeasibilityCheck, answer: LastFilter) -> None:
        self._alike[_kind(question)] = answer
        if len(self._alike) > _MOST_KEPT:
            self._alike.pop(next(iter(self._alike)), None)

    def _changed(
        self, last: LastFilter, question: FeasibilityCheck, now: Snapshot, most: int
    ) -> Verdicts | None:
        """The verdicts in this snapshot; None if much has changed since, or something has changed again."""
        newest, changed = self._cluster.news(last.snapshot.turn)
        return last.now(question, now, changed) if newest is now and len(changed) <= most else None


def _kind(question: FeasibilityCheck) -> Hashable:
    """Pods of equal kinds get the same verdicts; a node that is kept for a pod is open to higher priority."""
    return question.shape.request, question.pod.priority


def _is_like_others(question: FeasibilityCheck) -> bool:
    return question.alike and question.quota is None and question.own is None


_MOST_OFFERS: Final = 1 << 14  # pods between filter and bind
_MOST_RECENT: Final = 32  # kept as they came: more than a scheduler binds at one time
_ONE: Final = ord("1")


class FilterResults:
    """Which nodes filter has ever offered for which pod. Thread-safe; the oldest pods go first.

    Most pods are bound a moment after filter has answered, so only the answers for others are made small.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bits: dict[str, int] = {}
        self._recent: dict[PodUid, Sequence[str]] = {}  # the newest last
        self._made: dict[PodUid, int] = {}  # a bit a node
        self._inherited: frozenset[PodUid] = frozenset()

    def remember(self, uid: PodUid, nodes: Sequence[str]) -> None:
        """The answer for the pod, beside those of before. ``nodes`` is kept, and must not change."""
        with self._lock:
            self._inherited -= {uid}
            before = self._recent.pop(uid, None)
            if before is not None and before != nodes:
                self._make_small(uid, before)
            if len(nodes):
                self._recent[uid] = nodes
            if len(self._recent) > _MOST_RECENT:
                oldest = next(iter(self._recent))
                self._make_small(oldest, self._recent.pop(oldest))

    def bound(self, uid: PodUid, node: str) -> None:
        """The pod is bound there: of its offers only that node is still of use."""
        with self._lock:
            self._made.pop(uid, None)
            if uid in self._recent:
                self._recent[uid] = (node,)

    def inherit(self, uids: Iterable[PodUid]) -> None:
        """Another replica may have offered any node for these pods, before this one was asked about them."""
        with self._lock:
            self._inherited = frozenset(uids)

    def has(self, uid: PodUid, node: str) -> bool:
        """True if the node was offered for the pod, or may have been by another replica."""
        with self._lock:
            if uid in self._inherited or node in self._recent.get(uid, ()):
                return True
            made, bit = self._made.get(uid, 0), self._bits.get(node)
            return bit is not None and bool(made >> bit & 1)

    def _make_small(self, uid: PodUid, nodes: Sequence[str]) -> None:
        try:
            bits = list(map(self._bits.__getitem__, nodes))
        except KeyError:  # some are new
            bits = [self._bits.setdefault(name, len(self._bits)) for name in nodes]
        # One bit for each offered node: 5,000 nodes take 600 bytes. The bits are written as binary digits,
        # lowest bit last, because one int() of all digits is faster than 5,000 shifts.
        digits = bytearray(b"0") * (max(bits, default=0) + 1)
        for bit in bits:
            digits[-1 - bit] = _ONE
        self._made[uid] = int(digits, 2) | self._made.pop(uid, 0)
        while len(self._made) > _MOST_OFFERS:
            del self._made[next(iter(self._made))]
        if len(self._bits) > 1 << 17:  # names of nodes that came and went
            self._bits.clear()
            self._made.clear()
