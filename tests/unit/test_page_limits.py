"""The limits page: two copies, of which a reader always finds a whole one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcuda.page.layout import ABI_MAJOR, MAX_CARDS, PageError, crc32c, instance_word, uuid_bytes, uuid_text
from vcuda.page.limits import (
    COPY_SIZE,
    LIMITS_SIZE,
    CardLimits,
    Limits,
    Write,
    build_limits,
    read_limits,
    rewrite_limits,
)

Q8 = st.integers(0, 100 * 256).map(lambda value: value / 256)
FACTOR = st.integers(1, 64 * 256).map(lambda value: value / 256)
U64 = st.integers(0, 2**64 - 1)


@st.composite
def card_limits(draw: st.DrawFn) -> CardLimits:
    core = draw(st.none() | Q8)
    return CardLimits(
        uuid=draw(st.binary(min_size=16, max_size=16)),
        memory_limit=draw(st.none() | U64),
        core_limit=core,
        core_ceiling=None if core is None else draw(Q8),
        context_reserve=draw(U64),
        host_adjust=draw(U64),
        burst_ns=draw(U64),
        debt_ns=draw(U64),
        window_ns=draw(U64),
        gain=draw(FACTOR),
        co_active=draw(FACTOR),
        others_most=draw(st.integers(0, 0xFFFFFFFF)),
        others_part=draw(st.integers(0, 0xFFFFFFFF)) / 65536,
    )


LIMITS = st.builds(
    Limits,
    cards=st.lists(card_limits(), max_size=MAX_CARDS).map(tuple),
    fail_open=st.booleans(),
    elastic=st.booleans(),
    oversubscribe=st.booleans(),
    heartbeat_ns=U64,
    identity=st.binary(min_size=16, max_size=16),
)
ONE = Limits(cards=(CardLimits(bytes(range(16)), 5 << 30, 30.0, 60.0),), elastic=True)


def applied(image: bytes, write: Write, length: int | None = None) -> bytes:
    """The file after the first ``length`` bytes of the write."""
    data = write.data[:length]
    return image[: write.offset] + data + image[write.offset + len(data) :]


def timeless(limits: Limits) -> Limits:
    return dataclasses.replace(limits, generation=0)


@given(LIMITS)
def test_reading_undoes_building(limits: Limits) -> None:
    image = build_limits(limits)
    assert len(image) == LIMITS_SIZE
    assert read_limits(image) == dataclasses.replace(limits, generation=2)


@given(LIMITS, st.lists(LIMITS, min_size=1, max_size=5))
def test_each_rewrite_becomes_the_newest_copy(first: Limits, others: list[Limits]) -> None:
    image = build_limits(first)
    for generation, limits in enumerate(others, start=3):
        image = applied(image, rewrite_limits(image, limits))
        assert len(image) == LIMITS_SIZE
        assert read_limits(image) == dataclasses.replace(limits, generation=generation)


@given(LIMITS, LIMITS, st.data())
def test_a_torn_rewrite_shows_the_old_or_the_new_limits(
    old: Limits, new: Limits, data: st.DataObject
) -> None:
    image = build_limits(old)
    write = rewrite_limits(image, new)
    torn = applied(image, write, data.draw(st.integers(0, len(write.data))))
    assert timeless(read_limits(torn)) in (old, new)


def test_a_writer_killed_at_any_byte_leaves_old_or_new_and_the_next_writer_mends_it() -> None:
    image = build_limits(ONE)
    image = applied(image, rewrite_limits(image, dataclasses.replace(ONE, heartbeat_ns=7)))
    old = read_limits(image)
    new = dataclasses.replace(ONE, heartbeat_ns=2**64 - 1, fail_open=True)
    write = rewrite_limits(image, new)
    for length in range(len(write.data) + 1):
        torn = applied(image, write, length)
        seen = read_limits(torn)
        assert seen == old or timeless(seen) == new
        mended = read_limits(applied(torn, rewrite_limits(torn, new)))
        assert timeless(mended) == new
        assert mended.generation > old.generation


def test_the_newest_copy_is_never_written_over() -> None:
    image = build_limits(ONE)
    for _ in range(4):
        newest = read_limits(image).generation
        offset = rewrite_limits(image, ONE).offset
        overwritten = read_limits(image[:offset] + bytes(COPY_SIZE) + image[offset + COPY_SIZE :])
        assert overwritten.generation == newest
        image = applied(image, rewrite_limits(image, ONE))


@given(st.integers(0, COPY_SIZE - 1), st.integers(1, 255))
def test_a_flipped_byte_costs_at_most_the_copy_it_is_in(where: int, flip: int) -> None:
    image = bytearray(build_limits(ONE))
    image[COPY_SIZE + where] ^= flip
    assert timeless(read_limits(bytes(image))) == ONE


@given(st.binary(max_size=64), st.integers(0, LIMITS_SIZE - 64), st.booleans())
def test_garbage_is_a_page_error_or_a_whole_copy(patch: bytes, where: int, from_whole: bool) -> None:
    image = bytearray(build_limits(ONE) if from_whole else LIMITS_SIZE)
    image[where : where + len(patch)] = patch
    try:
        seen = read_limits(bytes(image))
    except PageError:
        return
    assert timeless(seen) == ONE


@pytest.mark.parametrize("size", [0, 1, 4096, 8191, 8193])
def test_a_file_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(PageError, match=r"has 8192 bytes"):
        read_limits(bytes(size))
    with pytest.raises(PageError, match=r"has 8192 bytes"):
        rewrite_limits(bytes(size), ONE)


def test_a_page_of_another_major_version_is_refused_and_says_so() -> None:
    image = bytearray(build_limits(ONE))
    for start in (0, COPY_SIZE):
        image[start + 8] = ABI_MAJOR + 1
    with pytest.raises(PageError, match="its ABI is 2, ours 1"):
        read_limits(bytes(image))


def test_a_later_minor_with_a_longer_header_and_longer_cards_is_read() -> None:
    copy = bytearray(build_limits(ONE)[: 128 + 128])
    longer = copy[:128] + bytes(32) + copy[128:] + b"\x07" * 64
    longer[10:12] = (9).to_bytes(2, "little")
    longer[12:16] = bytes(4)
    longer[24:32] = b"".join(n.to_bytes(w, "little") for n, w in ((160 + 192, 4), (160, 2), (192, 2)))
    longer[12:16] = crc32c(bytes(longer)).to_bytes(4, "little")
    image = bytes(longer).ljust(LIMITS_SIZE, b"\0")
    assert timeless(read_limits(image)) == ONE


def test_sizes_that_lead_out_of_the_copy_are_no_limits_though_the_checksum_holds() -> None:
    copy = bytearray(build_limits(ONE)[:COPY_SIZE])
    copy[24:32] = b"".join(n.to_bytes(w, "little") for n, w in ((128 + 4096, 4), (128, 2), (4096, 2)))
    copy[12:16] = bytes(4)
    copy[12:16] = crc32c(bytes(copy)).to_bytes(4, "little")
    with pytest.raises(PageError, match="its sizes are out of bounds"):
        read_limits(bytes(copy) * 2)


def test_zero_is_a_limit_and_none_is_none() -> None:
    cards = tuple(CardLimits(bytes(16), memory, cores) for memory, cores in ((0, 0.0), (None, None)))
    seen = read_limits(build_limits(Limits(cards=cards))).cards
    assert [(card.memory_limit, card.core_limit) for card in seen] == [(0, 0.0), (None, None)]
    assert [card.core_ceiling for card in seen] == [0.0, None]


@pytest.mark.parametrize(
    "limits",
    [
        Limits(cards=(CardLimits(bytes(16), 1, 1.0),) * 17),
        Limits(cards=(), identity=bytes(15)),
        Limits(cards=(), heartbeat_ns=-1),
        Limits(cards=(CardLimits(bytes(15), 1, 1.0),)),
        Limits(cards=(CardLimits(bytes(16), 2**64, 1.0),)),
        Limits(cards=(CardLimits(bytes(16), -1, 1.0),)),
        Limits(cards=(CardLimits(bytes(16), 1, -1.0),)),
        Limits(cards=(CardLimits(bytes(16), 1, 2.0**25),)),
        Limits(cards=(CardLimits(bytes(16), 1, 1.0, gain=0.0),)),
        Limits(cards=(CardLimits(bytes(16), 1, float("nan")),)),
        Limits(cards=(CardLimits(bytes(16), 1, float("inf")),)),
    ],
)
def test_values_that_do_not_fit_are_refused(limits: Limits) -> None:
    with pytest.raises(PageError):
        build_limits(limits)


def test_used_up_generations_are_refused() -> None:
    image = bytearray(build_limits(ONE))
    for start in (0, COPY_SIZE):
        image[start + 12 : start + 24] = bytes(4) + (2**64 - 1).to_bytes(8, "little")
        crc = crc32c(bytes(image[start : start + 256]))
        image[start + 12 : start + 16] = crc.to_bytes(4, "little")
    with pytest.raises(PageError, match="generations"):
        rewrite_limits(bytes(image), ONE)


def test_crc32c_has_the_check_value_of_its_definition() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0


@given(st.binary(min_size=16, max_size=16))
def test_uuids_round_trip(raw: bytes) -> None:
    text = uuid_text(raw)
    assert text.startswith("GPU-")
    assert uuid_bytes(text) == raw
    assert uuid_bytes("MIG-" + text[4:]) == raw


@given(st.binary(min_size=16, max_size=16), st.integers(0, 999), st.integers(0, 999))
def test_both_names_of_an_instance_round_trip(raw: bytes, gi: int, ci: int) -> None:
    card = uuid_text(raw)
    for name in (card, "MIG" + card[3:], f"MIG-{card}/{gi}/{ci}"):
        limits = Limits((CardLimits(uuid_bytes(name), 1 << 30, 30.0, instance=instance_word(name)),))
        (read,) = read_limits(build_limits(limits)).cards
        assert uuid_text(read.uuid, read.instance) == name
        assert read.uuid == raw


@pytest.mark.parametrize("text", ["", "GPU-", "GPU-12", "GPU-" + "g" * 32, "0" * 31, "0" * 34])
def test_text_that_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(PageError, match="no card UUID"):
        uuid_bytes(text)


@given(st.integers(0, 2**64 - 3))
def test_a_page_made_anew_under_a_running_process_goes_on_counting(after: int) -> None:
    assert read_limits(build_limits(ONE, after)).generation == after + 2
    destroyed = bytes(LIMITS_SIZE)
    image = applied(destroyed, rewrite_limits(destroyed, ONE, after))
    assert read_limits(image).generation == after + 1
    later = rewrite_limits(image, ONE)
    assert read_limits(applied(image, later)).generation == after + 2
