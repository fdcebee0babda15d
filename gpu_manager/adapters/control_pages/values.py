"""What is in the control pages, in the words of the ports, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import Excess
from gpu_manager.domain.enforcement.library_messages import Framework, LibraryMessage, LibraryMessageKind
from gpu_manager.ports.control_pages import Correction
from vcuda.page import limits as limits_page
from vcuda.page import usage as usage_page
from vcuda.page.layout import PageError, uuid_text

_NS: Final = 1e-9

_KINDS: Final[Mapping[int, LibraryMessageKind]] = {
    code: LibraryMessageKind[code.name] for code in usage_page.NoteCode
}
_FRAMEWORKS: Final[Mapping[int, Framework]] = {
    code: Framework[code.name] for code in usage_page.FrameworkCode
}


def messages_in(notes: Iterable[usage_page.Note], cards: Sequence[CardUuid]) -> tuple[LibraryMessage, ...]:
    """The library's messages about these cards, without those of a kind that only a newer agent knows."""
    return tuple(_message(note, cards) for note in notes if note.code in _KINDS)


def _message(note: usage_page.Note, cards: Sequence[CardUuid]) -> LibraryMessage:
    return LibraryMessage(
        number=note.number,
        at=note.when_ns * _NS,
        kind=_KINDS[note.code],
        pid=note.pid,
        card=None if note.card is None else cards[note.card],
        asked=note.bytes,
        used=note.used,
        limit=note.limit,
        text=note.text,
        pooled=min(note.pooled, note.used),
        framework=_FRAMEWORKS.get(note.framework),
    )


def limits_in(image: bytes) -> limits_page.Limits | None:
    """The limits of a page; None if it is not one."""
    try:
        return limits_page.read_limits(image)
    except PageError:
        return None


def corrected_card(
    card: limits_page.CardLimits, corrections: Mapping[CardUuid, Correction]
) -> limits_page.CardLimits:
    """The card's limits with its correction; what a correction leaves out stays as it is."""
    told = corrections.get(CardUuid(uuid_text(card.uuid)))
    if told is None:
        return card
    excess = told.excess or Excess(card.host_excess, card.host_looked_ns, card.host_counted)
    return replace(
        card,
        gain=1.0,  # agents before this one wrote others
        co_active=card.co_active if told.co_active is None else told.co_active,
        host_adjust=card.host_adjust if told.host_adjust is None else told.host_adjust,
        host_excess=excess.bytes,
        host_looked_ns=excess.looked_ns,
        host_counted=min(excess.counted, usage_page.MAX_BYTES),
        granted=card.granted if told.granted is None else told.granted or None,
    )
