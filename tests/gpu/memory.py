"""No way to take memory of the card gets a container past its limit, by the card's own count."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row
from gpu_manager.domain.enforcement.driver_overhead import Unaccounted
from gpu_manager.ports import Correction
from tests.gpu.machine import Container, Machine, first_line

MIB = 1 << 20
WAYS = ("alloc", "pitch", "async", "vmm", "array", "managed")
PROCESSES = 8
HELD = "= 0"
ENOUGH = 0.8  # of the limit: a library that refused everything would hold it too
REFUSED = 2  # the client's exit status when the driver had no memory
NO_TORCH = "no interpreter here has PyTorch: name one that has it in TORCH_PYTHON"
TORCH = Path(__file__).resolve().parent / "torch_client.py"
# Name of the row, argument of the client, settings.
ALLOCATORS = (
    ("torch_caching", "fill", {}),
    ("torch_expandable_segments", "fill", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("torch_cuda_malloc_async", "fill", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ("torch_cuda_graphs", "graphs", {}),
)


def rows(machine: Machine, *, full: bool) -> Iterator[Row]:
    """What is held over the limit once the driver refuses, for every way; and by several processes at once."""
    limit = (8192 if full else 2048) * MIB
    for way in WAYS:
        with machine.container(limit) as container:
            command = machine.client("alloc-to-limit", "--way", way, "--step", 16, "--hold", 600)
            yield judge(f"gpu_memory_over_{way}_bytes", container, [container.start(*command)], full=full)
    with machine.container(limit) as container:
        command = machine.client("alloc-to-limit", "--step", 4, "--hold", 600)
        several = [container.start(*command) for _ in range(PROCESSES)]
        yield judge(f"gpu_memory_over_{PROCESSES}_processes_bytes", container, several, full=full)
    for name, what, settings in ALLOCATORS:
        row = f"gpu_memory_over_{name}_bytes"
        if machine.stand_in or machine.torch is None:
            lacks = "a stand-in driver runs no kernels" if machine.stand_in else NO_TORCH
            yield Row(row, None, "bytes", HELD, full=full, note=lacks)
            continue
        with machine.container(limit) as container, agent(container):
            process = container.start(machine.torch, str(TORCH), what, **settings)
            yield judge(row, container, [process], full=full)


@contextlib.contextmanager
def agent(container: Container, period: float = 1.0) -> Iterator[None]:
    """What the agent does meanwhile: tell the library what the driver counts beyond the account (code, mostly)."""
    machine, stop = container.machine, threading.Event()

    def watch() -> None:
        seen = Unaccounted()
        while not stop.wait(period):
            driver = machine.memory_of(*container.pids)
            if driver is None:
                continue
            (use,) = machine.tenants.usage(container.name)
            seen = seen.seen(driver, use.memory, container.memory)
            told = Correction(host_adjust=seen.bytes)
            machine.tenants.publish(container.name, time.monotonic_ns(), {machine.card.uuid: told})

    thread = threading.Thread(target=watch, name="agent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def judge(name: str, container: Container, processes: list[subprocess.Popen[str]], *, full: bool) -> Row:
    """Each process says ``held_mib <n> error <code>`` once it was refused, and holds on to what it has."""
    held, notes = 0, []
    for process in processes:
        line = _last(process)
        if line:
            held += int(line.split()[1]) * MIB
            continue
        complaint = _complaint(process)
        if process.returncode != REFUSED:
            return Row(name, None, "bytes", HELD, full=full, note=f"the client failed: {complaint}")
        notes.append("one was refused its context")
    used, by_card = _settled(container), False
    if used is None:
        used, by_card = _by_card(container), True
    if used is None:
        return Row(name, None, "bytes", HELD, full=full, note="NVML does not count memory here")
    if by_card:
        notes.append(
            "by the card's own count, as NVML shows none of our processes: nobody else may use it now"
        )
    shown = f"{held // MIB} MiB allocated, {used // MIB} MiB on the card, limit {container.memory // MIB} MiB"
    if used < container.memory * ENOUGH:
        notes.append("less than four fifths of the limit could be had")
    over = max(0, used - container.memory)
    return Row(name, over, "bytes", HELD, full=full, note="; ".join([shown, *dict.fromkeys(notes)]))


def _last(process: subprocess.Popen[str]) -> str:
    """The line that says what is held; empty if the process ends before it."""
    return first_line(process, "held_mib")


def _complaint(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate(timeout=60)
    return err.strip().splitlines()[-1] if err.strip() else f"status {process.returncode}"


def _settled(container: Container) -> int | None:
    """The highest of a few counts: NVML lags behind allocations."""
    seen = []
    for _ in range(5):
        used = container.machine.memory_of(*container.pids)
        if used is not None:
            seen.append(used)
        time.sleep(0.1)
    return max(seen, default=None)


def _by_card(container: Container) -> int | None:
    """What the card has in use beyond what it had before the container."""
    now = container.machine.card_used()
    return None if now is None or container.before is None else max(0, now - container.before)


def context_reserve(machine: Machine) -> int:
    """What a context and an empty module take of the card: what the agent would publish for this model."""
    before = machine.card_used()
    process = machine.bare(*machine.client("alloc-to-limit", "--most", 0, "--hold", 600))
    try:
        if not _last(process):
            return 0
        deadline = time.monotonic() + 3  # NVML lists a process within one
        while (used := machine.memory_of(process.pid)) is None:
            if time.monotonic() > deadline or process.poll() is not None:
                now = machine.card_used()
                return 0 if now is None or before is None else max(0, now - before)
            time.sleep(0.05)
        time.sleep(0.5)
        return machine.memory_of(process.pid) or used
    finally:
        process.kill()
        process.communicate()
