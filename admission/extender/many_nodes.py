"""Judges a pod over thousands of nodes: equal nodes are judged once, and requests of one card are computed
for all nodes together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import cache, cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import SOMEWHERE, FeasibilityCheck, Fit, Unfit
from admission.extender.node_names import NodeNames
from admission.extender.price_column import PriceColumn, Totals, near_least
from admission.extender.ranking import MOST_PRICED

SEVERAL: Final = 32  # nodes without a cached verdict, above which they are judged together
FITS: Final = 0
CODES: Final = dict(enumerate(Unfit, 1))
_CODE_OF: Final = {no: code for code, no in CODES.items()}

Numbers = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint8]


class Verdicts:
    """Verdicts on many nodes, stored once for each kind of node, by the kind's number.

    ``numbers`` has the number of each node, ``number`` that of each kind. ``views`` (a node of that kind,
    possibly an older state of one) and ``said`` are indexed by number. Some numbers may belong to no node any
    more. The verdict is :data:`SOMEWHERE` if the pod fits and its cards were not worked out. ``columns`` is
    for what is known by number; verdicts that follow from these have the same numbers and share it.
    """

    def __init__(
        self,
        numbers: Numbers,
        number: Mapping[Hashable, int],
        views: Sequence[NodeView | None],
        said: Sequence[Fit | Unfit],
        codes: Codes | None = None,
        columns: dict[tuple[object, int], PriceColumn] | None = None,
    ) -> None:
        self.numbers = numbers
        self.views = views
        self.said = said
        self._number = number
        self.columns: dict[tuple[object, int], PriceColumn] = {} if columns is None else columns
        self._codes = _codes(said) if codes is None else codes

    @cached_property
    def kinds(self) -> Sequence[Hashable]:
        """The kinds by number."""
        return list(self._number)

    @cached_property
    def codes(self) -> bytes:
        """For each node, :data:`FITS` or the code of the reason why the pod does not fit."""
        return self._codes[self.numbers].tobytes()

    @property
    def answers(self) -> list[Fit | Unfit]:
        """For each node, its verdict."""
        return list(map(self.said.__getitem__, self.numbers.tolist()))

    def fitting(self) -> bytes:
        """For each node, 1 if the pod fits, else 0."""
        return chosen(self.codes, FITS)

    def among(self, fits: bytes) -> Verdicts:
        """The verdicts on only those nodes whose byte is not 0."""
        return self if 0 not in fits else self.at(np.flatnonzero(np.frombuffer(fits, np.bool_)))

    def at(self, places: npt.NDArray[np.int64]) -> Verdicts:
        """The verdicts on the nodes at these places, in this order."""
        other = copy(self)
        other.__dict__.pop("codes", None)
        other.numbers = self.numbers[places]
        return other

    def open(self) -> npt.NDArray[np.intp]:
        """The numbers that some node has on which the pod fits, in the order of their first nodes."""
        first = np.full(len(self.said), len(self.numbers))
        first[self.numbers[::-1]] = np.arange(len(self.numbers) - 1, -1, -1)
        places = np.sort(first[(first < len(self.numbers)) & (self._codes == FITS)])
        found: npt.NDArray[np.intp] = self.numbers[places].astype(np.intp)
        return found

    def with_changed(self, check: FeasibilityCheck, changed: Sequence[tuple[int, NodeView]]) -> Verdicts:
        """The verdicts with the nodes at these places judged again."""
        now = judge_nodes(check, [view for _, view in changed])
        numbers, number = self.numbers.copy(), dict(self._number)
        views, said = list(self.views), list(self.said)
        for (place, view), at in zip(changed, now.numbers.tolist(), strict=True):
            kind = now.kinds[at]
            if kind not in number:
                number[kind] = len(number)
                views.append(view)
                said.append(now.said[at])
            numbers[place] = number[kind]
        codes = np.concatenate((self._codes, _codes(said[len(self.said) :])))
        return Verdicts(numbers, number, views, said, codes, self.columns)


def _codes(said: Sequence[Fit | Unfit]) -> Codes:
    return np.array([_CODE_OF[answer] if isinstance(answer, Unfit) else FITS for answer in said], np.uint8)


def chosen(codes: bytes, *these: int) -> bytes:
    """For each byte, 1 if it is one of ``these``, else 0."""
    return codes.translate(_table(these))


def beside_its_gang(names: NodeNames, fits: bytes, node: str) -> bytes:
    """Return ``fits`` with nothing but ``node``, where the pod's gang holds its place, if the pod fits there;
    otherwise ``fits`` itself. Were other nodes offered too, other plugins' scores could outvote prioritize.
    """
    at = names.places.get(node)
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
    own, like_others = check.own, check.is_like_others
    # Per node only C code, or nearly: there are thousands, and as many kinds in a busy cluster.
    kinds: list[Hashable] = [view and (view.kind or view) for view in views] if check.alike else list(views)
    if own is not None and own in views:
        kinds = [own if view is own else kind for view, kind in zip(views, kinds, strict=True)]
    distinct = dict(zip(kinds, views, strict=True))
    number = dict(zip(distinct, range(len(distinct)), strict=True))
    numbers = np.fromiter(map(number.__getitem__, kinds), np.int32, len(kinds))
    # The number already implies that the node is like all of its state.
    known_on = check.on_state.get
    said = {
        kind: known_on(view.state) if view is not None and (type(kind) is int or like_others(view)) else None
        for kind, view in distinct.items()
    }
    found = _judged(check, {kind: distinct[kind] for kind, answer in said.items() if answer is None}, late)
    answers = [answer or found[kind] for kind, answer in said.items()]
    return Verdicts(numbers, number, list(distinct.values()), answers)


def _judged(
    check: FeasibilityCheck, new: Mapping[Hashable, NodeView | None], late: Callable[[], bool]
) -> dict[Hashable, Fit | Unfit]:
    """The verdicts on nodes without a cached one, by kind."""
    found: dict[Hashable, Fit | Unfit] = {}
    several = check.request.containers[0].request.cards > 1
    if len(new) > SEVERAL and len(check.request.containers) == 1 and check.alike and check.quota is None:
        like_others = check.is_like_others
        found = _at_once(
            check,
            {
                kind: view
                for kind, view in new.items()
                if view is not None
                and view.ids is None  # more than the cards decides
                and (type(kind) is int or like_others(view))
                and not (several and view.node.topology.numa_policy.strict)  # likewise
                and not view.node.lacks(check.request)
            },
        )
    for kind, view in new.items():
        if kind not in found:
            found[kind] = Unfit.NODE if view is None else Unfit.LATE if late() else check.on(view)
    return found


def _at_once(check: FeasibilityCheck, new: Mapping[Hashable, NodeView]) -> dict[Hashable, Fit | Unfit]:
    """Whether the only container fits these nodes, without choosing its cards on each."""
    rooms = check.free.with_room(check.request, list(new.values())).tolist()
    full = {view.hardware: view for view, room in zip(new.values(), rooms, strict=True) if not room}
    no = {hardware: Unfit.ROOM if check.ever(view) else Unfit.NEVER for hardware, view in full.items()}
    found: dict[Hashable, Fit | Unfit] = {}
    for (kind, view), room in zip(new.items(), rooms, strict=True):
        found[kind] = check.on_state[view.state] = SOMEWHERE if room else no[view.hardware]
    return found


Candidates = Mapping[int, tuple[NodeView, Fit]]


def candidates(
    check: FeasibilityCheck, verdicts: Verdicts, most: int, totals: Totals | None = None
) -> Candidates:
    """The kinds of nodes that fit, by number, with the pod's placement there, the most promising first.

    Placements not worked out yet are computed for at most ``most`` kinds; the others are left out. With
    ``totals`` (prices by number) only kinds near the least of them are given, and ``most`` without a price.
    """
    views, said = verdicts.views, verdicts.said
    fits = verdicts.open()
    near = fits[:0]
    if totals is not None:
        near, unknown = near_least(totals, fits, MOST_PRICED), np.isnan(totals[fits])
        if len(fits) - unknown.sum() >= MOST_PRICED:
            most = min(most, MOST_PRICED // 4)
        fits = fits[unknown]
    if len(fits) > most and not check.request.uuids:
        order = check.free.promising(check.request, [view for n in fits.tolist() if (view := views[n])])
        fits = fits[order] if totals is None else fits[order][:most]
    found: dict[int, tuple[NodeView, Fit]] = {}
    for number in (*near.tolist(), *fits.tolist()):
        view, fit = views[number], said[number]
        if view is None:
            continue
        if fit is SOMEWHERE:
            fit = check.on_state.get(view.state, fit)  # it may have been worked out since that verdict
        if fit is SOMEWHERE:
            if most <= 0:
                continue
            fit, most = check.on(view), most - 1
        if isinstance(fit, Fit):
            found[number] = view, fit
    return found
