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
from gpu_manager.adapters.clock import SystemClock
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.enforcement.time_sharing import CardTenant, TimeSharing
from tests.fakes.metrics import service_metrics
from tests.native import standin
from tests.native.tools import LIB, build_tests, run, tool
from vcuda.page.layout import uuid_text
from vcuda.page.usage import SLOT_SIZE, USAGE_HEAD_SIZE, CardUsage, Slot, read_usage

HERE = Path(__file__).parent


def uuid_of(card: int) -> CardUuid:
    """The stand-in's cards have UUIDs that their numbers decide."""
    return CardUuid(uuid_text(bytes(((card + 1) * 37 + at * 101) & 255 for at in range(16))))


CARD = uuid_of(0)


@functools.cache
def _machine() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(
        prefix="vcuda-machine-", ignore_cleanup_errors=True, dir=shared_memory()
    )


def one_machine() -> Path:
    """The machine that this process's NVML looks at: the stand-in reads where it is once a process."""
    return Path(_machine().name)


@functools.cache
def built_interposer(sanitize: str = "") -> Path:
    """The interposer for a laptop's sandbox, and the unit tests beside it; built once for all workers of a run."""
    return build_tests("sandbox-cuda", "unit_token_bucket", sanitize=sanitize)


@functools.cache
def compiled(source: str, *options: str) -> Path:
    """One of this directory's C programs, built once for all workers of a run."""
    target = built_interposer() / Path(source).stem
    with (built_interposer() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = (LIB / "test" / "standin").glob("*.[ch]")
        newest = max(path.stat().st_mtime for path in (HERE / source, HERE / "core_program.h", *model))
        if not target.exists() or target.stat().st_mtime < newest:
            run(
                tool("cc"),
                "-O2",
                "-Wall",
                "-Wextra",
                *options,
                "-o",
                target,
                HERE / source,
                "-ldl",
                "-lpthread",
            )
    return target


@functools.cache
def _watch() -> Path:
    model = LIB / "test" / "standin"
    sources = [str(model / f"{name}.c") for name in ("card", "turn", "config")]
    return compiled("core_watch.c", f"-I{model}", *sources)


READING_FRESH_NS = 60_000_000
"""A reading of a card is younger than this: nothing older lies in the pipe."""


class Watch:
    """The card's own account of whom it served, read from outside: late readings are as true as early ones."""

    def __init__(self, environment: Mapping[str, str], period_ms: int = 1000) -> None:
        self._process = subprocess.Popen(
            [str(_watch()), str(period_ms)], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout
        fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._seen: list[tuple[int, dict[int, int]]] = []

    def look(self) -> tuple[int, dict[int, int]]:
        """The next reading: the card's clock, and how long it served each process; nanoseconds."""
        assert self._process.stdout
        return _reading(self._process.stdout.readline())

    def served(self, pid: int) -> int:
        """How long the card has served this process by now, nanoseconds; what is read is kept for :meth:`fullest`."""
        while True:
            reading = self.look()
            self._seen.append(reading)
            if time.monotonic_ns() - reading[0] < READING_FRESH_NS:
                return reading[1].get(pid, 0)

    def shares(self, pids: Sequence[int], first_ns: int, length_ns: int) -> list[float]:
        """What the card serves these processes in a window that begins so long from now: percent of its time.

        Waits for the card's clock, which is CLOCK_MONOTONIC, to pass the window's end.
        """
        begin = time.monotonic_ns() + first_ns
        while not self._seen or self._seen[-1][0] < begin + length_ns:
            self._seen.append(self.look())
        return self.between(pids, begin, begin + length_ns)

    def between(self, pids: Sequence[int], begin_ns: int, end_ns: int) -> list[float]:
        """The same of a window whose readings are in: between these times of the card's clock."""
        within = [reading for reading in self._seen if begin_ns <= reading[0] <= end_ns]
        (begin, before), (end, after) = within[0], within[-1]
        return [100 * (after.get(pid, 0) - before.get(pid, 0)) / (end - begin) for pid in pids]

    def shares_until(self, pids: Sequence[int], begin_ns: int, end_ns: int) -> list[float]:
        """The same of a window that has ended, whose readings may still be in the pipe."""
        while not self._seen or self._seen[-1][0] < end_ns:
            self._seen.append(self.look())
        return self.between(pids, begin_ns, end_ns)

    def readings(self, pid: int, begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """The card's clock and how long it had served this process, at each reading between these times."""
        return [
            (clock, served[pid])
            for clock, served in self._seen
            if begin_ns <= clock <= end_ns and pid in served
        ]

    def fullest(self, pid: int, readings: int) -> float:
        """End it: the greatest share of the card's time, in percent, that it served this process in any window.

        A window begins with each reading and is so many readings long.
        """
        out, _ = self._process.communicate("\n", timeout=30)
        assert self._process.returncode == 0
        seen = [*self._seen, *map(_reading, out.splitlines())]
        ends = [(clock, served.get(pid, 0)) for clock, served in seen]
        windows = zip(ends, ends[readings:], strict=False)
        return max((100 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in windows), default=0.0)

    def windows(self, pid: int, first: float, readings: int = 1) -> list[float]:
        """End it: the share of the card's time, in percent, that it served this process in each window.

        A window begins with each reading and is so many periods long. The first seconds, counted from when the
        process was seen, are left out, and what comes after its last work.
        """
        out, _ = self._process.communicate("\n", timeout=30)
        assert self._process.returncode == 0
        found = map(_reading, out.splitlines())
        seen = [(clock, served[pid]) for clock, served in found if pid in served]
        begin, last = seen[0][0] + first * 1e9, seen[-1][1]
        judged = [(clock, served) for clock, served in seen if clock >= begin and served < last]
        ends = judged[readings:]
        return [100 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(judged, ends, strict=False)]

    def together(self, pids: Sequence[int], readings: int = 1) -> list[list[float]]:
        """End it: the same of each process, in windows that begin once the card has served all of them.

        They end with the last work of the first of them to end.
        """
        out, _ = self._process.communicate("\n", timeout=30)
        assert self._process.returncode == 0
        seen = [
            (clock, [served.get(pid, 0) for pid in pids]) for clock, served in map(_reading, out.splitlines())
        ]
        last = [max(served[which] for _, served in seen) for which in range(len(pids))]
        met = [(clock, served) for clock, served in seen
               if all(served) and all(now < end for now, end in zip(served, last, strict=True))]  # fmt: skip
        pairs = list(zip(met, met[readings:], strict=False))
        return [
            [100 * (b[1][which] - a[1][which]) / (b[0] - a[0]) for a, b in pairs]
            for which in range(len(pids))
        ]

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _reading(line: str) -> tuple[int, dict[int, int]]:
    clock, *slots = line.split()
    return int(clock), {int(pid): int(served) for pid, _, served in (slot.partition(":") for slot in slots)}


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
            **standin.environment(self.state, self.version, cards=self.cards, **self.settings, **settings),
            "VCUDA_ROOT": str(tenant.root),
            "LD_LIBRARY_PATH": str(self.interposer / "sandbox"),
        }

    def start(self, tenant: Tenant, *arguments: object) -> Load:
        """Run ``core_load`` in the container."""
        process = subprocess.Popen(
            [str(self.load), *map(str, arguments)],
            env=self.environment(tenant), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)  # it shall never wait for its reader
        self.started.append(Load(process))
        self.pids.setdefault(tenant.name, []).append(process.pid)
        return self.started[-1]

    def watch(self, period_ms: int = 1000) -> Watch:
        """What the first card says whom it serves; ends with the world at the latest."""
        self.watches.append(
            Watch(standin.environment(self.state, self.version, cards=self.cards, **self.settings), period_ms)
        )
        return self.watches[-1]

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
        seats = _Seats(self, [tenant.name for tenant in tenants], driver=driver)
        service = TimeSharing(self.tenants, seats, SystemClock(), service_metrics())
        thread = threading.Thread(target=service.run, args=(stop,))
        thread.start()
        try:
            yield service
        finally:
            stop.set()
            thread.join(10)
            seats.close()

    def close(self) -> None:
        """End what still runs."""
        for watch in self.watches:
            watch.kill()
        for load in self.started:
            if load.process.stdout and not load.process.stdout.closed:
                load.kill()
        self.tenants.close()


class _Seats:
    """What the usage sampler tells the loop: who used the card since the last time, and how much NVML saw."""

    def __init__(self, world: World, names: Sequence[str], *, driver: bool) -> None:
        self._world, self._names = world, names
        self._busy: dict[str, int] = {}
        self._cards = _nvml(world) if driver else None

    def __call__(self) -> list[CardTenant]:
        seen = self._driver_shares()
        seats = []
        for name in self._names:
            activity = self._world.tenants.activity(name)[0]
            at_work = activity.at_work > 0 or activity.busy_ns != self._busy.get(name, 0)
            self._busy[name] = activity.busy_ns
            pids = self._world.pids.get(name, [])
            truth = sum(seen.get(pid, 0.0) for pid in pids) if seen else None
            priority = self._world.priorities[name]
            seats.append(CardTenant(name, activity.card, at_work, truth, priority=priority))
        return seats

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
