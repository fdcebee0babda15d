"""The node's cards, and the device lists that the kubelet gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import NVIDIA
from gpu_manager.domain.ids import DeviceIds
from gpu_manager.domain.topology import Topology


@dataclass(frozen=True, slots=True)
class NodeCards:
    """The node's cards at one moment; immutable, so that readers need no lock."""

    name: str
    unit: int
    cards: tuple[CardState, ...]
    topology: Topology
    ids: DeviceIds

    @staticmethod
    def of(name: str, unit: int, cards: Sequence[CardState], topology: Topology) -> NodeCards:
        """Build it, with the ids that its cards have."""
        return NodeCards(name, unit, tuple(cards), topology, DeviceIds(tuple(s.card for s in cards), unit))

    def card(self, uuid: CardUuid) -> CardState | None:
        """The card of that UUID, or None if it is gone."""
        return next((s for s in self.cards if s.card.uuid == uuid), None)

    def index(self, uuid: CardUuid) -> int | str:
        """The card's index for messages, or its UUID if it is gone."""
        state = self.card(uuid)
        return state.card.index if state else uuid


@dataclass(frozen=True, slots=True)
class KubeletOffer:
    """The devices offered to the kubelet: a card held under one resource name is not offered under the other.

    ``lent`` are whole cards held as ``nvidia.com/gpu``; ``busy`` are cards of which a pod holds or awaits a
    part under our names. ``withdrawn``: ids by resource that nobody holds and nobody may get.
    """

    node: NodeCards
    lent: frozenset[CardUuid] = frozenset()
    busy: frozenset[CardUuid] = frozenset()
    withdrawn: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def healthy(self, resource: str, state: CardState) -> bool:
        """True if the card's ids of the resource may be handed out, or are in use."""
        uuid = state.card.uuid
        if resource != NVIDIA:
            return state.healthy and uuid not in self.lent
        return state.healthy and (uuid in self.lent or (state.open and uuid not in self.busy))
