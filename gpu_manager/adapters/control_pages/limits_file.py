"""The limits page of a container on disk, which the agent writes and the library reads.

The container sees it read-only, so its content is the agent's own; a damaged page is nevertheless rewritten.
The fields of pages are translated here from and to the values of the ports.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import Excess
from gpu_manager.domain.enforcement.library_messages import Framework, LibraryMessage, LibraryMessageKind
from gpu_manager.domain.enforcement.time_sharing import Stalls
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Activity, Correction, Limit, TenantUse
from vcuda.page import limits as limits_page
from vcuda.page import usage as usage_page
from vcuda.page.layout import PageError, instance_word, uuid_bytes, uuid_text

log = structlog.get_logger(__name__)

LIMITS: Final = "limits"
# The owner may write, or an agent without CAP_DAC_OVERRIDE could not; the container's mount is read-only.
LIMITS_MODE: Final = 0o644

Change = Callable[["limits_page.Limits | None"], limits_page.Limits]
"""From what a limits page says now (None: nothing readable) to what it shall say."""


@dataclass(frozen=True, slots=True)
class PagePolicy:
    """Settings of the control pages of all containers on a node.

    ``context_reserve`` (bytes) is charged for each CUDA context when it is created; what a context takes
    beyond that is charged once the driver shows it. With ``oversubscribe``, cuMemAlloc returns managed
    memory if the card is full but the share is not. With ``fail_open``, programs run unlimited if the usage
    page is broken.
    """

    context_reserve: int = 0
    oversubscribe: bool = False
    fail_open: bool = False


DEFAULT_POLICY: Final = PagePolicy()


def limits_as_set(
    now: limits_page.Limits | None, name: str, limits: Sequence[Limit], policy: PagePolicy
) -> limits_page.Limits:
    """The page of the directory ``name`` with these limits; the host's corrections stay."""
    known = {card.uuid: card for card in now.cards} if now else {}
    cards = []
    for limit in limits:
        uuid = uuid_bytes(limit.card)
        before = known.get(uuid) or limits_page.CardLimits(uuid, None, None)
        cards.append(
            replace(
                before,
                instance=instance_word(limit.card),
                memory_limit=limit.memory,
                # Of nothing even the smallest charge is refused: no context comes into being.
                context_reserve=max(policy.context_reserve, not limit.memory),
                core_limit=float(limit.cores),
                core_ceiling=float(limit.ceiling),
                protected=limit.priority is Priority.PROTECTED,
                best_effort=limit.priority is Priority.BEST_EFFORT,
            )
        )
    return replace(
        now or limits_page.Limits(()),
        cards=tuple(cards),
        fail_open=policy.fail_open and any(limit.memory for limit in limits),
        oversubscribe=policy.oversubscribe,
        elastic=any(limit.ceiling > limit.cores for limit in limits),
        identity=hashlib.sha256(name.encode()).digest()[:16],
    )


def create_limits(here: int, change: Change, label: bytes | None) -> int:
    """Create the page in the directory ``here``; returns its descriptor. ``label`` is SELinux's.

    Raises OSError and PageError.
    """
    image = limits_page.build_limits(change(None))
    return files.create_page(here, LIMITS, image, limits_page.LIMITS_SIZE, LIMITS_MODE, label)


def write_limits(page: int, where: str, change: Change) -> None:
    """Change the page; an equal page is not written. ``where`` is its directory, for messages.

    Raises OSError and PageError.
    """
    changed = files.put_back(page, os.fstat(page), limits_page.LIMITS_SIZE, LIMITS_MODE)
    if changed:
        log.warning("limits_page_restored", directory=where, change=changed)
    image = files.read(page, limits_page.LIMITS_SIZE)
    now = limits_in(image)
    wanted = change(now)
    if now is None or replace(wanted, generation=now.generation) != now:
        write = limits_page.rewrite_limits(image, wanted)
        files.write(page, write.offset, write.data)


def limited_cards(page: int) -> tuple[CardUuid, ...]:
    """Return the cards of the limits page, in its order; the usage page does not name them.

    Raises OSError and PageError.
    """
    found = limits_page.read_limits(files.read(page, limits_page.LIMITS_SIZE))
    return tuple(CardUuid(uuid_text(card.uuid, card.instance)) for card in found.cards)


_NS: Final = 1e-9
_TELLS_IDLE: Final = 4  # minor version of a page whose library tells what it held back with nothing in flight
_TELLS_ERROR: Final = 9

_KINDS: Final = {code.value: LibraryMessageKind[code.name] for code in usage_page.NoteCode}
_FRAMEWORKS: Final = {code.value: Framework[code.name] for code in usage_page.FrameworkCode}


def messages_in(notes: Iterable[usage_page.Note], cards: Sequence[CardUuid]) -> tuple[LibraryMessage, ...]:
    """The library's messages about these cards, without kinds that only a newer agent knows."""
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
    """The figures of a usage page for these cards; memory is that of slots whose process lives."""
    movable = min(sum(slot.movable for slot in alive), usage_page.MAX_BYTES)
    untold = min(sum(slot.untold for slot in alive), usage_page.MAX_BYTES)
    return tuple(
        TenantUse(
            card=card,
            memory=min(sum(slot.charged[i] for slot in alive), usage_page.MAX_BYTES),
            busy_seconds=line.busy_ns * _NS,
            throttled_seconds=line.throttle_ns * _NS,
            held_idle_seconds=(line.held_idle_ns if found.minor >= _TELLS_IDLE else line.throttle_ns) * _NS,
            in_flight_seconds=max(line.busy_ns, line.in_flight_ns) * _NS,
            refusals=line.refusals,
            refused_bytes=line.refused_bytes,
            processes=len(alive),
            movable=movable,
            untold=untold,
            longest_seconds=line.longest_ns * _NS,
            launches=line.launches,
            last_busy_seconds=line.last_busy_ns * _NS,
            stalls=Stalls(line.known_launches, line.stalled_launches, line.stalled_ns * _NS),
            variance=line.error_us2 * 1e-12 if found.minor >= _TELLS_ERROR else None,
        )
        for i, (card, line) in enumerate(zip(cards, found.cards, strict=True))
    )


def activities_in(
    found: usage_page.Usage, cards: Sequence[CardUuid], alive: Collection[usage_page.Slot]
) -> list[Activity]:
    """The present activity of a usage page's living processes on these cards."""
    return [
        Activity(
            card,
            sum(slot.inflight[i] for slot in alive),
            line.busy_ns,
            line.last_busy_ns,
            sum(slot.inflight[i] > 0 for slot in alive),
            len(alive),
            line.in_flight_ns,
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
    """The card's limits with its correction; fields that a correction omits are unchanged."""
    told = corrections.get(CardUuid(uuid_text(card.uuid, card.instance)))
    if told is None:
        return card
    excess = told.excess or Excess(card.host_excess, card.host_looked_ns, card.host_counted)
    return replace(
        card,
        gain=card.gain if told.gain is None else told.gain,
        co_active=card.co_active if told.co_active is None else told.co_active,
        others_most=card.others_most if told.others_most is None else told.others_most,
        others_part=card.others_part if told.others_part is None else told.others_part,
        host_adjust=card.host_adjust if told.host_adjust is None else told.host_adjust,
        host_excess=excess.bytes,
        host_looked_ns=excess.looked_ns,
        host_counted=min(excess.counted, usage_page.MAX_BYTES),
        granted=card.granted if told.granted is None else told.granted or None,
        beside=card.beside if told.beside is None else told.beside,
    )
