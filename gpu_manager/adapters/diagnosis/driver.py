"""The NVIDIA driver of the machine: kernel module, libraries, nodes in /dev, and open copies of libcuda."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.driver import DriverFinder
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.domain.doctor.facts import DriverFacts
from gpu_manager.domain.errors import VcudaError
from gpu_manager.ports.cards import Cards

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")  # VGA and 3D controllers, not the card's audio or USB functions
# By the name of a process, of which the kernel keeps 15 characters.
_ENFORCERS: Final = {
    "nvidia-cuda-mps": "NVIDIA's MPS (nvidia-cuda-mps-control)",
    "mpsd": "gpu-fractioning (mpsd)",
    "fractiond": "gpu-fractioning (fractiond)",
}
_OPEN: Final = re.compile(rb"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)?)")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # a directory of a random name is made there
_MOST_PROCESSES: Final = 1 << 16
_TEXT: Final = 1 << 12  # characters of the kernel's small files
_MAPS_BYTES: Final = 4 << 20  # a process with CUDA and torch has about 1 MiB of maps


def gather_driver(
    host: HostFiles,
    driver_root: str,
    cards: Cards | None,
    *,
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> DriverFacts:
    """Facts about the driver. ``cards`` queries NVML, None to skip it; ``sysfs`` and ``proc`` are the
    kernel's.
    """
    library, problem = _library(host, driver_root)
    count, nvml = _ask(cards)
    return DriverFacts(
        pci_cards=_pci(sysfs),
        kernel=_text(sysfs / "module/nvidia/version"),
        library=library,
        library_problem=problem,
        nvml_problem=nvml,
        nvml_cards=count,
        devices=frozenset(name for name in host.listing("/dev") if name.startswith("nvidia")),
        in_use=_in_use(proc),
        enforcers=tuple(
            sorted(
                {_ENFORCERS[name] for pid in _pids(proc) if (name := _name(proc, pid))}
                | _limiter(host.seen("/sys/fs/cgroup"), proc)
            )
        ),
    )


def _library(host: HostFiles, driver_root: str) -> tuple[str | None, str]:
    with tempfile.TemporaryDirectory(
        dir=_scratch()
    ) as links:  # the finder makes links; none of ours may stay
        try:
            return DriverFinder(host, driver_root, Path(links)).find().version, ""
        except VcudaError as error:
            return None, str(error)


def _scratch() -> str:
    """A directory that can be written; in the agent's pod, whose root cannot, only shared memory is one."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return _SHARED_MEMORY


def _ask(cards: Cards | None) -> tuple[int | None, str | None]:
    if cards is None:
        return None, None
    try:
        return len(cards.list()), ""
    except VcudaError as error:
        return None, str(error)


def _pci(sysfs: Path) -> int | None:
    try:
        slots = sorted((sysfs / "bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(
        _text(slot / "vendor") == _NVIDIA and (_text(slot / "class") or "").startswith(_DISPLAY)
        for slot in slots
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:_TEXT].strip()
    except OSError:
        return None


def _in_use(proc: Path) -> Mapping[str, int] | None:
    """Version of libcuda → processes that have it open; None where other users' processes are hidden."""
    found: Counter[str] = Counter()
    hidden = os.geteuid() != 0
    for pid in _pids(proc):
        try:
            with (proc / pid / "maps").open("rb") as file:
                text = file.read(_MAPS_BYTES)
        except PermissionError:
            hidden = True
            continue
        except OSError:  # it has ended
            continue
        found.update({match.decode() for match in _OPEN.findall(text)})
    return None if hidden and not found else found


def _name(proc: Path, pid: str) -> str:
    """The process's name, if it is one of those that hold others to shares; empty else."""
    name = _text(proc / pid / "comm") or ""
    return name if name in _ENFORCERS else ""


def _limiter(cgroups: Path, proc: Path) -> set[str]:
    """Who limits the cards' memory of control groups in which no process has our limits mounted."""
    limited = 0
    for place, _, names in islice(os.walk(cgroups), _MOST_PROCESSES):
        if "dmem.max" not in names:
            continue
        limits = (_text(Path(place) / "dmem.max") or "").splitlines()
        if all(line.endswith(" max") for line in limits):
            continue
        pids = (_text(Path(place) / "cgroup.procs") or "").split()[:1]
        with suppress(OSError):  # it has ended, or is hidden
            limited += any(b" /etc/vcuda/" not in (proc / pid / "mountinfo").read_bytes() for pid in pids)
    what = "a control group" if limited == 1 else f"{limited} control groups"
    return {f"a program that limits the cards' memory of {what} (dmem.max)"} if limited else set()


def _pids(proc: Path) -> Iterator[str]:
    try:
        names = os.listdir(proc)  # noqa: PTH208  # names, of which there may be thousands
    except OSError:
        return
    yield from [name for name in names if name.isdecimal()][:_MOST_PROCESSES]
