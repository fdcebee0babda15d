"""The checked request of a pod, on which placement and explain work."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, Amount, format_bytes


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
    ``memory`` is 0: a whole card comes with all its memory.
    """

    cores: int
    memory: int

    @property
    def cards(self) -> int:
        """The number of whole cards; 0 for a fraction."""
        return self.cores // CORES_PER_CARD

    @property
    def amount(self) -> Amount:
        """The request as an amount. For whole cards the memory is 0 until the cards are chosen."""
        return Amount(self.cores, self.memory)

    def __str__(self) -> str:
        if self.cards:
            return "1 whole card" if self.cards == 1 else f"{self.cards} whole cards"
        return f"{self.cores} cores, {format_bytes(self.memory)}"


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

    def allows(self, card: Card) -> bool:
        """True if the allow lists admit the card."""
        if self.uuids and card.uuid not in self.uuids:
            return False
        return not self.models or any(matches_model(wanted, card.model) for wanted in self.models)

    def asking(self, name: str, request: Request) -> PodRequest:
        """Return the pod's request with another request for the container ``name``."""
        return replace(
            self,
            containers=tuple(replace(c, request=request) if c.name == name else c for c in self.containers),
        )


def matches_model(wanted: str, model: str) -> bool:
    """True if ``wanted`` is the model, or a sequence of whole tokens of it.

    ``V100``, ``V100-SXM2`` and ``Tesla V100-SXM2-32GB`` match ``Tesla-V100-SXM2-32GB``; ``V10`` does not.
    Case and separators (space, ``-``, ``_``, ``/``) make no difference: NVML writes spaces, labels cannot.
    """
    tokens, whole = model_tokens(wanted), model_tokens(model)
    starts = range(len(whole) - len(tokens) + 1)
    return bool(tokens) and any(whole[i : i + len(tokens)] == tokens for i in starts)


def model_tokens(text: str) -> list[str]:
    """Return the lower-case words of a model's name, which :func:`matches_model` compares."""
    return [token for token in re.split(r"[\s_/-]+", text.casefold()) if token]
