"""A program with a part of each of two cards, as one ring of a collective: a limit on each of them, its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.core_world import uuid_of, world
from tests.native.driven import (
    CONTEXT,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
)
from tests.native.test_core_threads import launches

LIMIT = 256 * MIB
BUFFER = 32 * MIB


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[Container, Program, tuple[int, int]]]:
    """The program with a context on each card, and peer access both ways, as NCCL begins."""
    with Container(tmp_path, LIMIT, cards=2) as container:
        guest = container.program(cards=2)
        assert guest("cuInit", 0).result == SUCCESS
        contexts = guest.context(0), guest.context(1)
        for own, peer in (contexts, contexts[::-1]):
            assert guest("cuCtxSetCurrent", own).result == SUCCESS
            assert guest("cuCtxEnablePeerAccess", peer, 0).result == SUCCESS
        yield container, guest, contexts


def test_buffers_of_a_ring_count_on_the_card_on_which_they_lie(
    ring: tuple[Container, Program, tuple[int, int]],
) -> None:
    container, guest, contexts = ring
    buffers: list[int] = []
    for context in contexts:
        assert guest("cuCtxSetCurrent", context).result == SUCCESS
        buffers.append(guest("cuMemAlloc_v2", OUT, BUFFER).value)
    for to, source in ((0, 1), (1, 0)):
        copied = guest("cuMemcpyPeer", buffers[to], contexts[to], buffers[source], contexts[source], BUFFER)
        assert copied.result == SUCCESS
    assert [container.charged(card) for card in (0, 1)] == [CONTEXT + BUFFER] * 2


def test_a_card_that_is_full_refuses_though_the_other_has_room(
    ring: tuple[Container, Program, tuple[int, int]],
) -> None:
    _, guest, contexts = ring
    room = LIMIT - CONTEXT
    assert guest("cuCtxSetCurrent", contexts[1]).result == SUCCESS
    full = guest("cuMemAlloc_v2", OUT, room).value
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert guest("cuMemGetInfo_v2", OUT, OUT).out[1] == LIMIT
    assert guest("cuCtxSetCurrent", contexts[0]).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, room).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert guest("cuMemFree_v2", full).result == SUCCESS, "freed from the other card's context"
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY, "what card 1 got back is card 1's"
    assert guest("cuCtxSetCurrent", contexts[1]).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, room).result == SUCCESS


def test_memory_that_both_cards_map_is_charged_to_the_one_that_has_it(
    ring: tuple[Container, Program, tuple[int, int]],
) -> None:
    container, guest, contexts = ring
    before = [container.charged(card) for card in (0, 1)]
    assert guest("cuCtxSetCurrent", contexts[0]).result == SUCCESS
    at = guest("cuMemAlloc_v2", OUT, BUFFER).value
    assert guest("cuCtxSetCurrent", contexts[1]).result == SUCCESS
    assert guest("cuMemsetD8_v2", at, 0, BUFFER).result == SUCCESS
    assert [container.charged(card) for card in (0, 1)] == [before[0] + BUFFER, before[1]]


def test_a_group_of_streams_on_each_of_two_cards_keeps_to_both_limits() -> None:
    """However late the machine runs: what is delivered where it does not stands in test_core_threads."""
    cores, kernel_us, seconds = 30, 2000, 2.0
    with world(cards=2) as made:
        tenant = made.tenant(cores, cards=(uuid_of(0), uuid_of(1)))
        rate = launches(made.environment(tenant), "cards", kernel_us, seconds, 1, 8)
        limits = [made.usage(tenant, card) for card in (0, 1)]
    assert 0 < rate * kernel_us / 1e4 <= cores + 3
    assert all(card.launches for card in limits)
