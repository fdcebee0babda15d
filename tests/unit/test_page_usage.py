"""The usage page: the tenant may write anything into it; reading it gives bounded numbers or a PageError."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcuda.page.layout import MAX_CARDS, PageError
from vcuda.page.usage import (
    MAX_BYTES,
    MAX_NOTES,
    MAX_NS,
    MAX_SLOTS,
    SLOT_SIZE,
    TIMELINE_CELLS,
    TIMELINE_SIZE,
    USAGE_HEAD_SIZE,
    USAGE_SIZE,
    Slot,
    Usage,
    build_usage,
    read_timeline,
    read_usage,
    usage_extent,
)

HEAD = build_usage()[:USAGE_HEAD_SIZE]


def with_words(image: bytes, offset: int, layout: str, *words: int | bytes) -> bytes:
    changed = bytearray(image)
    struct.pack_into("<" + layout, changed, offset, *words)
    return bytes(changed)


def bounded(usage: Usage, cards: int) -> None:
    """Every number is one that arithmetic, metrics and logs survive."""
    assert len(usage.cards) == cards
    for card in usage.cards:
        for name in card.__dataclass_fields__:
            value = getattr(card, name)
            assert -(2**63) < value < 2**63
            assert value >= 0 or name == "credit_ns"
        assert max(card.charged, card.peak, card.refused_bytes) <= MAX_BYTES
    for slot in usage.slots:
        assert 0 <= slot.index < usage.slot_high <= MAX_SLOTS
        assert len(slot.charged) == len(slot.inflight) == cards
        assert all(0 <= value <= MAX_BYTES for value in slot.charged)
    assert usage.unknown_name == "" or usage.unknown_name.replace("_", "a").isalnum()
    assert usage.unknown_name.isascii()


def test_a_new_page_says_zero() -> None:
    image = build_usage()
    assert len(image) == USAGE_SIZE
    usage = read_usage(image, 2)
    bounded(usage, 2)
    assert usage.slots == ()
    assert [(card.charged, card.busy_ns) for card in usage.cards] == [(0, 0), (0, 0)]
    assert usage_extent(image[:4096]) == USAGE_HEAD_SIZE


@given(st.binary(max_size=600), st.integers(0, USAGE_HEAD_SIZE - 1), st.integers(0, MAX_CARDS))
def test_a_scribbled_head_gives_bounded_numbers_or_a_page_error(patch: bytes, where: int, cards: int) -> None:
    image = bytearray(build_usage())
    image[where : where + len(patch)] = patch
    image = image[:USAGE_SIZE]
    try:
        bounded(read_usage(bytes(image), cards), cards)
        assert usage_extent(bytes(image)) <= USAGE_SIZE
    except PageError:
        pass


@given(st.binary(min_size=SLOT_SIZE, max_size=SLOT_SIZE), st.integers(0, 2**32 - 1))
def test_scribbled_slots_give_bounded_numbers(slot: bytes, slot_high: int) -> None:
    head = with_words(HEAD, 32, "I", slot_high)
    image = (head + slot * MAX_SLOTS).ljust(USAGE_SIZE, b"\xff")
    bounded(read_usage(image, 16), 16)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_page_error(image: bytes) -> None:
    with pytest.raises(PageError):
        read_usage(image, 1)
    with pytest.raises(PageError):
        usage_extent(image)


@pytest.mark.parametrize("length", [0, 31, 39, 40, 4096, USAGE_HEAD_SIZE - 1])
def test_a_truncated_page_is_a_page_error(length: int) -> None:
    with pytest.raises(PageError):
        read_usage(HEAD[:length], 1)


def test_a_page_cut_within_its_slots_is_a_page_error() -> None:
    head = with_words(HEAD, 32, "I", 2)
    assert usage_extent(head) == USAGE_HEAD_SIZE + 512
    read_usage(head + bytes(512), 1)
    with pytest.raises(PageError, match="within its slots"):
        read_usage(head + bytes(511), 1)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "text"),
    [
        (0, "8s", b"whatever", "no magic"),
        (8, "H", 2, "ABI is 2, ours 1"),
        (12, "I", 0, "says that it has 0 bytes"),
    ],
)
def test_another_format_is_refused_and_named(offset: int, layout: str, value: int | bytes, text: str) -> None:
    with pytest.raises(PageError, match=text):
        read_usage(with_words(HEAD, offset, layout, value), 1)


def test_a_later_minor_is_read() -> None:
    assert read_usage(with_words(HEAD, 10, "H", 7), 1).slots == ()


def test_a_live_slot_is_read_and_a_free_one_is_not() -> None:
    image = bytearray(build_usage())
    struct.pack_into("<I", image, 32, 3)
    at = USAGE_HEAD_SIZE + 2 * SLOT_SIZE
    struct.pack_into(
        "<IIQQQQQQ8x16I16Q", image, at, 1, 42, 77, 5, 9, 11, 13, 17, *range(16), *range(100, 116)
    )
    (slot,) = read_usage(bytes(image), 2).slots
    assert slot == Slot(2, 42, 77, 5, 9, 11, 13, 17, (0, 1), (100, 101))
    struct.pack_into("<I", image, at, 0x101)
    assert read_usage(bytes(image), 2).slots == ()


@pytest.mark.parametrize("word", [2**64 - 1, 1 << 63, (1 << 63) - 1])
def test_the_largest_that_a_tenant_can_write_everywhere_gives_bounded_numbers(word: int) -> None:
    """Cards, counters, notes and slots, every word of them the same; the lowest byte of a slot says LIVE."""
    words = struct.pack("<Q", word)
    image = bytearray(build_usage()[:128] + words * ((USAGE_SIZE - 128) // 8))
    struct.pack_into("<I", image, 32, 2**32 - 1)
    for index in range(MAX_SLOTS):
        struct.pack_into("<I", image, USAGE_HEAD_SIZE + index * SLOT_SIZE, 1)
    usage = read_usage(bytes(image), 3)
    bounded(usage, 3)
    assert len(usage.slots) == MAX_SLOTS
    assert len(usage.notes) == MAX_NOTES
    assert all(note.card is None or note.card < 3 for note in usage.notes), "the container has three cards"
    assert all(0 <= n <= MAX_NS for note in usage.notes for n in (note.number, note.when_ns, note.bytes))


def test_the_epoch_is_no_memory() -> None:
    image = with_words(build_usage(), 4096, "Q", 0xFFFF << 48 | 5)
    assert read_usage(image, 1).cards[0].charged == 5


def test_more_cards_than_a_page_has_are_refused() -> None:
    with pytest.raises(PageError, match="16 cards at most"):
        read_usage(HEAD, 17)


def timeline(cells: dict[int, tuple[int, int]]) -> bytes:
    """A timeline with these cells: place → round and microseconds."""
    words = [0] * TIMELINE_CELLS
    for place, (turn, micro) in cells.items():
        words[place] = turn << 16 | micro
    return struct.pack(f"<{TIMELINE_CELLS}I", *words)


def test_a_timeline_tells_the_milliseconds_of_its_round() -> None:
    image = timeline({10: (3, 250), 11: (3, 1000), 12: (2, 1000), 9: (4, 2000)})
    first = 3 * TIMELINE_CELLS
    assert read_timeline(image, first, first + 20) == {first + 10: 0.25, first + 11: 1.0}
    newest = 4 * TIMELINE_CELLS + 9
    assert read_timeline(image, newest - 5, newest + 1) == {newest: 2.0}
    assert read_timeline(image, 0, newest + 1).keys() == {first + 10, first + 11, newest}


@given(st.binary(min_size=TIMELINE_SIZE, max_size=TIMELINE_SIZE), st.integers(0, 2**50))
def test_whatever_a_tenant_writes_a_timeline_is_bounded(image: bytes, end: int) -> None:
    found = read_timeline(image, end - 100, end)
    assert all(end - 100 <= ms < end and 0 <= amount <= 65.535 for ms, amount in found.items())


def test_a_timeline_of_another_size_is_refused() -> None:
    with pytest.raises(PageError, match="2048 bytes"):
        read_timeline(b"", 0, 1)


def test_a_library_of_an_older_page_tells_of_no_stalls_and_a_newer_ones_words_are_passed_over() -> None:
    """Minor 8 has three words more on a card's last line, minor 9 one; before and after they are zero or not ours."""
    line = USAGE_HEAD_SIZE - MAX_CARDS * 512 + 384
    told = with_words(HEAD, line + 32, "QQQ", 7, 5, 3_000)
    assert [(c.known_launches, c.stalled_launches, c.stalled_ns) for c in read_usage(told, 1).cards] == [
        (7, 5, 3_000)
    ]
    assert read_usage(with_words(told, line + 56, "Q", 11), 1).cards[0].error_us2 == 11
    older = with_words(HEAD, 10, "H", 7)
    assert read_usage(older, 1).minor == 7
    assert read_usage(older, 1).cards[0].known_launches == 0
    newer = with_words(with_words(told, 10, "H", 10), line + 64, "Q", 2**64 - 1)
    assert read_usage(newer, 1).cards == read_usage(told, 1).cards
