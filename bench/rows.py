"""A row of the table: a figure beside its bar and the bare loop it was measured against."""

from __future__ import annotations

import math
import operator
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench.json"
MACHINE = OUTPUT.with_name("bench-machine.txt")  # what OUTPUT was measured on
_HOLDS = {"≤": operator.le, "≥": operator.ge, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Row:
    """``bar`` is written like ``≤ 3``. Without a ``figure`` it cannot be measured here; ``note`` says why."""

    name: str
    figure: float | None
    unit: str
    bar: str
    baseline: float | None = None
    full: bool = False
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """True if the figure keeps the bar; None without a figure."""
        if self.figure is None:
            return None
        relation, _, value = self.bar.partition(" ")
        return bool(_HOLDS[relation](self.figure, float(value)))

    def as_json(self) -> dict[str, object]:
        """What build/bench.json holds of it."""
        return {**asdict(self), "holds": self.holds}


class Measure(Protocol):
    """Measures some rows; ``full`` is the size for figures that docs quote."""

    def __call__(self, *, full: bool) -> Iterable[Row]: ...


def rows_of(parts: Mapping[str, Measure], only: str, *, full: bool) -> Iterator[Row]:
    """The rows of a group's ``parts``, or of the one part that ``only`` names; empty: of all."""
    for name, measure in parts.items():
        if only in ("", name):
            yield from measure(full=full)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(len(ordered), max(1, rank)) - 1]


def file_system(path: Path) -> str:
    """The kind of file system that ``path`` lies in, such as ``ext4``: the longest mount point above it."""
    mounts = [
        line.split()[1:3] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    ]
    above = [(len(point), kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(above)[1]


def shared_memory() -> Path | None:
    """The tmpfs for anyone's files; None where there is none."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and file_system(shared) == "tmpfs" else None


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory on a tmpfs, where a node has its control pages; on the disk where there is none."""
    with tempfile.TemporaryDirectory(prefix="vcuda-bench-", dir=shared_memory()) as place:
        yield Path(place)


def machine() -> str:
    """What the figures were measured on, in one line."""
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in cpus if line.startswith("model name")), "")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    kernel = ".".join(platform.release().split(".")[:2])
    return (
        f"{os.cpu_count()} CPUs ({model or platform.machine()}), {memory} GiB, Linux {kernel}, "
        f"Python {platform.python_version()}, {file_system(OUTPUT.parent)}"
    )
