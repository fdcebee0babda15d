"""Encoder and decoder of the control pages; ``vcuda/lib/include/vcuda_page.h`` defines the format.

Functions from bytes to values, without I/O: ``gpu_manager.adapters.control_pages.pages`` opens, locks and
writes the files. Nothing maps them into memory, because a mapping of a file that a tenant truncates kills
its reader.

``limits`` has two copies. :func:`rewrite_limits` returns the next copy and its offset: always over the older
or invalid one, so that a writer that dies at any byte leaves the newest copy intact. :func:`read_limits`
returns the newest valid copy.
The tenant can write ``usage``: :func:`read_usage` checks bounds, clamps every number and trusts none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from vcuda.crc import crc32c

ABI_MAJOR: Final = 1
ABI_MINOR: Final = 2
MAX_CARDS: Final = 16
MAX_SLOTS: Final = 1024
COPY_SIZE: Final = 4096
LIMITS_SIZE: Final = 2 * COPY_SIZE
USAGE_SIZE: Final = 320 * 1024
USAGE_HEAD_SIZE: Final = 4096 + MAX_CARDS * 512
"""Bytes before the first slot: header and card lines."""
SLOT_SIZE: Final = 256
MAX_NOTES: Final = 24

LIMITS_MAGIC: Final = b"VCUDALIM"
USAGE_MAGIC: Final = b"VCUDAUSG"
MAX_BYTES: Final = (1 << 48) - 1
"""Maximum memory of a card line: the high 16 bits of ``charged`` are the repair epoch."""
MAX_NS: Final = (1 << 63) - 1

_HEADER: Final = struct.Struct("<8sHHIQIHHII8xQQ16s48s")
_CARD: Final = struct.Struct("<16sQQQQIIQQQIIIIQQ16s")
_CRC_OFFSET: Final = 12
_USAGE_HEADER: Final = struct.Struct("<8sHHI16sII")
_COUNTERS: Final = struct.Struct("<QQ112xQQQQQ64s")
_COUNTERS_OFFSET: Final = 128
_NOTES_WRITTEN: Final = struct.Struct("<Q")
_NOTES_WRITTEN_OFFSET: Final = 384
_NOTE: Final = struct.Struct("<QQIIIIQQQ64s8x")
_NOTES_OFFSET: Final = 512
_NOTE_TEXT: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_ .:-")
_CARD_USAGE: Final = struct.Struct("<QQQQQ88xqQ112xQQQQQ88xQQQQ96x")
_SLOT: Final = struct.Struct("<IIQQQQQQ8x16I16Q")

_FAIL_OPEN, _ELASTIC, _OVERSUBSCRIBE = 1, 2, 4
_MEMORY_LIMITED, _CORES_LIMITED = 1, 2
_SLOT_LIVE = 1
_U64: Final = (1 << 64) - 1
_I64_MIN: Final = -(1 << 63)


class PageError(Exception):
    """The bytes are not a page that this version can read, or a value does not fit. The text says why."""


class NoteCode(IntEnum):
    """The kind of a note; a newer library may have others."""

    MEMORY_REFUSED = 1
    CUDA_REFUSED = 2
    UNKNOWN_FUNCTION = 3
    ROUTED_BY_NAME = 4
    LIMITS_LOST = 5


@dataclass(frozen=True, slots=True)
class CardLimits:
    """The limits of one container on one card. ``None`` means no limit, zero is zero.

    ``memory_limit``, ``context_reserve``, ``host_adjust`` in bytes; ``core_limit`` and
    ``core_ceiling`` in percent (steps of 1/256); ``gain`` and ``co_active`` are factors (steps of 1/256).
    ``core_ceiling`` of ``None`` equals the limit. ``context_reserve`` is charged for each context of each
    process; ``host_adjust`` is what the driver counts beyond all charges, ``host_excess`` what is charged
    beyond its count, ``host_counted`` that count, both of the moment ``host_looked_ns``. ``co_active`` is the
    number of processes, of any container, that use the card at once: the driver switches between processes.
    The defaults, a burst of 20 ms, a debt of 200 ms and a window of 1 s, kept the limit best in the model
    (docs/isolation).
    """

    uuid: bytes
    memory_limit: int | None
    core_limit: float | None
    core_ceiling: float | None = None
    context_reserve: int = 0
    host_adjust: int = 0
    host_excess: int = 0
    host_looked_ns: int = 0
    host_counted: int = 0
    burst_ns: int = 20_000_000
    debt_ns: int = 200_000_000
    window_ns: int = 1_000_000_000
    gain: float = 1.0
    co_active: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """One copy of ``limits``. The writers set ``generation``; ``heartbeat_ns`` is CLOCK_MONOTONIC."""

    cards: tuple[CardLimits, ...]
    generation: int = 0
    fail_open: bool = False
    elastic: bool = False
    oversubscribe: bool = False
    heartbeat_ns: int = 0
    identity: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class Write:
    """A write of ``data`` at ``offset`` of the limits file."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CardUsage:
    """The usage of one card by all of the tenant's processes, by their own account."""

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
    last_busy_ns: int
    longest_ns: int
    window_busy_ns: int
    window_start_ns: int


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

    ``bytes``, ``used`` and ``limit`` are bytes. ``text`` is untrusted and reduced to at most 63 letters,
    digits and ``_ .:-``.
    """

    number: int
    when_ns: int
    code: int
    pid: int
    card: int | None
    bytes: int
    used: int
    limit: int
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage page, clamped. ``unknown_name`` is untrusted text reduced to ``[A-Za-z0-9_]``.

    ``notes`` are the newest ones in the page, oldest first.
    """

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


def uuid_bytes(text: str) -> bytes:
    """Convert ``GPU-<uuid>`` or ``MIG-<uuid>`` to the 16 bytes of cuDeviceGetUuid_v2. Raises PageError."""
    digits = text.removeprefix("GPU-").removeprefix("MIG-").replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise PageError(f"{text!r} is no card UUID")
    return raw


def uuid_text(raw: bytes) -> str:
    """Convert the 16 bytes to ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``."""
    digits = raw.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _q8(value: float, what: str, low: int = 0) -> int:
    if not low <= value * 256 <= 0xFFFFFFFF:  # false for NaN too
        raise PageError(f"{what} {value} does not fit in the limits page")
    return round(value * 256)


def _encode_card(card: CardLimits) -> bytes:
    if len(card.uuid) != 16:
        raise PageError(f"a card UUID has 16 bytes, not {len(card.uuid)}")
    mode = (_MEMORY_LIMITED if card.memory_limit is not None else 0) | (
        _CORES_LIMITED if card.core_limit is not None else 0
    )
    limit = card.core_limit or 0.0
    ceiling = limit if card.core_ceiling is None else card.core_ceiling
    try:
        return _CARD.pack(
            card.uuid,
            card.memory_limit or 0,
            card.context_reserve,
            card.host_adjust,
            card.host_excess,
            _q8(limit, "core limit"),
            _q8(ceiling, "core ceiling"),
            card.burst_ns,
            card.debt_ns,
            card.window_ns,
            _q8(card.gain, "gain", 1),
            _q8(card.co_active, "co-activity", 1),
            mode,
            0,
            card.host_looked_ns,
            card.host_counted,
            bytes(16),
        )
    except struct.error as error:
        raise PageError(
            f"a limit of card {uuid_text(card.uuid)} does not fit in the limits page: {error}"
        ) from error


def _encode_copy(limits: Limits, generation: int) -> bytes:
    if len(limits.cards) > MAX_CARDS:
        raise PageError(f"{len(limits.cards)} cards do not fit in a limits page of {MAX_CARDS}")
    if len(limits.identity) != 16:
        raise PageError(f"an identity has 16 bytes, not {len(limits.identity)}")
    flags = (
        (_FAIL_OPEN if limits.fail_open else 0)
        | (_ELASTIC if limits.elastic else 0)
        | (_OVERSUBSCRIBE if limits.oversubscribe else 0)
    )
    count = len(limits.cards)
    try:
        header = _HEADER.pack(
            LIMITS_MAGIC, ABI_MAJOR, ABI_MINOR, 0, generation, _HEADER.size + count * _CARD.size,
            _HEADER.size, _CARD.size, count, flags, limits.heartbeat_ns, 0,
            limits.identity, bytes(48),
        )  # fmt: skip
    except struct.error as error:
        raise PageError(f"a value does not fit in the limits page: {error}") from error
    copy = bytearray(header + b"".join(_encode_card(card) for card in limits.cards))
    struct.pack_into("<I", copy, _CRC_OFFSET, crc32c(bytes(copy)))
    return bytes(copy)


def _decode_card(copy: bytes, offset: int) -> CardLimits:
    (uuid, memory, reserve, adjust, excess, core, ceiling, burst, debt, window, gain, active, mode, _, looked,
     counted, _) = _CARD.unpack_from(copy, offset)  # fmt: skip
    limited = bool(mode & _CORES_LIMITED)
    return CardLimits(
        uuid=uuid,
        memory_limit=memory if mode & _MEMORY_LIMITED else None,
        core_limit=core / 256 if limited else None,
        core_ceiling=ceiling / 256 if limited else None,
        context_reserve=reserve,
        host_adjust=adjust,
        host_excess=excess,
        host_looked_ns=looked,
        host_counted=counted,
        burst_ns=burst,
        debt_ns=debt,
        window_ns=window,
        gain=(gain or 256) / 256,
        co_active=(active or 256) / 256,
    )


def _decode_copy(copy: bytes) -> Limits | str:
    """Return the copy's value, or why it is invalid."""
    (magic, major, _, crc, generation, size, header_size, card_size, count, flags, heartbeat, _,
     identity, _) = _HEADER.unpack_from(copy)  # fmt: skip
    if magic != LIMITS_MAGIC:
        return "it has no magic"
    if major != ABI_MAJOR:
        return f"its ABI is {major}, ours {ABI_MAJOR}"
    in_bounds = header_size >= _HEADER.size and card_size >= _CARD.size and count <= MAX_CARDS
    if not in_bounds or size != header_size + count * card_size or size > COPY_SIZE:
        return "its sizes are out of bounds"
    if crc32c(copy[:_CRC_OFFSET] + bytes(4) + copy[_CRC_OFFSET + 4 : size]) != crc:
        return "its checksum does not match"
    return Limits(
        cards=tuple(_decode_card(copy, header_size + i * card_size) for i in range(count)),
        generation=generation,
        fail_open=bool(flags & _FAIL_OPEN),
        elastic=bool(flags & _ELASTIC),
        oversubscribe=bool(flags & _OVERSUBSCRIBE),
        heartbeat_ns=heartbeat,
        identity=identity,
    )


def _copies(image: bytes) -> tuple[Limits | str, Limits | str]:
    if len(image) != LIMITS_SIZE:
        raise PageError(f"a limits page has {LIMITS_SIZE} bytes, not {len(image)}")
    return _decode_copy(image[:COPY_SIZE]), _decode_copy(image[COPY_SIZE:])


def build_limits(limits: Limits, after: int = 0) -> bytes:
    """Return a new limits file with two valid copies, of generations ``after + 1`` and ``after + 2``.

    A running process accepts only higher generations: to replace its destroyed file, pass a number above all
    that the old file can have had, such as the clock in ns.
    Raises PageError if a value does not fit.
    """
    generations = (after + 1, after + 2)
    return b"".join(_encode_copy(limits, generation).ljust(COPY_SIZE, b"\0") for generation in generations)


def read_limits(image: bytes) -> Limits:
    """Return the newest valid copy. Raises PageError if neither is valid."""
    first, second = _copies(image)
    if isinstance(first, str):
        if isinstance(second, str):
            raise PageError(f"neither copy of the limits page is valid: {first}; {second}")
        return second
    if isinstance(second, str) or first.generation > second.generation:
        return first
    return second


def rewrite_limits(image: bytes, limits: Limits, after: int = 0) -> Write:
    """Return the write that makes ``limits`` the newest copy; ``limits.generation`` is ignored.

    A write that stops at any byte leaves the other, so far newest copy intact.
    The generation is one above the newest, and above ``after`` (see :func:`build_limits`: without a valid
    copy only the caller knows a number that is high enough).
    Raises PageError if a value does not fit.
    """
    first, second = _copies(image)
    ages = [copy.generation if isinstance(copy, Limits) else -1 for copy in (first, second)]
    target = 0 if ages[0] <= ages[1] else 1
    generation = max(*ages, after) + 1
    if generation > _U64:
        raise PageError("the limits page has used up its generations; make a new one")
    return Write(target * COPY_SIZE, _encode_copy(limits, generation))


def build_usage() -> bytes:
    """Return a new usage file: no process, no usage."""
    header = _USAGE_HEADER.pack(USAGE_MAGIC, ABI_MAJOR, ABI_MINOR, USAGE_SIZE, bytes(16), 0, 0)
    return header.ljust(USAGE_SIZE, b"\0")


def usage_extent(head: bytes) -> int:
    """Return how many bytes of a usage file are in use, from its first 4 KiB: typically 12 KiB of 320.

    Never more than the full size, whatever the tenant wrote. Raises PageError if this is no usage page.
    """
    return USAGE_HEAD_SIZE + _usage_header(head)[1] * SLOT_SIZE


def _usage_header(image: bytes) -> tuple[bytes, int]:
    """(build id, slot_high clamped)."""
    if len(image) < _USAGE_HEADER.size:
        raise PageError(f"a usage page has {USAGE_SIZE} bytes, not {len(image)}")
    magic, major, _, size, build_id, slot_high, _ = _USAGE_HEADER.unpack_from(image)
    if magic != USAGE_MAGIC:
        raise PageError("the usage page has no magic")
    if major != ABI_MAJOR:
        raise PageError(f"the usage page's ABI is {major}, ours {ABI_MAJOR}")
    if size != USAGE_SIZE:
        raise PageError(f"the usage page says that it has {size} bytes, not {USAGE_SIZE}")
    return build_id, min(slot_high, MAX_SLOTS)


def _read_card(image: bytes, index: int) -> CardUsage:
    (charged, peak, refusals, refused, returned, credit, refill, busy, throttle, launches, cut, starved, last,
     longest, window, start) = _CARD_USAGE.unpack_from(image, 4096 + index * _CARD_USAGE.size)  # fmt: skip
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
        last_busy_ns=min(last, MAX_NS),
        longest_ns=min(longest, MAX_NS),
        window_busy_ns=min(window, MAX_NS),
        window_start_ns=min(start, MAX_NS),
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
    number, when, code, pid, card, _, asked, used, limit, text = _NOTE.unpack_from(
        image, _NOTES_OFFSET + place * _NOTE.size
    )
    word = text.split(b"\0", 1)[0][:63].decode("ascii", "replace")
    return Note(
        number=min(number, MAX_NS),
        when_ns=min(when, MAX_NS),
        code=code,
        pid=pid,
        card=card if card < cards else None,
        bytes=min(asked, MAX_NS),
        used=min(used, MAX_BYTES),
        limit=min(limit, MAX_BYTES),
        text="".join(c for c in word if c in _NOTE_TEXT),
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
    build_id, slot_high = _usage_header(image)
    if len(image) < USAGE_HEAD_SIZE + slot_high * SLOT_SIZE:
        raise PageError(f"the usage page ends after {len(image)} bytes, within its slots")
    seen, invalid, unknown, by_name, exhausted, reaped, repairs, name = _COUNTERS.unpack_from(
        image, _COUNTERS_OFFSET
    )
    text = name.split(b"\0", 1)[0].decode("ascii", "replace")
    return Usage(
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
