"""Histories of processes that share memory, played by programs in a container beside the oracle.

A descriptor is sent by way of the test's own process, which holds it as a socket would.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable

from tests.native.driven import CONTEXT, OUT, SUCCESS, Container, Program
from tests.native.structures import POSIX, block_props
from tests.oracle.random_exports import Call, replayed

GET_DESCRIPTOR = 438
"""pidfd_getfd(2), for which Python has no function."""
PATIENCE_SECONDS = 2


def descriptor_of(pid: int, descriptor: int) -> int:
    """Another process's descriptor, in this process."""
    process = os.pidfd_open(pid)
    try:
        copy: int = ctypes.CDLL(None, use_errno=True).syscall(GET_DESCRIPTOR, process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return copy


class ExportPlayer:
    """Plays the calls of a history, and compares the account behind each."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.guests: dict[int, Program] = {}
        self._values: dict[int, int] = {}  # what the oracle calls a number → handle, address or descriptor
        self._sizes: dict[int, int] = {}  # handle or address of the oracle's → bytes
        self._sockets: dict[int, list[tuple[int, int]]] = {}  # descriptors held here, and their bytes
        self.uncharged = self.leaked = self.most_waiting = 0

    def play(self, calls: Iterable[Call], *, judge: bool = True) -> None:
        """Make the calls; ``uncharged`` and ``leaked`` are the worst bytes by which the account was off."""
        for call, world in replayed(calls):
            self._make(call)
            if not judge or not self.guests:  # the dead are found by the living
                continue
            least = sum(CONTEXT + world.created_bytes(process) for process in self.guests)
            self.uncharged = max(self.uncharged, least - self._container.charged())
            self.look_again(least)
            self.leaked = max(self.leaked, self._container.charged() - least)
            self.uncharged = max(self.uncharged, least - self._container.charged())

    def look_again(self, least: int) -> None:
        """Each process asks how much there is: what others have let go of, and what dead ones held, is given back."""
        began = time.monotonic()
        while True:
            for guest in self.guests.values():
                assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
            if self._container.charged() <= least or time.monotonic() - began > PATIENCE_SECONDS:
                return

    def _make(self, call: Call) -> None:
        if call.verb == "start":
            assert call.result is not None
            self.guests[call.result] = self._container.program().start()
        elif call.verb == "end":
            self.guests.pop(call.arguments[0]).kill()
        elif call.verb == "socket":
            assert call.result is not None
            self._sockets[call.result] = []
        elif call.verb == "close_socket":
            for descriptor, _ in self._sockets.pop(call.arguments[0]):
                os.close(descriptor)
        else:
            value = getattr(self, f"_{call.verb}")(
                self.guests[call.arguments[0]], *call.arguments[1:], result=call.result
            )
            if call.result is not None:
                self._values[call.result] = value

    def _create(self, guest: Program, size: int, *, result: int) -> int:
        self._sizes[result] = size
        return guest("cuMemCreate", OUT, size, block_props(), 0).value

    def _release(self, guest: Program, handle: int, *, result: None) -> None:
        assert guest("cuMemRelease", self._values[handle]).result == SUCCESS

    def _retain(self, guest: Program, address: int, *, result: int) -> int:
        self._sizes[result] = self._sizes[address]
        return guest("cuMemRetainAllocationHandle", OUT, self._values[address]).value

    def _map(self, guest: Program, handle: int, *, result: int) -> int:
        size = self._sizes[result] = self._sizes[handle]
        at = guest("cuMemAddressReserve", OUT, size, 0, 0, 0).value
        assert guest("cuMemMap", at, size, 0, self._values[handle], 0).result == SUCCESS
        return at

    def _unmap(self, guest: Program, address: int, *, result: None) -> None:
        assert guest("cuMemUnmap", self._values[address], self._sizes[address]).result == SUCCESS

    def _export(self, guest: Program, handle: int, *, result: int) -> int:
        self._sizes[result] = self._sizes[handle]
        return guest("cuMemExportToShareableHandle", OUT, self._values[handle], POSIX, 0).value & 0xFFFFFFFF

    def _allocate(self, guest: Program, size: int, *, result: int) -> int:
        self._sizes[result] = size
        return guest("cuMemAlloc_v2", OUT, size).value

    def _free(self, guest: Program, address: int, *, result: None) -> None:
        assert guest("cuMemFree_v2", self._values[address]).result == SUCCESS

    def _dma_buf(self, guest: Program, address: int, *, result: int) -> int:
        size = self._sizes[result] = self._sizes[address]
        return (
            guest("cuMemGetHandleForAddressRange", OUT, self._values[address], size, 1, 0).value & 0xFFFFFFFF
        )

    _dma_buf_of_mapping = _dma_buf

    def _import_(self, guest: Program, descriptor: int, *, result: int) -> int:
        self._sizes[result] = self._sizes[descriptor]
        return guest("cuMemImportFromShareableHandle", OUT, self._values[descriptor], POSIX).value

    def _close(self, guest: Program, descriptor: int, *, result: None) -> None:
        assert guest("close", self._values[descriptor]).result == 0

    def _dup(self, guest: Program, descriptor: int, *, result: int) -> int:
        self._sizes[result] = self._sizes[descriptor]
        return guest("dup", self._values[descriptor]).result

    def _send(self, guest: Program, descriptor: int, socket: int, *, result: None) -> None:
        copy = descriptor_of(guest.process.pid, self._values[descriptor])
        self._sockets[socket].append((copy, self._sizes[descriptor]))

    def _receive(self, guest: Program, socket: int, *, result: int) -> int:
        copy, self._sizes[result] = self._sockets[socket].pop(0)
        process = guest("pidfd_open", os.getpid(), 0).result
        received = guest("pidfd_getfd", process, copy, 0).result
        assert received >= 0
        assert guest("close", process).result == 0
        os.close(copy)
        return received

    def end(self) -> None:
        """Close what sockets hold."""
        for held in self._sockets.values():
            for descriptor, _ in held:
                os.close(descriptor)
