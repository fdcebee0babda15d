"""Filter's answers, kept for later calls: prioritize, bind, and filter for the next equal pod.

Prioritize follows a moment later for the same pod and nodes. Bind accepts only a node that filter offered to
the pod; an offer lasts as long as the pod waits, since pods with volumes or gangs are bound minutes later,
and bind judges the node again in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import FeasibilityCheck, Unfit
from admission.extender.many_nodes import Verdicts, judge_nodes
from admission.extender.node_names import NodeNames
from gpu_manager.domain.kube.pod import PodUid

_MOST_NUMBERS: Final = 1024  # kinds beyond the number of nodes; no node has most of them any more
_MOST_KEPT: Final = 64  # kinds of request
_PART: Final = 4  # of all nodes: of fewer than a quarter only those are judged
_FEW: Final = 16  # changed nodes, up to which the verdicts on the others are reused


@dataclass(frozen=True, slots=True, eq=False)
class LastFilter:
    """One answer of filter; usually the scheduler prioritizes its nodes next, before much has changed."""

    occupant: PodView | None  # None: any pod with that request
    snapshot: Snapshot
    quota: object
    names: NodeNames
    verdicts: Verdicts

    def about(self, occupant: PodView, quota: object, names: NodeNames) -> bool:
        """True if the question is about the same pod and exactly these nodes, under the same quotas."""
        same = self.names is names or self.names == names
        return same and self.occupant is occupant and self.quota is quota

    def now(
        self, question: FeasibilityCheck, snapshot: Snapshot, changed: Sequence[NodeView]
    ) -> Verdicts | None:
        """The verdicts in a newer snapshot, judging only these changed nodes. None if more may have changed:
        the use of a namespace with a quota, or the set of nodes.
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
    """Filter's last answers: for the last pod, and by kind of request for pods that no node knows yet. The
    answer for the next such pod differs only on nodes that changed. Thread-safe.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._offered: LastFilter | None = None
        self._alike: dict[Hashable, LastFilter] = {}  # over all nodes; the most recently used last
        self._every = -1, NodeNames()  # the generation at which a node last came or went, and all names then

    def offered(self, answer: LastFilter) -> None:
        """Keep the nodes that fit, since the scheduler asks about them next."""
        self._offered = answer

    def for_same_pod(
        self, question: FeasibilityCheck, occupant: PodView, quota: object, names: NodeNames, now: Snapshot
    ) -> Verdicts | None:
        """The verdicts on the nodes offered for the pod; None if they are not known."""
        last = self._offered
        if last is None or not last.about(occupant, quota, names):
            return None
        return last.verdicts if last.snapshot is now else self._changed(last, question, now, _FEW)

    def for_same_request(
        self, question: FeasibilityCheck, names: NodeNames, now: Snapshot, late: Callable[[], bool]
    ) -> Verdicts | None:
        """The verdicts on these nodes for a pod like others; None if the pod, or the names, are not.

        All nodes of the cluster are judged once for each kind of request, and what changed afterwards:
        kube-scheduler examines nodes side by side, so that it asks about other nodes in another order each
        time. Of a few nodes only those are judged, unless all are known.
        """
        if not question.alike or question.quota is not None or question.own is not None:
            return None
        kind = question.shape.request, question.pod.priority  # one reserved for a pod is open to higher ones
        last = self._alike.pop(kind, None)
        known = None if last is None else self._changed(last, question, now, max(_FEW, len(last.names) // 4))
        every, checked = self._every_name(now), 0 if last is None else len(last.verdicts.said)
        if known is None:
            checked = 0
            if _PART * len(names) < len(every):
                return None
            known = judge_nodes(question, list(map(now.nodes.__getitem__, every)), late)
        try:
            at = np.fromiter(map(every.places.__getitem__, names), np.int64, len(names))
        except KeyError:
            return None
        awaited = any(view is not None and view.nominated for view in known.views[checked:])
        if not awaited and Unfit.LATE not in known.said[checked:]:
            self._alike[kind] = LastFilter(None, now, None, every, known)  # the newest last
            if len(self._alike) > _MOST_KEPT:
                self._alike.pop(next(iter(self._alike)), None)
        return known.at(at)

    def _every_name(self, now: Snapshot) -> NodeNames:
        if self._every[0] != now.names_turn:
            self._every = now.names_turn, NodeNames(now.nodes)
        return self._every[1]

    def _changed(
        self, last: LastFilter, question: FeasibilityCheck, now: Snapshot, most: int
    ) -> Verdicts | None:
        """The verdicts in this snapshot; None if much has changed since, or if it changed while reading."""
        newest, changed = self._cluster.news(last.snapshot.turn)
        return last.now(question, now, changed) if newest is now and len(changed) <= most else None


_MOST_OFFERS: Final = 1 << 14  # pods between filter and bind
_MOST_RECENT: Final = 32  # kept uncompressed: more than a scheduler binds at one time
_ONE: Final = ord("1")


class FilterResults:
    """All nodes that filter has offered for each pod. Thread-safe; the oldest pods are dropped first.

    Most pods are bound a moment after filter has answered, so only the other answers are compressed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bits: dict[str, int] = {}
        self._recent: dict[PodUid, Sequence[str]] = {}  # the newest last
        self._made: dict[PodUid, int] = {}  # a bit per node
        self._inherited: frozenset[PodUid] = frozenset()

    def remember(self, uid: PodUid, nodes: Sequence[str]) -> None:
        """Add an answer for the pod. ``nodes`` is kept by reference and must not change."""
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
        """The pod is bound: of its offers only this node is still needed."""
        with self._lock:
            self._made.pop(uid, None)
            if uid in self._recent:
                self._recent[uid] = (node,)

    def inherit(self, uids: Iterable[PodUid]) -> None:
        """Assume that another replica offered every node for these pods, before this replica answered for
        them.
        """
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
        if len(self._bits) > 1 << 17:  # includes names of deleted nodes
            self._bits.clear()
            self._made.clear()
