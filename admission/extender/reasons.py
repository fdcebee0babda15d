"""Why filter leaves nodes out, for people: a few in full, the rest in words that a scheduler can count."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import compress, islice
from typing import Final

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import FeasibilityCheck, Unfit
from admission.extender.many_nodes import CODES, Verdicts, chosen
from admission.extender.refusal_lines import brief, of_any_node, why

FULL_LINES: Final = 8  # nodes told of card by card where none takes the pod; kube-scheduler joins them all
_BRIEF_LIMIT: Final = 300  # characters of any other
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
    """Why each node fails: ``full`` of them card by card, the rest in words that a scheduler can count.

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
            for name, number in compress(zip(names, verdicts.numbers.tolist(), strict=True), fails):
                view = verdicts.views[number]
                (lasting if view else failed)[name] = briefs.of(verdicts.kinds[number], view, no)
        else:
            text = of_any_node(question.request, no)[:_BRIEF_LIMIT]
            (lasting if no.lasting else failed).update(dict.fromkeys(compress(names, fails), text))
    roomless = chosen(codes, *_ROOMLESS)
    for place in islice(compress(range(len(names)), roomless), full):
        view = view_at(place)
        if view is not None:
            (failed if names[place] in failed else lasting)[names[place]] = why(question, view)
    return failed, lasting


class _Briefs:
    """One answer's short reasons: there are only so many distinct ones."""

    def __init__(self, question: FeasibilityCheck) -> None:
        self._question = question
        self._distinct: set[str] = set()
        self._known: dict[Hashable, str] = {}

    def of(self, kind: Hashable, view: NodeView | None, no: Unfit) -> str:
        """The line for nodes of this kind."""
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
