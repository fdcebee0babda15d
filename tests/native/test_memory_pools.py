"""Pools and graphs: the charge follows what the driver has reserved, not what the program has asked for."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.native.driven import (
    CONTEXT,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
    held,
)
from tests.native.structures import MANAGED, pool_props

LIMIT = 256 * MIB
ROOM = LIMIT - CONTEXT
STEP = 32 * MIB
"""By which a pool grows and shrinks."""
THRESHOLD, RESERVED, USED = 4, 5, 7


@pytest.fixture
def stream(guest: Program) -> int:
    return guest("cuStreamCreate", OUT, 1).value


def keep_everything(guest: Program, pool: int) -> None:
    """As PyTorch's cudaMallocAsync backend sets it: the pool gives nothing back by itself."""
    assert guest("cuMemPoolSetAttribute", pool, THRESHOLD, f"&={(1 << 64) - 1}").result == SUCCESS


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_stream_ordered_memory_stays_charged_until_the_pool_gives_it_back(
    container: Container, guest: Program, suffix: str
) -> None:
    at = guest(f"cuMemAllocAsync{suffix}", OUT, 3 * STEP + MIB, 0).value
    assert held(container, guest) == 4 * STEP
    assert guest(f"cuMemFreeAsync{suffix}", at, 0).result == SUCCESS
    assert held(container, guest) == 4 * STEP
    assert guest(f"cuStreamSynchronize{suffix}", 0).result == SUCCESS
    assert held(container, guest) == 0


@pytest.mark.parametrize(
    "sync",
    [("cuCtxSynchronize",), ("cuStreamSynchronize", 0), ("cuStreamSynchronize_ptsz", 0), "event", "info"],
    ids=str,
)
def test_every_synchronisation_settles_what_was_freed(
    container: Container, guest: Program, stream: int, sync: str | tuple[str, int]
) -> None:
    event = guest("cuEventCreate", OUT, 0).value
    guest("cuMemFreeAsync", guest("cuMemAllocAsync", OUT, 50 * MIB, stream).value, stream)
    if sync == "event":
        guest("cuEventRecord", event, stream)
        guest("cuEventSynchronize", event)
    elif sync == "info":
        guest("real:cuCtxSynchronize")
        guest("cuMemGetInfo_v2", OUT, OUT)
    else:
        guest(*sync)
    assert held(container, guest) == 0


def test_an_allocation_takes_from_what_the_pool_keeps_at_the_limit_too(
    container: Container, guest: Program
) -> None:
    pool = guest("cuDeviceGetDefaultMemPool", OUT, 0).value
    keep_everything(guest, pool)
    for _ in range(20):
        at = guest("cuMemAllocAsync", OUT, ROOM - 10 * MIB, 0).value
        assert held(container, guest) == ROOM
        assert guest("cuMemFreeAsync", at, 0).result == SUCCESS
        guest("cuCtxSynchronize")
    assert guest("cuMemPoolGetAttribute", pool, RESERVED, OUT).value == ROOM
    assert container.usage.cards[0].refusals == 0


def test_a_pool_is_trimmed_before_another_allocation_is_refused(container: Container, guest: Program) -> None:
    pool = guest("cuDeviceGetDefaultMemPool", OUT, 0).value
    keep_everything(guest, pool)
    guest("cuMemFreeAsync", guest("cuMemAllocAsync", OUT, ROOM, 0).value, 0)
    guest("cuCtxSynchronize")
    assert held(container, guest) == ROOM
    assert guest("cuMemAlloc_v2", OUT, ROOM).result == SUCCESS
    assert held(container, guest) == ROOM
    assert container.usage.cards[0].refusals == 0


def test_the_limit_holds_to_the_byte_for_pools(container: Container, guest: Program) -> None:
    assert guest("cuMemAllocAsync", OUT, ROOM + 1, 0).result == OUT_OF_MEMORY
    at = guest("cuMemAllocAsync", OUT, ROOM, 0).value
    assert guest("cuMemAllocAsync", OUT, 1, 0).result == OUT_OF_MEMORY
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert guest("cuMemFreeAsync", at, 0).result == SUCCESS


def test_a_pool_of_the_programs_own_is_charged_trimmed_and_destroyed(
    container: Container, guest: Program, stream: int
) -> None:
    pool = guest("cuMemPoolCreate", OUT, pool_props()).value
    keep_everything(guest, pool)
    first = guest("cuMemAllocFromPoolAsync", OUT, 40 * MIB, pool, stream).value
    second = guest("cuMemAllocFromPoolAsync_ptsz", OUT, 40 * MIB, pool, stream).value
    assert held(container, guest) == 3 * STEP
    assert guest("cuMemFreeAsync", first, stream).result == SUCCESS
    assert held(container, guest) == 3 * STEP
    assert guest("cuMemPoolTrimTo", pool, 30 * MIB).result == SUCCESS
    assert held(container, guest) == 2 * STEP, "what is in use stays"
    assert guest("cuMemFreeAsync", second, stream).result == SUCCESS
    assert guest("cuMemPoolDestroy", pool).result == SUCCESS
    assert held(container, guest) == 0


def test_the_devices_current_pool_is_the_one_that_is_charged(container: Container, guest: Program) -> None:
    pool = guest("cuMemPoolCreate", OUT, pool_props()).value
    assert guest("cuDeviceSetMemPool", 0, pool).result == SUCCESS
    guest("cuMemAllocAsync", OUT, 40 * MIB, 0)
    assert guest("cuMemPoolGetAttribute", pool, USED, OUT).value == 40 * MIB
    assert held(container, guest) == 2 * STEP


def test_each_kind_of_memory_may_be_freed_by_the_other_call(container: Container, guest: Program) -> None:
    linear = guest("cuMemAlloc_v2", OUT, 10 * MIB).value
    assert guest("cuMemFreeAsync", linear, 0).result == SUCCESS
    assert held(container, guest) == 0
    ordered = guest("cuMemAllocAsync", OUT, 10 * MIB, 0).value
    assert guest("cuMemFree_v2", ordered).result == SUCCESS
    assert held(container, guest) == 0, "a free that waits for the card, and so one that shrinks the pool"


def test_many_threads_on_one_pool_leave_a_true_account(container: Container, guest: Program) -> None:
    assert guest.tell(f".threads 8 40 cuMemAllocAsync & {300 * 1024} 0") == "0", (
        "threads have no context of their own"
    )
    stream = guest("cuStreamCreate", OUT, 1).value
    good = int(guest.tell(f".threads 8 40 cuMemAllocAsync & {300 * 1024} {stream}"))
    guest("cuCtxSynchronize")
    assert good in (0, 320)
    held(container, guest)


# ---- graphs


def graph_of(guest: Program, *sizes: int) -> int:
    graph = guest("cuGraphCreate", OUT, 0).value
    for size in sizes:
        params = pool_props() + struct.pack("<QQQQ", 0, 0, size, 0)
        assert guest("cuGraphAddMemAllocNode", OUT, graph, 0, 0, params).result == SUCCESS
    return graph


def test_a_graphs_memory_is_charged_when_it_is_launched_and_kept_until_it_is_trimmed(
    container: Container, guest: Program, stream: int
) -> None:
    graph = graph_of(guest, 30 * MIB, 10 * MIB)
    assert held(container, guest) == 0
    launchable = guest("cuGraphInstantiateWithFlags", OUT, graph, 0).value
    assert held(container, guest) == 0
    assert guest("cuGraphLaunch", launchable, stream).result == SUCCESS
    assert held(container, guest) == 40 * MIB
    assert guest("cuGraphExecDestroy", launchable).result == SUCCESS
    assert guest("cuDeviceGraphMemTrim", 0).result == SUCCESS
    held(container, guest)


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_graph_that_would_not_fit_is_refused_at_its_launch(
    container: Container, guest: Program, stream: int, suffix: str
) -> None:
    graph = graph_of(guest, 100 * MIB, 100 * MIB)
    launchable = guest("cuGraphInstantiateWithFlags", OUT, graph, 0).value
    assert guest(f"cuGraphUpload{suffix}", launchable, stream).result == OUT_OF_MEMORY
    assert guest(f"cuGraphLaunch{suffix}", launchable, stream).result == OUT_OF_MEMORY
    assert held(container, guest) == 0


def test_uploading_takes_the_memory_already_and_launching_takes_no_more(
    container: Container, guest: Program, stream: int
) -> None:
    launchable = guest("cuGraphInstantiate_v2", OUT, graph_of(guest, ROOM), 0, 0, 0).value
    assert guest("cuGraphUpload", launchable, stream).result == SUCCESS
    assert held(container, guest) == ROOM
    assert guest("cuGraphLaunch", launchable, stream).result == SUCCESS
    assert held(container, guest) == ROOM


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_graph_that_is_uploaded_as_it_is_made_is_charged_then(
    container: Container, guest: Program, stream: int, suffix: str
) -> None:
    params = struct.pack("<QQQQ", 2, stream, 0, 0)
    make = f"cuGraphInstantiateWithParams{suffix}"
    assert guest(make, OUT, graph_of(guest, ROOM + 1), params).result == OUT_OF_MEMORY
    assert held(container, guest) == 0
    launchable = guest(make, OUT, graph_of(guest, ROOM), params).out[0]
    assert held(container, guest) == ROOM
    assert guest("cuGraphLaunch", launchable, stream).result == SUCCESS
    assert held(container, guest) == ROOM


def test_graph_memory_in_reserve_is_trimmed_before_an_allocation_is_refused(
    container: Container, guest: Program, stream: int
) -> None:
    launchable = guest("cuGraphInstantiateWithFlags", OUT, graph_of(guest, ROOM), 0).value
    assert guest("cuGraphUpload", launchable, stream).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, ROOM).result == SUCCESS
    assert held(container, guest) == ROOM


def test_memory_allocated_in_a_capture_counts_when_the_graph_runs(
    container: Container, guest: Program, stream: int
) -> None:
    assert guest("cuStreamBeginCapture_v2", stream, 2).result == SUCCESS
    at = guest("cuMemAllocAsync", OUT, 60 * MIB, stream).value
    assert guest("cuMemFreeAsync", at, stream).result == SUCCESS
    graph = guest("cuStreamEndCapture", stream, OUT).value
    assert held(container, guest) == 0
    launchable = guest("cuGraphInstantiateWithFlags", OUT, graph, 0).value
    for _ in range(3):
        assert guest("cuGraphLaunch", launchable, stream).result == SUCCESS
        assert held(container, guest) == 60 * MIB


def test_memory_of_a_child_graph_counts(container: Container, guest: Program, stream: int) -> None:
    parent = guest("cuGraphCreate", OUT, 0).value
    child = graph_of(guest, ROOM + 1)
    assert guest("cuGraphAddChildGraphNode", OUT, parent, 0, 0, child).result == SUCCESS
    launchable = guest("cuGraphInstantiateWithFlags", OUT, parent, 0).value
    assert guest("cuGraphLaunch", launchable, stream).result == OUT_OF_MEMORY
    assert held(container, guest) == 0


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize("own", [False, True])
def test_memory_that_was_taken_for_a_captures_is_charged_if_the_capture_had_ended(
    tmp_path: Path, suffix: str, own: bool
) -> None:
    """Another thread may end it between the library's question and the driver's answer."""
    with Container(tmp_path, LIMIT, capture_ends=1) as container:
        guest = container.program().start()
        stream = guest("cuStreamCreate", OUT, 1).value
        pool = (guest("cuMemPoolCreate", OUT, pool_props()).value,) if own else ()
        name = f"cuMemAlloc{'FromPool' if own else ''}Async{suffix}"
        assert guest("cuStreamBeginCapture_v2", stream, 2).result == SUCCESS
        assert guest(name, OUT, ROOM + 1, *pool, stream).result == OUT_OF_MEMORY
        assert held(container, guest) == 0
        assert guest(name, OUT, ROOM, *pool, stream).result == SUCCESS
        assert held(container, guest) == ROOM


HOST, HOST_NUMA, ANYWHERE = (2, 0), (3, 0), (0, 0)


@pytest.mark.parametrize("name", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
@pytest.mark.parametrize("location", [HOST, HOST_NUMA])
def test_a_pool_of_the_hosts_memory_is_not_charged_whoever_made_it(
    tmp_path: Path, name: str, location: tuple[int, int]
) -> None:
    with Container(tmp_path, LIMIT, version="13.0") as container:
        guest = container.program().start()
        pool = guest(name, OUT, struct.pack("<ii", *location), 1).value
        assert guest("cuMemAllocFromPoolAsync", OUT, 2 * LIMIT, pool, 0).result == SUCCESS
        assert held(container, guest) == 0


def test_a_pool_of_managed_memory_made_without_a_context_is_charged(tmp_path: Path) -> None:
    with Container(tmp_path, LIMIT, version="13.0") as container:
        guest = container.program()
        assert guest("cuInit", 0).result == SUCCESS
        props = pool_props(place=ANYWHERE[0], handles=0, allocation=MANAGED)
        pool = guest("cuMemPoolCreate", OUT, props).value
        guest.context()
        assert guest("cuMemAllocFromPoolAsync", OUT, ROOM + 1, pool, 0).result == OUT_OF_MEMORY
        assert guest("cuMemAllocFromPoolAsync", OUT, ROOM, pool, 0).result == SUCCESS
        assert held(container, guest) == ROOM


@pytest.mark.parametrize("own_stream", [False, True])
def test_far_from_the_limit_an_allocation_asks_the_driver_one_thing_more(
    tmp_path: Path, own_stream: bool
) -> None:
    """So does a synchronisation that gives memory back; a free asks nothing."""
    log = tmp_path / "calls"
    with Container(tmp_path, LIMIT) as container:
        guest = container.program(trace=log).start()
        stream = guest("cuStreamCreate", OUT, 1).value if own_stream else 0
        for _ in range(3):
            log.write_text("")
            at = guest("cuMemAllocAsync", OUT, 4 * MIB, stream).value
            allocating = log.read_text().count("call ")
            assert guest("cuMemFreeAsync", at, stream).result == SUCCESS
            freeing = log.read_text().count("call ") - allocating
            assert guest("cuStreamSynchronize", stream).result == SUCCESS
            waiting = log.read_text().count("call ") - allocating - freeing
            assert held(container, guest) == 0
        assert (allocating, freeing, waiting) == (2, 1, 2)


def test_streams_that_come_and_go_in_turn_make_an_allocation_ask_no_more(tmp_path: Path) -> None:
    """Where there is one device a stream says nothing about the pool."""
    log = tmp_path / "calls"
    with Container(tmp_path, LIMIT) as container:
        guest = container.program(trace=log).start()
        guest("cuMemAllocAsync", OUT, MIB, 0)
        for _ in range(4):
            streams = [0, *(guest("cuStreamCreate", OUT, 1).value for _ in range(3))]
            log.write_text("")
            for stream in streams:
                guest("cuMemAllocAsync", OUT, MIB, stream)
            assert log.read_text().count("call ") == 2 * len(streams)
            for stream in streams[1:]:
                assert guest("cuStreamDestroy_v2", stream).result == SUCCESS


def test_with_two_cards_streams_and_contexts_in_turn_cost_one_call_beside_the_null_stream(
    tmp_path: Path,
) -> None:
    """What the driver said of a stream, and of a context whose null stream is used, is asked once."""
    log = tmp_path / "calls"
    with Container(tmp_path, LIMIT, cards=2) as container:
        guest = container.program(trace=log, cards=2)
        assert guest("cuInit", 0).result == SUCCESS
        contexts = [guest.context(index) for index in (0, 1)]
        streams = []
        for context in contexts:
            assert guest("cuCtxSetCurrent", context).result == SUCCESS
            streams += [guest("cuStreamCreate", OUT, 1).value for _ in range(3)]
        asked: list[int] = []
        for turn in range(3):
            for stream in streams:
                log.write_text("")
                assert guest("cuMemAllocAsync", OUT, MIB, stream).result == SUCCESS
                asked += [log.read_text().count("call ") - 2] if turn else []
        assert asked == [0] * 12
        for turn in range(3):
            for context in contexts:
                assert guest("cuCtxSetCurrent", context).result == SUCCESS
                log.write_text("")
                assert guest("cuMemAllocAsync", OUT, MIB, 0).result == SUCCESS
                asked += [log.read_text().count("call ") - 2] if turn else []
        assert asked[12:] == [1] * 4
        first, second = container.charged(0), container.charged(1)
        assert first == second >= CONTEXT + 12 * MIB


@pytest.mark.parametrize("name", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"])
def test_a_reset_drops_everything_of_the_device_but_what_pools_hold(
    container: Container, guest: Program, name: str
) -> None:
    guest("cuMemAlloc_v2", OUT, 10 * MIB)
    guest("cuMemAlloc_v2", OUT, 1000)
    guest("cuMemAllocManaged", OUT, 10 * MIB, 1)
    at = guest("cuMemAllocAsync", OUT, 32 * MIB, 0).value
    assert guest(name, 0).result == SUCCESS
    assert container.charged() == 32 * MIB
    guest.context()
    assert held(container, guest) == 32 * MIB
    assert guest("cuMemFreeAsync", at, 0).result == SUCCESS
    assert guest("cuCtxSynchronize").result == SUCCESS
    assert held(container, guest) == 0
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS


def test_a_driver_that_does_not_tell_what_a_pool_holds_leaves_no_charge_behind(container: Container) -> None:
    """The call that fails comes after the allocation. What a pool's allocations take is then all that is known."""
    guest = container.program(fail="cuMemPoolGetAttribute=1").start()
    for _ in range(100):
        at = guest("cuMemAllocAsync", OUT, 8 * MIB, 0).value
        assert held(container, guest) == STEP
        assert guest("cuMemFreeAsync", at, 0).result == SUCCESS
        assert guest("cuStreamSynchronize", 0).result == SUCCESS
    assert held(container, guest) == 0
    assert guest("cuMemAllocAsync", OUT, ROOM + 1, 0).result == OUT_OF_MEMORY
