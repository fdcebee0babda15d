"""A container's root that attacks the files which its container was given, as a process of its own.

It has the uid of the agent, and no more capabilities than a container runtime leaves by default: none to take
leases on files of others (CAP_LEASE), none to mount. It reads orders as lines of JSON, and answers each with
the errno of what it tried, 0 if that succeeded.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.fakes.waiting import PATIENCE

_DEFAULT_CAPABILITIES: Final = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)  # containerd's
_HEADER: Final = struct.Struct("=Ii")
_SETS: Final = struct.Struct("=6I")
_VERSION_3: Final = 0x20080522
_CLONE_NEWNS: Final = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_FS_IOC_SETFLAGS, _FS_IMMUTABLE = 0x40086602, 0x10
_F_ADD_SEALS, _F_SEAL_WRITE = 1033, 8
_FLOCK: Final = struct.Struct("hhqqi4x")


class HostileTenant:
    """The process, seen from the test that orders its attacks."""

    def __init__(self, mounts: Sequence[tuple[Path, Path, bool]] = ()) -> None:
        """``mounts``: files that it sees at another path, each with whether it may only read it there."""
        told = json.dumps([(str(source), str(target), is_readonly) for source, target, is_readonly in mounts])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.hostile_tenant", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, attack: str, path: Path, **how: Any) -> int:
        """Have it attack the file; returns the errno of the attack, 0 if it succeeded."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"attack": attack, "path": str(path), **how}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the tenant ended while it tried {attack}"
        return int(answer)

    def close(self) -> None:
        """End it; the kernel takes back all that it held."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Attacks:
    """What the process can be told to do; each method is one attack, by its name."""

    def __init__(self) -> None:
        self._held: dict[str, list[int]] = {}
        self._leases: dict[int, int] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        signal.signal(signal.SIGIO, self._asked_to_leave)

    def lease(self, path: str, *, kind: str, writable: bool = False) -> None:
        """A lease that is taken anew as soon as the kernel asks for it back."""
        file = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK if kind == "read" else fcntl.F_WRLCK)
        except OSError:
            os.close(file)
            raise
        self._leases[file] = fcntl.F_RDLCK if kind == "read" else fcntl.F_WRLCK
        self._held.setdefault(path, []).append(file)

    def give_back(self, path: str) -> None:
        """Close everything that it holds of the file, and take no lease any more."""
        for file in self._held.pop(path, []):
            self._leases.pop(file, None)
            os.close(file)

    def keep_lease(self, path: str) -> None:
        """Never answer when the kernel asks for the leases back."""
        for file in self._held.get(path, []):
            self._leases.pop(file, None)

    def locks(self, path: str, *, count: int, start: int, step: int = 2, length: int = 1) -> None:
        """So many locks of one open file; those of length 0 go to its end."""
        file = os.open(path, os.O_RDWR)
        self._held.setdefault(path, []).append(file)
        for i in range(count):
            lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start + step * i, length, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)

    def write(self, path: str, *, offset: int, words: list[int], times: int = 1) -> None:
        """These 32-bit words, so many times."""
        file = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(file, struct.pack(f"<{len(words)}I", *words) * times, offset)
        finally:
            os.close(file)

    def write_slots(self, path: str) -> None:
        """All slots are live, with work in flight."""
        for slot in range(1024):
            self.write(path, offset=12288 + slot * 256, words=[1, 7])
            self.write(path, offset=12288 + slot * 256 + 64, words=[1])
        self.write(path, offset=32, words=[1024])

    def immutable(self, path: str) -> None:
        """A file that nobody may change, its owner neither."""
        file = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(file, _FS_IOC_SETFLAGS, struct.pack("l", _FS_IMMUTABLE))
        finally:
            os.close(file)

    def seal(self, path: str) -> None:
        """A seal against writing, as memfd_create's files have it."""
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.fcntl(file, _F_ADD_SEALS, _F_SEAL_WRITE)
        finally:
            os.close(file)

    def mount(self, path: str, *, source: str = "", undo: bool = False) -> None:
        """Another file over it, or what is mounted there away."""
        if undo:
            _checked(_libc().umount2(path.encode(), 2))
        else:
            _checked(_libc().mount(source.encode(), path.encode(), None, ctypes.c_ulong(_MS_BIND), None))

    def access_list(self, path: str) -> None:
        """Nobody but uid 4711 may read it."""
        entries = [(0x01, 6, -1), (0x02, 7, 4711), (0x04, 0, -1), (0x10, 7, -1), (0x20, 0, -1)]
        packed = b"".join(struct.pack("<HHi", *entry) for entry in entries)
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)

    def watch(self, path: str, *, touches: int) -> None:
        """An inotify watch of its own, and times that change all the time."""
        file = _libc().inotify_init1(0)
        _libc().inotify_add_watch(file, path.encode(), 0xFFF)
        self._held.setdefault(path, []).append(file)
        for _ in range(touches):
            os.utime(path)

    def lease_of_another_uid(self, path: str) -> None:
        """The file is given to uid 1000, who then takes a lease."""
        os.chown(path, 1000, 1000)
        file = os.open(path, os.O_RDWR)
        self._held.setdefault(path, []).append(file)
        os.setresuid(-1, 1000, -1)
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        finally:
            os.setresuid(-1, 0, -1)

    def call(self, path: str, *, function: str, arguments: list[Any]) -> None:
        """A function of ``os`` on the path. Bytes are given as text."""
        getattr(os, function)(path, *(a.encode() if isinstance(a, str) else a for a in arguments))

    def fallocate(self, path: str, *, size: int, mode: int = 0) -> None:
        """Reserve, punch or collapse ranges, as ``fallocate(2)`` has it."""
        file = os.open(path, os.O_RDWR)
        try:
            result = _libc().fallocate(file, mode, ctypes.c_long(0), ctypes.c_long(size))
            if result < 0:
                raise OSError(ctypes.get_errno(), "fallocate")
        finally:
            os.close(file)

    def attributes(self, path: str, *, names: int, bytes_each: int, first: int = 0, long: int = 0) -> None:
        """Extended attributes, each with a name ``long`` characters longer than need be."""
        for i in range(first, first + names):
            os.setxattr(path, f"user.{i}{'x' * long}", bytes(bytes_each))

    def execute(self, path: str) -> None:
        """Run the file as a program: a copy of ``sleep`` with its text in it, as long as this process lives."""
        image = Path("/bin/sleep").read_bytes()
        os.chmod(path, 0o777)  # noqa: PTH101 - the attack
        with Path(path).open("r+b") as page:
            page.write(image)
        self._children.append(subprocess.Popen([path, "1000"]))

    def _asked_to_leave(self, *_: object) -> None:
        for file, kind in list(self._leases.items()):
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                fcntl.fcntl(file, fcntl.F_SETLEASE, kind)
            except OSError:  # somebody opens the file for writing at this moment
                continue

    def end(self) -> None:
        """End what it has started."""
        for child in self._children:
            child.kill()
            child.wait()


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _mount(mounts: list[tuple[str, str, bool]]) -> None:
    """As a container runtime does: one file each, in a mount namespace of its own."""
    if not mounts:
        return
    _checked(_libc().unshare(_CLONE_NEWNS))
    _checked(_libc().mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
    for source, target, is_readonly in mounts:
        Path(target).touch()
        at = target.encode()
        _checked(_libc().mount(source.encode(), at, None, ctypes.c_ulong(_MS_BIND), None))
        if is_readonly:
            flags = ctypes.c_ulong(_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
            _checked(_libc().mount(None, at, None, flags, None))


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _give_up_capabilities() -> None:
    header = ctypes.create_string_buffer(_HEADER.pack(_VERSION_3, 0))
    now = ctypes.create_string_buffer(_SETS.size)
    _libc().capget(header, now)
    _, permitted, _, _, _, _ = _SETS.unpack(now.raw)
    left = permitted & sum(1 << number for number in _DEFAULT_CAPABILITIES)
    wanted = ctypes.create_string_buffer(_SETS.pack(left, left, 0, 0, 0, 0))
    if _libc().capset(header, wanted) != 0:
        sys.exit("cannot give up capabilities")


def main() -> None:
    """Obey the orders on standard input."""
    _mount(json.loads(sys.argv[1]))
    _give_up_capabilities()
    attacks = _Attacks()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            getattr(attacks, order.pop("attack"))(order.pop("path"), **order)
        except OSError as error:
            print(error.errno, flush=True)  # noqa: T201 - the answer
        else:
            print(0, flush=True)  # noqa: T201 - the answer
    attacks.end()


if __name__ == "__main__":
    main()
