"""What one pod holds of its node, according to its annotations and its spec. Pure.

A pod is charged on the cards that its annotations name, if they concern this pod on its node, with the
amounts of its spec: an annotation may raise them, and only the agent's record of a resized pod may lower
them. A pod with a container whose cards are not named is :class:`CardsUnknown`;
:mod:`gpu_manager.domain.cluster.accounting` finds cards for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share, peaks
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.domain.rules.pod_request import booked_request
from gpu_manager.domain.rules.request import PodRequest

# Annotations that record a pod's cards: the extender writes them at bind, the agent corrects them.


def allocation_annotations(
    pod: Pod,
    node: str,
    placement: Mapping[str, Sequence[Share]],
    cards: Sequence[CardState],
    now: float,
    *,
    assigned: bool,
    numa_ids: Mapping[str, Mapping[int, tuple[int, int]]] | None = None,
) -> dict[str, str]:
    """The annotations for this placement, in this project's format and in the predecessor's.

    ``now`` is seconds since the epoch; the predecessor's format has nanoseconds, and its index keys count
    only ``spec.containers``. ``numa_ids`` as in :class:`~gpu_manager.domain.contract.Assignment`.
    """
    index: dict[CardUuid, int] = {s.card.uuid: s.card.index for s in cards}
    apps = [c.name for c in pod.containers if c.kind is ContainerKind.APP]
    return {
        contract.ALLOCATION: contract.encode_assignment(
            contract.Assignment(
                node,
                pod.api_uid,
                {n: tuple((s.card, s.amount) for s in shares) for n, shares in placement.items()},
                numa_ids=numa_ids or {},
            )
        ),
        contract.PREDICATE_NODE: node,
        contract.PREDICATE_TIME: pod.annotations.get(contract.PREDICATE_TIME) or str(int(now * 1e9)),
        contract.ASSIGNED: "true" if assigned else "false",
        **{
            f"{contract.PREDICATE_INDEX}{n}": ",".join(
                str(index[s.card]) for s in placement[name] if s.card in index
            )
            for n, name in enumerate(apps)
            if name in placement
        },
    }


def annotations_differ(pod: Pod, stamped: Mapping[str, str]) -> bool:
    """True if the pod's annotations differ from these. Order and spelling of the JSON do not matter."""
    ours = contract.decode_assignment(pod.annotations.get(contract.ALLOCATION))
    return ours != contract.decode_assignment(stamped[contract.ALLOCATION]) or any(
        pod.annotations.get(key) != value for key, value in stamped.items() if key != contract.ALLOCATION
    )


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """What one pod holds of its node; ``usage`` is the sum by card model.

    ``guessed``: no annotation names cards with room, so they depend on the other pods of the node.
    ``unplaceable``: no card had room for the pod, and it is charged where the most was left.
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


@dataclass(frozen=True, slots=True)
class CardsUnknown:
    """A pod with containers whose cards no annotation names; ``certain``: the allocations of its other
    containers.
    """

    placed: PlacedPod
    request: PodRequest
    certain: tuple[Allocation, ...] = ()

    @property
    def rest(self) -> PodRequest:
        """The request of the containers without known cards."""
        done = {a.container for a in self.certain}
        return replace(
            self.request, containers=tuple(c for c in self.request.containers if c.name not in done)
        )


def charge_of(placed: PlacedPod, node: NodeReport) -> Charge | CardsUnknown:
    """The charge of a pod on its node, or what is known of it if its annotation leaves cards open."""
    request = booked_request(placed.pod, node.unit) if _is_ours(placed, node) else None
    if request is None:
        allocations = tuple(_granted_all_the_same(placed, node))
    elif not node.cards:
        return Charge(placed, (), _usage_without_cards(placed, request, node))
    else:
        allocations = tuple(allocations_of(placed.pod, dict(_named_shares(placed, request, node))))
        if len(allocations) < len(request.containers):
            return CardsUnknown(placed, request, allocations)
    return Charge(placed, allocations, usage_by_model(allocations, node.models))


def is_charged_alike(before: PlacedPod, now: PlacedPod) -> bool:
    """True if both are charged alike on the same node, as a pod before and after its binding."""
    return before is now or (
        (before.pod.namespace, before.pod.name) == (now.pod.namespace, now.pod.name)
        and before.pod.containers == now.pod.containers
        and before.assigned == now.assigned
        and before.pod.annotations.get(contract.PRIORITY) == now.pod.annotations.get(contract.PRIORITY)
        and _resize_answer(before.pod) == _resize_answer(now.pod)
    )


def allocations_of(pod: Pod, placement: Mapping[str, tuple[Share, ...]]) -> Iterator[Allocation]:
    """A placement as allocations of the pod's containers, in the kubelet's order."""
    priority = priority_of(pod)
    for order, container in enumerate(pod.containers):
        if container.name in placement:
            yield Allocation(
                pod.uid,
                container.name,
                container.kind,
                order,
                placement[container.name],
                pod.namespace,
                pod.name,
                priority=priority,
            )


def usage_by_model(
    allocations: Sequence[Allocation], models: Mapping[CardUuid, str]
) -> tuple[tuple[str, Amount], ...]:
    """A pod's allocations summed by card model, each card at its peak over the pod's phases."""
    usage: dict[str, Amount] = {}
    for card, amount in peaks(allocations).items():
        model = models.get(card, "")
        usage[model] = usage.get(model, ZERO) + amount
    return tuple(sorted(usage.items()))


def _is_ours(placed: PlacedPod, node: NodeReport) -> bool:
    """False for a pod whose cards come from another vendor's device plugin: the agent has named none."""
    return not placed.pod.lent or placed.assigned is not None or (bool(node.cards) and node.lends)


def _granted_all_the_same(placed: PlacedPod, node: NodeReport) -> Iterator[Allocation]:
    """What the agent granted, by earlier rules, to a pod whose request is illegal today."""
    pod = placed.pod
    if placed.assigned is None or pod.annotations.get(contract.ASSIGNED) != "true":
        return
    capacity = _capacities(node)
    shares: dict[str, tuple[Share, ...]] = {}
    for name, named in placed.assigned.items():
        here = {uuid: said for uuid, said in named if uuid in capacity}
        shares[name] = tuple(Share(uuid, _at_most(said, capacity[uuid])) for uuid, said in here.items())
    yield from (a for a in allocations_of(pod, shares) if a.shares)


def _named_shares(
    placed: PlacedPod, request: PodRequest, node: NodeReport
) -> Iterator[tuple[str, tuple[Share, ...]]]:
    """The shares of each container whose annotation names as many cards of this node as it requests."""
    capacity, resized = _capacities(node), _resized(placed.pod)
    for container in request.containers:
        named = (placed.assigned or {}).get(container.name, ())
        wanted = container.request.width
        if len(named) != wanted or len({uuid for uuid, _ in named} & capacity.keys()) != wanted:
            continue
        if container.request.cards:
            yield container.name, tuple(Share(uuid, capacity[uuid]) for uuid, _ in named)
        else:
            # An annotation that raises the charge costs at most its own pod's card.
            asked = ZERO if container.name in resized else container.request.amount
            yield (
                container.name,
                tuple(Share(uuid, asked.peak(_at_most(said, capacity[uuid]))) for uuid, said in named),
            )


def _usage_without_cards(
    placed: PlacedPod, request: PodRequest, node: NodeReport
) -> tuple[tuple[str, Amount], ...]:
    """What a pod holds of a node whose cards are not known, under the model in the node's label; under every
    model if the node is gone. Its annotation still tells the number of cards, and the memory of whole ones.
    """
    resized, held = _resized(placed.pod), []
    for c in request.containers:
        shares = [Share(card, amount) for card, amount in (placed.assigned or {}).get(c.name, ())]
        if not shares or c.name not in resized:
            said = sum((share.amount for share in shares), ZERO)
            shares.append(Share(CardUuid(""), c.request.total.peak(said) - said))
        held.append(Allocation(request.uid, c.name, c.kind, c.order, tuple(shares)))
    return usage_by_model(held, {card: node.model for one in held for card in one.cards})


def _resized(pod: Pod) -> Container[str]:
    """The containers for which the agent has booked another size than the spec's."""
    answer = answer_of(pod) if _resize_answer(pod) else None
    return answer.sizes if answer else ()


def _resize_answer(pod: Pod) -> str | None:
    """The answer to a resize request, if the agent has published what it booked since the start.

    Both annotations are guarded: then the agent's figure counts, even below the spec.
    """
    answer = pod.annotations.get(contract.RESIZED)
    return answer if answer and pod.annotations.get(contract.ASSIGNED) == "true" else None


def _capacities(node: NodeReport) -> Mapping[CardUuid, Amount]:
    return {state.card.uuid: state.card.capacity(node.unit) for state in node.cards}


def _at_most(said: Amount, card: Amount) -> Amount:
    return Amount(min(said.cores, card.cores), min(said.memory, card.memory))


Assigned = Mapping[str, tuple[tuple[CardUuid, Amount], ...]]
"""Container → the cards that an annotation names, and how much of each."""


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod and the cards that its annotation names; None if it has none for this pod on this node.

    ``numa_ids``: container → NUMA node → ids of cores and of memory, for containers that hold ids of other
    nodes than those of their cards.
    """

    pod: Pod
    assigned: Assigned | None = None
    numa_ids: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)

    @property
    def uid(self) -> PodUid:
        """The pod's key in the accounting."""
        return self.pod.uid


def placed_pod(pod: Pod) -> PlacedPod:
    """The pod with the cards of its annotation."""
    return PlacedPod(pod, assigned_cards(pod), ids_elsewhere(pod))


def ids_elsewhere(pod: Pod) -> Mapping[str, Mapping[int, tuple[int, int]]]:
    """:attr:`PlacedPod.numa_ids`, from the pod's annotation."""
    text = pod.annotations.get(contract.ALLOCATION, "")
    said = contract.decode_assignment(text) if '"numa"' in text else None
    if said is None or said.pod != pod.uid or not pod.node or said.node != pod.node:
        return {}
    return dict(_as_asked(pod, said.numa_ids))


def _as_asked(
    pod: Pod, told: Mapping[str, Mapping[int, tuple[int, int]]]
) -> Iterator[tuple[str, Mapping[int, tuple[int, int]]]]:
    """The entries with as many ids as the container requests; others are not the agent's."""
    for name, nodes in told.items():
        container = pod.container(name)
        if container is not None:
            cores, units = (sum(counts[at] for counts in nodes.values()) for at in (0, 1))
            if cores == container.wants(contract.CORE) and units == container.wants(contract.MEMORY):
                yield name, nodes


def assigned_cards(pod: Pod) -> Assigned | None:
    """The cards that the pod's annotations name; None if they do not concern this pod on its node.

    A size that the scheduler has reserved counts before the agent has booked it. The predecessor's scheduler
    writes indices. They name cards only on a node without an inventory (:func:`card_by_index`).
    """
    said = contract.decode_assignment(pod.annotations.get(contract.ALLOCATION))
    if said is None and pod.node and pod.annotations.get(contract.PREDICATE_NODE) == pod.node:
        return dict(_by_index(pod)) or None
    if said is None or said.pod != pod.uid or not pod.node or said.node != pod.node:
        return None
    answer = answer_of(pod)
    more = answer.sizes if answer else {}
    return {
        name: tuple((card, amount.peak(more.get(name, ZERO).part(len(shares)))) for card, amount in shares)
        for name, shares in said.containers.items()
    }


def card_by_index(index: int) -> CardUuid:
    """The name for a card of a node without an inventory, from the predecessor's index."""
    return CardUuid(f"capacity-{index}")


def _by_index(pod: Pod) -> Iterator[tuple[str, tuple[tuple[CardUuid, Amount], ...]]]:
    apps = [c.name for c in pod.containers if c.kind is ContainerKind.APP]
    for n, name in enumerate(apps):
        indices = pod.annotations.get(f"{contract.PREDICATE_INDEX}{n}", "").split(",")
        if all(index.isascii() and index.isdecimal() and len(index) < 4 for index in indices):
            yield name, tuple((card_by_index(int(index)), ZERO) for index in indices)
