"""When is physical memory that processes share really free, and who holds it until then?

Written from documentation alone; what is a guess says so. Model, not yet a card.

- Memory of ``cuMemCreate`` is freed when it is mapped nowhere and when all references to its handle, "including its
  shareable counterparts", are released (Driver API, cuMemRelease). So handles, mappings, and exported descriptors hold it,
  each alone, in any process.
- A mapping outlives the handle that made it (same page). ``cuMemRetainAllocationHandle`` gives the handle of a mapping
  back, with one more reference.
- Each import is a reference of the importing process, to be released by it (same page).
- The shareable counterpart on Linux is a file descriptor (``CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR``): ``dup``, ``fork``
  and ``SCM_RIGHTS`` make more descriptors of one open file, which ends with the last (open(2), unix(7)). A descriptor on
  its way through a socket is held by the kernel until it is received or both ends are closed (unix(7)).
- A dma-buf (``cuMemGetHandleForAddressRange``) of ``cuMemAlloc`` memory or of mapped memory is such a descriptor too, which
  nothing imports. That it holds the memory whole after its free is a guess, and on the safe side: the page says only that
  it has to be closed; Linux keeps a buffer until its last descriptor is closed (dma-buf guide).
- A fabric handle (``CU_MEM_HANDLE_TYPE_FABRIC``) is 64 bytes of data, which hold nothing (a guess).
- A multicast object holds what is bound to it until it is unbound or the object itself is freed. A guess, and on the safe
  side: the pages of cuMulticastBindMem and cuMulticastUnbind do not say; microsoft/mscclpp ran out of memory while it
  leaked multicast objects (pull request 759), and yet saw unbinding fail where the buffer had been freed before (567).
  The object lives as memory does: handles, mappings, descriptors.
- A process that ends holds nothing. Not modelled: that a forked child's copies of the driver's own descriptors may keep
  the memory of a parent that was killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count


class RefusedError(Exception):
    """The call has no object to act on: CUDA would answer with an error, or what follows is undefined."""


@dataclass(eq=False, slots=True)
class Memory:
    """What ``cuMemCreate`` made. Its creator is a process number."""

    name: int
    size: int
    creator: int


@dataclass(eq=False, slots=True)
class Multicast:
    """What ``cuMulticastCreate`` made: no memory of its own."""

    name: int
    creator: int
    bound: dict[tuple[int, int], Memory] = field(default_factory=dict)  # (device, offset) → memory
    devices: set[int] = field(default_factory=set)


Thing = Memory | Multicast


@dataclass(eq=False, slots=True)
class OpenFile:
    """What one export opened; descriptors in any process name it."""

    thing: Thing
    is_dma_buf: bool = False


@dataclass(slots=True)
class Handle:
    thing: Thing
    references: int = 1


@dataclass(slots=True)
class Tables:
    """What one process has."""

    handles: dict[int, Handle] = field(default_factory=dict)
    mappings: dict[int, tuple[int, Thing]] = field(
        default_factory=dict
    )  # address → handle that mapped it, what it maps
    allocations: dict[int, Memory] = field(default_factory=dict)  # of cuMemAlloc, by address
    descriptors: dict[int, OpenFile] = field(default_factory=dict)

    def things(self) -> Iterator[Thing]:
        yield from (handle.thing for handle in self.handles.values())
        yield from (thing for _, thing in self.mappings.values())
        yield from self.allocations.values()
        yield from (file.thing for file in self.descriptors.values())


class World:
    """Processes on one machine, and the memory that they create and share.

    Whatever has a name has a number, given out in order. To be read, not to be changed: ``processes``, ``sockets``.
    """

    def __init__(self) -> None:
        self.processes: dict[int, Tables] = {}
        self.sockets: dict[int, list[OpenFile]] = {}  # what each holds, the first sent first
        self._fabric: dict[int, Memory] = {}
        self._numbers = count(1)

    # What the judge says.

    def alive(self) -> set[Memory]:
        """Memory that is not free."""
        in_flight = (file.thing for files in self.sockets.values() for file in files)
        everywhere = [thing for tables in self.processes.values() for thing in tables.things()]
        return _reached([*everywhere, *in_flight])

    def physical_bytes(self) -> int:
        """How much of the card is taken."""
        return sum(memory.size for memory in self.alive())

    def held_bytes(self, process: int) -> int:
        """How much would not be free, were this process the only one: what it has a handle, a mapping or a descriptor
        of, by itself or through a multicast object."""
        tables = self.processes.get(process)
        return sum(memory.size for memory in _reached(tables.things())) if tables else 0

    def created_bytes(self, process: int) -> int:
        """How much of what this process created is not free, whoever holds it: the least that it must be charged while
        it lives."""
        return sum(memory.size for memory in self.alive() if memory.creator == process)

    def holders(self, memory: Memory) -> set[int]:
        """The processes that hold it."""
        return {number for number, tables in self.processes.items() if memory in _reached(tables.things())}

    def in_flight_bytes(self) -> int:
        """How much only sockets hold: descriptors that nobody has received yet."""
        held = {memory for tables in self.processes.values() for memory in _reached(tables.things())}
        return sum(memory.size for memory in self.alive() - held)

    # What processes do.

    def start(self) -> int:
        """A new process."""
        number = next(self._numbers)
        self.processes[number] = Tables()
        return number

    def fork(self, process: int) -> int:
        """A child: it has the descriptors, but CUDA's handles and mappings are not usable in it (Programming Guide)."""
        descriptors = dict(self._of(process).descriptors)
        child = self.start()
        self.processes[child].descriptors = descriptors
        return child

    def end(self, process: int) -> None:
        """The process exits or is killed."""
        self._of(process)
        del self.processes[process]

    def create(self, process: int, size: int) -> int:
        """``cuMemCreate`` with shareable handles asked for: a handle."""
        return self._hold(process, Memory(next(self._numbers), size, process))

    def release(self, process: int, handle: int) -> None:
        """``cuMemRelease``, of memory or of a multicast object."""
        held = self._handle(process, handle)
        held.references -= 1
        if held.references == 0:
            del self._of(process).handles[handle]

    def retain(self, process: int, address: int) -> int:
        """``cuMemRetainAllocationHandle``: the handle that made the mapping, with one more reference."""
        handle, thing = self._mapping(process, address)
        held = self._of(process).handles.setdefault(handle, Handle(thing, 0))
        held.references += 1
        return handle

    def map(self, process: int, handle: int) -> int:
        """``cuMemMap`` of the whole: an address."""
        address = next(self._numbers)
        self._of(process).mappings[address] = (handle, self._handle(process, handle).thing)
        return address

    def unmap(self, process: int, address: int) -> None:
        """``cuMemUnmap``."""
        self._mapping(process, address)
        del self._of(process).mappings[address]

    def allocate(self, process: int, size: int) -> int:
        """``cuMemAlloc``: an address."""
        address = next(self._numbers)
        self._of(process).allocations[address] = Memory(address, size, process)
        return address

    def free(self, process: int, address: int) -> None:
        """``cuMemFree``."""
        self._allocation(process, address)
        del self._of(process).allocations[address]

    def dma_buf(self, process: int, address: int) -> int:
        """``cuMemGetHandleForAddressRange`` of an allocation: a descriptor of a newly opened file."""
        return self._open(process, OpenFile(self._allocation(process, address), is_dma_buf=True))

    def dma_buf_of_mapping(self, process: int, address: int) -> int:
        """The same of what is mapped."""
        thing = self._mapping(process, address)[1]
        if not isinstance(thing, Memory):
            raise RefusedError("dma-bufs of multicast objects are not modelled")
        return self._open(process, OpenFile(thing, is_dma_buf=True))

    def export(self, process: int, handle: int) -> int:
        """``cuMemExportToShareableHandle``: a descriptor of a newly opened file."""
        return self._open(process, OpenFile(self._handle(process, handle).thing))

    def export_fabric(self, process: int, handle: int) -> int:
        """The same as a fabric handle: a name that any process may import while the memory lives."""
        thing = self._handle(process, handle).thing
        if not isinstance(thing, Memory):
            raise RefusedError("fabric handles of multicast objects are not modelled")
        self._fabric[thing.name] = thing
        return thing.name

    def import_(self, process: int, descriptor: int) -> int:
        """``cuMemImportFromShareableHandle``: a handle; the descriptor stays the process' own to close."""
        file = self._file(process, descriptor)
        if file.is_dma_buf:
            raise RefusedError(f"descriptor {descriptor} is a dma-buf")
        return self._hold(process, file.thing)

    def import_fabric(self, process: int, name: int) -> int:
        """The same of a fabric handle.

        Raises:
            RefusedError: the memory is free.
        """
        if name not in self._fabric or self._fabric[name] not in self.alive():
            raise RefusedError(f"fabric handle {name} names no memory")
        return self._hold(process, self._fabric[name])

    def close(self, process: int, descriptor: int) -> None:
        """close(2)."""
        self._file(process, descriptor)
        del self._of(process).descriptors[descriptor]

    def dup(self, process: int, descriptor: int) -> int:
        """dup(2)."""
        return self._open(process, self._file(process, descriptor))

    def socket(self) -> int:
        """A pair of connected unix sockets, which any process may use."""
        number = next(self._numbers)
        self.sockets[number] = []
        return number

    def send(self, process: int, descriptor: int, socket: int) -> None:
        """sendmsg(2) with SCM_RIGHTS: the socket holds the open file too."""
        self._queue(socket).append(self._file(process, descriptor))

    def receive(self, process: int, socket: int) -> int:
        """recvmsg(2): a descriptor of the open file that was sent first."""
        if not self._queue(socket):
            raise RefusedError(f"nothing waits in socket {socket}")
        return self._open(process, self.sockets[socket].pop(0))

    def close_socket(self, socket: int) -> None:
        """Both ends are closed: what nobody received is closed with them."""
        self._queue(socket)
        del self.sockets[socket]

    def create_multicast(self, process: int, devices: int = 1) -> int:
        """``cuMulticastCreate`` and ``cuMulticastAddDevice`` for each device from 0 on: a handle."""
        return self._hold(process, Multicast(next(self._numbers), process, devices=set(range(devices))))

    def bind(self, process: int, multicast: int, offset: int, handle: int, device: int = 0) -> None:
        """``cuMulticastBindMem``."""
        self._bind(process, multicast, (device, offset), self._handle(process, handle).thing)

    def bind_address(self, process: int, multicast: int, offset: int, address: int, device: int = 0) -> None:
        """``cuMulticastBindAddr``."""
        self._bind(process, multicast, (device, offset), self._mapping(process, address)[1])

    def unbind(self, process: int, multicast: int, offset: int, device: int = 0) -> None:
        """``cuMulticastUnbind``."""
        thing = self._handle(process, multicast).thing
        if not isinstance(thing, Multicast) or (device, offset) not in thing.bound:
            raise RefusedError("nothing is bound there")
        del thing.bound[device, offset]

    def _bind(self, process: int, multicast: int, place: tuple[int, int], memory: Thing) -> None:
        thing = self._handle(process, multicast).thing
        if not isinstance(thing, Multicast) or not isinstance(memory, Memory):
            raise RefusedError("memory is bound to a multicast object")
        if place[0] not in thing.devices or place in thing.bound:
            raise RefusedError("no such device, or something is bound there")
        thing.bound[place] = memory

    def _of(self, process: int) -> Tables:
        if process not in self.processes:
            raise RefusedError(f"no process {process}")
        return self.processes[process]

    def _handle(self, process: int, handle: int) -> Handle:
        if handle not in self._of(process).handles:
            raise RefusedError(f"no handle {handle}")
        return self.processes[process].handles[handle]

    def _mapping(self, process: int, address: int) -> tuple[int, Thing]:
        if address not in self._of(process).mappings:
            raise RefusedError(f"nothing is mapped at {address}")
        return self.processes[process].mappings[address]

    def _allocation(self, process: int, address: int) -> Memory:
        if address not in self._of(process).allocations:
            raise RefusedError(f"nothing was allocated at {address}")
        return self.processes[process].allocations[address]

    def _file(self, process: int, descriptor: int) -> OpenFile:
        if descriptor not in self._of(process).descriptors:
            raise RefusedError(f"no descriptor {descriptor}")
        return self.processes[process].descriptors[descriptor]

    def _queue(self, socket: int) -> list[OpenFile]:
        if socket not in self.sockets:
            raise RefusedError(f"no socket {socket}")
        return self.sockets[socket]

    def _hold(self, process: int, thing: Thing) -> int:
        handle = next(self._numbers)
        self._of(process).handles[handle] = Handle(thing)
        return handle

    def _open(self, process: int, file: OpenFile) -> int:
        descriptor = next(self._numbers)
        self._of(process).descriptors[descriptor] = file
        return descriptor


def _reached(things: Iterator[Thing] | list[Thing]) -> set[Memory]:
    """The memory among them, and what is bound to the multicast objects among them."""
    found: set[Memory] = set()
    for thing in things:
        found |= {thing} if isinstance(thing, Memory) else set(thing.bound.values())
    return found
