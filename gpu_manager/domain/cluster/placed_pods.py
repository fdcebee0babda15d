"""Which cards a pod's annotations name, if they are about this very pod on its node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.resources import ZERO, Amount

Assigned = Mapping[str, tuple[tuple[CardUuid, Amount], ...]]
"""Container → the cards that an annotation names, and how much of each."""


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod and the cards that its annotation names; None if it has none about this pod on this node.

    ``numa_ids``: container → NUMA node → ids of cores and of memory, of containers that hold ids of other
    nodes than those of their cards.
    """

    pod: Pod
    assigned: Assigned | None = None
    numa_ids: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)

    @property
    def uid(self) -> PodUid:
        """The key of the pod in the books."""
        return self.pod.uid


def placed_pod(pod: Pod) -> PlacedPod:
    """The pod with the cards of its annotation."""
    return PlacedPod(pod, assigned_cards(pod), ids_elsewhere(pod))


def ids_elsewhere(pod: Pod) -> Mapping[str, Mapping[int, tuple[int, int]]]:
    """:attr:`PlacedPod.numa_ids`, as the pod's annotation has them."""
    text = pod.annotations.get(contract.ALLOCATION, "")
    said = contract.decode_assignment(text) if '"numa"' in text else None
    if said is None or said.pod != pod.uid or not pod.node or said.node != pod.node:
        return {}
    return dict(_as_asked(pod, said.numa_ids))


def _as_asked(
    pod: Pod, told: Mapping[str, Mapping[int, tuple[int, int]]]
) -> Iterator[tuple[str, Mapping[int, tuple[int, int]]]]:
    """Of containers for which as many ids are told as they ask for; others are nobody's word."""
    for name, nodes in told.items():
        container = pod.container(name)
        if container is not None:
            cores, units = (sum(counts[at] for counts in nodes.values()) for at in (0, 1))
            if cores == container.wants(contract.CORE) and units == container.wants(contract.MEMORY):
                yield name, nodes


def assigned_cards(pod: Pod) -> Assigned | None:
    """The cards that the pod's annotations name; None if they are not about this very pod on its node.

    A size that the scheduler has reserved counts before the agent has booked it.
    The predecessor's scheduler writes indices. They name cards only on a node that publishes no inventory
    (:func:`card_by_index`).
    """
    said = contract.decode_assignment(pod.annotations.get(contract.ALLOCATION))
    if said is None and pod.node and pod.annotations.get(contract.PREDICATE_NODE) == pod.node:
        return dict(_by_index(pod)) or None
    if said is None or said.pod != pod.uid or not pod.node or said.node != pod.node:
        return None
    answer = answer_of(pod)
    more = answer.sizes if answer else {}
    return {
        name: tuple((card, amount.peak(more.get(name, ZERO))) for card, amount in shares)
        for name, shares in said.containers.items()
    }


def card_by_index(index: int) -> CardUuid:
    """Name for a card of a node that publishes no inventory, from the predecessor's index."""
    return CardUuid(f"capacity-{index}")


def _by_index(pod: Pod) -> Iterator[tuple[str, tuple[tuple[CardUuid, Amount], ...]]]:
    apps = [c.name for c in pod.containers if c.kind is ContainerKind.APP]
    for n, name in enumerate(apps):
        indices = pod.annotations.get(f"{contract.PREDICATE_INDEX}{n}", "").split(",")
        if all(index.isascii() and index.isdecimal() and len(index) < 4 for index in indices):
            yield name, tuple((card_by_index(int(index)), ZERO) for index in indices)
