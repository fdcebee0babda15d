"""The cluster's nodes by number, and what is known of each kind of node for each kind of request.

A scheduler asks about other nodes, in another order, for each pod: kube-scheduler's workers append nodes as
they pass its filters. So names are looked up in one table, and an answer is gathered from its columns. Nodes
that are equal to every pod (:attr:`~admission.cluster.node_view.NodeView.kind`) are one kind; a kind is
judged when a question meets it for the first time, and priced likewise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import FeasibilityCheck, Unfit
from admission.extender.many_nodes import Codes, Keys, Numbers, Verdicts, code_of, judge_kinds, worked_out
from admission.extender.price_column import PriceColumn

_MOST_COLUMNS: Final = 64  # kinds of request
_SPARE: Final = 1024
_UNKNOWN: Final = 255


@dataclass(slots=True)
class _Column:
    """What is known for one kind of request, by number of the kind of node. ``keys``: of the first kinds."""

    said: Codes = field(default_factory=lambda: np.zeros(0, np.uint8))
    keys: Keys = field(default_factory=lambda: np.zeros(0, np.int64))
    prices: dict[tuple[object, int], PriceColumn] = field(default_factory=dict)

    def reach(self, count: int) -> None:
        """Have room for so many kinds."""
        if count > len(self.said):
            more = np.full(count * 9 // 8 - len(self.said), _UNKNOWN, np.uint8)
            self.said = np.concatenate((self.said, more))


class NodeTable:
    """Thread-safe. Verdicts stay as they were given: kinds are added, and where some are dropped, all lists
    are replaced. ``spare``: kinds that no node has any more, that are kept; at least a quarter of the
    number of nodes.
    """

    def __init__(self, cluster: ClusterState, spare: int = _SPARE) -> None:
        self._cluster = cluster
        self._spare = spare
        self._lock = threading.Lock()
        self._turn = 0  # the generation up to which changes are known
        self._place: dict[str, int] = {}  # of each node, by name
        self._names: list[str] = []  # by place; only appended to, until all places are other ones
        self._kind_at: Numbers = np.zeros(0, np.int32)  # the kind of the node at each place
        self._number: dict[Hashable, int] = {}  # of each kind
        self._views: list[NodeView] = []  # a node of each kind
        self._columns: dict[Hashable, _Column] = {}  # the most recently used last

    def verdicts(
        self, check: FeasibilityCheck, names: Sequence[str], now: Snapshot, late: Callable[[], bool]
    ) -> Verdicts | None:
        """Return what :func:`judge_nodes` returns for the nodes with these names, in this order.

        ``now`` is the snapshot that the caller judges; ``late()`` is True once the time to answer is over.

        None if more than the kinds of nodes decides (cards or pools that the pod names, a quota, a place that
        it has already), if a node is not known, or if the cluster has changed since.
        """
        if not check.alike or check.quota is not None or check.own is not None:
            return None
        with self._lock:
            if not self._follow(now):
                return None
            try:
                places = np.fromiter(map(self._place.__getitem__, names), np.int64, len(names))
            except KeyError:
                return None
            return self._judged(check, places, late)

    # Every method below is called with the lock held.

    def _judged(self, check: FeasibilityCheck, places: Keys, late: Callable[[], bool]) -> Verdicts:
        kinds, listed = self._kind_at[places], (self._names, places)
        column = self._column((check.shape.request, check.pod.priority))  # kept places open to higher ones
        if unranked := self._views[len(column.keys) :]:
            column.keys = np.concatenate((column.keys, check.free.keys(check.request, unranked)))
        said = column.said
        new = np.unique(kinds[said[kinds] == _UNKNOWN]).tolist()
        found = judge_kinds(check, {kind: self._views[kind] for kind in new}, late, 0) if new else {}
        passing = {}
        for kind, answer in found.items():
            # For which pods room is awaited is another matter for each pod.
            if answer is Unfit.LATE or self._views[kind].nominated:
                passing[kind] = code_of(answer)
            else:
                said[kind] = code_of(answer)
        if passing:
            said = said.copy()
            said[list(passing)] = list(passing.values())
        return Verdicts(kinds, self._views, said, worked_out(found), column.prices, column.keys, listed)

    def _column(self, key: Hashable) -> _Column:
        column = self._columns.pop(key, None) or _Column()
        self._columns[key] = column
        if len(self._columns) > _MOST_COLUMNS:
            del self._columns[next(iter(self._columns))]
        column.reach(len(self._views))
        return column

    def _follow(self, now: Snapshot) -> bool:
        """Take in what changed; False if that snapshot is not the newest."""
        newest, changed = self._cluster.news(self._turn)
        if newest is not now:
            return False
        if now.names_turn > self._turn:
            for name in self._place.keys() - now.nodes.keys():
                del self._place[name]
        self._turn = now.turn
        new = [view.name for view in changed if view.name not in self._place]
        self._place |= zip(new, range(len(self._kind_at), len(self._kind_at) + len(new)), strict=True)
        self._names += new
        self._kind_at = np.concatenate((self._kind_at, np.zeros(len(new), np.int32)))
        for view in changed:
            self._kind_at[self._place[view.name]] = self._kind(view)
        most = len(now.nodes) + max(self._spare, len(now.nodes) // 4)
        if max(len(self._views), len(self._kind_at)) > most:
            self._drop_unused()
        return True

    def _kind(self, view: NodeView) -> int:
        kind = view.kind or view
        number = self._number.get(kind)
        if number is None:
            number = self._number[kind] = len(self._views)
            self._views.append(view)
        return number

    def _drop_unused(self) -> None:
        """Number the kinds that some node has anew."""
        at = self._kind_at[list(self._place.values())].astype(np.intp)
        used, again = np.unique(at, return_inverse=True)
        self._kind_at = again.astype(np.int32)
        self._names = list(self._place)
        self._place = dict(zip(self._names, range(len(self._names)), strict=True))
        self._views = [self._views[number] for number in used.tolist()]
        self._number = {view.kind or view: number for number, view in enumerate(self._views)}
        for column in self._columns.values():
            column.reach(1 + int(used.max(initial=0)))
            column.said, column.keys = column.said[used], column.keys[used[used < len(column.keys)]]
            column.prices = {key: prices.only(used) for key, prices in column.prices.items()}
