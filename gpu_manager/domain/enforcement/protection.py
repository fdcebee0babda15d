"""Protected containers beside best-effort ones on a card: which cards need a watched gate, what share each
container may have meanwhile, and how long a protected launch may wait. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD

IN_FLIGHT_SECONDS: Final = 0.0005
"""Work that a best-effort container launches ahead of a kernel: ``GATE_AHEAD_NS`` of the library."""


@dataclass(frozen=True, slots=True)
class CardMember:
    """A container on a card: its pages' directory, the card's index in them, its guaranteed ``cores``, their
    ``ceiling`` and its recent use ``used`` (percent), and its ``longest`` kernel or graph so far (seconds).
    """

    name: str
    card: CardUuid
    index: int
    cores: int
    ceiling: int
    priority: Priority
    used: float = 0.0
    longest: float = 0.0

    @property
    def works(self) -> bool:
        """True if it has used the card lately."""
        return self.used > 0


@dataclass(frozen=True, slots=True)
class Granted:
    """The published terms of a container while both classes are on its card, in percent: its ``share``, and
    for a protected one the share guaranteed to the best-effort ones as far as they use it (``beside``): the
    most time for which their work may run beside protected work.
    """

    share: float
    beside: float = 0.0


@dataclass(frozen=True, slots=True)
class GatedCard:
    """A card on which protected and best-effort containers are together, and normal ones or not."""

    card: CardUuid
    protected: tuple[CardMember, ...]
    best_effort: tuple[CardMember, ...]
    normal: bool

    @property
    def wait_seconds(self) -> float:
        """How long a protected launch may wait for best-effort work in flight: for the longest kernel of any
        such container, since they take turns, plus the work that one launches ahead, or two while a time
        slice passes.
        """
        ahead = IN_FLIGHT_SECONDS * min(2, len(self.best_effort))
        return ahead + max(member.longest for member in self.best_effort)

    def granted(self) -> Mapping[str, Granted]:
        """What each container may use now, by its pages' directory.

        Best-effort containers divide the rest in proportion to their cores, as far as their ceilings allow. A
        protected one has its ceiling while no other protected one works. If a normal container is on the card
        too, every container has only its guaranteed cores.
        """
        beside = sum(min(member.used, member.cores) for member in self.best_effort)
        alone = not self.normal and sum(member.works for member in self.protected) <= 1
        told = {m.name: Granted(float(m.ceiling if alone else m.cores), beside) for m in self.protected}
        for member in self.best_effort:
            told[member.name] = Granted(float(member.cores) if self.normal else self._harvest(member))
        return told

    def _harvest(self, member: CardMember) -> float:
        others = sum(other.cores for other in self.best_effort if other.works and other is not member)
        part = CORES_PER_CARD * member.cores / max(1, member.cores + others)
        return max(float(member.cores), min(float(member.ceiling), part))


def gated_cards(members: Iterable[CardMember]) -> tuple[GatedCard, ...]:
    """Return the cards with containers of both classes, in the order of their UUIDs."""
    by_card: dict[CardUuid, list[CardMember]] = {}
    for member in members:
        by_card.setdefault(member.card, []).append(member)
    found = []
    for card, here in sorted(by_card.items()):
        protected, best_effort, normal = (
            tuple(m for m in here if m.priority is priority)
            for priority in (Priority.PROTECTED, Priority.BEST_EFFORT, Priority.NORMAL)
        )
        if protected and best_effort:
            found.append(GatedCard(card, protected, best_effort, bool(normal)))
    return tuple(found)
