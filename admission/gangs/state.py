"""The published state of a gang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admission.gangs.marks import GangKey
from gpu_manager.domain.errors import printable

MOST_MEMBERS: Final = 256  # that are missing; a larger gang is judged pod by pod
SHOWN: Final = 3  # names in one text


@dataclass(frozen=True, slots=True)
class GangState:
    """A gang at one moment. ``minimum``: the least number of members, None if unknown; ``members``: existing
    ones, ``bound`` those on a node, ``placed`` those with a kept place, ``missing`` those without a node.
    ``lacks``: why it had no places at the last question; else empty.
    """

    gang: GangKey
    minimum: int | None
    members: int
    bound: tuple[str, ...]
    placed: int
    missing: int
    lacks: str = ""

    @property
    def line(self) -> str:
        """One sentence about it."""
        name = f"{named(self.gang)} ({self.gang.api})"
        if self.minimum is None:
            return f"{name}: its size is not known here, so each of its pods is judged alone"
        if self.missing > MOST_MEMBERS:
            much = f"{self.missing} members are missing, more than {MOST_MEMBERS}"
            return f"{name}: {much}, so each of its pods is judged alone"
        on_nodes = f"{len(self.bound)} bound"
        if self.bound and self.missing:
            on_nodes += f" ({shown(self.bound)})"
        waits = f"{on_nodes}, {self.placed} with a place"
        return f"{name}: {self.members} members of at least {self.minimum}, {waits}"


def named(gang: GangKey) -> str:
    """The gang, for a text."""
    return f"gang {printable(gang.name)}"


def shown(names: Sequence[str]) -> str:
    """The first of these pods, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(map(printable, names[:SHOWN]))}{more}"
