"""A container without namespaces: pages, the library in a directory, and the processes that are started in it.

The pages are the agent's own, written by its own adapter, and the library is found where the driver's name is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpu_manager.adapters.driver_files.driver import COMPANIONS
from gpu_manager.domain.enforcement.driver_overhead import Excess, Unaccounted
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Correction, Limit, TenantUse

if TYPE_CHECKING:
    from tests.gpu.machine import Machine

MIB, GIB = 1 << 20, 1 << 30


class Failed(Exception):  # noqa: N818 - it is the program under test that failed
    """A program did not end well, with what it complained of."""


class Container:
    """Limits in bytes and percent are in force from its first process on."""

    def __init__(
        self,
        machine: Machine,
        memory: int,
        cores: int,
        ceiling: int,
        priority: Priority = Priority.NORMAL,
    ) -> None:
        self.machine = machine
        self.before = machine.card_used()
        """Bytes in use on the card while nothing ran here."""
        self.name = secrets.token_hex(16)
        self.memory = memory
        self.beyond = 0
        """Bytes that the agent last told the library it takes beyond its account."""
        self.priority = priority
        self.limit(cores, ceiling)
        machine.tenants.reset(self.name)
        self.root = machine.root / "containers" / self.name
        (self.root / "etc/vcuda").mkdir(parents=True)
        real = self.root / "usr/local/vcuda/real"
        real.mkdir(parents=True)
        for page in ("limits", "usage"):
            os.link(machine.root / "pages" / self.name / page, self.root / "etc/vcuda" / page)
        if priority is Priority.BEST_EFFORT:
            (self.root / "etc/vcuda/gates").symlink_to(machine.root / "pages/gates")
        for name, path in machine.real.items():
            (real / name).symlink_to(path)
        for companion in machine.real["libcuda.so.1"].parent.iterdir():
            if COMPANIONS.fullmatch(
                companion.name
            ):  # what the agent delivers: others start threads and windows
                (real / companion.name).symlink_to(companion)
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self.machine.tenants.remove(self.name)

    def limit(self, cores: int, ceiling: int | None = None) -> None:
        """New core limits, in force at once."""
        card = self.machine.card.uuid
        self.machine.tenants.open(
            self.name, [Limit(card, self.memory, cores, ceiling or cores, self.priority)]
        )

    def start(self, *command: str, **settings: str) -> subprocess.Popen[str]:
        """A process under the library."""
        env = {
            **os.environ,
            **settings,
            "VCUDA_ROOT": str(self.root),
            "LD_LIBRARY_PATH": f"{self.machine.native.fronts}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        }
        self._started.append(self.machine.start(command, env))
        return self._started[-1]

    def use(self) -> TenantUse:
        """What the container's account says of the card."""
        (use,) = self.machine.tenants.usage(self.name)
        return use

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that run in it now."""
        return tuple(p.pid for p in self._started if p.poll() is None)


@contextlib.contextmanager
def agent(container: Container, period: float = 1.0) -> Iterator[None]:
    """What the agent does meanwhile: tell the library what the driver counts beyond the account (code, mostly)."""
    machine = container.machine

    def watch(stop: threading.Event) -> None:
        seen = Unaccounted()
        while not stop.wait(period):
            looked_ns = time.monotonic_ns()
            driver = machine.memory_of(*container.pids)
            if driver is None:
                continue
            use = container.use()
            seen = seen.seen(driver, use.memory, container.memory)
            container.beyond = seen.bytes
            told = Correction(
                host_adjust=seen.bytes, excess=Excess.seen(looked_ns, driver, use.memory, use.movable)
            )
            machine.tenants.publish(container.name, time.monotonic_ns(), {machine.card.uuid: told})

    with meanwhile("agent", watch):
        yield


@contextlib.contextmanager
def meanwhile(name: str, run: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run it in a thread of this name, which is told to stop at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def said(process: subprocess.Popen[str], seconds: float = 300.0) -> str:
    """All that a process prints until its end. Raises Failed with its complaint if it fails, or takes longer."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Failed(f"{shown(process)} did not end within {seconds:.0f} s") from None
    if process.returncode:
        raise Failed(f"{shown(process)} ended with {process.returncode}: {err.strip()[-500:]}")
    return out


def first_line(process: subprocess.Popen[str], begins: str = "", seconds: float = 300.0) -> str:
    """The first line that begins so; empty if the process ends before it. One that hangs is ended: then too."""
    ends = threading.Timer(seconds, process.kill)
    ends.start()
    try:
        return next((line.strip() for line in process.stdout or () if line.startswith(begins)), "")
    finally:
        ends.cancel()


def complaint(process: subprocess.Popen[str]) -> str:
    """The last line of what an ended process complained of, or its status."""
    _, err = process.communicate(timeout=60)
    return err.strip().splitlines()[-1] if err.strip() else f"status {process.returncode}"


def shown(process: subprocess.Popen[str]) -> str:
    """The command for people."""
    return " ".join(map(str, process.args)) if isinstance(process.args, list | tuple) else str(process.args)
