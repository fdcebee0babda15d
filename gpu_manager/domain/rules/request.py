"""The checked request of a pod, on which placement and explain work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.mig import profile_of, words
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, Amount


class PlacementPolicy(Enum):
    """The values of the pod annotation ``tencent.com/placement``; see
    :mod:`gpu_manager.domain.placement.place`.
    """

    BINPACK = "binpack"
    SPREAD = "spread"
    TOPOLOGY = "topology"


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one container: ``cores`` in hundredths of a card, ``memory`` in bytes.

    Below 100 cores it is a fraction of one card. From 100 on it is ``cores // 100`` whole cards, and
    ``memory`` is 0: a whole card comes with all its memory. With ``parts`` above 1 both are totals of equal
    parts of as many different cards, and no card is whole.
    """

    cores: int
    memory: int
    parts: int = 1

    @property
    def cards(self) -> int:
        """The number of whole cards; 0 for a fraction, or for parts of several cards."""
        return self.cores // CORES_PER_CARD if self.parts == 1 else 0

    @property
    def width(self) -> int:
        """The number of cards, whole or in part."""
        return self.cards or self.parts

    @property
    def amount(self) -> Amount:
        """What it takes of each card, in part; the total of whole cards, without their memory, which is not
        known until they are chosen.
        """
        return Amount(self.cores // self.parts, self.memory // self.parts)

    @property
    def total(self) -> Amount:
        """What it takes of all its cards; of whole cards without their memory."""
        return Amount(self.cores, self.memory)

    def reduced(self, cores: int, memory: int, unit: int) -> Request:
        """Return the largest request in as many parts within these totals, in whole units of memory."""
        memory_step = unit * self.parts
        return replace(
            self, cores=cores // self.parts * self.parts, memory=memory // memory_step * memory_step
        )

    def __str__(self) -> str:
        if self.cards:
            return "1 whole card" if self.cards == 1 else f"{self.cards} whole cards"
        return f"{self.total} in equal parts of {self.parts} cards" if self.parts > 1 else str(self.total)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The request of one container. ``order`` is its place in the kubelet's order (init containers first)."""

    name: str
    kind: ContainerKind
    order: int
    request: Request


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The request of a pod: its containers that request cards, in the kubelet's order, and its constraints.

    ``models`` and ``uuids`` are allow lists, empty for any. ``ceiling`` is the elastic ceiling in percent,
    ``priority`` that of its shares inside their cards.
    """

    uid: PodUid
    containers: tuple[ContainerRequest, ...]
    placement: PlacementPolicy = PlacementPolicy.BINPACK
    models: tuple[str, ...] = ()
    uuids: frozenset[CardUuid] = frozenset()
    ceiling: int | None = None
    priority: Priority = Priority.NORMAL

    @property
    def has_parts(self) -> bool:
        """True if a container requests equal parts of several cards."""
        return any(c.request.parts > 1 for c in self.containers)

    @property
    def has_several(self) -> bool:
        """True if a container requests several cards, whole or in part, which no instance can be one of."""
        return any(c.request.width > 1 for c in self.containers)

    def allows(self, card: Card) -> bool:
        """True if the allow lists admit the card; a MIG instance only if they name its profile or UUID."""
        return (not self.uuids or not self.uuids.isdisjoint(card.names)) and self.allows_model(card.model)

    def allows_model(self, model: str) -> bool:
        """True if the allow lists admit some card of the model."""
        if self.uuids and not self.models:
            return not (self.has_several and profile_of(model))
        return admits_model(self.models, model, several=self.has_several)

    def asking(self, name: str, request: Request) -> PodRequest:
        """Return the pod's request with another request for the container ``name``."""
        return replace(
            self,
            containers=tuple(replace(c, request=request) if c.name == name else c for c in self.containers),
        )


def admits_model(models: Sequence[str], model: str, *, several: bool = False) -> bool:
    """True if an allow list of models, empty for any, admits cards of the model.

    An instance must be named by its profile, and is never one of ``several`` cards of a container.
    """
    if profile_of(model) and (several or not models):
        return False
    return not models or any(matches_model(wanted, model) for wanted in models)


def matches_model(wanted: str, model: str) -> bool:
    """True if ``wanted`` is the model, or a sequence of whole tokens of it; of an instance with its profile.

    ``V100``, ``V100-SXM2`` and ``Tesla V100-SXM2-32GB`` match ``Tesla-V100-SXM2-32GB``; ``V10`` does not.
    Case and separators (space, ``-``, ``_``, ``/``) make no difference: NVML writes spaces, labels cannot.
    """
    tokens, whole = words(wanted), words(model)
    if (profile := profile_of(model)) and profile not in tokens:
        return False
    starts = range(len(whole) - len(tokens) + 1)
    return bool(tokens) and any(whole[i : i + len(tokens)] == tokens for i in starts)
