"""What the machine is, what its kernel and driver can do that the library needs, and whether a container starts at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.rows import Row
from tests.gpu import memory
from tests.gpu.container import GIB, MIB, first_line, said
from tests.gpu.machine import Machine
from tests.gpu.observe import observe, within
from tests.gpu.plan import Case, Settings

PACKAGES = ("torch", "triton", "jax", "cupy", "numba")
_VERSION = "import sys, importlib.metadata as m\nfor p in sys.argv[1:]:\n  try: print(p, m.version(p))\n  except m.PackageNotFoundError: pass"
_CLOCK_US = 50_000
"""Two of them in flight keep the card busy while the host is kept from its processor. Nothing makes a run look faster
than the card is, so of several the fastest is the card's.
"""
_LOCK = struct.Struct("hhqqi4x")
_ABLE = "= 1"
_HOLDER = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+b")
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 7, 1, 0))
print("held", flush=True)
sys.stdin.read()
"""


def cases(settings: Settings) -> Iterator[Case]:
    """Rows of what can be done are 1 or 0; the clock is what shares are judged by."""
    yield Case("machine", 10, _machine)
    yield Case("locks", 3, _locks)
    yield Case("smoke", 20, _smoke)
    yield Case("prepared", 0, _prepared)


def identity(machine: Machine) -> dict[str, object]:
    """What figures are figures of: the same card, driver and library, or another file."""
    libraries = machine.native.libraries
    built = hashlib.sha256((libraries / "libvcuda.so").read_bytes()).hexdigest()[:16] if libraries else ""
    return {
        "card": machine.card.model,
        "memory_mib": machine.card.memory // MIB,
        "driver": machine.driver,
        "measured_on_a_card": not machine.stand_in,
        "kernel": platform.release(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "library": built,
    }


def _machine(machine: Machine) -> Iterable[Row]:
    """Software beside the driver, as a row whose note is what matters."""
    asked = [machine.python("torch") or sys.executable, "-c", _VERSION, *PACKAGES]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split("\n")
    libc = " ".join(platform.libc_ver())
    compiler = subprocess.run(
        [machine.compiler, "--version"], capture_output=True, text=True, check=False
    ).stdout
    note = "; ".join(
        [
            *filter(None, found),
            f"Python {platform.python_version()}",
            libc,
            compiler.partition("\n")[0],
            _sandbox(),
        ]
    )
    yield Row("gpu_machine_packages", sum(map(bool, found)), "packages", "≥ 0", note=note)
    _, processes = machine.nvml.usage()
    yield Row(
        "gpu_machine_nvml_lists_processes",
        float(_listed(machine)),
        "yes",
        "≥ 0",
        note=f"{len(processes)} others; 0: the card's own count judges",
    )


def _sandbox() -> str:
    """The kernel's own word; a sandbox's kernel calls itself otherwise than the machine's."""
    return Path("/proc/version").read_text(encoding="utf-8").strip()[:120]


def _listed(machine: Machine) -> bool:
    process = machine.bare(*machine.client("alloc-to-limit", "--most", 16, "--step", 16, "--hold", 600))
    try:
        first_line(process, "held_mib")
        return within(3.0, lambda: machine.memory_of(process.pid) is not None) is not None
    finally:
        process.kill()
        process.communicate()


def _locks(machine: Machine) -> Iterable[Row]:
    """The library tells living processes from dead by locks of open file descriptions, as the kernel keeps them."""
    path = machine.root / "locks"
    path.write_bytes(b"\0" * 64)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        able = first_line(holder, "held", 30) == "held"
        yield Row("gpu_locks_of_descriptions", float(able), "yes", _ABLE, note="F_OFD_SETLK on one byte")
        if not able:
            return
        with path.open("r+b") as file:
            yield Row("gpu_locks_seen_by_others", float(_is_held(file.fileno(), 7)), "yes", _ABLE)
            yield Row("gpu_locks_byte_by_byte", float(not _is_held(file.fileno(), 8)), "yes", _ABLE)
            holder.send_signal(signal.SIGKILL)
            freed = within(2.0, lambda: not _is_held(file.fileno(), 7))
            shown = None if freed is None else round(freed * 1000, 3)
            note = "after SIGKILL" if freed is not None else "after SIGKILL: still held after 2 s"
            yield Row("gpu_locks_freed_ms", 2000.0 if shown is None else shown, "ms", "≤ 1000", note=note)
    finally:
        holder.kill()
        holder.communicate()


def _is_held(descriptor: int, byte: int) -> bool:
    asked = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
    return _LOCK.unpack(asked)[0] != fcntl.F_UNLCK


def _smoke(machine: Machine) -> Iterable[Row]:
    """A container with 1 GiB: it starts, sees its share as the card, is refused past it, and runs a kernel."""
    with machine.container(GIB) as container:
        shown = said(container.start(*machine.client("info")), 60)
        yield Row(
            "gpu_smoke_cuda_sees_share",
            float(f"of {GIB // MIB}MiB" in shown),
            "yes",
            _ABLE,
            note=shown.strip()[-160:],
        )
        yield Row("gpu_smoke_nvml_sees_share", float(f"/ {GIB // MIB:6}MiB" in shown), "yes", _ABLE)
        process = container.start(*machine.client("alloc-to-limit", "--step", 64, "--hold", 600))
        line = first_line(process, "held_mib")
        yield Row("gpu_smoke_refused", float(" error 2 " in line), "yes", _ABLE, note=line)
        process.kill()
        process.wait(30)
        seen = observe(
            machine, machine.client("spin", "--us", 200, "--seconds", 0.5, "--mode", "sync"), container, 60
        )
        yield Row(
            "gpu_smoke_kernels", seen.rate, "1/s", "≥ 100", note="of 200 µs, each waited for, at limit 100"
        )


def prepare(machine: Machine, settings: Settings) -> None:
    """What later rows are judged by, measured in every run: the size of a context and the card's clock."""
    machine.charge_contexts(memory.context_reserve(machine))
    length = settings.length(_CLOCK_US) / 2
    command = machine.client("spin", "--us", _CLOCK_US, "--seconds", length, "--mode", "stream")
    shares = [observe(machine, command).share for _ in range(3 if settings.seconds >= 1 else 1)]
    machine.clock = max(filter(None, shares), default=1.0)


def _prepared(machine: Machine) -> Iterable[Row]:
    """Kernels are as much work as fits their length at the clock that the driver names; no card runs at just that."""
    note = "a context and an empty module, by NVML; charged when it is made"
    yield Row("gpu_context_mib", round(machine.reserve / MIB, 1), "MiB", "≥ 0", note=note)
    note = "time that kernels' work takes at the clock that the driver names, on a card that is never idle; shares are over it"
    yield Row("gpu_clock_ratio", round(machine.clock, 4), "ratio", "≥ 0", 1.0, note=note)
