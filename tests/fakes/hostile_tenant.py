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
from pathlib import Path
from typing import Any, Final, Self

from tests.fakes.waiting import PATIENCE

_DEFAULT_CAPABILITIES: Final = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)  # containerd's
_HEADER: Final = struct.Struct("=Ii")
_SETS: Final = struct.Struct("=6I")
_VERSION_3: Final = 0x20080522
_FLOCK: Final = struct.Struct("hhqqi4x")


class HostileTenant:
    """The process, seen from the test that orders its attacks."""

    def __init__(self, uid: int | None = None) -> None:
        """``uid``: become this user first, who then has no capability."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.hostile_tenant", "" if uid is None else str(uid)],
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

    def locks(self, path: str, *, count: int, start: int, step: int = 2) -> None:
        """So many byte locks of one open file."""
        file = os.open(path, os.O_RDWR)
        self._held.setdefault(path, []).append(file)
        for i in range(count):
            lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start + step * i, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)

    def call(self, path: str, *, name: str, arguments: list[Any]) -> None:
        """A function of ``os`` on the path. Bytes are given as text."""
        getattr(os, name)(path, *(a.encode() if isinstance(a, str) else a for a in arguments))

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

    def inotify(self, path: str, *, instances: int) -> None:
        """Use up the inotify instances of this uid; succeeds where none is left."""
        for _ in range(instances):
            if _libc().inotify_init1(0) < 0:
                return
        _libc().inotify_add_watch(3, path.encode(), 0xFFF)

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


def _become(uid: str) -> None:
    if uid:
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
        return
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
    _become(sys.argv[1])
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
