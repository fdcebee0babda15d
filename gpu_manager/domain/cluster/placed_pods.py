"""Which cards a pod's annotations name, if they are about this very pod on its node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.resources import ZERO, Amount

Assigned = Mapping[str, tuple[tuple[CardUuid, Amount], ...]]
"""Container → the cards that an annotation names, and how much of each."""


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod and the cards that its annotation names; None if it has none about this pod on this node."""

    pod: Pod
    assigned: Assigned | None = None

    @property
    def uid(self) -> PodUid:
        """The key of the pod in the books."""
        return self.pod.uid


def placed_pod(pod: Pod) -> PlacedPod:
    """The pod with the cards of its annotation."""
    return PlacedPod(pod, assigned_cards(pod))


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
