"""What libvcuda notes: told in our words, whatever a tenant wrote."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.control_pages.limits_file import messages_in
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.library_messages import (
    FOR_THE_POD,
    TROUBLE,
    Framework,
    LibraryMessage,
    LibraryMessageKind,
    sentence,
)
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, LARGEST_COUNT
from vcuda.page import usage
from vcuda.page.usage import MAX_NOTES, FrameworkCode, NoteCode, build_usage, read_usage


def written(*notes: bytes, count: int | None = None) -> bytes:
    """A usage page with these notes in its ring."""
    image = bytearray(build_usage())
    struct.pack_into("<Q", image, usage._NOTES_WRITTEN_OFFSET, len(notes) if count is None else count)
    for place, note in enumerate(notes):
        start = usage._NOTES_OFFSET + place * usage._NOTE.size
        image[start : start + len(note)] = note
    return bytes(image)


def record(number: int, code: int = 1, card: int = 0, text: bytes = b"") -> bytes:
    return usage._NOTE.pack(number, 5_000_000_000, code, 17, card, FrameworkCode.JAX, 3, 2, 1, text, 2)


def test_a_page_without_notes_has_none() -> None:
    assert read_usage(build_usage(), 1).notes == ()


def test_notes_come_oldest_first_and_one_that_is_being_written_is_passed_over() -> None:
    image = written(record(25), record(0), record(3), record(4), count=26)
    assert [note.number for note in read_usage(image, 1).notes] == [3, 4, 25]


def test_a_card_that_the_container_has_not_is_no_card() -> None:
    (note,) = read_usage(written(record(1, card=1)), 1).notes
    assert note.card is None
    assert (note.bytes, note.used, note.limit, note.pid, note.when_ns) == (3, 2, 1, 17, 5_000_000_000)
    assert (note.pooled, note.framework) == (2, FrameworkCode.JAX)


@given(
    st.binary(min_size=usage._NOTE.size, max_size=usage._NOTE.size * MAX_NOTES),
    st.integers(0, 2**64 - 1),
)
def test_whatever_a_tenant_writes_is_few_bounded_and_harmless_text(ring: bytes, count: int) -> None:
    notes = read_usage(written(ring, count=count), 2).notes
    assert len(notes) <= MAX_NOTES
    for note in notes:
        assert set(note.text) <= usage._NOTE_TEXT
        assert len(note.text) <= 63
        assert max(note.number, note.when_ns, note.bytes, note.used, note.limit, note.pooled) < 2**63
        assert note.card in (None, 0, 1)
        (message,) = messages_in([replace(note, code=1)], [CardUuid("GPU-a"), CardUuid("GPU-b")])
        assert message.pooled <= message.used
        assert len(sentence(message, "card 0", 80 * GIB, DEFAULT_UNIT)) < 600


def test_line_breaks_escapes_and_marks_are_dropped_from_a_text() -> None:
    text = b'cuMem\n\x1b[2Jfree "now" $(rm) \xc3\xa4\xe2\x80\xae;{}<>&%\0hidden'
    (note,) = read_usage(written(record(1, text=text)), 1).notes
    assert note.text == "cuMem2Jfree now rm "


@pytest.mark.parametrize("kind", list(LibraryMessageKind))
def test_every_kind_has_a_sentence_that_names_the_process(kind: LibraryMessageKind) -> None:
    note = LibraryMessage(1, 0.0, kind, 17, None, 6 * GIB, 4 * GIB, 5 * GIB, "cuMemFoo")
    text = sentence(note, "card 3", 80 * GIB, DEFAULT_UNIT)
    assert text.startswith("process 17 ")
    assert ("6 GiB of card 3: the container" in text) == (kind is LibraryMessageKind.MEMORY_REFUSED)
    assert ("cuMemFoo" in text) == (kind is not LibraryMessageKind.MEMORY_REFUSED)


def refused(asked: int, pooled: int = 0, framework: Framework | None = None, capacity: int = 80 * GIB) -> str:
    kind = LibraryMessageKind.MEMORY_REFUSED
    note = LibraryMessage(1, 0.0, kind, 17, None, asked, 4 * GIB, 5 * GIB, "", pooled, framework)
    return sentence(note, "card 3", capacity, DEFAULT_UNIT)


def test_a_refusal_says_what_was_asked_held_and_reserved_by_pools_and_what_would_help() -> None:
    assert refused(6 * GIB + 1, GIB, Framework.PYTORCH) == (
        "process 17 (PyTorch) was refused 6 GiB of card 3: the container holds 4 GiB of its 5 GiB, 1 GiB of it "
        "reserved by its memory pools; what would help: tencent.com/vcuda-memory: 41 (10.25 GiB), a smaller "
        "batch, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )


def test_more_than_the_card_has_is_no_advice() -> None:
    assert refused(6 * GIB, capacity=8 * GIB) == (
        "process 17 was refused 6 GiB of card 3: the container holds 4 GiB of its 5 GiB; what would help: "
        "a smaller batch or model; card 3 has 8 GiB in all"
    )
    assert refused(6 * GIB, capacity=0).endswith("what would help: a smaller batch or model")


def test_a_graph_that_cannot_be_read_has_no_size() -> None:
    assert "was refused a graph of unknown size of card 3: " in refused(LARGEST_COUNT)


@pytest.mark.parametrize("framework", list(Framework))
def test_every_framework_has_a_setting_of_its_own(framework: Framework) -> None:
    assert f"process 17 ({framework.value}) " in refused(GIB, framework=framework)
    helps = {refused(GIB, framework=each).rpartition("GiB), ")[2] for each in [None, *Framework]}
    assert len(helps) == len(Framework) + 1


def test_kinds_and_frameworks_are_the_pages_codes() -> None:
    assert {kind.name for kind in LibraryMessageKind} == {code.name for code in NoteCode}
    assert {each.name for each in Framework} == {code.name for code in FrameworkCode}
    assert LibraryMessageKind.CUDA_REFUSED in TROUBLE & FOR_THE_POD
    assert LibraryMessageKind.MEMORY_REFUSED not in TROUBLE
