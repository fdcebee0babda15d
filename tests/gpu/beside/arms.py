"""Arms of a table: who runs, held by what. One process of each tenant serves all arms that its kind can."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Sequence

from bench.rows import Row
from gpu_manager.domain.errors import NodeUnready
from tests.gpu.beside.workers import Worker
from tests.gpu.container import meanwhile
from tests.gpu.host_loop import host_loop
from tests.gpu.machine import Machine

ALONE, TWO, HARD, ELASTIC, PROTECTED = "alone", "two_bare", "hard", "elastic", "protected"
HARDWARE, MPS = "hardware", "mps"
PERIOD = 0.1
AT_REST = 0.02
"""Where what ran alone is by more than this part otherwise at the end than at the beginning, rows say so."""


def not_there(machine: Machine) -> dict[str, str]:
    """Arms that are not measured here, each with the reason."""
    absent = {
        HARDWARE: "not there: nothing is built until group 0 has said on a card that a process may weigh its groups"
    }
    if machine.stand_in or shutil.which("nvidia-cuda-mps-control") is None:
        absent[MPS] = "not there: this machine has no nvidia-cuda-mps-control"
    else:
        absent[MPS] = "there, and not measured: this kit starts no daemon on a machine that is not its own"
    return absent


@contextlib.contextmanager
def limits(
    machine: Machine, held: Sequence[Worker], cores: Sequence[int], ceiling: int = 0
) -> Iterator[None]:
    """Each has these cores, up to the ceiling (0: no further), divided as the agent divides it."""
    containers = [worker.container for worker in held if worker.container]
    for container, share in zip(containers, cores, strict=True):
        container.limit(share, max(ceiling, share))
    with host_loop(machine, containers):
        yield


class Clock:
    """The SM clock, power and temperature beside a row, ten times a second, where NVML gives them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._seen: list[tuple[float | None, float | None, float | None]] = []

    def watch(self, stop: threading.Event) -> None:
        """Look until told to stop."""
        while not stop.wait(PERIOD):
            with contextlib.suppress(NodeUnready):
                self._seen.append(self._machine.clocks())

    def __str__(self) -> str:
        columns = [[one[at] for one in self._seen if one[at] is not None] for at in range(3)]
        shown = [
            f"{name} {min(known):.0f} to {max(known):.0f} {unit}"
            for name, unit, column in zip(("SM", "power", ""), ("MHz", "W", "C"), columns, strict=True)
            if (known := [figure for figure in column if figure is not None])
        ]
        return ", ".join(shown) or "clocks not known"


@contextlib.contextmanager
def watched(machine: Machine) -> Iterator[Clock]:
    """Watch the clock meanwhile."""
    clock = Clock(machine)
    with meanwhile("clock", clock.watch):
        yield clock


def note_of(machine: Machine, *parts: str) -> str:
    """A row's note: what it says, then the card and its driver; in a dry run that it is none of a card."""
    models = (
        "models of two layers on the host's processor" if machine.tiny else "C kernels in the place of models"
    )
    first = (f"dry run, {models}",) if machine.stand_in else ()
    return "; ".join([*first, *filter(None, parts), f"{machine.card.model}, {machine.driver}"])


def moved(before: float, after: float) -> str:
    """What a row says where the machine was not at rest."""
    change = abs(after / before - 1) if before else 1.0
    return f"not at rest: alone {before:.4g}, then {after:.4g}" if change > AT_REST else ""


def left_out(machine: Machine, names: Sequence[str], unit: str, bar: str, why: str) -> Iterator[Row]:
    """Rows that cannot be measured here, with the reason."""
    for name in names:
        yield Row(name, None, unit, bar, note=note_of(machine, why))


def pause(seconds: float) -> None:
    """Nothing is told to run meanwhile."""
    threading.Event().wait(seconds)
