"""Messages of libvcuda from inside a container, and the sentences in which the agent reports them.

A message is a code with numbers and one word, which a tenant may forge: the agent writes the sentence
itself, and only reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.resources import format_bytes


class LibraryMessageKind(Enum):
    """The kind of a library message; the value is the label of the metric."""

    MEMORY_REFUSED = "memory-refused"
    CUDA_REFUSED = "cuda-refused"
    UNKNOWN_FUNCTION = "unknown-function"
    ROUTED_BY_NAME = "routed-by-name"
    LIMITS_LOST = "limits-lost"


FOR_THE_POD: Final = frozenset({LibraryMessageKind.MEMORY_REFUSED, LibraryMessageKind.CUDA_REFUSED})
"""Kinds that the pod's owner can fix; the others are for the operator."""
TROUBLE: Final = frozenset(LibraryMessageKind) - {LibraryMessageKind.MEMORY_REFUSED}
"""Kinds that indicate a fault; a program that reaches its limit does not."""


@dataclass(frozen=True, slots=True)
class LibraryMessage:
    """A library message: ``at`` in monotonic seconds, ``pid`` inside the container; sizes in bytes."""

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
    """Format the message as a sentence; ``card`` is the card's name for the reader."""
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
