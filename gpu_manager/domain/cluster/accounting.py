"""Accounting: who holds what of a node's cards, derived from the node's report and its pods. Pure.

The scheduler extender, quota, the cluster's page and ``kubectl vcuda`` all use this one accounting. The
agent shows its own :class:`~gpu_manager.domain.placement.ledger.Ledger`, and tests hold the two equal.
A pod is charged on the cards that its annotation names. A pod without a valid annotation (bound by hand,
annotation lost or forged) is charged where the node's own policy would put it or, if it does not fit, on the
cards with the most left: no amount is ever left out. So is a pod on its way to a card that is full by now.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.claims import ClaimCharge, KnownClaim, charge_claims, claims_by_node
from gpu_manager.domain.cluster.guessed_cards import Unplaced, allocations_of, guess
from gpu_manager.domain.cluster.held_sums import Used
from gpu_manager.domain.cluster.node_report import NodeReport, usual_unit
from gpu_manager.domain.cluster.placed_pods import PlacedPod, placed_pod
from gpu_manager.domain.cluster.terminating import terminating_allocations, with_terminating
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.placement.place import Placement, judge
from gpu_manager.domain.placement.protection import explain_priority, neighbours
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.domain.rules.pod_request import booked_request
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """What one pod holds of its node; ``usage`` is its sum by card model.

    ``guessed``: no annotation names cards with room, so they depend on the other pods of the node.
    ``unplaceable``: no card had room for it, and it is charged where the most was left.
    """

    placed: PlacedPod
    allocations: tuple[Allocation, ...]
    usage: tuple[tuple[str, Amount], ...]
    guessed: bool = False
    unplaceable: bool = False

    @property
    def pod(self) -> Pod:
        """The pod that is charged."""
        return self.placed.pod

    @property
    def protected(self) -> tuple[tuple[str, Amount], ...]:
        """:attr:`usage` if the pod's shares are protected, else nothing."""
        return self.usage if priority_of(self.pod) is Priority.PROTECTED else ()


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


def cluster_books(
    nodes: Sequence[NodeReport], pods: Iterable[Pod], claims: Sequence[KnownClaim] = ()
) -> tuple[NodeBooks, ...]:
    """Node name → books. A node that pods or claims name but that does not exist has no cards.

    ``pods``: all pods of the cluster; those on a node that offers ``nvidia.com/gpu`` with their lent cards
    (:meth:`~gpu_manager.domain.pod.Pod.with_lent_cards`).
    """
    unit = usual_unit(nodes)
    known = {node.name: node if node.published else replace(node, unit=unit) for node in nodes}
    at: dict[str, dict[PodUid, PlacedPod]] = {}
    for pod in pods:
        if pod.uid and pod.asks and pod.node and not pod.terminal:
            at.setdefault(pod.node, {})[pod.uid] = placed_pod(pod)
    by_claim: dict[str, list[KnownClaim]] = {}
    for name, claim in claims_by_node(claims):
        by_claim.setdefault(name, []).append(claim)
    books = []
    for name in sorted({*known, *at, *by_claim}):
        node = known.get(name) or NodeReport(name, unit)
        held = charge_claims(node, by_claim.get(name, ()))
        charges, ledger = charge_node(node, at.get(name, {}).values(), held)
        books.append(NodeBooks(node, ledger, charges, held))
    return tuple(books)


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


def ledger_of(
    node: NodeReport,
    charges: Mapping[PodUid, Charge],
    claims: Mapping[PodUid, ClaimCharge],
    before: NodeBooks | None = None,
) -> Ledger:
    """The node's ledger; ``before`` is an earlier state of it, to start from where little has changed."""
    held = _allocations(charges, claims)
    patched = _patched(before, node, held)
    return _fresh(node, charges, held) if patched is None else patched


def _allocations(
    charges: Mapping[PodUid, Charge], claims: Mapping[PodUid, ClaimCharge]
) -> Mapping[PodUid, tuple[Allocation, ...]]:
    """What each pod and each claim holds."""
    held = {uid: charge.allocations for uid, charge in charges.items()}
    return held | {uid: charge.allocations for uid, charge in claims.items()}


def _fresh(
    node: NodeReport, charges: Mapping[PodUid, Charge], holders: Mapping[PodUid, tuple[Allocation, ...]]
) -> Ledger:
    held = [allocation for allocations in holders.values() for allocation in allocations]
    left = terminating_allocations(node.lingering, charges)
    return Ledger((s.card for s in node.cards), node.unit, (*held, *left))


def _patched(
    before: NodeBooks | None, node: NodeReport, held: Mapping[PodUid, tuple[Allocation, ...]]
) -> Ledger | None:
    """The old ledger, changed where it differs; None where that is not cheaper or a fact contradicts it."""
    if before is None or before.node is not node or node.lingering:
        return None  # a pod that comes or goes decides whether its terminating share counts
    old = _allocations(before.charges, before.held_claims)
    gone = [uid for uid in old if held.get(uid) != old[uid]]
    come = [allocations for uid, allocations in held.items() if old.get(uid) != allocations]
    if not gone and not come:
        return before.ledger
    ledger = before.without(gone)
    try:
        for allocations in come:
            ledger.commit(allocations)
    except DoesNotFit:
        return None
    return ledger


# Charges of pods.


def charge_all(
    node: NodeReport,
    pods: Iterable[PlacedPod],
    known: Mapping[PodUid, Charge] | None = None,
    claims: Mapping[PodUid, ClaimCharge] | None = None,
) -> dict[PodUid, Charge]:
    """The charge of each pod on the node. ``known`` are earlier charges by the same report.

    Pods whose cards are not known go where ``claims`` leave room.
    """
    charges: dict[PodUid, Charge] = {}
    unplaced: list[Unplaced] = []
    for placed in pods:
        done = known.get(placed.uid) if known else None
        if done is not None and not done.guessed and _alike(done.placed, placed):
            charges[placed.uid] = done if done.placed is placed else replace(done, placed=placed)
            continue
        request = booked_request(placed.pod, node.unit) if _is_ours(placed, node) else None
        if request is None:
            charges[placed.uid] = _granted_all_the_same(placed, node)
        elif not node.cards:
            charges[placed.uid] = Charge(placed, (), _usage_without_cards(placed, request, node))
        else:
            certain = tuple(_certain(placed, request, node))
            if len(certain) < len(request.containers):
                unplaced.append(Unplaced(placed, request, certain))
            else:
                charges[placed.uid] = Charge(placed, certain, _usage(certain, node))
    if unplaced:
        charges |= _guess(node, charges, claims or {}, unplaced)
    return charges


def _guess(
    node: NodeReport,
    charges: Mapping[PodUid, Charge],
    claims: Mapping[PodUid, ClaimCharge],
    unplaced: Sequence[Unplaced],
) -> dict[PodUid, Charge]:
    """The charges of pods without known cards, beside what is known."""
    held = [a for allocations in _allocations(charges, claims).values() for a in allocations]
    seen = {*charges, *(one.placed.uid for one in unplaced)}
    held += terminating_allocations(node.lingering, seen)
    return {
        one.placed.uid: Charge(
            one.placed, allocations, _usage(allocations, node), guessed=True, unplaceable=not fits
        )
        for one, allocations, fits in guess(node, held, unplaced)
    }


def charge_node(
    node: NodeReport,
    pods: Iterable[PlacedPod],
    claims: Mapping[PodUid, ClaimCharge],
    before: NodeBooks | None = None,
) -> tuple[Mapping[PodUid, Charge], Ledger]:
    """The charge of each pod on the node, and the node's ledger with claims; ``before`` as in
    :func:`ledger_of`.

    Where pods would have more of a card than it has, the agent has given a part of it to another pod than the
    one that was chosen, and that one's annotation is yet to be corrected: the agent will find it another
    card. So of the pods there of which the agent has said nothing yet, those that do not fit are charged
    where the node's own policy would put them: else the room that is left for them would be promised again.
    """
    same = before.charges if before is not None and before.node is node else None
    charges = charge_all(node, pods, same, claims)
    ledger = ledger_of(node, charges, claims, before)
    over = {s.card.uuid for s in node.cards if _is_over(ledger, s.card.uuid)}
    coming = [c for c in charges.values() if over and not c.guessed and _is_coming(c, over)]
    left, unplaced = ledger.copy() if coming else ledger, list[Unplaced]()
    for charge in coming:
        left.release(charge.pod.uid)
    for charge in sorted(coming, key=lambda c: (c.pod.began, c.pod.uid)):
        request = booked_request(charge.pod, node.unit)
        try:
            left.commit(charge.allocations)
        except DoesNotFit:
            unplaced += [Unplaced(charge.placed, request, ())] if request is not None else []
    if not unplaced:
        return charges, ledger
    gone = {one.placed.uid for one in unplaced}
    charges = {uid: charge for uid, charge in charges.items() if uid not in gone}
    charges |= _guess(node, charges, claims, unplaced)
    return charges, ledger_of(node, charges, claims)


def _is_over(ledger: Ledger, card: CardUuid) -> bool:
    return not ledger.booked(card).fits_in(ledger.capacity(card))


def _is_coming(charge: Charge, cards: Container[CardUuid]) -> bool:
    """True for a pod that is to get one of these cards, if the agent has said nothing of it yet."""
    if charge.pod.annotations.get(contract.ASSIGNED) == "true":
        return False
    return any(card in cards for one in charge.allocations for card in one.cards)


def _alike(before: PlacedPod, now: PlacedPod) -> bool:
    """True if both are charged alike on the same node, as a pod before and after its binding."""
    return before is now or (
        (before.pod.namespace, before.pod.name) == (now.pod.namespace, now.pod.name)
        and before.pod.containers == now.pod.containers
        and before.assigned == now.assigned
        and before.pod.annotations.get(contract.PRIORITY) == now.pod.annotations.get(contract.PRIORITY)
        and _followed(before.pod) == _followed(now.pod)
    )


def _followed(pod: Pod) -> str | None:
    """The answer to a request for another size, if the agent has said what it booked since the start.

    Both annotations are guarded: then the figure of the agent counts, also below the spec.
    """
    answer = pod.annotations.get(contract.RESIZED)
    return answer if answer and pod.annotations.get(contract.ASSIGNED) == "true" else None


def _is_ours(placed: PlacedPod, node: NodeReport) -> bool:
    """False for a pod whose cards come from another vendor's device plugin: our agent has named none."""
    return not placed.pod.lent or placed.assigned is not None or (bool(node.cards) and node.lends)


def _granted_all_the_same(placed: PlacedPod, node: NodeReport) -> Charge:
    """What the agent granted, by earlier rules, to a pod whose request is illegal today."""
    pod = placed.pod
    shares: dict[str, tuple[Share, ...]] = {}
    if placed.assigned is not None and pod.annotations.get(contract.ASSIGNED) == "true":
        capacity = {state.card.uuid: state.card.capacity(node.unit) for state in node.cards}
        for name, named in placed.assigned.items():
            here = {uuid: said for uuid, said in named if uuid in capacity}
            shares[name] = tuple(Share(uuid, _at_most(said, capacity[uuid])) for uuid, said in here.items())
    allocations = tuple(a for a in allocations_of(pod, shares) if a.shares)
    return Charge(placed, allocations, _usage(allocations, node))


def _certain(placed: PlacedPod, request: PodRequest, node: NodeReport) -> Iterator[Allocation]:
    """Allocations of the containers whose annotation names as many cards of this node as they ask for."""
    capacity = {state.card.uuid: state.card.capacity(node.unit) for state in node.cards}
    resized = _resized(placed.pod)
    for container in request.containers:
        named = (placed.assigned or {}).get(container.name, ())
        wanted = container.request.cards or 1
        if len(named) != wanted or len({uuid for uuid, _ in named} & capacity.keys()) != wanted:
            continue
        asked = ZERO if container.name in resized else container.request.amount
        shares = tuple(
            # An annotation may raise the charge, which costs its own pod's card at most. Only the agent's, of
            # a pod that was resized, may lower it.
            Share(
                uuid,
                capacity[uuid] if container.request.cards else asked.peak(_at_most(said, capacity[uuid])),
            )
            for uuid, said in named
        )
        yield _allocation(placed.pod, container, shares, request.priority)


def _resized(pod: Pod) -> Container[str]:
    """The containers of which the agent has booked another size than the spec's."""
    answer = answer_of(pod) if _followed(pod) else None
    return answer.sizes if answer else ()


def _at_most(said: Amount, card: Amount) -> Amount:
    return Amount(min(said.cores, card.cores), min(said.memory, card.memory))


def _allocation(
    pod: Pod, container: ContainerRequest, shares: tuple[Share, ...], priority: Priority
) -> Allocation:
    return Allocation(
        pod.uid,
        container.name,
        container.kind,
        container.order,
        shares,
        pod.namespace,
        pod.name,
        priority=priority,
    )


def usage_by_model(
    allocations: Sequence[Allocation], models: Mapping[CardUuid, str]
) -> tuple[tuple[str, Amount], ...]:
    """A pod's allocations summed by card model, each card at its peak over the pod's phases."""
    usage: dict[str, Amount] = {}
    for card in dict.fromkeys(card for a in allocations for card in a.cards):
        model = models.get(card, "")
        usage[model] = usage.get(model, ZERO) + peak(allocations, card)
    return tuple(sorted(usage.items()))


def _usage(allocations: Sequence[Allocation], node: NodeReport) -> tuple[tuple[str, Amount], ...]:
    return usage_by_model(allocations, node.models) if allocations else ()


def _usage_without_cards(
    placed: PlacedPod, request: PodRequest, node: NodeReport
) -> tuple[tuple[str, Amount], ...]:
    """What a pod holds of a node whose cards are not known, under the model that the node's label names; of a
    node that is gone, under every model. Its annotation still says on how many cards, and of whole ones the
    memory.
    """
    resized, held = _resized(placed.pod), []
    for c in request.containers:
        shares = [Share(card, amount) for card, amount in (placed.assigned or {}).get(c.name, ())]
        if not shares or c.name not in resized:  # an annotation may raise the charge and not lower it
            said = sum((share.amount for share in shares), ZERO)
            shares.append(Share(CardUuid(""), c.request.amount.peak(said) - said))
        held.append(Allocation(request.uid, c.name, c.kind, c.order, tuple(shares)))
    return usage_by_model(held, {card: node.model for one in held for card in one.cards})
