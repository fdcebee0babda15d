"""C and Python agree on every offset, size and checksum of the control pages."""

from __future__ import annotations

import dataclasses
import re
import struct

import pytest

from tests.native.tools import LIB, run
from vcuda.page import layout, limits, usage
from vcuda.page.layout import ABI_MAJOR, ABI_MINOR, GATE_MAGIC, GATE_SIZE, MAX_CARDS, build_gate
from vcuda.page.limits import COPY_SIZE, LIMITS_MAGIC, LIMITS_SIZE
from vcuda.page.usage import (
    MAX_BYTES,
    MAX_NOTES,
    MAX_SLOTS,
    SLOT_SIZE,
    TIMELINE_CELLS,
    TIMELINE_SIZE,
    TIMELINES_OFFSET,
    USAGE_HEAD_SIZE,
    USAGE_MAGIC,
    USAGE_SIZE,
    CardUsage,
    FrameworkCode,
    Note,
    NoteCode,
    Slot,
    last_busy_offset,
)

HEADER = LIB / "include" / "vcuda_page.h"
STRUCTS = (
    "card_limits",
    "limits_copy",
    "card_usage",
    "slot",
    "note",
    "timeline",
    "recent_work",
    "usage",
    "gate",
)


def fields_of(name: str) -> list[str]:
    """The members of a struct of the header, in order."""
    body = re.search(rf"^struct vcuda_{name} {{(.*?)^}};", HEADER.read_text(), re.DOTALL | re.MULTILINE)
    assert body
    text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    text = re.sub(r"_Alignas\(\w+\)", "", text)
    return [
        re.sub(r"\[.*", "", part.split()[-1], flags=re.DOTALL)
        for line in text.split(";")
        for part in re.sub(r"\[[^]]*\]", "", line, flags=re.DOTALL).split(",")
        if part.strip()
    ]


@pytest.fixture(scope="module")
def facts(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """``struct.field`` → offset, ``struct`` → size and each ``#define`` → value, as the compiler sees them."""
    lines = [f'printf("{s} %zu\\n", sizeof(struct vcuda_{s}));' for s in STRUCTS]
    for s in STRUCTS:
        lines += [f'printf("{s}.{f} %zu\\n", offsetof(struct vcuda_{s}, {f}));' for f in fields_of(s)]
    names = re.findall(r"^#define (VCUDA_\w+) ", HEADER.read_text(), re.MULTILINE)
    lines += [f'printf("{n} %llu\\n", (unsigned long long){n});' for n in names if n != "VCUDA_PAGE_H"]
    source = tmp_path_factory.mktemp("layout") / "layout.c"
    body = "\n".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "vcuda_page.h"\nint main(void) {{\n{body}\nreturn 0; }}\n'
    )
    program = source.with_suffix("")
    run(compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{LIB / 'include'}", source, "-o", program)
    return {key: int(value) for key, value in (line.split() for line in run(program).splitlines())}


def offsets(layout: str, start: int, names: str) -> dict[str, int]:
    """Where a Python struct layout puts its values: name → offset."""
    parts = re.findall(r"\d*[a-zA-Z]", layout.lstrip("<"))
    at, found, rest = start, {}, names.split()
    for part in parts:
        size = struct.calcsize("<" + part)
        if part.endswith("x"):
            at += size
        elif part.endswith("s") or not part[:-1]:
            found[rest.pop(0)] = at
            at += size
        else:  # a run of equal words: separate members, or one array
            count, each = int(part[:-1]), struct.calcsize("<" + part[-1])
            array = len(rest) < count
            for index in range(1 if array else count):
                found[rest.pop(0)] = at + index * each
            at += size
    assert not rest
    return found


@pytest.mark.parametrize(
    ("name", "layout", "start", "names"),
    [
        (
            "limits_copy", limits._HEADER, 0,
            ("magic abi_major abi_minor crc generation size header_size card_size card_count flags "
            "heartbeat_ns reserved1 identity reserved"),
        ),
        (
            "card_limits", limits._CARD, 0,
            ("uuid memory_limit context_reserve host_adjust host_excess core_limit_q8 core_ceiling_q8 burst_ns "
            "debt_ns window_ns gain_q8 co_active_q8 mode instance host_looked_ns host_counted granted_q8 beside_q8 others_most others_part_q16"),
        ),
        ("usage", usage._USAGE_HEADER, 0, "magic abi_major abi_minor size build_id slot_high reserved0"),
        (
            "usage", usage._COUNTERS, usage._COUNTERS_OFFSET,
            ("generation_seen limits_invalid unknown_symbols routed_by_name slots_exhausted slots_reaped repairs "
            "unknown_name"),
        ),
        (
            "card_usage", usage._CARD_USAGE, 0,
            ("charged peak refusals refused_bytes excess_returned credit_ns refill_ns busy_ns throttle_ns launches debt_cut_ns starved held_idle_ns idle_from_ns in_flight_ns "
            "last_busy_ns longest_ns window_busy_ns window_start_ns known_launches stalled_launches stalled_ns error_us2"),
        ),
        ("usage", usage._NOTES_WRITTEN, usage._NOTES_WRITTEN_OFFSET, "notes"),
        ("note", usage._NOTE, 0, "number when_ns code pid card framework bytes used limit text pooled"),
        ("slot", usage._SLOT, 0, "state pid pid_namespace start_time nonce heartbeat_ns movable untold inflight charged"),
        ("gate", layout._GATE, 0, "magic closed_until_ns openings closed_at_ns closings closed_ns opened_at_ns"),
    ],
)  # fmt: skip
def test_every_value_python_reads_lies_where_c_puts_it(
    facts: dict[str, int], name: str, layout: struct.Struct, start: int, names: str
) -> None:
    for field, offset in offsets(layout.format, start, names).items():
        assert (field, offset) == (field, facts[f"{name}.{field}"])


def test_every_member_of_the_header_is_known_to_python() -> None:
    usage_names = {field.name for field in dataclasses.fields(CardUsage)}
    assert set(fields_of("card_usage")) == usage_names
    slot_names = {field.name for field in dataclasses.fields(Slot)} - {"index"}
    assert set(fields_of("slot")) - {"state", "unsettled_since_ns"} == slot_names  # what libraries alone read
    note_names = {field.name for field in dataclasses.fields(Note)}
    assert set(fields_of("note")) == note_names


def test_sizes_agree(facts: dict[str, int]) -> None:
    assert facts["card_limits"] == limits._CARD.size
    assert facts["limits_copy.card"] == limits._HEADER.size
    assert facts["limits_copy"] == facts["VCUDA_COPY_SIZE"] == COPY_SIZE
    assert facts["VCUDA_LIMITS_SIZE"] == LIMITS_SIZE
    assert facts["card_usage"] == usage._CARD_USAGE.size
    assert facts["slot"] == usage._SLOT.size == SLOT_SIZE
    assert facts["usage.slot"] == USAGE_HEAD_SIZE
    assert facts["note"] == usage._NOTE.size
    assert facts["usage.card"] + facts["card_usage.last_busy_ns"] == last_busy_offset(0)
    assert facts["timeline"] == usage._TIMELINE.size == TIMELINE_SIZE
    assert facts["usage.timeline"] == TIMELINES_OFFSET
    assert facts["VCUDA_TIMELINE_CELLS"] == TIMELINE_CELLS
    assert facts["usage.recent"] == TIMELINES_OFFSET + MAX_CARDS * TIMELINE_SIZE
    assert facts["usage.rest"] == facts["usage.recent"] + MAX_CARDS * facts["recent_work"] <= USAGE_SIZE
    assert 1 << facts["VCUDA_RECENT_WORK_SLOT_BITS"] == MAX_SLOTS
    assert facts["VCUDA_RECENT_WORK_UNITS_BITS"] + facts["VCUDA_RECENT_WORK_SLOT_BITS"] == 32
    assert facts["usage.note"] == usage._NOTES_OFFSET
    assert facts["usage.note"] + facts["VCUDA_NOTES"] * facts["note"] <= facts["usage.card"]
    assert facts["usage"] == facts["VCUDA_USAGE_SIZE"] == USAGE_SIZE


def test_constants_agree(facts: dict[str, int]) -> None:
    assert facts["VCUDA_ABI_MAJOR"] == ABI_MAJOR
    assert facts["VCUDA_ABI_MINOR"] == ABI_MINOR
    assert facts["VCUDA_LIMITS_MAGIC"].to_bytes(8, "little") == LIMITS_MAGIC
    assert facts["VCUDA_USAGE_MAGIC"].to_bytes(8, "little") == USAGE_MAGIC
    assert facts["VCUDA_GATE_MAGIC"].to_bytes(8, "little") == GATE_MAGIC
    assert facts["gate"] == facts["VCUDA_GATE_SIZE"] == GATE_SIZE == len(build_gate())
    assert facts["VCUDA_MAX_CARDS"] == MAX_CARDS
    assert facts["VCUDA_MAX_SLOTS"] == MAX_SLOTS
    assert facts["VCUDA_NOTES"] == MAX_NOTES
    assert all(facts[f"VCUDA_NOTE_{code.name}"] == code for code in NoteCode)
    assert sum(name.startswith("VCUDA_NOTE_") for name in facts) == len(NoteCode)
    assert all(facts[f"VCUDA_FRAMEWORK_{code.name}"] == code for code in FrameworkCode)
    assert facts["VCUDA_FRAMEWORKS"] == len(FrameworkCode)
    assert facts["VCUDA_CHARGED_MASK"] == MAX_BYTES
    assert facts["VCUDA_SLOT_LIVE"] == usage._SLOT_LIVE
    flags = (limits._FAIL_OPEN, limits._ELASTIC, limits._OVERSUBSCRIBE)
    assert flags == tuple(facts[f"VCUDA_FLAG_{name}"] for name in ("FAIL_OPEN", "ELASTIC", "OVERSUBSCRIBE"))
    modes = (limits._MEMORY_LIMITED, limits._CORES_LIMITED, limits._PROTECTED, limits._BEST_EFFORT)
    names = ("MEMORY_LIMITED", "CORES_LIMITED", "PROTECTED", "BEST_EFFORT")
    assert modes == tuple(facts[f"VCUDA_MODE_{name}"] for name in names)


def test_words_that_processes_contend_for_have_lines_of_their_own(facts: dict[str, int]) -> None:
    lines = [facts[f"card_usage.{name}"] for name in ("charged", "credit_ns", "busy_ns", "last_busy_ns")]
    assert lines == [0, 128, 256, 384]
    assert facts["slot"] % 128 == facts["usage.slot"] % 128 == 0
