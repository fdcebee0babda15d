"""What is in the control pages, in the words of the ports, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import Excess
from gpu_manager.domain.enforcement.library_messages import Framework, LibraryMessage, LibraryMessageKind
from gpu_manager.ports.control_pages import Activity, Correction, TenantUse
from vcuda.page import limits as limits_page
from vcuda.page import usage as usage_page
from vcuda.page.layout import PageError, uuid_text

_NS: Final = 1e-9
_TELLS_IDLE: Final = 4  # minor version of a page whose library tells what it held back with nothing in flight

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


def uses_in(
    found: usage_page.Usage, cards: Sequence[CardUuid], alive: Collection[usage_page.Slot]
) -> tuple[TenantUse, ...]:
    """What a usage page says of these cards; memory is that of the slots whose process lives."""
    held_idle_is_told = found.minor >= _TELLS_IDLE
    movable = min(sum(slot.movable for slot in alive), usage_page.MAX_BYTES)
    untold = min(sum(slot.untold for slot in alive), usage_page.MAX_BYTES)
    return tuple(
        TenantUse(
            card=card,
            memory=min(sum(slot.charged[i] for slot in alive), usage_page.MAX_BYTES),
            busy_seconds=line.busy_ns * _NS,
            throttled_seconds=line.throttle_ns * _NS,
            held_idle_seconds=(line.held_idle_ns if held_idle_is_told else line.throttle_ns) * _NS,
            refusals=line.refusals,
            refused_bytes=line.refused_bytes,
            processes=len(alive),
            movable=movable,
            untold=untold,
            longest_seconds=line.longest_ns * _NS,
        )
        for i, (card, line) in enumerate(zip(cards, found.cards, strict=True))
    )


def activities_in(
    found: usage_page.Usage, cards: Sequence[CardUuid], alive: Collection[usage_page.Slot]
) -> list[Activity]:
    """What the living processes of a usage page do on these cards now."""
    return [
        Activity(
            card,
            sum(slot.inflight[i] for slot in alive),
            line.busy_ns,
            line.last_busy_ns,
            sum(slot.inflight[i] > 0 for slot in alive),
            len(alive),
        )
        for i, (card, line) in enumerate(zip(cards, found.cards, strict=True))
    ]


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
        beside=card.beside if told.beside is None else told.beside,
    )
