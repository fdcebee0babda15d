"""A node's agent and watcher, a neighbour, and a container whose root attacks the files that it was given.

The container has its files as a runtime mounts them: the usage page writable, limits and gate read-only, in a
mount namespace of its own. What is measured is what others notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpu_manager.adapters.control_pages.page_directory import PageMounts
from gpu_manager.adapters.control_pages.pages import FileControlPages, NativeGateWatcher
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready, Tampered
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.control_pages import GateWatch, Limit, WatchedTenant
from tests.fakes.hostile_attacks import Attack, Judged, Phase
from tests.fakes.hostile_tenant import HostileTenant
from tests.fakes.open_files import open_files
from tests.fakes.pages import CARD, limits_of, register
from tests.fakes.waiting import until
from vcuda.page.layout import read_gate
from vcuda.page.usage import USAGE_HEAD_SIZE

VICTIM, HOSTILE, NEW = "a" * 32, "b" * 32, "c" * 32
_MS_SHARED: Final = 1 << 20
_SAMPLES: Final = 5  # the usage sampler's, one a second


class HostileWorld:
    """Use :func:`hostile_world`."""

    def __init__(self, run: Path, program: Path) -> None:
        self.root = run / "pages"
        self._program = program
        self._now_ns = 10**12
        self._smaller = 20
        self.pages = self._agent()
        self.watcher: NativeGateWatcher | None = None
        self.pages.open(VICTIM, [self._limit(40, Priority.PROTECTED)])
        self.pages.open(HOSTILE, [self._limit(30, Priority.BEST_EFFORT)])
        self._lock = register(self.root / VICTIM / "usage", 0)
        self._keeper = self._keep()
        self._watch()

    def play(self, attack: Attack) -> Judged:
        """Have the container attack, bring back who was away, and measure what others notice."""
        judged = Judged(attack)
        files = {"usage": self.root / HOSTILE / "usage", "limits": self.root / HOSTILE / "limits",
                 "gate": self.pages.gates.path(CARD)}  # fmt: skip
        inside = self.root.parent / "container"
        inside.mkdir(exist_ok=True)
        mounts = [(path, inside / name, name != "usage") for name, path in files.items()]
        with HostileTenant(mounts) as tenant:
            self._leave(attack.phase)
            for order, how in attack.orders:
                judged.errno = tenant.order(order, inside / attack.file, **how) or judged.errno
            began = time.monotonic()
            self._return(attack.phase)
            judged.seconds["the agent's return"] = time.monotonic() - began
            self._measure(judged, tenant)
        return judged

    def own_limit_seconds(self) -> float:
        """How long the container's own limit takes to follow, however long that is."""
        began = time.monotonic()
        until(self._shrinks)
        return time.monotonic() - began

    def close(self) -> None:
        """End agent and watcher."""
        with contextlib.ExitStack() as ends:  # each of them, whatever another raises
            ends.callback(self.pages.close)
            for name in (NEW, HOSTILE, VICTIM):
                ends.callback(self.pages.remove, name)
            ends.callback(self._end_keeper)
            if self.watcher is not None:
                ends.callback(self.watcher.close)
            ends.callback(os.close, self._lock)

    def _end_keeper(self) -> None:
        self._keeper.kill()
        self._keeper.wait()

    def _measure(self, judged: Judged, tenant: HostileTenant) -> None:
        for what, attempt in (
            ("a start on the same card", self._starts),
            ("the neighbour's limit", self._neighbour_follows),
            ("the neighbour's usage", lambda: bool(self.pages.usage(VICTIM))),
        ):
            judged.seconds[what] = _seconds(attempt)
        leases = self.pages.gates.leases().get(CARD, ())
        for _ in range(_SAMPLES):
            judged.named = judged.named or self._is_named() or tenant.pid in leases
        if "kept when asked" not in judged.attack.name:
            judged.seconds["the neighbour's protection"] = _seconds(self._gate_closes)
            judged.seconds["its own limit"] = _seconds(self._shrinks)

    def _starts(self) -> bool:
        self.pages.remove(NEW)
        self.pages.open(NEW, [self._limit(10, Priority.BEST_EFFORT)])
        return self.pages.usage(NEW)[0].memory == 0

    def _neighbour_follows(self) -> bool:
        self._smaller += 1
        self.pages.open(VICTIM, [self._limit(self._smaller, Priority.PROTECTED)])
        return limits_of(self.root, VICTIM).cards[0].core_limit == self._smaller

    def _shrinks(self) -> bool:
        with contextlib.suppress(Tampered):  # what stands on the page counts
            self.pages.open(HOSTILE, [self._limit(5, Priority.BEST_EFFORT)])
        return limits_of(self.root, HOSTILE).cards[0].core_limit == 5

    def _is_named(self) -> bool:
        self._now_ns += 10**9
        before = self.pages.attacks(HOSTILE)[0]
        try:
            if HOSTILE not in self.pages.unchanged([HOSTILE]):
                self.pages.usage(HOSTILE)
        except Tampered:
            return True
        except NodeUnready:
            return False
        return self.pages.attacks(HOSTILE)[0] > before or bool(self.pages.tampering().get(HOSTILE))

    def _gate_closes(self) -> bool:
        gate = self.pages.gates.path(CARD)
        page = self.root / VICTIM / "usage"
        self.pages.gates.ensure(CARD)
        before = _closings(gate)
        for word in (1, 0):
            with page.open("r+b", buffering=0) as file:
                os.pwrite(file.fileno(), struct.pack("<I", word), USAGE_HEAD_SIZE + 64)
                os.utime(file.fileno())
            if word:
                until(lambda: _closings(gate) > before)
        return True

    def _keep(self) -> subprocess.Popen[bytes]:
        """The process that has all files open while the agent is away; returns once it has."""
        keeper = subprocess.Popen([self._program, "keep", self.root])
        wanted = {str(path.resolve()) for path in self.root.glob("*/*")}
        try:
            until(lambda: wanted <= set(open_files(keeper.pid)))
        except BaseException:
            keeper.kill()
            keeper.wait()
            raise
        return keeper

    def _leave(self, phase: Phase) -> None:
        if phase is Phase.BOTH:
            self._end_keeper()
        if phase in (Phase.AGENT, Phase.BOTH):
            self.pages.close()
        if phase in (Phase.WATCHER, Phase.BOTH) and self.watcher is not None:
            self.watcher.close()

    def _return(self, phase: Phase) -> None:
        if phase in (Phase.AGENT, Phase.BOTH):
            self.pages = self._agent()
            for name, cores, priority in (
                (VICTIM, 40, Priority.PROTECTED),
                (HOSTILE, 30, Priority.BEST_EFFORT),
            ):
                try:
                    self.pages.open(name, [self._limit(cores, priority)])
                except Tampered:
                    continue  # the agent goes on
        if phase in (Phase.WATCHER, Phase.BOTH):
            self._watch()

    def _watch(self) -> None:
        if self.watcher is None:
            self.watcher = NativeGateWatcher(self._program, self.root, self.pages.gates.path)
        tenants = (WatchedTenant(VICTIM, 0, 40),)
        self.watcher.watch([GateWatch(CARD, tenants, (WatchedTenant(HOSTILE, 0, 30),))])

    def _agent(self) -> FileControlPages:
        return FileControlPages(self.root, mounts=PageMounts(512 << 10), monotonic_ns=lambda: self._now_ns)

    @staticmethod
    def _limit(cores: int, priority: Priority, card: CardUuid = CARD) -> Limit:
        return Limit(card, GIB, cores, cores, priority)


def _seconds(attempt: Callable[[], bool]) -> float:
    began = time.monotonic()
    until(attempt)
    return time.monotonic() - began


def _closings(gate: Path) -> int:
    return read_gate(gate.read_bytes()).closings


def may_mount() -> bool:
    """True if this process may mount file systems."""
    return os.geteuid() == 0 and bool(int(_status("CapEff"), 16) >> 21 & 1)


def _status(field: str) -> str:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


@contextmanager
def hostile_world(base: Path, program: Path) -> Iterator[HostileWorld]:
    """A node with a ``/run`` of 16 MiB below ``base``; ``program`` is vcuda-gates."""
    libc = ctypes.CDLL(None, use_errno=True)
    run = base / "run"
    run.mkdir()
    if libc.mount(b"run", bytes(run), b"tmpfs", ctypes.c_ulong(0), b"size=16m,nr_inodes=4096") != 0:
        raise OSError(ctypes.get_errno(), "mount")
    libc.mount(None, bytes(run), None, ctypes.c_ulong(_MS_SHARED), None)
    try:
        with contextlib.closing(HostileWorld(run, program)) as world:
            yield world
    finally:
        for mounted in (run / "pages").glob("*"):
            libc.umount2(bytes(mounted), 2)
        libc.umount2(bytes(run), 2)
