"""Judges a pod over thousands of nodes: equal nodes are judged once, and requests of one card are computed
for all nodes together.

A scheduler asks about other nodes, in another order, for each pod: kube-scheduler's workers append nodes as
they pass its filters. So names are looked up in one table, and an answer is gathered from its columns. Nodes
that are equal to every pod (:attr:`~admission.cluster.node_view.NodeView.kind`) are one kind; a kind is
judged when a question meets it for the first time, and priced likewise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import SOMEWHERE, FeasibilityCheck, Fit, Unfit
from admission.extender.free_cards import promising
from admission.extender.ranking import MOST_PRICED, PriceColumn, Totals, near_least
from admission.extender.wire import NodeNames

SEVERAL: Final = 32  # nodes without a cached verdict, above which they are judged together
FITS: Final = 0
CODES: Final = dict(enumerate(Unfit, 1))
CODE_OF: Final = {no: code for code, no in CODES.items()}
_CODE_BY_LABEL: Final = {no.value: code for code, no in CODES.items()}  # a text is hashed once

Numbers = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.int64]


@dataclass(eq=False, repr=False)
class Verdicts:
    """Verdicts on many nodes, stored once for each kind of node, by the kind's number.

    ``numbers`` has the number of each node's kind. ``views`` (a node of that kind, possibly an older state of
    one) is indexed by number, and so are ``said``, the codes of the verdicts. Some numbers may belong to none
    of these nodes. ``worked_out``: where the pod would be placed, for kinds of which that is known already.
    ``columns`` is for what is known by number; verdicts that have the same numbers share it. ``keys`` are
    those of :meth:`~admission.extender.free_cards.FreeCards.keys` by number, if they are known. ``places``: a
    list of all names, and the place of each node in it, if the nodes were looked up there.
    """

    numbers: Numbers
    views: Sequence[NodeView | None]
    said: Codes
    worked_out: Mapping[int, Fit]
    columns: dict[tuple[object, int], PriceColumn]
    keys: Keys | None = None
    places: tuple[Sequence[str], Keys] | None = None

    @cached_property
    def codes(self) -> bytes:
        """For each node, :data:`FITS` or the code of the reason why the pod does not fit."""
        return self.said[self.numbers].tobytes()

    @property
    def answers(self) -> list[Fit | Unfit]:
        """For each node, its verdict: :data:`SOMEWHERE` if the pod fits and its cards were not worked out."""
        pairs = zip(self.numbers.tolist(), self.codes, strict=True)
        return [CODES.get(code) or self.worked_out.get(number, SOMEWHERE) for number, code in pairs]

    def says(self, no: Unfit) -> bool:
        """True if that is the verdict on some node."""
        return CODE_OF[no] in self.codes

    def fitting(self) -> bytes:
        """For each node, 1 if the pod fits, else 0."""
        return chosen(self.codes, FITS)

    def among(self, fits: bytes) -> Verdicts:
        """The verdicts on only those nodes whose byte is not 0."""
        if 0 not in fits:
            return self
        other = copy(self)
        other.__dict__.pop("codes", None)
        other.places = None
        other.numbers = self.numbers[np.frombuffer(fits, np.bool_)]
        return other

    def open(self) -> npt.NDArray[np.intp]:
        """The numbers that some node has on which the pod fits, in the order of their first nodes."""
        first = np.full(len(self.said), len(self.numbers))
        first[self.numbers[::-1]] = np.arange(len(self.numbers) - 1, -1, -1)
        places = np.sort(first[(first < len(self.numbers)) & (self.said == FITS)])
        found: npt.NDArray[np.intp] = self.numbers[places].astype(np.intp)
        return found


def chosen(codes: bytes, *these: int) -> bytes:
    """For each byte, 1 if it is one of ``these``, else 0."""
    return codes.translate(_table(these))


def beside_its_gang(names: NodeNames, fits: bytes, node: str) -> bytes:
    """Return ``fits`` with nothing but ``node``, where the pod's gang holds its place, if the pod fits there;
    otherwise ``fits`` itself. Were other nodes offered too, other plugins' scores could outvote prioritize.
    """
    at = names.index(node) if node and node in names else None
    return fits if at is None or not fits[at] else bytes(place == at for place in range(len(fits)))


@cache
def _table(these: tuple[int, ...]) -> bytes:
    return bytes(code in these for code in range(256))


def judge_nodes(
    check: FeasibilityCheck, views: Sequence[NodeView | None], late: Callable[[], bool] = lambda: False
) -> Verdicts:
    """:meth:`FeasibilityCheck.on` for many nodes; None stands for an unknown node.

    Once ``late`` returns True, only cached verdicts are given: all other nodes are :attr:`Unfit.LATE`.
    """
    own = check.own
    # Per node only C code, or nearly: there are thousands, and as many kinds in a busy cluster.
    kinds: list[Hashable] = [view and (view.kind or view) for view in views] if check.alike else list(views)
    if own is not None and own in views:
        kinds = [own if view is own else kind for view, kind in zip(views, kinds, strict=True)]
    distinct = dict(zip(kinds, views, strict=True))
    number = dict(zip(distinct, range(len(distinct)), strict=True))
    numbers = np.fromiter(map(number.__getitem__, kinds), np.int32, len(kinds))
    found = judge_kinds(check, dict(enumerate(distinct.values())), late, SEVERAL)
    said = np.fromiter((code_of(found[at]) for at in range(len(found))), np.uint8, len(found))
    return Verdicts(numbers, list(distinct.values()), said, worked_out(found), {})


def code_of(answer: Fit | Unfit) -> int:
    """:data:`FITS`, or the code of the reason."""
    return FITS if isinstance(answer, Fit) else _CODE_BY_LABEL[answer.value]


def worked_out(found: Mapping[int, Fit | Unfit]) -> dict[int, Fit]:
    """The placements among these verdicts."""
    return {at: fit for at, fit in found.items() if isinstance(fit, Fit) and fit is not SOMEWHERE}


def judge_kinds(
    check: FeasibilityCheck, views: Mapping[int, NodeView | None], late: Callable[[], bool], several: int
) -> dict[int, Fit | Unfit]:
    """The verdict on each kind of node, by number. If more than ``several`` have no cached one they are
    judged together where that is possible: then it is not worked out where the pod would be placed.
    """
    known, like_others = check.on_state.get, check.is_like_others
    found: dict[int, Fit | Unfit] = {}
    alike: dict[int, NodeView] = {}
    for number, view in views.items():
        if view is not None and like_others(view):
            if (answer := known(view.state)) is not None:
                found[number] = answer
            else:
                alike[number] = view
    asked = check.request.containers[0].request
    together = len(check.request.containers) == 1 and check.alike and check.quota is None
    if together and len(views) - len(found) > several:
        strict = asked.cards > 1  # under a strict NUMA policy more than the count of the cards decides
        found |= _at_once(
            check,
            {
                number: view
                for number, view in alike.items()
                if view.ids is None  # likewise
                and not (strict and view.node.topology.numa_policy.strict)
                and not view.node.lacks(check.request)
            },
        )
    for number, view in views.items():
        if number not in found:
            found[number] = Unfit.NODE if view is None else Unfit.LATE if late() else check.on(view)
    return found


def _at_once(check: FeasibilityCheck, new: Mapping[int, NodeView]) -> dict[int, Fit | Unfit]:
    """Whether the only container fits these nodes, without choosing its cards on each."""
    rooms = check.free.with_room(check.request, list(new.values())).tolist()
    full = {view.hardware: view for view, room in zip(new.values(), rooms, strict=True) if not room}
    no = {hardware: Unfit.ROOM if check.ever(view) else Unfit.NEVER for hardware, view in full.items()}
    found: dict[int, Fit | Unfit] = {}
    for (number, view), room in zip(new.items(), rooms, strict=True):
        found[number] = check.on_state[view.state] = SOMEWHERE if room else no[view.hardware]
    return found


Candidates = Mapping[int, tuple[NodeView, Fit]]


def candidates(
    check: FeasibilityCheck, verdicts: Verdicts, most: int, totals: Totals | None = None
) -> Candidates:
    """The kinds of nodes that fit, by number, with the pod's placement there, the most promising first.

    Placements not worked out yet are computed for at most ``most`` kinds; the others are left out. With
    ``totals`` (prices by number) only kinds near the least of them are given, and ``most`` without a price.
    """
    views, known = verdicts.views, verdicts.worked_out
    fits = verdicts.open()
    near = fits[:0]
    if totals is not None:
        near, unknown = near_least(totals, fits, MOST_PRICED), np.isnan(totals[fits])
        if len(fits) - unknown.sum() >= MOST_PRICED:
            most = min(most, MOST_PRICED // 4)
        fits = fits[unknown]
    if len(fits) > most and not check.request.uuids:
        keys = verdicts.keys
        if keys is None:
            there = [view for number in fits.tolist() if (view := views[number]) is not None]
            fits = promising(fits, check.free.keys(check.request, there))
        else:
            fits = promising(fits, keys[fits])
        fits = fits if totals is None else fits[:most]
    found: dict[int, tuple[NodeView, Fit]] = {}
    on_state, like_others = check.on_state.get, check.is_like_others
    for number in (*near.tolist(), *fits.tolist()):
        view = views[number]
        if view is None:
            continue
        fit = known.get(number) or (on_state(view.state) if like_others(view) else None)
        if fit is None or fit is SOMEWHERE:
            if most <= 0:
                continue
            fit, most = check.on(view), most - 1
        if isinstance(fit, Fit):
            found[number] = view, fit
    return found


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
        """Update the columns to this snapshot; return False, changing nothing, if a newer one exists."""
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
