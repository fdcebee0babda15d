"""Chooses among the nodes that fit: the candidates are priced by the policy, the prices become scores.

What filter and prioritize need in common: filter prepares the choice while the scheduler reads its answer, or
makes it, if it offers only the best nodes; prioritize makes it. :class:`ExtenderSimulation` makes it on a
copy of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.decisions import RankDecision, Recorded
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.many_nodes import Candidates, Verdicts, candidates, judge_nodes
from admission.extender.ranking import RANKED, Cost, PriceTerms, Scores, most_priced, scores
from admission.extender.wire import NodeNames
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.rules.pod_request import judged_request


class Ranked(NamedTuple):
    """The score of each name; by number of the kind of node the costs, and where the pod would lie."""

    scores: Scores
    costs: Mapping[int, Cost]
    places: Candidates


class NodeChoice:
    """``recorded`` is called for every choice over node names."""

    def __init__(self, policy: LeastFragmentation, recorded: Recorded) -> None:
        self._policy = policy
        self._recorded = recorded
        self._prepared: tuple[Verdicts, Candidates, object] | None = None
        self._begun: PodView | None = None  # the question about this pod has begun with filter

    def prepare(self, question: FeasibilityCheck, offered: Verdicts, snapshot: Snapshot) -> None:
        """Prepare prioritize for the pod that filter has just answered."""
        chosen = self._candidates(question, offered, snapshot, PriceTerms())
        self._prepared = offered, chosen, self._policy.basis
        self._policy.prepare(question.request, list(chosen.values()))

    def rank(
        self,
        question: FeasibilityCheck,
        names: NodeNames,
        verdicts: Verdicts,
        snapshot: Snapshot,
        *,
        record: bool = True,
    ) -> Ranked:
        """Rank the nodes with these names, by the verdicts on them."""
        if self._begun is not question.occupant:
            self._policy.begin()
        self._begun = None
        terms, before = PriceTerms(), self._prepared
        if before is not None and before[0] is verdicts and before[2] is self._policy.basis:
            places = before[1]
        else:
            places = self._candidates(question, verdicts, snapshot, terms)
        found = self._policy.costs(question.request, list(places.values()), terms)
        costs = {number: cost for number, cost in zip(places, found, strict=True) if cost is not None}
        totals = self._policy.totals(question.request, verdicts, places, terms)
        given = scores(names, verdicts.numbers, costs, totals)
        if record:
            self._recorded(RankDecision(question, names, verdicts, terms, costs, totals, given))
        return Ranked(given, costs, places)

    def best(
        self,
        question: FeasibilityCheck,
        names: NodeNames,
        fits: bytes,
        verdicts: Verdicts,
        snapshot: Snapshot,
        most: int,
    ) -> bytes:
        """Of the nodes that fit, whose byte is 1, the best of equal cost, at most so many: the one that
        prioritize chooses, and the first others in the order of the question.
        """
        offered, places = verdicts.among(fits), np.flatnonzero(np.frombuffer(fits, np.bool_))
        ranked = self.rank(question, names.among(fits), offered, snapshot)
        self._begun = question.occupant
        if not ranked.costs:
            return fits
        best = int(ranked.scores.argmax())
        least = ranked.costs[int(offered.numbers[best])][:RANKED]
        equal = [number for number, cost in ranked.costs.items() if cost[:RANKED] == least]
        others = np.flatnonzero(np.isin(offered.numbers, equal))
        few = np.zeros(len(names), np.bool_)
        few[places[others[others != best][: most - 1]]] = True
        few[places[best]] = True
        return few.tobytes()

    def _candidates(
        self, question: FeasibilityCheck, verdicts: Verdicts, snapshot: Snapshot, terms: PriceTerms
    ) -> Candidates:
        totals = self._policy.totals(question.request, verdicts, terms=terms)
        return candidates(question, verdicts, most_priced(len(snapshot.nodes)), totals)


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
