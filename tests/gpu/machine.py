"""The machine under test: its cards, its driver, and containers made of a directory, pages and the library.

A container here is what the agent makes of one, less the namespaces: the pages are the agent's own, written
by its own adapter, and the library is found where the driver's name is.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from gpu_manager.adapters.control_pages.pages import FileControlPages, PagePolicy
from gpu_manager.adapters.driver_files.driver import COMPANIONS
from gpu_manager.adapters.driver_files.native_libraries import NativeLibraries, find_native_libraries
from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.domain.card import Card
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports import Limit

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"
STAND_IN = "VCUDA_GPU_TESTS_STAND_IN"
_FIND = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())"


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
        self._directory = tempfile.TemporaryDirectory(prefix="vcuda-gpu-")
        self.root = Path(self._directory.name)
        self._asking = threading.Lock()
        self.tenants = FileControlPages(self.root / "pages")
        self.compiler = _compiler()
        self.torch = _torch()
        """An interpreter that has PyTorch, if one was found."""
        self.cost = self._compile("cost")
        self.reserve = 0
        """Bytes that a context takes, and is charged when it is made, once measured."""
        self.clock = 1.0
        """The clock that the card runs at over the one that its driver names, once measured."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tenants.close()
        self.nvml.close()
        self._directory.cleanup()

    @property
    def driver(self) -> str:
        """The driver's version and what kind of driver it is."""
        return f"{'stand-in driver' if self.stand_in else 'driver'} {self.nvml_version()}"

    def nvml_version(self) -> str:
        """As nvidia-smi shows it."""
        out = said(self.bare(*self.client("info")), 60)
        found = re.search(r"driver (\S+),", out)
        return found[1] if found else "of unknown version"

    def memory_of(self, *pids: int) -> int | None:
        """Bytes that these processes hold on the card by NVML's count; None while it lists none of them."""
        with self._asking:
            _, processes = self.nvml.usage()
        held = [p.memory for p in processes if p.pid in pids and p.uuid == self.card.uuid]
        known = [m for m in held if m is not None]
        return sum(known) if known else None

    def busy(self) -> Mapping[int, float]:
        """SM percent by process, by NVML's last samples."""
        _, processes = self.nvml.usage()
        return {p.pid: p.utilisation for p in processes if p.utilisation is not None}

    def charge_contexts(self, each: int) -> None:
        """From now on containers are charged so many bytes for each context, as ``--context-mib`` does it."""
        self.reserve = each
        self.tenants.close()
        self.tenants = FileControlPages(self.root / "pages", PagePolicy(context_reserve=each))

    def bare(self, *command: str) -> subprocess.Popen[str]:
        """A process with the driver alone: the baseline."""
        return self.start(command, dict(os.environ))

    def start(self, command: tuple[str, ...], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """A process that sees this card alone, as card 0, whatever this machine or its environment has beside it."""
        return subprocess.Popen(
            command,
            env={**env, "CUDA_VISIBLE_DEVICES": self.card.uuid},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def container(self, memory: int, cores: int = 100, ceiling: int | None = None) -> Container:
        """A container with these limits: bytes, percent."""
        return Container(self, memory, cores, ceiling or cores)

    def client(self, *arguments: object) -> tuple[str, ...]:
        """The command line of the C client on this card."""
        return (str(self.native.client), *map(str, arguments))

    def card_used(self) -> int | None:
        """Bytes in use on the card, by anybody."""
        uses, _ = self.nvml.usage()
        return next((use.memory_used for use in uses if use.uuid == self.card.uuid), None)

    def _compile(self, name: str) -> str:
        target = self.root / name
        command = [self.compiler, "-O2", "-o", str(target), str(HERE / f"{name}.c"), "-ldl"]
        subprocess.run(command, check=True, timeout=120)
        return str(target)


class Container:
    """Pages and the library in a directory; processes are started in it."""

    def __init__(self, machine: Machine, memory: int, cores: int, ceiling: int) -> None:
        self.machine = machine
        self.before = machine.card_used()
        """Bytes in use on the card while nothing ran here."""
        self.name = secrets.token_hex(16)
        self.memory = memory
        self.limit(cores, ceiling)
        machine.tenants.reset(self.name)
        self.root = machine.root / "containers" / self.name
        (self.root / "etc/vcuda").mkdir(parents=True)
        real = self.root / "usr/local/vcuda/real"
        real.mkdir(parents=True)
        for page in ("limits", "usage"):
            os.link(machine.root / "pages" / self.name / page, self.root / "etc/vcuda" / page)
        for name, path in machine.real.items():
            (real / name).symlink_to(path)
        for companion in machine.real["libcuda.so.1"].parent.iterdir():
            if COMPANIONS.fullmatch(
                companion.name
            ):  # what the agent delivers: the others start threads and windows
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
        self.machine.tenants.open(self.name, [Limit(card, self.memory, cores, ceiling or cores)])

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

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that run in it now."""
        return tuple(p.pid for p in self._started if p.poll() is None)


def said(process: subprocess.Popen[str], seconds: float = 300.0) -> str:
    """All that a process prints until its end. Raises RuntimeError with its complaint if it fails."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RuntimeError(f"{process.args!r} did not end within {seconds:.0f} s") from None
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}: {err.strip()}")
    return out


def first_line(process: subprocess.Popen[str], begins: str = "", seconds: float = 300.0) -> str:
    """The first line that begins so; empty if the process ends before it. One that hangs is ended: then too."""
    ends = threading.Timer(seconds, process.kill)
    ends.start()
    try:
        return next((line.strip() for line in process.stdout or () if line.startswith(begins)), "")
    finally:
        ends.cancel()


def _compiler() -> str:
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise Absent("a card, but no C compiler to build the clients with")
    return compiler


def _torch() -> str | None:
    """This interpreter if it has PyTorch, else the one that ``TORCH_PYTHON`` names, else another ``python3``."""
    others = [str(Path(place) / "python3") for place in os.environ.get("PATH", "").split(os.pathsep)]
    for python in (sys.executable, os.environ.get("TORCH_PYTHON"), *others):
        if python and shutil.which(python):
            asked = [python, "-c", "import sys, importlib.util as u; sys.exit(u.find_spec('torch') is None)"]
            if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
                return python
    return None


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
