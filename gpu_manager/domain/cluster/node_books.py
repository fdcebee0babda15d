"""A node's accounting: what its pods and claims hold of which card, and what is requested of it. Frozen;
pure.

:mod:`gpu_manager.domain.cluster.accounting` derives it. Sums by namespace and card model serve quotas.

Shares of deleted pods are held until the pods' processes have ended: a pod deleted by force disappears from
the API at once, but its processes do not. Its node lists such shares in its inventory, and the accounting
charges them, so that the extender promises nothing that the node cannot give.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.claims import ClaimCharge
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.cluster.pod_charges import Charge
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.explain import Refusal, explain_priority, neighbours
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.placement.place import Placement, judge
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.domain.rules.request import PodRequest

MOST: Final = 128  # entries of an inventory: about 14 KiB of the 256 KiB that annotations may have
RELEASED_MOST: Final = 512  # UIDs of an inventory: 20 KiB, and more pods than a kubelet deletes at once


def terminating_shares(ledger: Ledger, gone: Iterable[PodUid]) -> tuple[TerminatingShare, ...]:
    """The shares of these pods for an inventory: by pod and card, and beyond :data:`MOST` summed by card."""
    left = sorted(_of(ledger, gone), key=lambda one: (one.pod, one.card))
    if len(left) <= MOST:
        return tuple(left)
    cards = sorted({one.card for one in left})
    kept = max(0, MOST - len(cards))
    rest = {card: sum((one.amount for one in left[kept:] if one.card == card), ZERO) for card in cards}
    together = (TerminatingShare("", card, amount) for card, amount in rest.items() if amount != ZERO)
    return (*left[:kept], *together)


def _of(ledger: Ledger, gone: Iterable[PodUid]) -> Iterator[TerminatingShare]:
    for uid in gone:
        held = tuple(ledger.of_pod(uid).values())
        for card in dict.fromkeys(card for a in held for card in a.cards):
            yield TerminatingShare(uid, card, peak(held, card))


def terminating_allocations(
    left: Iterable[TerminatingShare], known: Collection[PodUid] = ()
) -> tuple[Allocation, ...]:
    """The shares as allocations for a ledger, without those of ``known`` pods, which are charged anyway."""
    shares: dict[PodUid, list[Share]] = {}
    for one in left:
        if PodUid(one.pod) not in known:
            shares.setdefault(PodUid(one.pod), []).append(Share(one.card, one.amount))
    return tuple(
        Allocation(uid, "", ContainerKind.APP, 0, tuple(held)) for uid, held in sorted(shares.items())
    )


def with_terminating(
    refusal: Refusal, left: Sequence[TerminatingShare], known: Collection[PodUid] = ()
) -> Refusal:
    """The refusal, with the shares of deleted pods mentioned at each open card."""
    held: Mapping[CardUuid, list[TerminatingShare]] = {
        view.uuid: [one for one in left if one.card == view.uuid and PodUid(one.pod) not in known]
        for view, _ in refusal.cards
        if not view.closed
    }
    if not any(held.values()):
        return refusal
    cards = (
        (view, f"{reason}; {_said(those)}" if (those := held.get(view.uuid)) else reason)
        for view, reason in refusal.cards
    )
    return replace(refusal, cards=tuple(cards))


def _said(left: Sequence[TerminatingShare]) -> str:
    amount: Amount = sum((one.amount for one in left), ZERO)
    one = len(left) == 1 and bool(left[0].pod)
    who = "a pod that is gone and whose" if one else "pods that are gone and whose"
    return f"{amount} held by {who} processes still run"


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
        """Pods deleted from the API whose processes still run."""
        return frozenset(self.ledger.pods) - self.charges.keys()

    @property
    def unplaceable(self) -> tuple[Pod, ...]:
        """Pods on the node for which no card had room."""
        return tuple(charge.pod for charge in self.charges.values() if charge.unplaceable)

    def guessed(self, pod: PodUid) -> bool:
        """True if no annotation names the pod's cards."""
        return pod in self.charges and self.charges[pod].guessed

    def explain_priority(self, pod: Pod, placement: Placement | None = None) -> str:
        """A sentence on what the pod's priority means on its cards here, or on a ``placement``'s."""
        shares = (a.shares for a in self.ledger.of_pod(pod.uid).values())
        named = {share.card for part in (placement.values() if placement else shares) for share in part}
        beside = neighbours(self.ledger, pod.uid, named)
        return explain_priority(priority_of(pod), beside, gates=self.node.gates)

    def ended(self, holder: Allocation) -> bool:
        """True for an ordinary init container that has ended; its pod still holds the peak of its phases."""
        charge = self.charges.get(holder.pod)
        return charge is not None and holder.container in charge.pod.ended_inits

    def judge(self, request: PodRequest) -> Placement | Refusal:
        """The placement of a pod with this request on the node, or why it does not fit."""
        if lack := self.node.lacks(request):
            return Refusal(lack, (), "Choose another node")
        found = judge(request, self.node.cards, self.node.topology, self.ledger)
        return (
            with_terminating(found, self.node.lingering, self.charges)
            if isinstance(found, Refusal)
            else found
        )

    def without(self, pods: Iterable[PodUid]) -> Ledger:
        """A copy of the ledger without these pods."""
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
    """Namespace → card model → what its pods hold, as quotas need it."""
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
    """The key in :data:`Used` for cards of one of these models, if it is unknown of which."""
    return _BETWEEN.join(sorted(models))


def models_of(key: str) -> tuple[str, ...]:
    """The models of a key in :data:`Used`; empty if any model may be meant."""
    return tuple(key.split(_BETWEEN)) if key else ()


def added(used: Used, more: Used) -> Used:
    """The sum of both."""
    if not more:
        return used
    both = {namespace: dict(models) for namespace, models in used.items()}
    for namespace, models in more.items():
        mine = both.setdefault(namespace, {})
        for model, amount in models.items():
            mine[model] = mine.get(model, ZERO) + amount
    return both
