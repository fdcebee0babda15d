"""Why filter leaves nodes out, for people: a few in full, the rest in words that a scheduler can count."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import FeasibilityCheck, Unfit
from admission.extender.refusal_lines import brief, of_any_node, why

FULL_LINES: Final = 8  # nodes told of card by card where none takes the pod; kube-scheduler joins them all
_BRIEF_LIMIT: Final = 300  # characters of any other
_MOST_BRIEFS: Final = 64  # distinct ones in one answer
_UNKNOWN: Final = "no GPU device: this node is not known here yet"


def reasons(
    question: FeasibilityCheck,
    refused: Mapping[Hashable, tuple[NodeView | None, Unfit]],
    nodes: Sequence[tuple[str, NodeView | None, Hashable]],
    full: int,
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Why each node fails: ``full`` of them card by card, the rest in words that a scheduler can count."""
    words = _Briefs(question)
    brief = {kind: words.of(view, no) if view else _UNKNOWN for kind, (view, no) in refused.items()}
    lasts = {kind for kind, (view, no) in refused.items() if view and no.lasting}
    failed: dict[str, str] = {}
    lasting: dict[str, str] = {}
    for name, view, kind in nodes:
        text = brief[kind]
        if full and view is not None and refused[kind][1] in (Unfit.ROOM, Unfit.NEVER):
            text, full = why(question, view), full - 1
        (lasting if kind in lasts else failed)[name] = text
    return failed, lasting


class _Briefs:
    """One answer's short reasons: there are only so many distinct ones."""

    def __init__(self, question: FeasibilityCheck) -> None:
        self._question = question
        self._distinct: set[str] = set()
        self._of_any_node: dict[Unfit, str] = {}

    def of(self, view: NodeView, no: Unfit) -> str:
        if no is not Unfit.NODE and no is not Unfit.QUOTA:
            return self._of_any_node.get(no) or self._of_any_node.setdefault(
                no, of_any_node(self._question.request, no)[:_BRIEF_LIMIT]
            )
        text = brief(self._question, view, no)[:_BRIEF_LIMIT]
        if len(self._distinct) < _MOST_BRIEFS:
            self._distinct.add(text)
        elif text not in self._distinct:
            text = f"left out ({no.value})"
        return text
