"""What each pod on a node holds of its cards. Pure.

Where a pod's card is known, it is charged there. Where it is not (bound by hand, annotation lost or forged),
it is charged where the node's own policy would put it, so that no amount is ever left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from admission.cluster.node_facts import NodeFacts
from admission.cluster.pod_view import PodView
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.terminating import terminating_allocations
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """What one pod holds of its node. ``guessed``: its cards are not known, so others' order matters."""

    occupant: PodView
    allocations: tuple[Allocation, ...]
    usage: tuple[tuple[str, Amount], ...]  # by model
    guessed: bool = False


def booked_as_fact(ledger: Ledger, facts: NodeFacts, allocations: Sequence[Allocation]) -> Ledger:
    """The books with these as facts, whether they fit or not."""
    return Ledger((s.card for s in facts.cards), facts.unit, (*ledger, *allocations))


def charge_all(
    facts: NodeFacts, occupants: Iterable[PodView], known: Mapping[PodUid, Charge]
) -> dict[PodUid, Charge]:
    """What each pod on the node holds. ``known`` are charges made before under the same facts."""
    charges: dict[PodUid, Charge] = {}
    unplaced: list[tuple[PodView, PodRequest, tuple[Allocation, ...]]] = []
    for occupant in occupants:
        done = known.get(occupant.uid)
        if done is not None and not done.guessed and _alike(done.occupant, occupant):
            charges[occupant.uid] = done if done.occupant is occupant else replace(done, occupant=occupant)
            continue
        request = occupant.request(facts.unit) if _is_ours(occupant, facts) else None
        if request is None:
            charges[occupant.uid] = Charge(occupant, (), ())
            continue
        certain = tuple(_certain(occupant, request, facts)) if facts.cards else ()
        if facts.cards and len(certain) < len(request.containers):
            unplaced.append((occupant, request, certain))
        else:
            usage = _usage(certain, facts) if facts.cards else _by_label(request, facts)
            charges[occupant.uid] = Charge(occupant, certain, usage)
    if unplaced:
        charges |= _guess(facts, charges, unplaced)
    return charges


def _alike(before: PodView, now: PodView) -> bool:
    """True if both are charged the same on the same node: a pod that is bound after it was expected there."""
    return before is now or (
        (before.pod.namespace, before.pod.name) == (now.pod.namespace, now.pod.name)
        and before.pod.containers == now.pod.containers
        and before.assigned == now.assigned
    )


def _is_ours(occupant: PodView, facts: NodeFacts) -> bool:
    """False for a pod that has the cards of another vendor's plugin."""
    return not occupant.lent or (bool(facts.cards) and (facts.lends or occupant.assigned is not None))


def _guess(
    facts: NodeFacts,
    charges: Mapping[PodUid, Charge],
    unplaced: list[tuple[PodView, PodRequest, tuple[Allocation, ...]]],
) -> dict[PodUid, Charge]:
    """Pods whose cards nobody has said: the oldest first, each where the node's own policy puts it."""
    held = [a for charge in charges.values() for a in charge.allocations]
    certainly = [a for _, _, certain in unplaced for a in certain]
    seen = {*charges, *(occupant.uid for occupant, _, _ in unplaced)}
    left = terminating_allocations(facts.lingering, seen)
    ledger = Ledger((s.card for s in facts.cards), facts.unit, [*held, *certainly, *left])
    guessed: dict[PodUid, Charge] = {}
    for occupant, request, certain in sorted(unplaced, key=lambda u: (u[0].began, u[0].uid)):
        done = {a.container for a in certain}
        rest = replace(request, containers=tuple(c for c in request.containers if c.name not in done))
        placement = find(rest, facts.cards, facts.topology, ledger) or _forced(rest, facts, ledger)
        allocations = (*certain, *allocations_of(occupant, placement))
        ledger = booked_as_fact(ledger, facts, allocations)
        guessed[occupant.uid] = Charge(occupant, allocations, _usage(allocations, facts), guessed=True)
    return guessed


def _certain(occupant: PodView, request: PodRequest, facts: NodeFacts) -> Iterator[Allocation]:
    """The containers whose cards are known: named, on this node, as many as asked."""
    capacity = {state.card.uuid: state.card.capacity(facts.unit) for state in facts.cards}
    for container in request.containers:
        named = (occupant.assigned or {}).get(container.name, ())
        wanted = container.request.cards or 1
        if len(named) != wanted or len({uuid for uuid, _ in named} & capacity.keys()) != wanted:
            continue
        asked = container.request.amount
        shares = tuple(
            Share(
                uuid,
                # A lie upwards costs the liar's own card at most; a lie downwards is not heard.
                capacity[uuid]
                if container.request.cards
                else asked.peak(
                    Amount(min(said.cores, capacity[uuid].cores), min(said.memory, capacity[uuid].memory))
                ),
            )
            for uuid, said in named
        )
        yield _allocation(occupant, container, shares)


def _forced(request: PodRequest, facts: NodeFacts, ledger: Ledger) -> dict[str, tuple[Share, ...]]:
    """Somewhere, for a pod that is on the node though it does not fit: on the cards with most left."""
    placement: dict[str, tuple[Share, ...]] = {}
    taken: dict[CardUuid, Amount] = {}
    for container in request.containers:
        free = {s.card.uuid: ledger.free(s.card.uuid) - taken.get(s.card.uuid, ZERO) for s in facts.cards}
        ranked = sorted(
            facts.cards,
            key=lambda s: (-free[s.card.uuid].cores, -free[s.card.uuid].memory, s.card.index),
        )
        shares = tuple(
            Share(
                s.card.uuid,
                s.card.capacity(facts.unit) if container.request.cards else container.request.amount,
            )
            for s in ranked[: container.request.cards or 1]
        )
        for share in shares:
            taken[share.card] = taken.get(share.card, ZERO) + share.amount
        placement[container.name] = shares
    return placement


def allocations_of(occupant: PodView, placement: Mapping[str, tuple[Share, ...]]) -> Iterator[Allocation]:
    for order, container in enumerate(occupant.pod.containers):
        if container.name in placement:
            pod = occupant.pod
            yield Allocation(
                pod.uid,
                container.name,
                container.kind,
                order,
                placement[container.name],
                pod.namespace,
                pod.name,
            )


def _allocation(occupant: PodView, container: ContainerRequest, shares: tuple[Share, ...]) -> Allocation:
    pod = occupant.pod
    return Allocation(
        pod.uid, container.name, container.kind, container.order, shares, pod.namespace, pod.name
    )


def charge_by_model(
    allocations: Sequence[Allocation], models: Mapping[CardUuid, str]
) -> tuple[tuple[str, Amount], ...]:
    """What one pod's allocations count for, by the model of the card given, each card at its peak."""
    usage: dict[str, Amount] = {}
    for card in dict.fromkeys(card for a in allocations for card in a.cards):
        model = models.get(card, "")
        usage[model] = usage.get(model, ZERO) + peak(allocations, card)
    return tuple(sorted(usage.items()))


def _usage(allocations: Sequence[Allocation], facts: NodeFacts) -> tuple[tuple[str, Amount], ...]:
    return charge_by_model(allocations, facts.models)


def _by_label(request: PodRequest, facts: NodeFacts) -> tuple[tuple[str, Amount], ...]:
    """Without an inventory: by the model that the node's label names."""
    card = CardUuid("")
    held = [
        Allocation(request.uid, c.name, c.kind, c.order, (Share(card, c.request.amount),))
        for c in request.containers
    ]
    return ((facts.model, peak(held, card)),)
