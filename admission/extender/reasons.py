"""Why filter leaves nodes out, for people: a few in full, the rest in words that a scheduler can count."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import compress, islice
from typing import Final

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import FeasibilityCheck, Unfit
from admission.extender.many_nodes import Verdicts
from admission.extender.refusal_lines import brief, of_any_node, why

FULL_LINES: Final = 8  # nodes told of card by card where none takes the pod; kube-scheduler joins them all
_BRIEF_LIMIT: Final = 300  # characters of any other
_MOST_BRIEFS: Final = 64  # distinct ones in one answer
_UNKNOWN: Final = "no GPU device: this node is not known here yet"


def reasons(
    question: FeasibilityCheck,
    names: Sequence[str],
    views: Sequence[NodeView | None],
    verdicts: Verdicts,
    full: int,
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Why each node fails: ``full`` of them card by card, the rest in words that a scheduler can count.

    The second map has the nodes on which no preemption would help.
    """
    failed: dict[str, str] = {}
    lasting: dict[str, str] = {}
    refused = [answer for answer in verdicts.answers if type(answer) is Unfit]
    for no in Unfit:
        if no not in refused:
            continue
        fails = [answer is no for answer in verdicts.answers]
        these = list(compress(names, fails))
        if no in (Unfit.NODE, Unfit.QUOTA):
            briefs, nodes = (
                _Briefs(question),
                zip(these, compress(views, fails), compress(verdicts.kinds, fails), strict=True),
            )
            for name, view, kind in nodes:
                (lasting if view else failed)[name] = briefs.of(kind, view, no)
        else:
            text = of_any_node(question.request, no)[:_BRIEF_LIMIT]
            (lasting if no.lasting else failed).update(dict.fromkeys(these, text))
    if Unfit.ROOM not in refused and Unfit.NEVER not in refused:
        return failed, lasting
    roomless = (answer is Unfit.ROOM or answer is Unfit.NEVER for answer in verdicts.answers)
    for name, view in islice(compress(zip(names, views, strict=True), roomless), full):
        if view is not None:
            (failed if name in failed else lasting)[name] = why(question, view)
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
