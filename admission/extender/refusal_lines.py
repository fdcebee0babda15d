"""Reasons why a node does not take a pod, as text: card by card, or one line that is equal for equal nodes.

Filter gives the reasons of a few nodes in full, and the rest in texts that a scheduler can count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import Final

import numpy as np

from admission.cluster.node_view import KeptFor, NodeView
from admission.cluster.pod_view import named
from admission.extender.feasibility import FeasibilityCheck, Unfit, by_model, with_closed
from admission.extender.many_nodes import CODES, Verdicts, chosen
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_books import with_terminating
from gpu_manager.domain.cluster.quota import EXCEEDED
from gpu_manager.domain.cluster.quota import refusal as refusal_line
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.placement.explain import LINE_LIMIT, Refusal
from gpu_manager.domain.placement.ledger import Allocation, peak
from gpu_manager.domain.placement.place import Placement, judge
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.rules.request import PodRequest

_LONGEST_NAME: Final = 80  # characters of a pod's name in a line about a card
LATE: Final = (
    "not judged in time: the pod has many containers, and the nodes differ much; it is asked about again"
)


def refusal(check: FeasibilityCheck, view: NodeView) -> Refusal | None:
    """Card by card, why there is no room; None where the cards are not what keeps the pod out."""
    if check.before_cards(view) is not None:
        return None
    closed: dict[str, str] = {}
    while True:
        cards = with_closed(view.node.cards, closed)
        found = judge(check.request, cards, view.node.topology, check.ledger(view))
        if isinstance(found, Refusal):
            return with_terminating(found, view.node.lingering, view.charges)
        taken = dict(_taken(check.request, found))
        charge = by_model((s.card.model, taken[s.card.uuid]) for s in view.node.cards if s.card.uuid in taken)
        passed = dict(check.quota.passed(check.used, dict(charge), check.protected)) if check.quota else {}
        if not passed:
            return None
        closed |= {model: f"{EXCEEDED}: {why}" for model, why in passed.items()}


def why(check: FeasibilityCheck, view: NodeView, limit: int = LINE_LIMIT) -> str:
    """One line: the rule, the arithmetic card by card, and what would fit; empty where the pod fits."""
    if not check.alike or check.quota is not None or not view.kind or view is check.own:
        return _why(check, view, limit)
    # A burst of equal pods is refused by the same full node, the first by name, again and again.
    about = view, limit, tuple(c.name for c in check.request.containers)
    told = check.shape.told
    if told is None or told[0] != about:
        told = check.shape.told = about, _why(check, view, limit)
    return told[1]


def _why(check: FeasibilityCheck, view: NodeView, limit: int) -> str:
    no = check.on(view)
    if not isinstance(no, Unfit):
        return ""
    if no in (Unfit.ROOM, Unfit.NEVER) and (refused := refusal(check, view)) is not None:
        awaited = view.awaits(check.pod.uid, check.pod.priority)
        names = ", ".join(named((o.pod for o in awaited[:3]), check.pod.namespace))
        held = f"room is kept for {names}. " if awaited else ""
        return held + refused.line(limit - len(held))
    if no is Unfit.ROOM and (lack := check.lack_of_ids(view, check.ledger(view))):
        return lack[:limit]
    return brief(check, view, no)[:limit]


def brief(check: FeasibilityCheck, view: NodeView, no: Unfit) -> str:
    """The reason in a text that is equal for equal nodes, so that a scheduler can count it."""
    if no is Unfit.NODE:
        return view.problem or view.node.lacks(check.request) or _pool(check, view)
    if no is Unfit.QUOTA:
        return _over_quota(check, view)
    if no is Unfit.KEPT and view.kept is not None:
        return kept_for(view.kept, check.pod.namespace)
    return of_any_node(check.request, no)


def of_any_node(request: PodRequest, no: Unfit) -> str:
    """:func:`brief` where the node does not matter: not :attr:`Unfit.NODE`, :attr:`Unfit.QUOTA` or
    :attr:`Unfit.KEPT`.
    """
    if no is Unfit.REFUSED:
        return "its agent refused this amount less than a minute ago: its books are ahead of what is seen"
    if no is Unfit.LATE:
        return LATE
    never = " even on the empty node" if no is Unfit.NEVER else ""
    return f"no room on its cards{never} for {describe(request)}"


def kept_for(kept: KeptFor, namespace: str | None) -> str:
    """For which pod a node is closed and for how long, for readers in one namespace; None: of all."""
    who = "a pod of another namespace"
    if namespace in (None, kept.pod.namespace):
        name = printable(kept.pod.key)
        who = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    since = printable(kept.pod.created) or "its creation"
    return (
        f"kept for {who}, which asks for {kept.cards} cards and has waited since {since}: closed to pods that"
        f" ask for fewer and have no higher priority until {until_open(kept)}"
    )


def until_open(kept: KeptFor) -> str:
    """When the node opens again at the latest."""
    if kept.seconds is not None:
        minutes = max(1, round(kept.seconds / 60))
        return f"it has its place, or its cards have been free for {minutes} minute{'s' * (minutes > 1)}"
    left = "1 more pod with cards has left its node"
    if kept.left != 1:
        left = f"{kept.left} more pods with cards have left their nodes"
    return f"it has its place, or {left}"


def describe(request: PodRequest) -> str:
    """A pod's request in a few words; the container's name is left out if there is only one."""
    if len(request.containers) == 1:
        return str(request.containers[0].request)
    shown = "; ".join(f"{printable(c.name)}: {c.request}" for c in request.containers[:4])
    more = len(request.containers) - 4
    return f"{shown} and {more} more" if more > 0 else shown


def _over_quota(check: FeasibilityCheck, view: NodeView) -> str:
    if pool := _pool(check, view):
        return pool
    closed: dict[str, str] = {}
    while (fit := check.fit(view, check.ledger(view), frozenset(closed))) and (
        more := check.over_quota(fit, check.used, check.protected)
    ):
        closed |= more
    return refusal_line(check.pod.namespace, closed.values())


def _pool(check: FeasibilityCheck, view: NodeView) -> str:
    if check.quota is None or check.quota.allows_pool(view.node.pool):
        return ""
    pools = ", ".join(map(printable, check.quota.pools))
    here = f"of pool {quoted(view.node.pool)}" if view.node.pool else "in no pool"
    return refusal_line(check.pod.namespace, [f"it may use pool {pools}; the node is {here}"])


def _taken(request: PodRequest, placement: Placement) -> list[tuple[CardUuid, Amount]]:
    """What the pod takes of each card at its peak."""
    held = [
        Allocation(request.uid, c.name, c.kind, c.order, placement[c.name])
        for c in request.containers
        if c.name in placement
    ]
    return [(card, peak(held, card)) for card in dict.fromkeys(card for a in held for card in a.cards)]


FULL_LINES: Final = 8  # nodes reported card by card if none takes the pod; kube-scheduler joins all of them
_BRIEF_LIMIT: Final = 300  # characters of any other reason
_MOST_BRIEFS: Final = 64  # distinct ones in one answer
_ROOMLESS: Final = tuple(code for code, no in CODES.items() if no in (Unfit.ROOM, Unfit.NEVER))
_UNKNOWN: Final = "no GPU device: this node is not known here yet"


def reasons(
    question: FeasibilityCheck,
    names: Sequence[str],
    view_at: Callable[[int], NodeView | None],
    verdicts: Verdicts,
    full: int,
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Why each node fails: ``full`` of them card by card (the first ones; of one, the first by name), the
    rest in words that a scheduler can count.

    ``view_at`` gives the node of a place in ``names``. The second map has the nodes on which no preemption
    would help.
    """
    failed: dict[str, str] = {}
    lasting: dict[str, str] = {}
    codes = verdicts.codes
    for code, no in CODES.items():
        if code not in codes:
            continue
        fails = chosen(codes, code)
        if no in (Unfit.NODE, Unfit.QUOTA, Unfit.KEPT):
            briefs = _Briefs(question)
            numbers = verdicts.numbers[np.frombuffer(fails, np.bool_)].tolist()
            for name, number in zip(compress(names, fails), numbers, strict=True):
                view = verdicts.views[number]
                (lasting if view else failed)[name] = briefs.of(number, view, no)
        else:
            text = of_any_node(question.request, no)[:_BRIEF_LIMIT]
            (lasting if no.lasting else failed).update(dict.fromkeys(compress(names, fails), text))
    roomless = chosen(codes, *_ROOMLESS)
    places: Iterator[int] = compress(range(len(names)), roomless)
    if full == 1 and 1 in roomless:  # in whatever order nodes come: its line is known from the last question
        places = iter([min(places, key=names.__getitem__)])
    for place in islice(places, full):
        view = view_at(place)
        if view is not None:
            (failed if names[place] in failed else lasting)[names[place]] = why(question, view)
    return failed, lasting


class _Briefs:
    """The short reasons of one answer, of which there are few distinct ones."""

    def __init__(self, question: FeasibilityCheck) -> None:
        self._question = question
        self._distinct: set[str] = set()
        self._known: dict[int, str] = {}

    def of(self, kind: int, view: NodeView | None, no: Unfit) -> str:
        """The line for nodes of the kind with this number."""
        if kind not in self._known:
            self._known[kind] = self._made(view, no)
        return self._known[kind]

    def _made(self, view: NodeView | None, no: Unfit) -> str:
        text = brief(self._question, view, no)[:_BRIEF_LIMIT] if view else _UNKNOWN
        if len(self._distinct) < _MOST_BRIEFS:
            self._distinct.add(text)
        elif text not in self._distinct:
            text = f"left out ({no.value})"
        return text
