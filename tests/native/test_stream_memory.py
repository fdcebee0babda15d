"""Streams take memory of their card, which stays with their context when they are destroyed."""

from __future__ import annotations

from tests.native.driven import (
    CONTEXT,
    GRANULE,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
    held,
)

LIMIT = 1024 * MIB
ON_AN_H100 = {
    1: 2, 4: 2, 5: 4, 8: 4, 12: 6, 16: 8, 24: 12, 32: 16, 33: 18, 40: 22, 48: 26, 64: 34, 65: 36, 96: 52, 128: 70,
    129: 72, 160: 86, 256: 140, 512: 280, 1024: 560, 2048: 1120,
}  # fmt: skip
"""MiB that so many streams took beside a context's first, which takes nothing, by NVML (driver 580); flags, priorities
and use made no difference."""


def streams(guest: Program, count: int) -> list[int]:
    return [guest("cuStreamCreate", OUT, 1).value for _ in range(count)]


def test_so_many_streams_are_charged_what_a_card_was_seen_to_take(
    container: Container, guest: Program
) -> None:
    container.change(memory_limit=4096 * MIB)
    made = 0
    streams(guest, 1)
    assert held(container, guest) == 0
    for count, mib in ON_AN_H100.items():
        streams(guest, count - made)
        made = count
        assert held(container, guest) == mib * MIB, count


def test_the_next_stream_uses_what_a_destroyed_one_had(container: Container, guest: Program) -> None:
    first = streams(guest, 9)[1:]
    assert held(container, guest) == 4 * MIB
    for name, half in (("cuStreamDestroy", first[:4]), ("cuStreamDestroy_v2", first[4:])):
        for stream in half:
            assert guest(name, stream).result == SUCCESS
    assert held(container, guest) == 4 * MIB
    streams(guest, 8)
    assert held(container, guest) == 4 * MIB
    streams(guest, 1)
    assert held(container, guest) == 6 * MIB


def test_a_stream_past_the_limit_is_refused_and_takes_nothing(container: Container, guest: Program) -> None:
    container.change(memory_limit=CONTEXT + GRANULE)
    made = streams(guest, 5)
    for name, *more in (("cuStreamCreate", 0), ("cuStreamCreateWithPriority", 1, -1)):
        assert guest(name, OUT, *more).result == OUT_OF_MEMORY
    assert held(container, guest) == GRANULE
    assert guest("cuStreamDestroy_v2", made[0]).result == SUCCESS
    streams(guest, 1)
    assert guest("cuStreamCreate", OUT, 0).result == OUT_OF_MEMORY
    container.change(memory_limit=CONTEXT + 2 * GRANULE)
    streams(guest, 4)
    assert held(container, guest) == 2 * GRANULE


def test_every_context_has_its_own_and_gives_them_back_when_it_ends(
    container: Container, guest: Program
) -> None:
    streams(guest, 2)
    other = guest("cuCtxCreate_v2", OUT, 0, 0).value
    streams(guest, 6)
    assert container.charged() == guest.card_used() == 2 * CONTEXT + 3 * GRANULE
    assert guest("cuCtxDestroy_v2", other).result == SUCCESS
    assert held(container, guest) == GRANULE
    assert guest("cuDevicePrimaryCtxReset_v2", 0).result == SUCCESS
    assert container.charged() == 0
    guest.context()
    streams(guest, 5)
    assert held(container, guest) == GRANULE


def test_a_green_contexts_streams_are_its_primary_contexts(container: Container, guest: Program) -> None:
    green = guest("cuGreenCtxCreate", OUT, 1, 0, 1).value
    for _ in range(6):
        assert guest("cuGreenCtxStreamCreate", OUT, green, 1, 0).result == SUCCESS
    assert held(container, guest) == 2 * GRANULE
    container.change(memory_limit=CONTEXT + 2 * GRANULE)
    streams(guest, 3)
    assert guest("cuGreenCtxStreamCreate", OUT, green, 1, 0).result == OUT_OF_MEMORY
    assert held(container, guest) == 2 * GRANULE


def test_a_stream_that_the_driver_does_not_make_counts_for_nothing(container: Container) -> None:
    guest = container.program(fail="cuStreamCreate=2@3").start()
    streams(guest, 2)
    assert guest("cuStreamCreate", OUT, 1).result == OUT_OF_MEMORY
    streams(guest, 3)
    assert held(container, guest) == GRANULE


def test_threads_that_make_streams_at_once_are_charged_for_all_of_them(
    container: Container, guest: Program
) -> None:
    green = guest("cuGreenCtxCreate", OUT, 1, 0, 1).value  # what threads without a current context can name
    assert guest.tell(f".threads 8 50 cuGreenCtxStreamCreate & {green} 1 0") == "400"
    assert held(container, guest) == (200 + 18) * MIB, "399 beside the first"
