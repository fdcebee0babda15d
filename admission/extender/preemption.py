"""Whom to evict so that a pod fits on the cards of a node: of all ways to make room the least harmful.

As kube-scheduler prefers among nodes: first the fewest broken PodDisruptionBudgets, then the lowest highest
priority, then the fewest victims; and of ways that are equal so far the one that takes the least of cards.
A pod that is being deleted anyway has no priority and is not counted.

:mod:`admission.extender.victim_search` looks at every way, card by card. Beside it stands the way of
kube-scheduler on one node: take away every pod of lower priority, then give back one after the other
whatever the pod can do without, the most important first. That alone is what remains where a way needs more
than room on cards (a quota of the victims' namespace, room kept for a nominated pod), or where the ways are
too many to look at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView, named
from admission.extender.feasibility import FeasibilityCheck
from admission.extender.victim_search import DisruptionCost, VictimSearch
from admission.extender.wire import Victims
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.domain.whatif.disruption_budgets import DisruptionBudget


def choose(
    question: FeasibilityCheck, pod: Pod, view: NodeView, given: Victims, budgets: Sequence[DisruptionBudget]
) -> Victims | None:
    """The pods to evict from the node; None if evicting helps nothing, or is not needed.

    ``given`` are those that the scheduler means to evict already, for what it counts itself: they stay. None
    where nobody is left to evict, too: kube-scheduler takes a node without victims for a fault.
    """
    lower = [
        occupant
        for uid, occupant in view.bound.items()
        if view.charges[uid].allocations
        and occupant.pod.priority < pod.priority
        and not occupant.reserved
        and not occupant.lent  # its card comes over to our name a minute after it has left
        and uid not in given.pods
    ]
    if question.without(view, {*given.pods, *(o.uid for o in lower)}) is None:
        return None
    lower = _by_importance(lower)
    leaving = [view.charges[uid].pod for uid in given.pods if uid in view.charges]
    harm = DisruptionCost(lower, leaving, budgets, view.charges)
    more = _given_back(question, view, given.pods, lower, harm)
    if more:
        better = VictimSearch(question, pod.priority, view, given.pods, lower, harm).best(harm.of(more))
        more = more if better is None else better
    if not given.pods and not more:
        return None
    broken = harm.of(more).budgets
    return Victims((*given.pods, *(o.uid for o in lower if o.uid in more)), given.violations + broken)


def names(view: NodeView, victims: Iterable[PodUid], namespace: str | None) -> tuple[str, ...]:
    """The victims for people of one namespace; None: of all."""
    return named((view.charges[uid].pod for uid in victims if uid in view.charges), namespace)


def _given_back(
    question: FeasibilityCheck,
    view: NodeView,
    given: Sequence[PodUid],
    lower: Sequence[PodView],
    harm: DisruptionCost,
) -> Collection[PodUid]:
    """Who must go: those whose end would break a budget are given back first, those that go anyway last."""
    gone = {*given, *(o.uid for o in lower)}
    breaks = harm.breaking([o.uid for o in lower])
    for occupant in sorted(lower, key=lambda o: (o.uid not in breaks, o.pod.deleting)):
        if question.without(view, gone - {occupant.uid}) is not None:
            gone.discard(occupant.uid)
    return gone - set(given)


def _by_importance(occupants: Iterable[PodView]) -> list[PodView]:
    """Higher priority first, then who began earlier."""
    return sorted(occupants, key=lambda o: (-o.pod.priority, o.pod.began, o.uid))
