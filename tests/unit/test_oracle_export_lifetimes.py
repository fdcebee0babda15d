"""The oracle of shared memory: each way to hold it holds it alone, in any process, and no longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.oracle.export_lifetimes import Memory, Multicast, RefusedError, Thing, World
from tests.oracle.random_exports import MIB, communicators, random_history, replayed

SIZE = 6 * MIB


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def process(world: World) -> int:
    return world.start()


def test_a_handle_holds_memory_until_its_last_reference_is_released(world: World, process: int) -> None:
    handle = world.create(process, SIZE)
    address = world.map(process, handle)
    assert world.retain(process, address) == handle
    world.unmap(process, address)
    world.release(process, handle)
    assert world.physical_bytes() == world.held_bytes(process) == world.created_bytes(process) == SIZE
    world.release(process, handle)
    assert world.physical_bytes() == 0


def test_a_mapping_holds_memory_and_gives_its_handle_back(world: World, process: int) -> None:
    handle = world.create(process, SIZE)
    address = world.map(process, handle)
    world.release(process, handle)
    assert world.held_bytes(process) == SIZE
    assert world.retain(process, address) == handle
    world.unmap(process, address)
    assert world.held_bytes(process) == SIZE
    world.release(process, handle)
    assert world.physical_bytes() == 0


def test_a_descriptor_holds_memory_and_each_copy_of_it_does(world: World, process: int) -> None:
    handle = world.create(process, SIZE)
    descriptor = world.export(process, handle)
    copy = world.dup(process, descriptor)
    world.release(process, handle)
    world.close(process, descriptor)
    assert world.held_bytes(process) == SIZE  # nothing but a descriptor: the memory is not free for anyone
    child = world.fork(process)
    world.close(process, copy)
    assert (world.held_bytes(process), world.held_bytes(child), world.created_bytes(process)) == (
        0,
        SIZE,
        SIZE,
    )
    world.end(child)
    assert world.physical_bytes() == 0


def test_a_descriptor_on_its_way_holds_memory_for_nobody(world: World, process: int) -> None:
    peer, socket = world.start(), world.socket()
    handle = world.create(process, SIZE)
    descriptor = world.export(process, handle)
    world.send(process, descriptor, socket)
    world.close(process, descriptor)
    world.release(process, handle)
    assert (world.physical_bytes(), world.held_bytes(process), world.in_flight_bytes()) == (SIZE, 0, SIZE)
    received = world.receive(peer, socket)
    assert (world.held_bytes(peer), world.in_flight_bytes()) == (SIZE, 0)
    world.send(peer, received, socket)
    world.end(peer)
    assert world.physical_bytes() == SIZE
    world.close_socket(socket)
    assert world.physical_bytes() == 0


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_dma_buf_holds_what_it_was_made_of_and_is_nothing_to_import(
    world: World, process: int, *, is_mapped: bool
) -> None:
    if is_mapped:
        handle = world.create(process, SIZE)
        address = world.map(process, handle)
        descriptor = world.dma_buf_of_mapping(process, address)
        world.unmap(process, address)
        world.release(process, handle)
    else:
        address = world.allocate(process, SIZE)
        descriptor = world.dma_buf(process, address)
        world.free(process, address)
    with pytest.raises(RefusedError, match="is a dma-buf"):
        world.import_(process, descriptor)
    child = world.fork(process)
    world.close(process, descriptor)
    assert (world.held_bytes(process), world.created_bytes(process)) == (0, SIZE)
    world.end(child)
    assert world.physical_bytes() == 0


def test_a_peer_holds_memory_after_its_maker_has_ended(world: World, process: int) -> None:
    peer, socket = world.start(), world.socket()
    world.send(process, world.export(process, world.create(process, SIZE)), socket)
    descriptor = world.receive(peer, socket)
    imported = world.import_(peer, descriptor)
    world.close(peer, descriptor)
    world.end(process)
    (memory,) = world.alive()
    assert (memory.creator, world.holders(memory), world.held_bytes(peer)) == (process, {peer}, SIZE)
    assert world.held_bytes(process) == 0
    world.release(peer, imported)
    assert world.physical_bytes() == 0


def test_each_import_is_released_by_itself(world: World, process: int) -> None:
    handle = world.create(process, SIZE)
    descriptor = world.export(process, handle)
    first, second = world.import_(process, descriptor), world.import_(process, descriptor)
    world.close(process, descriptor)
    for one in (handle, first):
        world.release(process, one)
        assert world.physical_bytes() == SIZE  # and once, not once an import
    world.release(process, second)
    assert world.physical_bytes() == 0


def test_a_fabric_handle_holds_nothing(world: World, process: int) -> None:
    peer = world.start()
    handle = world.create(process, SIZE)
    name = world.export_fabric(process, handle)
    imported = world.import_fabric(peer, name)
    world.release(process, handle)
    assert world.held_bytes(peer) == SIZE
    world.release(peer, imported)
    with pytest.raises(RefusedError, match="names no memory"):
        world.import_fabric(process, name)


@pytest.mark.parametrize("by_address", [False, True])
def test_a_multicast_object_holds_what_is_bound_to_it(
    world: World, process: int, *, by_address: bool
) -> None:
    object_, handle = world.create_multicast(process), world.create(process, SIZE)
    assert world.physical_bytes() == SIZE  # the object has no memory of its own
    address = world.map(process, handle)
    world.bind_address(process, object_, 0, address) if by_address else world.bind(
        process, object_, 0, handle
    )
    world.unmap(process, address)
    world.release(process, handle)
    assert world.held_bytes(process) == SIZE
    world.unbind(process, object_, 0)
    assert world.physical_bytes() == 0


def test_a_multicast_object_that_is_freed_returns_what_it_held(world: World, process: int) -> None:
    peer, socket = world.start(), world.socket()
    object_, handle = world.create_multicast(process), world.create(process, SIZE)
    world.bind(process, object_, 0, handle)
    world.release(process, handle)
    world.send(process, world.export(process, object_), socket)
    world.end(process)
    descriptor = world.receive(peer, socket)
    imported = world.import_(peer, descriptor)
    address = world.map(peer, imported)
    world.release(peer, imported)
    world.close(peer, descriptor)
    assert world.held_bytes(peer) == SIZE
    world.unmap(peer, address)
    assert world.physical_bytes() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda world, process: world.release(process, 99),
        lambda world, process: world.map(process, 99),
        lambda world, process: world.unmap(process, 99),
        lambda world, process: world.free(process, 99),
        lambda world, process: world.dma_buf(process, world.map(process, world.create(process, SIZE))),
        lambda world, process: world.dma_buf_of_mapping(process, world.allocate(process, SIZE)),
        lambda world, process: world.dma_buf_of_mapping(
            process, world.map(process, world.create_multicast(process))
        ),
        lambda world, process: world.close(process, 99),
        lambda world, process: world.receive(process, world.socket()),
        lambda world, process: world.close_socket(99),
        lambda world, process: world.end(99),
        lambda world, process: world.unbind(process, world.create_multicast(process), 0),
        lambda world, process: world.unbind(process, world.create(process, SIZE), 0),
        lambda world, process: world.bind(
            process, world.create_multicast(process), 0, world.create(process, 1), 1
        ),
        lambda world, process: world.bind(process, world.create(process, 1), 0, world.create(process, 1)),
        lambda world, process: world.export_fabric(process, world.create_multicast(process)),
    ],
)
def test_what_is_not_there_is_refused(
    world: World, process: int, wrong: Callable[[World, int], object]
) -> None:
    with pytest.raises(RefusedError):
        wrong(world, process)


@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_hundred_communicators_leave_nothing(ranks: int, *, multicast: bool) -> None:
    record = communicators(100, ranks=ranks, multicast=multicast)
    most = 0
    for _, world in replayed(record.calls):
        most = max(most, world.physical_bytes())
    assert most == ranks * 96 * MIB
    assert record.world.physical_bytes() == 0
    assert all(record.world.created_bytes(process) == 0 for process in record.world.processes)


def referred_to(world: World) -> set[object]:
    """What a handle, a mapping, a descriptor or a socket names, and what is bound to an object among that."""
    named: list[Thing] = [
        handle.thing for tables in world.processes.values() for handle in tables.handles.values()
    ]
    named += [thing for tables in world.processes.values() for _, thing in tables.mappings.values()]
    named += [memory for tables in world.processes.values() for memory in tables.allocations.values()]
    named += [file.thing for tables in world.processes.values() for file in tables.descriptors.values()]
    named += [file.thing for waiting in world.sockets.values() for file in waiting]
    bound = [memory for thing in named if isinstance(thing, Multicast) for memory in thing.bound.values()]
    return {thing for thing in [*named, *bound] if isinstance(thing, Memory)}


@pytest.mark.parametrize("block", range(5))
def test_random_histories_hold_what_is_referred_to_and_nothing_else(block: int) -> None:
    """500 histories, judged after each call."""
    verbs: set[str] = set()
    for seed in range(block * 100, block * 100 + 100):
        calls = random_history(seed)
        assert calls == random_history(seed)
        verbs |= {call.verb for call in calls}
        before = 0
        for call, world in replayed(calls):
            alive = world.alive()
            assert alive == referred_to(world)
            assert world.physical_bytes() - before <= (
                call.arguments[1] if call.verb in {"create", "allocate"} else 0
            )
            assert sum(
                world.created_bytes(creator) for creator in {memory.creator for memory in alive}
            ) == sum(memory.size for memory in alive)
            held = {memory for memory in alive if world.holders(memory)}
            assert sum(memory.size for memory in alive - held) == world.in_flight_bytes()
            before = world.physical_bytes()
        drained(world)
        assert world.physical_bytes() == 0
    assert len(verbs) == 23


def drained(world: World) -> None:
    """Every process ends, every socket closes."""
    for process in list(world.processes):
        world.end(process)
    for socket in list(world.sockets):
        world.close_socket(socket)
