"""A node's books: what its pods and claims hold of which card, and what is requested of it. Frozen; pure.

:mod:`gpu_manager.domain.cluster.accounting` derives them. Sums by namespace and card model serve quotas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpu_manager.domain.cluster.claims import ClaimCharge
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.cluster.pod_charges import Charge
from gpu_manager.domain.cluster.terminating import with_terminating
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.placement.place import Placement, judge
from gpu_manager.domain.placement.protection import explain_priority, neighbours
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.domain.rules.request import PodRequest


@dataclass(frozen=True, slots=True, eq=False)
class NodeBooks:
    """A node and the charges of its pods and claims; immutable. ``held_claims`` is by UID of the claim."""

    node: NodeReport
    ledger: Ledger
    charges: Mapping[PodUid, Charge]
    held_claims: Mapping[PodUid, ClaimCharge]

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name

    @property
    def gone(self) -> frozenset[PodUid]:
        """Pods that are deleted from the API but whose processes still run."""
        return frozenset(self.ledger.pods) - self.charges.keys()

    @property
    def unplaceable(self) -> tuple[Pod, ...]:
        """Pods on the node for which no card had room."""
        return tuple(charge.pod for charge in self.charges.values() if charge.unplaceable)

    def guessed(self, pod: PodUid) -> bool:
        """True if no annotation names the pod's cards."""
        return pod in self.charges and self.charges[pod].guessed

    def explain_priority(self, pod: Pod, placement: Placement | None = None) -> str:
        """A sentence on what the pod's priority is worth on its cards here, or on a ``placement``'s."""
        shares = (a.shares for a in self.ledger.of_pod(pod.uid).values())
        named = {share.card for part in (placement.values() if placement else shares) for share in part}
        beside = neighbours(self.ledger, pod.uid, named)
        return explain_priority(priority_of(pod), beside, gates=self.node.gates)

    def ended(self, holder: Allocation) -> bool:
        """True for an ordinary init container that has ended; its pod still holds the peak of its phases."""
        charge = self.charges.get(holder.pod)
        return charge is not None and holder.container in charge.pod.ended_inits

    def judge(self, request: PodRequest) -> Placement | Refusal:
        """The placement of a pod with this request here, or why it does not fit."""
        found = judge(request, self.node.cards, self.node.topology, self.ledger)
        return (
            with_terminating(found, self.node.lingering, self.charges)
            if isinstance(found, Refusal)
            else found
        )

    def without(self, pods: Iterable[PodUid]) -> Ledger:
        """A copy of the books without these pods."""
        ledger = self.ledger.copy()
        for pod in pods:
            ledger.release(pod)
        return ledger

    def usage(self) -> Iterator[tuple[tuple[str, str], Amount]]:
        """What each pod holds, by (namespace, card model)."""
        for charge in self.charges.values():
            for model, amount in charge.usage:
                yield (charge.pod.namespace, model), amount
        for held in self.held_claims.values():
            for model, amount in held.usage:
                yield (held.claim.namespace, model), amount

    def protected_usage(self) -> Iterator[tuple[tuple[str, str], Amount]]:
        """What each pod and each claim holds in protected shares, by (namespace, card model)."""
        for charge in self.charges.values():
            for model, amount in charge.protected:
                yield (charge.pod.namespace, model), amount
        for held in self.held_claims.values():
            for model, amount in held.protected:
                yield (held.claim.namespace, model), amount


def used_by_namespace(books: Iterable[NodeBooks]) -> Used:
    """Namespace → card model → what its pods hold; quotas are judged by it."""
    return _by_namespace(held for one in books for held in one.usage())


def protected_by_namespace(books: Iterable[NodeBooks]) -> Used:
    """Namespace → card model → what its protected shares hold."""
    return _by_namespace(held for one in books for held in one.protected_usage())


def _by_namespace(held: Iterable[tuple[tuple[str, str], Amount]]) -> Used:
    used: dict[str, dict[str, Amount]] = {}
    for (namespace, model), amount in held:
        models = used.setdefault(namespace, {})
        models[model] = models.get(model, ZERO) + amount
    return used


Used = Mapping[str, Mapping[str, Amount]]
"""Namespace → model of card → what the namespace's pods and claims hold.

The model is empty where nobody knows it: that counts under every model. A claim that is not allocated yet
counts under each model that it may be given (:func:`one_of`).
"""

_BETWEEN = "\n"  # no model's name has it


def one_of(models: Iterable[str]) -> str:
    """The key in :data:`Used` of what is of one of these models, nobody knows which."""
    return _BETWEEN.join(sorted(models))


def models_of(key: str) -> tuple[str, ...]:
    """The models of a key in :data:`Used`; none where any model may be meant."""
    return tuple(key.split(_BETWEEN)) if key else ()


def added(used: Used, more: Used) -> Used:
    """Both sums together."""
    if not more:
        return used
    both = {namespace: dict(models) for namespace, models in used.items()}
    for namespace, models in more.items():
        mine = both.setdefault(namespace, {})
        for model, amount in models.items():
            mine[model] = mine.get(model, ZERO) + amount
    return both
