"""Where pods would be placed now: the extender's own decisions, on a copy of its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.many_nodes import candidates, judge_nodes
from admission.extender.node_names import NodeNames
from admission.extender.ranking import most_priced, scores
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.rules.pod_request import judged_request


class SimulatedPlace(NamedTuple):
    """A node, and the indices of the pod's cards on it."""

    node: str
    cards: tuple[int, ...]


class ExtenderSimulation:
    """Places pods one after the other; each stays. Not thread-safe; the live state is only copied.

    The mix of requests that the policy has seen is copied too, and grows with each pod.
    """

    def __init__(self, policy: LeastFragmentation, quota: Quota | None, minimum_cores: int) -> None:
        self._policy = policy.copy()
        self._cluster = self._policy.cluster
        self._judge = FeasibilityJudge()  # a shared one would mix up the states of two clusters
        self._quota = quota
        self._minimum_cores = minimum_cores

    @property
    def snapshot(self) -> Snapshot:
        """The cluster with all pods placed so far."""
        return self._cluster.snapshot()

    def place(self, pod: PodView, nodes: Iterable[str]) -> SimulatedPlace | None:
        """The place that the extender gives the pod on one of these nodes; None if none has room.

        Raises RequestInvalid: its request is illegal.
        """
        request = judged_request(pod.pod, self._cluster.unit, self._minimum_cores)
        self._cluster.arrive(pod)
        snapshot = self._cluster.snapshot()
        quota = self._quota.of(pod.pod.namespace, request.priority) if self._quota else None
        check = self._judge.ask(pod, request, snapshot, quota)
        names = NodeNames(sorted(snapshot.nodes.keys() & set(nodes)))
        views = [snapshot.nodes[name] for name in names]
        verdicts = judge_nodes(check, views)
        fitting = candidates(check, verdicts, most_priced(len(snapshot.nodes)))
        able = np.flatnonzero(np.isin(verdicts.numbers, list(fitting)))
        if not len(able):
            return None
        chosen = int(able[0])
        if len(able) > 1:  # for one node, or none, a scheduler does not prioritize: no question is counted
            self._policy.begin()
            costs = self._policy.costs(request, list(fitting.values()))
            priced = {number: cost for number, cost in zip(fitting, costs, strict=True) if cost is not None}
            if not priced:
                return None
            chosen = int(scores(names, verdicts.numbers, priced).argmax())
        view, fit = snapshot.nodes[names[chosen]], fitting[int(verdicts.numbers[chosen])][1]
        self._cluster.reserve(pod.pod, view.name, check.placement(view, fit))
        taken = {at for at, _ in fit.taken}
        return SimulatedPlace(view.name, tuple(view.node.cards[at].card.index for at in sorted(taken)))
