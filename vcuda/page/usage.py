"""Encoder and decoder of the ``usage`` page: what the library tells the host.

The tenant can write this page: every reader here checks bounds, clamps every number and trusts none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from vcuda.page.layout import ABI_MAJOR, ABI_MINOR, MAX_CARDS, PageError

MAX_SLOTS: Final = 1024
USAGE_SIZE: Final = 320 * 1024
_CARDS_OFFSET: Final = 4096
USAGE_HEAD_SIZE: Final = _CARDS_OFFSET + MAX_CARDS * 512
"""Bytes before the first slot: header and card lines."""
SLOT_SIZE: Final = 256
MAX_NOTES: Final = 24
TIMELINE_CELLS: Final = 512
TIMELINE_SIZE: Final = TIMELINE_CELLS * 4
TIMELINES_OFFSET: Final = USAGE_HEAD_SIZE + MAX_SLOTS * SLOT_SIZE
"""Where the first card's timeline begins; the others follow."""
USAGE_MAGIC: Final = b"VCUDAUSG"
MAX_BYTES: Final = (1 << 48) - 1
"""Maximum memory of a card line: the high 16 bits of ``charged`` are the repair epoch."""
MAX_NS: Final = (1 << 63) - 1

_USAGE_HEADER: Final = struct.Struct("<8sHHI16sII")
_COUNTERS: Final = struct.Struct("<QQ112xQQQQQ64s")
_COUNTERS_OFFSET: Final = 128
_NOTES_WRITTEN: Final = struct.Struct("<Q")
_NOTES_WRITTEN_OFFSET: Final = 384
_NOTE: Final = struct.Struct("<QQIIIIQQQ64sQ")
_NOTES_OFFSET: Final = 512
_NOTE_TEXT: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_ .:-")
_CARD_USAGE: Final = struct.Struct("<QQQQQ88xqQ112xQQQQQQQQ64xQQQQQQQQ64x")
_SLOT: Final = struct.Struct("<IIQQQQQQ8x16I16Q")
_LAST_BUSY_OFFSET: Final = 384
_TIMELINE: Final = struct.Struct(f"<{TIMELINE_CELLS}I")
_SLOT_LIVE = 1
_I64_MIN: Final = -(1 << 63)


class NoteCode(IntEnum):
    """The kind of a note; a newer library may have others."""

    MEMORY_REFUSED = 1
    CUDA_REFUSED = 2
    UNKNOWN_FUNCTION = 3
    ROUTED_BY_NAME = 4
    LIMITS_LOST = 5


class FrameworkCode(IntEnum):
    """What the process that wrote a note has loaded; a newer library may know others."""

    VLLM = 1
    SGLANG = 2
    PYTORCH = 3
    JAX = 4
    TENSORFLOW = 5
    ONNXRUNTIME = 6
    TENSORRT = 7
    GGML = 8
    CUPY = 9


@dataclass(frozen=True, slots=True)
class CardUsage:
    """The usage of one card by all of the tenant's processes, by their own account.

    ``held_idle_ns`` is the part of ``throttle_ns`` in which nothing of it was in flight; 0 before minor 4.
    ``in_flight_ns`` is the time in which something was, stretched by others; 0 before minor 7.
    ``known_launches`` are those of known length that were measured beside others' work; of them
    ``stalled_launches`` took far longer, by ``stalled_ns`` in all. 0 before minor 8.
    ``error_us2`` is the variance of ``busy_ns`` in square microseconds, since launches that are not measured
    are charged the mean of their kind; 0 before minor 9.
    """

    charged: int
    peak: int
    refusals: int
    refused_bytes: int
    excess_returned: int
    credit_ns: int
    refill_ns: int
    busy_ns: int
    throttle_ns: int
    launches: int
    debt_cut_ns: int
    starved: int
    held_idle_ns: int
    idle_from_ns: int
    in_flight_ns: int
    last_busy_ns: int
    longest_ns: int
    window_busy_ns: int
    window_start_ns: int
    known_launches: int
    stalled_launches: int
    stalled_ns: int
    error_us2: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A registered process. ``pid`` is valid only in its namespace; it is alive if its byte lock is held.

    ``charged`` is bytes by card; of them all ``movable`` are of managed memory, and of ``untold`` the library
    cannot tell whether others hold them.
    """

    index: int
    pid: int
    pid_namespace: int
    start_time: int
    nonce: int
    heartbeat_ns: int
    movable: int
    untold: int
    inflight: tuple[int, ...]
    charged: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A message of a process to the host. ``code`` may be unknown to :class:`NoteCode`; ``card`` may be None.

    ``framework`` is a :class:`FrameworkCode`, 0 or unknown. ``bytes``, ``used``, ``limit`` and ``pooled``
    (what memory pools have reserved of ``used``) are bytes. ``text`` is untrusted and reduced to at most 63
    letters, digits and ``_ .:-``.
    """

    number: int
    when_ns: int
    code: int
    pid: int
    card: int | None
    framework: int
    bytes: int
    used: int
    limit: int
    text: str
    pooled: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage page, clamped. ``minor`` is its version's, as it was made.

    ``unknown_name`` is untrusted text reduced to ``[A-Za-z0-9_]``; ``notes`` are the newest ones in the page,
    oldest first.
    """

    minor: int
    build_id: bytes
    slot_high: int
    generation_seen: int
    limits_invalid: int
    unknown_symbols: int
    routed_by_name: int
    slots_exhausted: int
    slots_reaped: int
    repairs: int
    unknown_name: str
    notes: tuple[Note, ...]
    cards: tuple[CardUsage, ...]
    slots: tuple[Slot, ...] = field(repr=False)


def build_usage() -> bytes:
    """Return a new usage file: no process, no usage."""
    header = _USAGE_HEADER.pack(USAGE_MAGIC, ABI_MAJOR, ABI_MINOR, USAGE_SIZE, bytes(16), 0, 0)
    return header.ljust(USAGE_SIZE, b"\0")


def usage_extent(head: bytes) -> int:
    """Return how many bytes of a usage file are in use, from its first 4 KiB: typically 12 KiB of 320.

    Never more than the full size, whatever the tenant wrote. Raises PageError if this is no usage page.
    """
    return USAGE_HEAD_SIZE + _usage_header(head)[2] * SLOT_SIZE


def card_offset(card: int) -> int:
    """Return where the line of a card begins; after the last one in use, where the used head ends."""
    return _CARDS_OFFSET + card * _CARD_USAGE.size


def _usage_header(image: bytes) -> tuple[int, bytes, int]:
    """(minor version, build id, slot_high clamped)."""
    if len(image) < _USAGE_HEADER.size:
        raise PageError(f"a usage page has {USAGE_SIZE} bytes, not {len(image)}")
    magic, major, minor, size, build_id, slot_high, _ = _USAGE_HEADER.unpack_from(image)
    if magic != USAGE_MAGIC:
        raise PageError("the usage page has no magic")
    if major != ABI_MAJOR:
        raise PageError(f"the usage page's ABI is {major}, ours {ABI_MAJOR}")
    if size != USAGE_SIZE:
        raise PageError(f"the usage page says that it has {size} bytes, not {USAGE_SIZE}")
    return minor, build_id, min(slot_high, MAX_SLOTS)


def _read_card(image: bytes, index: int) -> CardUsage:
    (charged, peak, refusals, refused, returned, credit, refill, busy, throttle, launches, cut, starved, idle,
     since, flight, last, longest, window, start, known, stalled, stall, error,
    ) = _CARD_USAGE.unpack_from(image, card_offset(index))  # fmt: skip
    return CardUsage(
        charged=charged & MAX_BYTES,
        peak=min(peak, MAX_BYTES),
        refusals=min(refusals, MAX_NS),
        refused_bytes=min(refused, MAX_BYTES),
        excess_returned=returned & MAX_BYTES,
        credit_ns=max(credit, _I64_MIN + 1),
        refill_ns=min(refill, MAX_NS),
        busy_ns=min(busy, MAX_NS),
        throttle_ns=min(throttle, MAX_NS),
        launches=min(launches, MAX_NS),
        debt_cut_ns=min(cut, MAX_NS),
        starved=min(starved, MAX_NS),
        held_idle_ns=min(idle, MAX_NS),
        idle_from_ns=min(since, MAX_NS),
        in_flight_ns=min(flight, MAX_NS),
        last_busy_ns=min(last, MAX_NS),
        longest_ns=min(longest, MAX_NS),
        window_busy_ns=min(window, MAX_NS),
        window_start_ns=min(start, MAX_NS),
        known_launches=min(known, MAX_NS),
        stalled_launches=min(stalled, MAX_NS),
        stalled_ns=min(stall, MAX_NS),
        error_us2=min(error, MAX_NS),
    )


def _read_slots(image: bytes, count: int, cards: int) -> tuple[Slot, ...]:
    slots = []
    for index in range(count):
        offset = USAGE_HEAD_SIZE + index * SLOT_SIZE
        if image[offset] != _SLOT_LIVE:
            continue  # the common case, without unpacking 256 bytes
        state, pid, namespace, start, nonce, beat, movable, untold, *words = _SLOT.unpack_from(image, offset)
        if state != _SLOT_LIVE:
            continue
        inflight = tuple(words[:cards])
        charged = tuple(min(word, MAX_BYTES) for word in words[MAX_CARDS : MAX_CARDS + cards])
        slots.append(
            Slot(
                index,
                pid,
                namespace,
                start,
                nonce,
                min(beat, MAX_NS),
                min(movable, MAX_BYTES),
                min(untold, MAX_BYTES),
                inflight,
                charged,
            )
        )
    return tuple(slots)


def _read_note(image: bytes, place: int, cards: int) -> Note:
    number, when, code, pid, card, framework, asked, used, limit, text, pooled = _NOTE.unpack_from(
        image, _NOTES_OFFSET + place * _NOTE.size
    )
    word = text.split(b"\0", 1)[0][:63].decode("ascii", "replace")
    return Note(
        number=min(number, MAX_NS),
        when_ns=min(when, MAX_NS),
        code=code,
        pid=pid,
        card=card if card < cards else None,
        framework=framework,
        bytes=min(asked, MAX_NS),
        used=min(used, MAX_BYTES),
        limit=min(limit, MAX_BYTES),
        text="".join(c for c in word if c in _NOTE_TEXT),
        pooled=min(pooled, MAX_BYTES),
    )


def _read_notes(image: bytes, cards: int) -> tuple[Note, ...]:
    (written,) = _NOTES_WRITTEN.unpack_from(image, _NOTES_WRITTEN_OFFSET)
    if not written:
        return ()  # the common case
    notes = (_read_note(image, place, cards) for place in range(MAX_NOTES))
    return tuple(sorted((note for note in notes if note.number), key=lambda note: note.number))


def read_usage(image: bytes, cards: int) -> Usage:
    """Decode the usage of the first ``cards`` cards, clamped to what the types can hold.

    ``image`` is the file from its start to at least :func:`usage_extent` (the whole file is fine).
    Slots are those marked LIVE; only the byte lock tells whether the process is alive.
    Raises PageError if this is no usage page of our ABI, or is shorter than it says.
    """
    if not 0 <= cards <= MAX_CARDS:
        raise PageError(f"a usage page has {MAX_CARDS} cards at most, not {cards}")
    minor, build_id, slot_high = _usage_header(image)
    if len(image) < USAGE_HEAD_SIZE + slot_high * SLOT_SIZE:
        raise PageError(f"the usage page ends after {len(image)} bytes, within its slots")
    seen, invalid, unknown, by_name, exhausted, reaped, repairs, name = _COUNTERS.unpack_from(
        image, _COUNTERS_OFFSET
    )
    text = name.split(b"\0", 1)[0].decode("ascii", "replace")
    return Usage(
        minor=minor,
        build_id=build_id,
        slot_high=slot_high,
        generation_seen=seen,
        limits_invalid=min(invalid, MAX_NS),
        unknown_symbols=min(unknown, MAX_NS),
        routed_by_name=min(by_name, MAX_NS),
        slots_exhausted=min(exhausted, MAX_NS),
        slots_reaped=min(reaped, MAX_NS),
        repairs=min(repairs, MAX_NS),
        unknown_name="".join(c for c in text if c.isascii() and (c.isalnum() or c == "_")),
        notes=_read_notes(image, cards),
        cards=tuple(_read_card(image, i) for i in range(cards)),
        slots=_read_slots(image, slot_high, cards),
    )


def last_busy_offset(card: int) -> int:
    """Return where the usage page has the card's ``last_busy_ns``, eight bytes."""
    return _CARDS_OFFSET + card * _CARD_USAGE.size + _LAST_BUSY_OFFSET


def read_timeline(image: bytes, begin: int, end: int) -> dict[int, float]:
    """Return how many contexts had work in flight in each millisecond of CLOCK_MONOTONIC that has an entry.

    ``image`` is one card's timeline, ``begin`` the first millisecond and ``end`` the one after the last: of
    more than :data:`TIMELINE_CELLS` the last are read. Raises PageError if the image has another size.
    """
    if len(image) != TIMELINE_SIZE:
        raise PageError(f"a timeline has {TIMELINE_SIZE} bytes, not {len(image)}")
    cells = _TIMELINE.unpack(image)
    found = {ms: cells[ms % TIMELINE_CELLS] for ms in range(max(begin, end - TIMELINE_CELLS), end)}
    return {
        ms: (cell & 0xFFFF) / 1000
        for ms, cell in found.items()
        if cell and cell >> 16 == ms // TIMELINE_CELLS & 0xFFFF
    }
