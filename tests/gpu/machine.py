"""The machine under test: its first healthy card, its driver, and the programs that were compiled for it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gpu_manager.adapters.control_pages.limits_file import PagePolicy
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.driver_files.delivery import NativeLibraries, find_native_libraries
from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.domain.card import Card
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.cards import NO_SENSORS
from tests.gpu.container import Container, said

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
BUILD = HERE.parents[1] / "build"
STAND_IN = "VCUDA_GPU_TESTS_STAND_IN"
TINY = "SIDE_BY_SIDE_TINY"
NO_KERNELS = "a stand-in driver runs no kernels of real programs"
_FIND = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())"
_HAS = "import sys, importlib.util as u; sys.exit(u.find_spec(sys.argv[1]) is None)"


class Absent(Exception):  # noqa: N818 - it is no error that a machine has no card
    """What the machine lacks, in one sentence: then nothing is measured."""


def stand_in_environment(native: NativeLibraries, state: str) -> dict[str, str]:
    """What makes this program and all that it starts see the stand-in driver's card."""
    return {
        **os.environ,
        STAND_IN: "1",
        "LD_LIBRARY_PATH": str(native.driver),
        "VCUDA_STANDIN_STATE": state,
        "VCUDA_STANDIN_MODEL": "small",
    }


class Machine:
    """One card of it, the first that is healthy. ``limits`` of containers are in force from their start on."""

    def __init__(self) -> None:
        """Raises Absent: there is no card, no driver, or this package was built without the library."""
        self.native = find_native_libraries()
        self.stand_in = STAND_IN in os.environ
        self.tiny = self.stand_in and TINY in os.environ
        """True if models run with two layers on the host's processor: only in a dry run."""
        self.nvml = NvmlCards()
        try:
            cards = [state.card for state in self.nvml.list() if state.healthy and not state.card.mig]
        except NodeUnready as error:
            raise Absent(f"no card here: {error}") from None
        if not cards:
            raise Absent("no card here that could be shared: all are out of order or in MIG mode")
        if (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists():
            raise Absent("a card, but MPS runs on it, which shows one process for all: end it first")
        if self.native.fronts is None or self.native.client is None:
            raise Absent("a card, but no library to test on it: this package was built without a C compiler")
        self.card: Card = cards[0]
        self.real = {name: _loaded(name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")}
        self._directory = tempfile.TemporaryDirectory(prefix="vcuda-gpu-", ignore_cleanup_errors=True)
        self.root = Path(self._directory.name)
        self._asking = threading.Lock()
        self.tenants = FileControlPages(self.root / "pages")
        self.compiler = _compiler()
        self._started: list[subprocess.Popen[str]] = []
        self.traces = self.root / "traces"
        """Where recorded traces go."""
        self.reserve = 0
        """Bytes that a context takes, and is charged when it is made, once measured."""
        self.clock = 1.0
        """The clock that the card runs at over the one that its driver names, once measured."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_started()
        self.tenants.close()
        self.nvml.close()
        self._directory.cleanup()

    @functools.cached_property
    def driver(self) -> str:
        """The driver's version, as nvidia-smi shows it, and what kind of driver it is."""
        found = re.search(r"driver (\S+),", said(self.bare(*self.client("info")), 60))
        version = found[1] if found else "of unknown version"
        return f"{'stand-in driver' if self.stand_in else 'driver'} {version}"

    def memory_of(self, *pids: int) -> int | None:
        """Bytes that these processes hold on the card by NVML's count; None while it lists none of them."""
        with self._asking:
            _, processes = self.nvml.usage()
        held = [p.memory for p in processes if p.pid in pids and p.uuid == self.card.uuid]
        known = [m for m in held if m is not None]
        return sum(known) if known else None

    def busy(self) -> Mapping[int, float]:
        """SM percent by process, by NVML's last samples."""
        with self._asking:
            _, processes = self.nvml.usage()
        return {p.pid: p.utilisation for p in processes if p.utilisation is not None}

    def card_used(self) -> int | None:
        """Bytes in use on the card, by anybody."""
        return self._card("memory_used")

    def card_busy(self) -> float | None:
        """Percent of the time in which anybody's kernel was on the card, by NVML's last sample."""
        return self._card("utilisation")

    def clocks(self) -> tuple[float | None, float | None, float | None]:
        """SM clock in MHz, power in watts, temperature in degrees Celsius; None for a figure that NVML does not give."""
        with self._asking:
            uses, _ = self.nvml.usage()
        sensors = next((use.sensors for use in uses if use.uuid == self.card.uuid), NO_SENSORS)
        hertz = sensors.sm_clock
        return None if hertz is None else hertz / 1e6, sensors.power, sensors.temperature

    def _card(self, figure: str) -> int | None:
        with self._asking:
            uses, _ = self.nvml.usage()
        return next((getattr(use, figure) for use in uses if use.uuid == self.card.uuid), None)

    def charge_contexts(self, each: int) -> None:
        """From now on containers are charged so many bytes for each context, as ``--context-mib`` does it."""
        self.reserve = each
        self.tenants.close()
        self.tenants = FileControlPages(self.root / "pages", PagePolicy(context_reserve=each))

    def bare(self, *command: str, **settings: str) -> subprocess.Popen[str]:
        """A process with the driver alone: the baseline."""
        return self.start(command, {**os.environ, **settings})

    def start(
        self, command: Sequence[str], env: Mapping[str, str], *, sees: str | None = None
    ) -> subprocess.Popen[str]:
        """A process that sees one card alone, as card 0, whatever this machine or its environment has beside it.

        ``sees``: the card, in the words of CUDA_VISIBLE_DEVICES; the card under test if it is None.
        """
        self._started = [process for process in self._started if process.poll() is None]
        process = subprocess.Popen(
            command,
            env={**env, "CUDA_VISIBLE_DEVICES": sees or self.card.uuid},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def end_started(self) -> None:
        """End the processes of a case that was cut, wherever they run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self._started.clear()

    def container(
        self,
        memory: int,
        cores: int = 100,
        ceiling: int | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> Container:
        """A container with these limits: bytes (at most half of the card), percent."""
        return Container(self, min(memory, self.card.memory // 2), cores, ceiling or cores, priority)

    def client(self, *arguments: object) -> tuple[str, ...]:
        """The command line of the C client on this card."""
        return (str(self.native.client), *map(str, arguments))

    @functools.cache  # noqa: B019 - one machine a run
    def compiled(self, name: str) -> str:
        """One of the C programs beside this file, compiled here: it needs no CUDA header and no nvcc."""
        target = self.root / name
        source = PROGRAMS / f"{name}.c"
        command = [self.compiler, "-O2", "-o", str(target), str(source), "-ldl", "-lpthread"]
        subprocess.run(command, check=True, timeout=120)
        return str(target)

    @functools.cache  # noqa: B019 - one machine a run
    def preload(self, name: str) -> str:
        """One of the C programs beside this file that is a library to be loaded before others."""
        target = self.root / f"{name}.so"
        source = PROGRAMS / f"{name}.c"
        command = [
            self.compiler,
            "-O2",
            "-shared",
            "-fPIC",
            "-o",
            str(target),
            str(source),
            "-ldl",
            "-lpthread",
        ]
        subprocess.run(command, check=True, timeout=120)
        return str(target)

    @functools.cache  # noqa: B019 - one machine a run
    def python(self, package: str) -> str | None:
        """This interpreter if it has the package, else ``FRAMEWORK_PYTHON``, else another ``python3``; or None."""
        others = [str(Path(place) / "python3") for place in os.environ.get("PATH", "").split(os.pathsep)]
        for python in (sys.executable, os.environ.get("FRAMEWORK_PYTHON"), *others):
            if python and shutil.which(python):
                asked = subprocess.run([python, "-c", _HAS, package], capture_output=True, check=False)
                if asked.returncode == 0:
                    return python
        return None

    def lacks(self, package: str) -> str | None:
        """Why a program that needs the package cannot run here; None if it can."""
        if self.stand_in:
            return NO_KERNELS
        if self.python(package) is None:
            return f"no interpreter here has {package}: name one that has it in FRAMEWORK_PYTHON"
        return None


def _compiler() -> str:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Absent("a card, but no C compiler to build the clients with")
    return compiler


def _loaded(name: str) -> Path:
    """The file that the loader takes for a library's name."""
    done = subprocess.run([sys.executable, "-c", _FIND, name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Absent(f"no card here: {done.stderr.strip().splitlines()[-1]}")
    stem = name.removesuffix(".1")
    for line in done.stdout.splitlines():
        path = line.rpartition(" ")[2]
        if path.startswith("/") and Path(path).name.startswith(stem):
            return Path(path)
    raise Absent(f"{name} was loaded, but from no file: {sys.executable} cannot tell from where")
