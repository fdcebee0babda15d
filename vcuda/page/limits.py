"""Encoder and decoder of the ``limits`` page: what the host tells the library.

The page has two copies. :func:`rewrite_limits` returns the next copy and its offset: always over the older or
invalid one, so that a writer that dies at any byte leaves the newest copy intact. :func:`read_limits` returns
the newest valid copy.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final

from vcuda.page.layout import ABI_MAJOR, ABI_MINOR, MAX_CARDS, PageError, crc32c, uuid_text

COPY_SIZE: Final = 4096
LIMITS_SIZE: Final = 2 * COPY_SIZE
LIMITS_MAGIC: Final = b"VCUDALIM"

_HEADER: Final = struct.Struct("<8sHHIQIHHII8xQQ16s48s")
_CARD: Final = struct.Struct("<16sQQQQIIQQQIIIIQQIIII")
_CRC_OFFSET: Final = 12

_FAIL_OPEN, _ELASTIC, _OVERSUBSCRIBE = 1, 2, 4
_MEMORY_LIMITED, _CORES_LIMITED, _PROTECTED, _BEST_EFFORT = 1, 2, 4, 8
_U64: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class CardLimits:
    """The limits of one container on one card. ``None`` means no limit, zero is zero.

    ``memory_limit``, ``context_reserve``, ``host_adjust`` in bytes; ``core_limit`` and
    ``core_ceiling`` in percent (steps of 1/256); ``gain`` and ``co_active`` are factors (steps of 1/256).
    ``core_ceiling`` of ``None`` equals the limit. ``context_reserve`` is charged for each context of each
    process; ``host_adjust`` is what the driver counts beyond all charges, ``host_excess`` what is charged
    beyond its count, ``host_counted`` that count, both of the moment ``host_looked_ns``. ``co_active`` is the
    number of processes, of any container, that use the card at once: the driver switches between processes.
    ``others_most`` is how many processes of other containers had work in one millisecond, at most, lately;
    ``others_part`` of the time for which this container had work in flight, the part for which others were
    charged meanwhile, at most (0: not known).
    ``protected`` and ``best_effort`` are the container's class, neither a normal one's. ``granted`` is the
    share in force (percent) while containers of those two classes are on the card together, else ``None``;
    ``beside`` tells protected ones what best-effort ones are sure of then, as far as they use it (percent).
    ``instance`` says how a MIG instance is named (:func:`~vcuda.page.layout.uuid_text`), 0 for a card.
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
    others_most: int = 0
    others_part: float = 0.0
    protected: bool = False
    best_effort: bool = False
    granted: float | None = None
    beside: float = 0.0
    instance: int = 0


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


def _q8(value: float, what: str, low: int = 0) -> int:
    if not low <= value * 256 <= 0xFFFFFFFF:  # false for NaN too
        raise PageError(f"{what} {value} does not fit in the limits page")
    return round(value * 256)


def _encode_card(card: CardLimits) -> bytes:
    if len(card.uuid) != 16:
        raise PageError(f"a card UUID has 16 bytes, not {len(card.uuid)}")
    mode = (
        (_MEMORY_LIMITED if card.memory_limit is not None else 0)
        | (_CORES_LIMITED if card.core_limit is not None else 0)
        | (_PROTECTED if card.protected else 0)
        | (_BEST_EFFORT if card.best_effort else 0)
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
            card.instance,
            card.host_looked_ns,
            card.host_counted,
            0 if card.granted is None else _q8(card.granted, "granted share", 1),
            _q8(card.beside, "best-effort share"),
            card.others_most,
            min(0xFFFFFFFF, math.ceil(card.others_part * 65536)),
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
    (uuid, memory, reserve, adjust, excess, core, ceiling, burst, debt, window, gain, active, mode, instance,
     looked, counted, granted, beside, most, part) = _CARD.unpack_from(copy, offset)  # fmt: skip
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
        others_most=most,
        others_part=part / 65536,
        protected=bool(mode & _PROTECTED),
        best_effort=bool(mode & _BEST_EFFORT),
        granted=granted / 256 if granted else None,
        beside=beside / 256,
        instance=instance,
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
