"""Pools, streams and contexts that end while the library asks about them, in other threads or later; and what holds
memory of another process when there is little to hold it by."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.native.driven import (
    CONTEXT,
    DOORS,
    FIVE_STREAMS,
    MIB,
    OUT,
    SANITIZERS,
    SUCCESS,
    Container,
    Program,
)
from tests.native.structures import block_props

LIMIT = 512 * MIB
LARGE = 300 * MIB
"""Two of them do not fit."""
OPERATING_SYSTEM = 304


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_pools_may_be_destroyed_while_other_threads_synchronise_or_are_refused(
    tmp_path: Path, sanitize: str
) -> None:
    with Container(tmp_path, LIMIT, sanitize=sanitize) as container:
        pools = container.program(name="prog_pools", arguments=["1500" if sanitize else "20000"])
        assert pools.process.stdout
        said = pools.process.stdout.readline().split()
        assert said == ["ready", str(LIMIT - CONTEXT)], (said, pools.close())
        assert container.charged() == CONTEXT
        pools.end()


def large_graph(guest: Program, stream: int, microseconds: int) -> int:
    """An executable graph that holds LARGE for as long as a kernel runs."""
    module = guest("cuModuleLoadData", OUT, '"x').value
    kernel = guest("cuModuleGetFunction", OUT, module, f'"k_{microseconds}us').value
    assert guest("cuStreamBeginCapture_v2", stream, 0).result == SUCCESS
    at = guest("cuMemAllocAsync", OUT, LARGE, stream).value
    assert guest("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0).result == SUCCESS
    assert guest("cuMemFreeAsync", at, stream).result == SUCCESS
    graph = guest("cuStreamEndCapture", stream, OUT).value
    return guest("cuGraphInstantiateWithFlags", OUT, graph, 0).value


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("door", DOORS)
def test_a_launch_waits_for_the_graph_of_a_stream_that_was_destroyed_before_it_ended(
    tmp_path: Path, door: str, sanitize: str
) -> None:
    """Its work runs on (cuStreamDestroy), and its end makes room, as if the stream were there."""
    with Container(tmp_path, LIMIT, door=door, sanitize=sanitize) as container:
        guest = container.program().start()
        streams = [guest("cuStreamCreate", OUT, 1).value for _ in range(3)]
        graphs = [large_graph(guest, stream, 100_000) for stream in streams]
        for graph, stream in zip(graphs, streams, strict=True):
            assert guest("cuGraphLaunch", graph, stream).result == SUCCESS
            assert container.charged() <= LIMIT
            assert guest("cuStreamDestroy_v2", stream).result == SUCCESS
        assert guest("cuCtxSynchronize").result == SUCCESS
        assert guest("cuDeviceGraphMemTrim", 0).result == SUCCESS
        assert container.charged() == CONTEXT + FIVE_STREAMS
        guest.end()


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_a_stream_that_ended_with_its_context_is_not_asked_about(tmp_path: Path, sanitize: str) -> None:
    with Container(tmp_path, LIMIT + CONTEXT, sanitize=sanitize) as container:
        guest = container.program().start()
        first = guest("cuCtxGetCurrent", OUT).value
        second = guest("cuCtxCreate_v2", OUT, 0, 0).value
        stream = guest("cuStreamCreate", OUT, 1).value
        assert guest("cuGraphLaunch", large_graph(guest, stream, 1000), stream).result == SUCCESS
        assert guest("cuCtxDestroy_v2", second).result == SUCCESS
        assert guest("cuCtxSetCurrent", first).result == SUCCESS
        mine = guest("cuStreamCreate", OUT, 1).value
        assert guest("cuGraphLaunch", large_graph(guest, mine, 1000), mine).result == SUCCESS
        assert guest("cuStreamSynchronize", mine).result == SUCCESS
        guest.end()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("most", [64, 6])
def test_what_is_imported_with_few_descriptors_is_paid_for_or_not_had(
    tmp_path: Path, door: str, most: int
) -> None:
    """A program may set its own limit of them, so that the library has none to tell the maker by."""
    with Container(tmp_path, LIMIT, door=door) as container:
        maker, other = container.program().start(), container.program().start()
        block = maker("cuMemCreate", OUT, 100 * MIB, block_props(), 0).value
        exported = maker("cuMemExportToShareableHandle", OUT, block, 1, 0).value & 0xFFFFFFFF
        process = other("pidfd_open", maker.process.pid, 0).result
        received = other("pidfd_getfd", process, exported, 0).result
        assert received >= 0
        assert other("close", process).result == 0
        while most < 64 and other("dup", 0).result < most:
            pass
        assert other("setrlimit", 7, struct.pack("<QQ", most, most)).result == 0
        imported = other("cuMemImportFromShareableHandle", OUT, received, 1).result
        assert imported == (SUCCESS if most == 64 else OPERATING_SYSTEM)
        assert other("close", received).result == 0
        assert maker("close", exported).result == 0
        assert maker("cuMemRelease", block).result == SUCCESS
        assert container.charged() == maker.card_used()
        assert maker.card_used() == 2 * CONTEXT + (100 * MIB if imported == SUCCESS else 0)


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("door", DOORS)
def test_the_last_user_that_detaches_from_a_context_ends_it_and_what_it_held(
    tmp_path: Path, door: str, sanitize: str
) -> None:
    with Container(tmp_path, LIMIT, door=door, sanitize=sanitize) as container:
        guest = container.program()
        assert guest("cuInit", 0).result == SUCCESS
        context = guest("cuCtxCreate_v2", OUT, 0, 0).value
        assert guest("cuMemAlloc_v2", OUT, 100 * MIB).result == SUCCESS
        assert guest("cuCtxAttach", OUT, 0).value == context
        assert guest("cuCtxDetach", context).result == SUCCESS
        assert container.charged() == CONTEXT + 100 * MIB, "it has another user"
        assert guest("cuCtxDetach", context).result == SUCCESS
        assert container.charged() == 0
        assert guest("cuCtxDetach", context).result != SUCCESS
        guest.end()
