"""What filter has just said, for prioritize, which asks about the same pod and nodes a moment later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.feasibility import FeasibilityCheck
from admission.extender.many_nodes import Verdicts, judge_nodes


@dataclass(frozen=True, slots=True, eq=False)
class LastFilter:
    """Filter's last answer: a scheduler has its nodes prioritized next, as a rule before anything changes."""

    occupant: PodView
    snapshot: Snapshot
    quota: object
    names: tuple[str, ...]
    views: Sequence[NodeView | None]
    verdicts: Verdicts

    def about(self, occupant: PodView, quota: object, names: tuple[str, ...]) -> bool:
        """True if the same pod is asked about for just these nodes, under the same quotas."""
        return self.occupant is occupant and self.quota is quota and self.names == names

    def now(
        self, question: FeasibilityCheck, snapshot: Snapshot, changed: Sequence[NodeView]
    ) -> tuple[Sequence[NodeView | None], Verdicts] | None:
        """The nodes and verdicts in a newer snapshot, in which these nodes were built anew: only they are
        judged. None if more may have changed: what a namespace with a quota holds, or which nodes there are.
        """
        if question.quota is not None:
            return None
        known = self.snapshot.nodes.keys()
        if len(known) != len(snapshot.nodes) or not all(view.name in known for view in changed):
            return None
        at = [(place, view) for view in changed for place in _places(self.names, view.name)]
        views, kinds, answers = list(self.views), list(self.verdicts.kinds), list(self.verdicts.answers)
        found = judge_nodes(question, [view for _, view in at])
        for (place, view), kind, answer in zip(at, found.kinds, found.answers, strict=True):
            views[place], kinds[place], answers[place] = view, kind, answer
        return views, Verdicts(kinds, answers)


def _places(names: tuple[str, ...], name: str) -> Iterator[int]:
    """Where the name stands."""
    place = -1
    with contextlib.suppress(ValueError):
        while True:
            place = names.index(name, place + 1)
            yield place
