"""Memory on the stand-in driver where CUDA's documentation says how it is, beside the account of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native.driven import CONTEXT, MIB, OUT, SUCCESS, Container, Program, held, program
from tests.native.structures import pool_props

LIMIT = 1024 * MIB
DEINITIALIZED = 4
RELAXED = 2


def test_a_pool_that_is_destroyed_ends_with_the_last_memory_of_it(
    container: Container, guest: Program
) -> None:
    pool = guest("cuMemPoolCreate", OUT, pool_props()).value
    first, second = (guest("cuMemAllocFromPoolAsync", OUT, 32 * MIB, pool, 0).value for _ in range(2))
    assert guest("cuMemPoolDestroy", pool).result == SUCCESS
    assert held(container, guest) == 64 * MIB
    assert guest("cuMemsetD8_v2", second, 1, 32 * MIB).result == SUCCESS
    assert guest("cuMemFreeAsync", first, 0).result == SUCCESS
    assert guest("cuCtxSynchronize").result == SUCCESS
    assert held(container, guest) == 64 * MIB
    assert guest("cuMemFreeAsync", second, 0).result == SUCCESS
    assert guest("cuCtxSynchronize").result == SUCCESS
    assert held(container, guest) == 0


def test_destroying_the_current_pool_makes_the_default_pool_current(
    container: Container, guest: Program
) -> None:
    pool, default = (
        guest("cuMemPoolCreate", OUT, pool_props()).value,
        guest("cuDeviceGetDefaultMemPool", OUT, 0).value,
    )
    assert guest("cuDeviceSetMemPool", 0, pool).result == SUCCESS
    assert guest("cuMemAllocAsync", OUT, 20 * MIB, 0).result == SUCCESS
    assert guest("cuMemPoolDestroy", pool).result == SUCCESS
    assert guest("cuDeviceGetMemPool", OUT, 0).value == default
    assert guest("cuMemAllocAsync", OUT, 10 * MIB, 0).result == SUCCESS
    assert held(container, guest) == 64 * MIB, "32 MiB for each of the pools"


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_an_allocation_comes_from_the_card_of_its_stream(tmp_path: Path, suffix: str) -> None:
    with Container(tmp_path, LIMIT, cards=2) as container:
        guest = container.program(cards=2)
        assert guest("cuInit", 0).result == SUCCESS
        contexts = [guest.context(device) for device in (0, 1)]
        stream = guest("cuStreamCreate", OUT, 1).value
        guest("cuCtxSetCurrent", contexts[0])
        at = guest(f"cuMemAllocAsync{suffix}", OUT, 32 * MIB, stream).value
        charged = [container.charged(card) for card in (0, 1)]
        used = []
        for context in contexts:
            guest("cuCtxSetCurrent", context)
            used.append(guest.card_used())
        assert charged == used == [CONTEXT, CONTEXT + 32 * MIB]
        assert guest(f"cuMemFreeAsync{suffix}", at, stream).result == SUCCESS


def test_memory_of_a_graph_can_be_set_in_the_capture_that_allocates_it(
    container: Container, guest: Program
) -> None:
    """Its address is known from its node on, and it is there when the graph runs."""
    stream = guest("cuStreamCreate", OUT, 1).value
    assert guest("cuStreamBeginCapture_v2", stream, RELAXED).result == SUCCESS
    at = guest("cuMemAllocAsync", OUT, 10 * MIB, stream).value
    assert guest("cuMemsetD8Async", at, 7, 10 * MIB, stream).result == SUCCESS
    assert guest("cuMemsetD32Async", at, 7, MIB, stream).result == SUCCESS
    assert guest("cuMemFreeAsync", at, stream).result == SUCCESS
    graph = guest("cuStreamEndCapture", stream, OUT).value
    assert held(container, guest) == 0, "a capture allocates nothing"
    executable = guest("cuGraphInstantiateWithFlags", OUT, graph, 0).value
    for _ in range(3):
        assert guest("cuGraphLaunch", executable, stream).result == SUCCESS
    assert guest("cuStreamSynchronize", stream).result == SUCCESS
    assert held(container, guest) == 10 * MIB


def test_what_a_capture_copies_is_not_copied_before_the_graph_runs(guest: Program) -> None:
    stream = guest("cuStreamCreate", OUT, 1).value
    at = guest("cuMemAlloc_v2", OUT, 4096).value
    assert guest("cuMemsetD8_v2", at, 5, 8).result == SUCCESS
    assert guest("cuStreamBeginCapture_v2", stream, RELAXED).result == SUCCESS
    assert guest("cuMemsetD8Async", at, 7, 8, stream).result == SUCCESS
    assert guest("cuStreamEndCapture", stream, OUT).result == SUCCESS
    assert guest("cuMemcpyDtoH_v2", OUT, at, 8).value == 0x0505050505050505


def test_calls_of_a_process_that_exits_are_refused_once_the_driver_has_ended(container: Container) -> None:
    ended = subprocess.run(
        [program("prog_exit", container.sanitize)], env=container.env(), capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert ended.stdout == f"0 0 0\n{' '.join([str(DEINITIALIZED)] * 3)}\n"
    assert container.program().start().card_used() == CONTEXT, "what it held went with it"
