"""Does a pod fit thousands of nodes: those of one kind are judged once, and one card's arithmetic is done for
all nodes together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import FeasibilityCheck, Fit, Unfit

SEVERAL: Final = 32  # nodes of which nothing is remembered, above which they are judged in one go

_Found = dict[Hashable, tuple[NodeView | None, Fit | Unfit | None]]


class Verdicts(NamedTuple):
    """What was said of many nodes: each one's kind, and by kind a node of it and the answer for all: None
    where the pod fits and it was not worked out where.
    """

    kinds: Sequence[Hashable]
    found: Mapping[Hashable, tuple[NodeView | None, Fit | Unfit | None]]

    def refused(self) -> dict[Hashable, tuple[NodeView | None, Unfit]]:
        """The kinds of nodes on which the pod does not fit."""
        return {kind: (view, no) for kind, (view, no) in self.found.items() if isinstance(no, Unfit)}


def judge_nodes(
    check: FeasibilityCheck, views: Sequence[NodeView | None], late: Callable[[], bool] = lambda: False
) -> Verdicts:
    """:meth:`FeasibilityCheck.on` for many nodes, None for an unknown one.

    Once ``late`` says so, only what is remembered is answered: all other nodes are :attr:`Unfit.LATE`.
    """
    own = check.own
    # Per node only what runs in C, or nearly: there are thousands, and as many kinds in a busy cluster.
    kinds: list[Hashable] = [view and (view.kind or view) for view in views] if check.alike else list(views)
    if own is not None and own in views:
        kinds = [own if view is own else kind for view, kind in zip(views, kinds, strict=True)]
    first = dict(zip(reversed(kinds), reversed(views), strict=True))
    found: _Found = {}
    new: dict[Hashable, NodeView] = {}
    known_on, is_like_others = check.on_state.get, check.is_like_others
    for kind, view in first.items():
        if view is None:
            found[kind] = view, Unfit.NODE
        # A number says already that the node is like all of its state.
        elif (known := known_on(view.state)) is not None and (type(kind) is int or is_like_others(view)):
            found[kind] = view, known
        else:
            new[kind] = view
    if len(new) > SEVERAL and len(check.request.containers) == 1 and check.alike and check.quota is None:
        found |= _at_once(check, new)
    else:
        found |= {kind: (view, Unfit.LATE if late() else check.on(view)) for kind, view in new.items()}
    return Verdicts(kinds, found)


def _at_once(check: FeasibilityCheck, new: Mapping[Hashable, NodeView]) -> _Found:
    """Whether the one container fits these nodes, without looking for its cards on each."""
    like_others = {k: view for k, view in new.items() if type(k) is int or check.is_like_others(view)}
    found: _Found = {k: (view, check.on(view)) for k, view in new.items() if k not in like_others}
    rooms = check.free.with_room(check.request, list(like_others.values())).tolist()
    for (kind, view), room in zip(like_others.items(), rooms, strict=True):
        if room:
            found[kind] = view, None
        else:
            no = check.on_state[view.state] = Unfit.ROOM if check.ever(view) else Unfit.NEVER
            found[kind] = view, no
    return found


def candidates(
    check: FeasibilityCheck, verdicts: Verdicts, most: int
) -> Mapping[Hashable, tuple[NodeView, Fit]]:
    """The nodes that fit, by kind, and where the pod would lie there, the most promising first.

    Where that was not worked out before it is now, for ``most`` of them: the others are left out.
    """
    found = verdicts.found
    kinds = [kind for kind, (view, no) in found.items() if view is not None and type(no) is not Unfit]
    if len(kinds) > most and not check.request.uuids:
        views = [view for kind in kinds if (view := found[kind][0]) is not None]
        kinds = list(map(kinds.__getitem__, check.free.promising(check.request, views).tolist()))
    chosen: dict[Hashable, tuple[NodeView, Fit]] = {}
    for kind in kinds:
        view, fit = found[kind]
        if type(fit) is Fit and view is not None:
            chosen[kind] = view, fit
        elif most > 0 and view is not None and isinstance(now := check.on(view), Fit):
            chosen[kind] = view, now
            most -= 1
    return chosen
