"""What the extender was asked, what it judged by, and what it answered: one value for each decision.

They are made where the judgement is made, from what lies there, and cost next to nothing: whoever records
them (:mod:`admission.replay`) turns them into text later, in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.feasibility import FeasibilityCheck
from admission.extender.many_nodes import Verdicts
from admission.extender.ranking import Cost, PriceTerms, Scores, Totals
from admission.extender.wire import NodeNames, Victims
from gpu_manager.domain.kube.evictions import DisruptionBudget
from gpu_manager.domain.placement.place import Placement
from gpu_manager.domain.resize.sizes import ResizeAnswer

if TYPE_CHECKING:
    from admission.extender.resizing import ResizeTerms


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """An answer of filter. ``fits``: for each name, 1 if it is among the nodes ``offered``; ``gang``: the
    node that the pod's gang reserved for it, empty if none. ``failed`` and ``lasting``: the reasons by name,
    left out where only a ``few`` of the nodes that fit were given to the scheduler.
    """

    question: FeasibilityCheck
    names: NodeNames
    verdicts: Verdicts
    gang: str
    fits: bytes
    offered: NodeNames
    failed: Mapping[str, str]
    lasting: Mapping[str, str]
    few: bool = False


@dataclass(frozen=True, slots=True)
class RankDecision:
    """An answer of prioritize. ``costs`` and ``totals`` by number as for
    :func:`~admission.extender.ranking.scores`.
    """

    question: FeasibilityCheck
    names: NodeNames
    verdicts: Verdicts
    terms: PriceTerms
    costs: Mapping[int, Cost]
    totals: Totals | None
    scores: Scores


@dataclass(frozen=True, slots=True)
class BindDecision:
    """The judgement of bind: where the pod lies on the node, or why it has no room there."""

    question: FeasibilityCheck
    node: str
    placement: Placement
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class PreemptDecision:
    """An answer of preempt: by node the pods that the scheduler would evict, and the pods to evict."""

    question: FeasibilityCheck
    nodes: Mapping[str, NodeView]
    asked: Mapping[str, Victims]
    budgets: Sequence[DisruptionBudget]
    answer: Mapping[str, Victims]


@dataclass(frozen=True, slots=True)
class ResizeDecision:
    """An answer to a request for another size of a pod that runs."""

    occupant: PodView
    snapshot: Snapshot
    terms: ResizeTerms
    answer: ResizeAnswer


Decision = FilterDecision | RankDecision | BindDecision | PreemptDecision | ResizeDecision
Recorded = Callable[[Decision], None]


def unrecorded(_decision: object) -> None:
    """Record nothing."""
