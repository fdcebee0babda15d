"""Random histories of processes that share memory, and the patterns of real libraries. All follow from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.oracle.export_lifetimes import Memory, Multicast, World

MIB = 1 << 20
GRANULE = 2 * MIB
OFFSETS = frozenset(number * 128 * MIB for number in range(4))  # where a multicast object takes memory


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the method of `World` that has its name; ``result`` is the number that it gave."""

    verb: str
    arguments: tuple[int, ...] = ()
    result: int | None = None


class Recorder:
    """A world whose calls are written down as they are made."""

    def __init__(self) -> None:
        self.world = World()
        self.calls: list[Call] = []

    def __call__(self, verb: str, *arguments: int) -> int:
        """Make a call; the number that it gives, 0 for none."""
        result: int | None = getattr(self.world, verb)(*arguments)
        self.calls.append(Call(verb, arguments, result))
        return result or 0


def replayed(calls: Iterable[Call]) -> Iterator[tuple[Call, World]]:
    """Each call, and the one world as it is behind it."""
    world = World()
    for call in calls:
        assert getattr(world, call.verb)(*call.arguments) == call.result
        yield call, world


def random_history(
    seed: int, *, calls: int = 60, processes: int = 3, multicast: bool = True
) -> tuple[Call, ...]:
    """A history that CUDA and Linux allow; it ends early when no process is left."""
    chance = random.Random(seed)
    record = Recorder()
    for _ in range(chance.randint(1, processes)):
        record("start")
    record("socket")
    while len(record.calls) < calls and record.world.processes:
        process = chance.choice(list(record.world.processes))
        options = list(_options(chance, record.world, process, multicast=multicast))
        weights = [weight for weight, _, _ in options]
        _, verb, arguments = chance.choices(options, weights)[0]
        record(verb, *arguments)
    return tuple(record.calls)


Option = tuple[float, str, tuple[int, ...]]  # weight, call, its arguments


def _options(chance: random.Random, world: World, process: int, *, multicast: bool) -> Iterator[Option]:
    """What the process can do now."""
    tables = world.processes[process]
    yield 3, "create", (process, chance.randint(1, 8) * GRANULE)
    yield 0.2, "fork", (process,)
    yield 0.3, "end", (process,)
    if tables.handles:
        handle = chance.choice(list(tables.handles))
        yield 4, "release", (process, handle)
        yield 3, "map", (process, handle)
        yield 4, "export", (process, handle)
    if tables.mappings:
        yield 3, "unmap", (process, chance.choice(list(tables.mappings)))
        yield 1, "retain", (process, chance.choice(list(tables.mappings)))
    yield from _dma_buf_options(chance, world, process)
    if tables.descriptors:
        descriptor = chance.choice(list(tables.descriptors))
        yield 4, "close", (process, descriptor)
        yield 1, "dup", (process, descriptor)
        if not tables.descriptors[descriptor].is_dma_buf:
            yield 2, "import_", (process, descriptor)
        yield 4, "send", (process, descriptor, chance.choice(list(world.sockets)))
    for socket, waiting in world.sockets.items():
        if waiting:
            yield 4, "receive", (process, socket)
    if multicast:
        yield from _multicast_options(chance, world, process)


def _dma_buf_options(chance: random.Random, world: World, process: int) -> Iterator[Option]:
    tables = world.processes[process]
    yield 1, "allocate", (process, chance.randint(1, 8) * GRANULE)
    if tables.allocations:
        address = chance.choice(list(tables.allocations))
        yield 3, "free", (process, address)
        yield 3, "dma_buf", (process, address)
    mapped = [address for address, (_, thing) in tables.mappings.items() if isinstance(thing, Memory)]
    if mapped:
        yield 2, "dma_buf_of_mapping", (process, chance.choice(mapped))


def _multicast_options(chance: random.Random, world: World, process: int) -> Iterator[Option]:
    tables = world.processes[process]
    yield 0.5, "create_multicast", (process,)
    memories = [name for name, handle in tables.handles.items() if isinstance(handle.thing, Memory)]
    addresses = [address for address, (_, thing) in tables.mappings.items() if isinstance(thing, Memory)]
    for name, handle in tables.handles.items():
        if not isinstance(handle.thing, Multicast):
            continue
        taken = {offset for _, offset in handle.thing.bound}
        for offset in sorted(OFFSETS - taken)[:1]:
            if memories:
                yield 2, "bind", (process, name, offset, chance.choice(memories))
            if addresses:
                yield 1, "bind_address", (process, name, offset, chance.choice(addresses))
        for offset in sorted(taken):
            yield 1, "unbind", (process, name, offset)


def communicators(number: int, *, ranks: int = 2, size: int = 96 * MIB, multicast: bool = False) -> Recorder:
    """``number`` communicators, made and destroyed one after another, as NCCL does between processes of one machine: each
    rank creates a buffer, maps it, gives a descriptor to its neighbour, which maps it too; then all is undone, the maker
    first. With ``multicast``, the buffers are bound to an object that the first rank makes and the others import."""
    record = Recorder()
    processes = [record("start") for _ in range(ranks)]
    socket = record("socket")
    for _ in range(number):
        _communicate(record, processes, socket, size, multicast=multicast)
    return record


def _communicate(record: Recorder, processes: list[int], socket: int, size: int, *, multicast: bool) -> None:
    def given(giver: int, handle: int, taker: int) -> int:
        """A handle that ``taker`` imports, all descriptors closed again."""
        descriptor = record("export", giver, handle)
        record("send", giver, descriptor, socket)
        record("close", giver, descriptor)
        received = record("receive", taker, socket)
        imported = record("import_", taker, received)
        record("close", taker, received)
        return imported

    made = {process: record("create", process, size) for process in processes}
    held: list[tuple[int, int]] = list(made.items())  # process, handle
    bound: list[tuple[int, int, int]] = []  # process, handle of the multicast object, offset
    if multicast:
        first = record("create_multicast", processes[0])
        objects = {processes[0]: first} | {
            taker: given(processes[0], first, taker) for taker in processes[1:]
        }
        for process, offset in zip(processes, sorted(OFFSETS), strict=False):
            record("bind", process, objects[process], offset, made[process])
            bound.append((process, objects[process], offset))
        held += objects.items()
    held += [
        (taker, given(giver, made[giver], taker))
        for giver, taker in zip(processes, processes[1:] + processes[:1], strict=True)
        if giver != taker
    ]
    mapped = [(process, record("map", process, handle)) for process, handle in held]
    binding = {(process, handle) for process, handle, _ in bound}
    for process, handle in held:
        if (process, handle) not in binding:
            record("release", process, handle)
    for process, address in mapped:
        record("unmap", process, address)
    for process, handle, offset in bound:
        record("unbind", process, handle, offset)
        record("release", process, handle)
