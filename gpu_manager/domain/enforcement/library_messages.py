"""What libvcuda tells the host from inside a container, and in which sentence the host repeats it.

Pure. A note is a code with numbers and one word that the tenant may have made up: the sentence is ours, and
nothing follows from a note but that it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.resources import format_bytes


class LibraryMessageKind(Enum):
    """What a note is about; the value is the label of the metric."""

    MEMORY_REFUSED = "memory-refused"
    CUDA_REFUSED = "cuda-refused"
    UNKNOWN_FUNCTION = "unknown-function"
    ROUTED_BY_NAME = "routed-by-name"
    LIMITS_LOST = "limits-lost"


FOR_THE_POD: Final = frozenset({LibraryMessageKind.MEMORY_REFUSED, LibraryMessageKind.CUDA_REFUSED})
"""What the pod's owner can do something about; the rest is the operator's."""
TROUBLE: Final = frozenset(LibraryMessageKind) - {LibraryMessageKind.MEMORY_REFUSED}
"""What should not happen at all; a program that meets its limit is the limit at work."""


@dataclass(frozen=True, slots=True)
class LibraryMessage:
    """``at`` in monotonic seconds, ``pid`` as the process knows itself; asked, used and limit in bytes."""

    number: int
    at: float
    kind: LibraryMessageKind
    pid: int
    card: CardUuid | None = None
    asked: int = 0
    used: int = 0
    limit: int = 0
    text: str = ""


def sentence(note: LibraryMessage, card: str) -> str:
    """The note in words; ``card`` is how the reader calls the card."""
    who = f"process {note.pid}"
    match note.kind:
        case LibraryMessageKind.MEMORY_REFUSED:
            return (
                f"{who} was refused {format_bytes(note.asked)} of {card}: "
                f"{format_bytes(note.used)} of {format_bytes(note.limit)} are used"
            )
        case LibraryMessageKind.CUDA_REFUSED:
            return f"{who} was refused CUDA: {note.text}"
        case LibraryMessageKind.UNKNOWN_FUNCTION:
            return (
                f"{who} asked the driver for {note.text}, which this libvcuda does not know: "
                "what it takes is held by no limit; a newer gpu-manager may know it"
            )
        case LibraryMessageKind.ROUTED_BY_NAME:
            return (
                f"{who} was given {note.text} by an address that the driver does not export: "
                "its limit is held by the function's name; please report the driver's version"
            )
        case LibraryMessageKind.LIMITS_LOST:
            return f"{who} finds its limits page broken ({note.text}): the last limits it read stay in force"
