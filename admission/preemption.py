"""Whom to evict so that a pod fits on the cards of a node: as few as will do, the least important first.

The way of kube-scheduler, but exact for each card: take away every pod of lower priority, then give back one
after the other, the most important first, whatever the pod can do without. Pods whose end would break a
PodDisruptionBudget are given back before all others, pods that are being deleted anyway after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from admission.extender_wire import Victims
from admission.judging import Question
from admission.node_view import NodeView
from admission.occupant import Occupant, named
from gpu_manager.domain.budgets import Budget, violating
from gpu_manager.domain.pod import Pod, PodUid


def choose(
    question: Question, pod: Pod, view: NodeView, given: Victims, budgets: Sequence[Budget]
) -> Victims | None:
    """The pods to evict from the node; None if evicting helps nothing, or is not needed.

    ``given`` are those that the scheduler means to evict already, for what it counts itself: they stay. None
    where nobody is left to evict, too: kube-scheduler takes a node without victims for a fault.
    """
    lower = [
        charge.occupant
        for uid, charge in view.charges.items()
        if charge.allocations
        and charge.occupant.pod.priority < pod.priority
        and not charge.occupant.reserved
        and uid not in given.pods
    ]
    gone = {*given.pods, *(o.uid for o in lower)}
    if question.without(view, gone) is None:
        return None
    leaving = [view.charges[uid].occupant.pod for uid in given.pods if uid in view.charges]
    breaks = violating((*leaving, *(o.pod for o in _by_importance(lower))), budgets)
    for occupant in sorted(_by_importance(lower), key=lambda o: (o.uid not in breaks, o.pod.deleting)):
        if question.without(view, gone - {occupant.uid}) is not None:
            gone.discard(occupant.uid)
    more = [o for o in _by_importance(lower) if o.uid in gone]
    if not given.pods and not more:
        return None
    broken = violating((*leaving, *(o.pod for o in more)), budgets) - violating(leaving, budgets)
    return Victims((*given.pods, *(o.uid for o in more)), given.violations + len(broken))


def names(view: NodeView, victims: Iterable[PodUid], namespace: str) -> tuple[str, ...]:
    """The victims for people of one namespace."""
    return named((view.charges[uid].occupant.pod for uid in victims if uid in view.charges), namespace)


def _by_importance(occupants: Iterable[Occupant]) -> list[Occupant]:
    """Higher priority first, then who began earlier."""
    return sorted(occupants, key=lambda o: (-o.pod.priority, o.began, o.uid))
