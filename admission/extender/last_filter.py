"""What filter has said: for prioritize, which asks about the same pod and nodes a moment later, and for the
next pod that asks for the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import FeasibilityCheck, Unfit
from admission.extender.many_nodes import Verdicts
from admission.extender.node_names import NodeNames

_MOST_NUMBERS: Final = 1024  # of kinds beyond the number of nodes: most are of no node any more
_MOST_KEPT: Final = 32  # kinds of request
_FEW: Final = 16  # nodes that changed, up to which the others stand in any case


@dataclass(frozen=True, slots=True, eq=False)
class LastFilter:
    """One answer of filter: a scheduler has its nodes prioritized next, as a rule before much changes."""

    occupant: PodView
    snapshot: Snapshot
    quota: object
    names: NodeNames
    verdicts: Verdicts

    def about(self, occupant: PodView, quota: object, names: NodeNames) -> bool:
        """True if the same pod is asked about for just these nodes, under the same quotas."""
        same = self.names is names or self.names == names
        return same and self.occupant is occupant and self.quota is quota

    def now(
        self, question: FeasibilityCheck, snapshot: Snapshot, changed: Sequence[NodeView]
    ) -> Verdicts | None:
        """The verdicts in a newer snapshot, in which these nodes were built anew: only they are judged. None
        if more may have changed: what a namespace with a quota holds, or which nodes there are.
        """
        if question.quota is not None or self.names.repeated:
            return None
        if (
            snapshot.names_turn > self.snapshot.turn
            or len(self.verdicts.said) > len(self.names) + _MOST_NUMBERS
        ):
            return None
        place = self.names.places.get
        here = [(at, view) for view in changed if (at := place(view.name)) is not None]
        return self.verdicts.with_changed(question, here) if here else self.verdicts


class LastAnswers:
    """Filter's last answers: for the pod that was asked about last, and by kind of request, for pods of which
    no node knows anything. The answer for the next such pod differs only on nodes that changed. Thread-safe.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._offered: LastFilter | None = None
        self._alike: dict[Hashable, LastFilter] = {}

    def offered(self, answer: LastFilter) -> None:
        """Remember the nodes that fit: what a scheduler asks about next."""
        self._offered = answer

    def judged(self, question: FeasibilityCheck, answer: LastFilter) -> None:
        """Remember it for the next pod that asks for the same, unless it depends on more than that."""
        verdicts = answer.verdicts
        of_all = not any(view is not None and view.nominated for view in verdicts.views)
        if _is_like_others(question) and of_all and Unfit.LATE not in verdicts.said:
            self._keep(question, answer)

    def for_same_pod(
        self, question: FeasibilityCheck, occupant: PodView, quota: object, names: NodeNames, now: Snapshot
    ) -> Verdicts | None:
        """What is said of the nodes that were offered for the pod; None if that is not known."""
        last = self._offered
        if last is None or not last.about(occupant, quota, names):
            return None
        return last.verdicts if last.snapshot is now else self._changed(last, question, now, _FEW)

    def for_same_request(
        self, question: FeasibilityCheck, names: NodeNames, now: Snapshot
    ) -> Verdicts | None:
        """What is said of these nodes for a pod that asks for this; None if that is not known."""
        last = self._alike.get(_kind(question)) if _is_like_others(question) else None
        verdicts = (
            None if last is None else self._changed(last, question, now, max(_FEW, len(last.names) // 4))
        )
        if last is None or verdicts is None:
            return None
        # kube-scheduler looks at nodes side by side, so that their order differs each time; and in a large
        # cluster it asks about some of them.
        same = last.names is names or last.names == names
        try:
            at = (
                None if same else np.fromiter(map(last.names.places.__getitem__, names), np.int64, len(names))
            )
        except KeyError:
            return None
        self._keep(question, replace(last, snapshot=now, verdicts=verdicts))
        return verdicts if at is None else verdicts.at(at)

    def _keep(self, question: FeasibilityCheck, answer: LastFilter) -> None:
        self._alike[_kind(question)] = answer
        if len(self._alike) > _MOST_KEPT:
            self._alike.pop(next(iter(self._alike)), None)

    def _changed(
        self, last: LastFilter, question: FeasibilityCheck, now: Snapshot, most: int
    ) -> Verdicts | None:
        """The verdicts in this snapshot; None if much has changed since, or something has changed again."""
        newest, changed = self._cluster.news(last.snapshot.turn)
        return last.now(question, now, changed) if newest is now and len(changed) <= most else None


def _kind(question: FeasibilityCheck) -> Hashable:
    """Pods of equal kinds get the same verdicts; a node that is kept for a pod is open to higher priority."""
    return question.shape.request, question.pod.priority


def _is_like_others(question: FeasibilityCheck) -> bool:
    return question.alike and question.quota is None and question.own is None
