"""Containers under the library on one modelled card: real processes, real pages, a real clock.

Shared by the tests of core limits and by their bench.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.rows import shared_memory
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.enforcement.time_sharing import CardTenant, TimeSharing
from tests.fakes.metrics import service_metrics
from tests.native import standin
from tests.native.card_watch import Watch
from tests.native.programs import built_interposer, compiled
from vcuda.page.layout import uuid_text
from vcuda.page.limits import CardLimits, read_limits
from vcuda.page.usage import SLOT_SIZE, USAGE_HEAD_SIZE, CardUsage, Slot, read_usage


def uuid_of(card: int) -> CardUuid:
    """The stand-in's cards have UUIDs that their numbers decide."""
    return CardUuid(
        uuid_text(bytes(((card + 1) * 37 + at * 101) & 255 for at in range(16)), standin.INSTANCES)
    )


CARD = uuid_of(0)


@functools.cache
def _machine() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(
        prefix="vcuda-machine-", ignore_cleanup_errors=True, dir=shared_memory()
    )


def one_machine() -> Path:
    """The machine that this process's NVML looks at: the stand-in reads where it is once a process."""
    return Path(_machine().name)


@dataclass(slots=True)
class Load:
    """A running ``core_load``."""

    process: subprocess.Popen[str]
    windows: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    share: float = 0.0

    def wait_running(self) -> None:
        """Until it has initialised and begins."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line == "running\n", (line, self.process.communicate())

    def finish(self, timeout: float = 120) -> Load:
        """Until it ends; it must end well. Fills shares, in percent."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, (self.process.returncode, err)
        assert err == ""
        for line in out.splitlines():
            match line.split():
                case ["window", end, share]:
                    self.ends.append(float(end))
                    self.windows.append(float(share) * 100)
                case ["share", share, *_]:
                    self.share = float(share) * 100
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container: its directory's name and its root."""

    name: str
    root: Path


class World:
    """A machine with stand-in cards, containers on it, and if wanted the host's co-activity loop."""

    def __init__(
        self,
        base: Path,
        *,
        version: str = "13.0",
        cards: int = 1,
        state: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """``settings`` are the stand-in driver's, in every container."""
        self.base, self.version, self.cards = base, version, cards
        self.state = state or base / "state"
        self.state.mkdir(parents=True, exist_ok=True)
        self.tenants = FileControlPages(base / "pages")
        self.settings = settings or {}
        self.load = compiled("core_load.c")
        self.interposer = built_interposer()
        self.started: list[Load] = []
        self.watches: list[Watch] = []
        self.pids: dict[str, list[int]] = {}
        self.priorities: dict[str, Priority] = {}
        self._count = 0

    def tenant(
        self,
        cores: int,
        ceiling: int | None = None,
        cards: Sequence[CardUuid] = (CARD,),
        priority: Priority = Priority.NORMAL,
    ) -> Tenant:
        """Make a container's pages and root."""
        self._count += 1
        name = f"{self._count:032x}"
        self.limit(name, cores, ceiling, cards, priority)
        if priority is Priority.BEST_EFFORT:
            (self.base / "pages" / name / "gates").symlink_to(self.base / "pages" / "gates")
        root = self.base / f"root{self._count}"
        (root / "usr/local/vcuda/real").mkdir(parents=True)
        (root / "etc").mkdir()
        (root / "etc/vcuda").symlink_to(self.base / "pages" / name)
        real = standin.built() / self.version / "libcuda.so.1"
        (root / "usr/local/vcuda/real/libcuda.so.1").symlink_to(real)
        return Tenant(name, root)

    def limit(
        self,
        name: str,
        cores: int,
        ceiling: int | None = None,
        cards: Sequence[CardUuid] = (CARD,),
        priority: Priority = Priority.NORMAL,
    ) -> None:
        """Set or change the limits, as the agent does."""
        self.priorities[name] = priority
        self.tenants.open(name, [Limit(card, 1 << 34, cores, ceiling or cores, priority) for card in cards])

    def environment(self, tenant: Tenant, **settings: object) -> dict[str, str]:
        """What a process in the container has."""
        return {
            **standin.environment(
                self.state,
                self.version,
                cards=self.cards,
                **self.settings,
                **settings,
            ),
            "VCUDA_ROOT": str(tenant.root),
            "LD_LIBRARY_PATH": str(self.interposer / "sandbox"),
        }

    def start(self, tenant: Tenant, *arguments: object, **settings: object) -> Load:
        """Run ``core_load`` in the container; ``settings`` are the stand-in driver's in this process."""
        process = subprocess.Popen(
            [str(self.load), *map(str, arguments)],
            env=self.environment(tenant, **settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)  # it shall never wait for its reader
        self.started.append(Load(process))
        self.pids.setdefault(tenant.name, []).append(process.pid)
        return self.started[-1]

    def watch(self, period_ms: int = 1000) -> Watch:
        """What the first card says whom it serves; ends with the world at the latest."""
        self.watches.append(
            Watch(
                standin.environment(self.state, self.version, cards=self.cards, **self.settings),
                period_ms,
            )
        )
        return self.watches[-1]

    def limits(self, tenant: Tenant) -> CardLimits:
        """What the container's limits page says of the first card."""
        return read_limits((self.base / "pages" / tenant.name / "limits").read_bytes()).cards[0]

    def usage(self, tenant: Tenant, card: int = 0) -> CardUsage:
        """What the container's usage page says."""
        image = (self.base / "pages" / tenant.name / "usage").read_bytes()
        return read_usage(image, card + 1).cards[card]

    def slots(self, tenant: Tenant) -> Sequence[Slot]:
        """The container's processes, as its usage page says."""
        image = (self.base / "pages" / tenant.name / "usage").read_bytes()
        return read_usage(image, 1).slots

    def slot_offset(self, slot: int = 0) -> int:
        """Where a process's slot begins in the usage page."""
        return USAGE_HEAD_SIZE + slot * SLOT_SIZE

    @contextlib.contextmanager
    def host(self, *tenants: Tenant, driver: bool = False) -> Iterator[TimeSharing]:
        """The agent's co-activity loop over these containers; ``driver``: with what NVML sees of them."""
        stop = threading.Event()
        sampler = _Sampler(self, [tenant.name for tenant in tenants], driver=driver)
        service = TimeSharing(self.tenants, sampler, SystemClock(), service_metrics())
        thread = threading.Thread(target=service.run, args=(stop,))
        thread.start()
        try:
            yield service
        finally:
            stop.set()
            thread.join(10)
            sampler.close()

    def charged_and_had(self, tenant: Tenant, *command: str) -> tuple[float, float]:
        """Run a program that says ``launched SECONDS`` once its work is over and ends when it is told to: what the
        container was charged by then, and what the card served it, in percent of the card over those seconds.
        """
        watch = self.watch(50)
        process = subprocess.Popen(
            command, env=self.environment(tenant), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        kind, seconds = process.stdout.readline().split()[:2]
        assert kind == "launched"
        spent = (self.usage(tenant).busy_ns, watch.served(process.pid))
        process.communicate("\n", timeout=30)
        charged, had = (ns / float(seconds) / 1e7 for ns in spent)
        return charged, had

    def close(self) -> None:
        """End what still runs."""
        for watch in self.watches:
            watch.kill()
        for load in self.started:
            if load.process.stdout and not load.process.stdout.closed:
                load.kill()
        self.tenants.close()


class _Sampler:
    """What the usage sampler tells the loop: who used the card since the last time, and how much NVML saw."""

    def __init__(self, world: World, names: Sequence[str], *, driver: bool) -> None:
        self._world, self._names = world, names
        self._busy: dict[str, int] = {}
        self._cards = _nvml(world) if driver else None

    def __call__(self) -> list[CardTenant]:
        seen = self._driver_shares()
        tenants = []
        for name in self._names:
            activity = self._world.tenants.activity(name)[0]
            at_work = activity.at_work > 0 or activity.busy_ns != self._busy.get(name, 0)
            self._busy[name] = activity.busy_ns
            pids = self._world.pids.get(name, [])
            share = sum(seen.get(pid, 0.0) for pid in pids) if seen else None
            priority = self._world.priorities[name]
            tenants.append(CardTenant(name, activity.card, at_work, share, priority=priority))
        return tenants

    def _driver_shares(self) -> Mapping[int, float]:
        if self._cards is None:
            return {}
        _, processes = self._cards.usage()
        return {p.pid: p.utilisation / 100 for p in processes if p.utilisation is not None}

    def close(self) -> None:
        if self._cards is not None:
            self._cards.close()


def _nvml(world: World) -> NvmlCards:
    """The agent's own reader on the stand-in's NVML; the world must be on :func:`one_machine`."""
    assert world.state == one_machine(), "NVML of this process looks at another machine"
    os.environ["VCUDA_STANDIN_STATE"] = str(world.state)
    os.environ["VCUDA_STANDIN_MODEL"] = "small"
    ctypes.CDLL(str(standin.built() / world.version / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    cards = NvmlCards()
    cards.list()
    return cards


@contextlib.contextmanager
def world(**options: object) -> Iterator[World]:
    """A world in a directory of its own, gone afterwards.

    In memory, where a node has its pages too: on a disk, who writes to a mapped page may wait for its journal.
    """
    with tempfile.TemporaryDirectory(prefix="vcuda-core-", dir=shared_memory()) as name:
        made = World(Path(name), **options)  # type: ignore[arg-type]  # options of World's own
        try:
            yield made
        finally:
            made.close()


def until(condition: object, seconds: float = 60.0) -> bool:
    """Poll a condition until it holds; the time only ends the wait for what never comes."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        threading.Event().wait(0.002)
    return bool(condition())
