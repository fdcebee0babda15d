"""Does a pod fit thousands of nodes: those of one kind are judged once, and one card's arithmetic is done for
all nodes together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import SOMEWHERE, FeasibilityCheck, Fit, Unfit

SEVERAL: Final = 32  # nodes of which nothing is remembered, above which they are judged in one go


class Verdicts(NamedTuple):
    """What was said of many nodes, node by node: its kind, and the answer, one for all nodes of a kind.

    The answer is :data:`SOMEWHERE` where the pod fits and it was not worked out where.
    """

    kinds: Sequence[Hashable]
    answers: Sequence[Fit | Unfit]

    def fitting(self) -> list[bool]:
        """Node by node, True if the pod fits."""
        return [type(answer) is Fit for answer in self.answers]

    def among(self, chosen: Sequence[bool]) -> Verdicts:
        """The same of the chosen nodes alone."""
        return Verdicts(list(compress(self.kinds, chosen)), list(compress(self.answers, chosen)))


def judge_nodes(
    check: FeasibilityCheck, views: Sequence[NodeView | None], late: Callable[[], bool] = lambda: False
) -> Verdicts:
    """:meth:`FeasibilityCheck.on` for many nodes, None for an unknown one.

    Once ``late`` says so, only what is remembered is answered: all other nodes are :attr:`Unfit.LATE`.
    """
    own, like_others = check.own, check.is_like_others
    # Per node only what runs in C, or nearly: there are thousands, and as many kinds in a busy cluster.
    kinds: list[Hashable] = [view and (view.kind or view) for view in views] if check.alike else list(views)
    if own is not None and own in views:
        kinds = [own if view is own else kind for view, kind in zip(views, kinds, strict=True)]
    # A number says already that the node is like all of its state.
    states = [
        view.state if view is not None and (type(kind) is int or like_others(view)) else None
        for view, kind in zip(views, kinds, strict=True)
    ]
    known_on = check.on_state.get
    answers = [None if state is None else known_on(state) for state in states]
    new = {kinds[at]: views[at] for at, answer in enumerate(answers) if answer is None}
    found = _judged(check, new, late)
    return Verdicts(kinds, [answer or found[kind] for answer, kind in zip(answers, kinds, strict=True)])


def _judged(
    check: FeasibilityCheck, new: Mapping[Hashable, NodeView | None], late: Callable[[], bool]
) -> dict[Hashable, Fit | Unfit]:
    """The answers for nodes of which nothing is remembered, by kind."""
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
                and not (several and view.node.topology.numa_policy.strict)  # same
            },
        )
    for kind, view in new.items():
        if kind not in found:
            found[kind] = Unfit.NODE if view is None else Unfit.LATE if late() else check.on(view)
    return found


def _at_once(check: FeasibilityCheck, new: Mapping[Hashable, NodeView]) -> dict[Hashable, Fit | Unfit]:
    """Whether the one container fits these nodes, without looking for its cards on each."""
    rooms = check.free.with_room(check.request, list(new.values())).tolist()
    full = {view.hardware: view for view, room in zip(new.values(), rooms, strict=True) if not room}
    no = {hardware: Unfit.ROOM if check.ever(view) else Unfit.NEVER for hardware, view in full.items()}
    found: dict[Hashable, Fit | Unfit] = {}
    for (kind, view), room in zip(new.items(), rooms, strict=True):
        found[kind] = check.on_state[view.state] = SOMEWHERE if room else no[view.hardware]
    return found


def candidates(
    check: FeasibilityCheck, views: Sequence[NodeView | None], verdicts: Verdicts, most: int
) -> Mapping[Hashable, tuple[NodeView, Fit]]:
    """The nodes that fit, by kind, and where the pod would lie there, the most promising first.

    Where that was not worked out before it is now, for ``most`` of them: the others are left out.
    """
    answers = dict(zip(verdicts.kinds, verdicts.answers, strict=True))
    fits = {
        kind: view
        for kind, view in dict(zip(verdicts.kinds, views, strict=True)).items()
        if view is not None and type(answers[kind]) is Fit
    }
    kinds = list(fits)
    if len(kinds) > most and not check.request.uuids:
        order = check.free.promising(check.request, list(fits.values()))
        kinds = list(map(kinds.__getitem__, order.tolist()))
    chosen: dict[Hashable, tuple[NodeView, Fit]] = {}
    for kind in kinds:
        view, fit = fits[kind], answers[kind]
        if fit is SOMEWHERE:
            if most <= 0:
                continue
            fit, most = check.on(view), most - 1
        if isinstance(fit, Fit):
            chosen[kind] = view, fit
    return chosen
