"""Tenants that are started once and told over a pipe when to work: starting one costs more of a card's minutes than a run.

A program prints ``ready``; for each line ``run SECONDS RATE SEED`` it works for so long and answers with pairs of a word and a
number, the first of which is ``iterations``. PyTorch's models (programs/torch_worker.py) and the C client speak it alike.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_manager.domain.priority import Priority
from tests.gpu.container import GIB, Container, Failed, complaint, first_line, shown
from tests.gpu.machine import PROGRAMS, Machine

DRY_MODELS = "SIDE_BY_SIDE_TINY" in os.environ
"""PyTorch's models have two layers and run on the processor, which takes its time."""
READY_WITHIN = 900.0 if DRY_MODELS else 90.0
ROOM = 0.85
"""Of the card's memory: what tenants that wait may hold beside those that are wanted."""


@dataclass(frozen=True, slots=True)
class Model:
    """A tenant's program: ``arguments`` of PyTorch's worker, and the ``stand_in`` kernels that take its place in a dry run.

    ``gib`` is about what it takes of the card; it decides how many may wait on it, and is no limit.
    """

    name: str
    arguments: Sequence[str]
    gib: float
    stand_in: Sequence[str]

    def command(self, machine: Machine) -> tuple[str, ...]:
        """The program on this machine. Raises Failed: no interpreter here has PyTorch."""
        if not self.arguments or (machine.stand_in and not machine.tiny):
            return machine.client("worker", *self.stand_in)
        python = machine.python("torch")
        if python is None:
            raise Failed(machine.lacks("torch") or "")
        return (python, str(PROGRAMS / "torch_worker.py"), *self.arguments)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One process: of which model, bare or in a container of its own, and which of several alike."""

    model: Model
    held: bool = False
    priority: Priority = Priority.NORMAL
    number: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a run went. Raises KeyError for a figure that the program did not have, such as a length without a request."""

    figures: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Iterations a second."""
        return self.figures["iterations"] / self.figures["wall"]

    def __getitem__(self, name: str) -> float:
        return self.figures[name]


@dataclass(slots=True)
class Worker:
    """A tenant that has been started."""

    process: subprocess.Popen[str]
    container: Container | None = None
    gib: float = field(default=0.0)

    def wait_ready(self) -> None:
        """Raises Failed with its complaint."""
        if first_line(self.process, "ready", READY_WITHIN) != "ready":
            raise Failed(f"{shown(self.process)} did not begin: {complaint(self.process)}")

    def begin(self, seconds: float, rate: float = 0.0, seed: int = 1) -> None:
        """Let it work from now on; :meth:`answer` waits for the end."""
        assert self.process.stdin
        try:
            self.process.stdin.write(f"run {seconds:g} {rate:.9g} {seed}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{shown(self.process)} ended: {complaint(self.process)}") from None

    def answer(self, within: float = 120.0) -> Answer:
        """Raises Failed: it ended, or took longer than so many seconds, or answered in other words."""
        line = first_line(self.process, "iterations", within)
        if not line:
            raise Failed(f"{shown(self.process)} ended: {complaint(self.process)}")
        words = line.split()
        return Answer({name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)})

    def run(self, seconds: float, rate: float = 0.0, seed: int = 1) -> Answer:
        """Work for so long, alone or beside those that were told to before."""
        self.begin(seconds, rate, seed)
        return self.answer(seconds + 60)

    def end(self) -> None:
        """End it, however it is, and its container."""
        self.process.kill()
        self.process.communicate()
        if self.container:
            self.container.__exit__(None, None, None)


class Workers:
    """The tenants that are on the card now. Those that are not wanted stay, as far as the card has room for them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._running: dict[Tenant, Worker] = {}

    def ready(self, *wanted: Tenant) -> list[Worker]:
        """All of them, those that are missing started together. Raises Failed: one of them did not begin."""
        for tenant in [t for t, worker in self._running.items() if worker.process.poll() is not None]:
            self._end(tenant)  # a case that was cut has ended everybody
        self._make_room(wanted)
        for tenant in wanted:
            if tenant not in self._running:
                self._running[tenant] = self._started(tenant)
                self._running[tenant].gib = -tenant.model.gib  # until it is ready
        for tenant in wanted:
            worker = self._running[tenant]
            if worker.gib < 0:
                worker.wait_ready()
                worker.gib = tenant.model.gib
        return [self._running[tenant] for tenant in wanted]

    def close(self) -> None:
        """End all."""
        for tenant in list(self._running):
            self._end(tenant)

    def _make_room(self, wanted: Sequence[Tenant]) -> None:
        room = self.machine.card.memory / GIB * ROOM
        needed = sum(t.model.gib for t in {*wanted, *self._running})
        for tenant in [
            t for t in self._running if t not in wanted
        ]:  # the one that was started first goes first
            if needed <= room:
                return
            needed -= tenant.model.gib
            self._end(tenant)

    def _started(self, tenant: Tenant) -> Worker:
        command = tenant.model.command(self.machine)
        if not tenant.held:
            return Worker(self.machine.bare(*command))
        container = self.machine.container(self.machine.card.memory, 50, 100, tenant.priority)
        return Worker(container.start(*command), container)

    def _end(self, tenant: Tenant) -> None:
        self._running.pop(tenant).end()


@functools.cache
def workers(machine: Machine) -> Workers:
    """This machine's, for all groups: what one has started the next may use."""
    return Workers(machine)


def together(runs: Sequence[tuple[Worker, float]], seconds: float, seed: int = 1) -> list[Answer]:
    """Let them work at the same time, each at its rate."""
    for at, (worker, rate) in enumerate(runs):
        worker.begin(seconds, rate, seed + at)
    return [worker.answer(seconds + 60) for worker, _ in runs]
