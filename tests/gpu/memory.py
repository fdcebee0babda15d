"""No way to take memory of the card gets a container past its limit, by the card's own count; and its account is true."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial

from bench.rows import Row
from tests.gpu.container import GIB, MIB, Container, agent, complaint, first_line
from tests.gpu.dispatch import torch_command
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings, missing

WAYS = ("alloc", "pitch", "async", "vmm", "array", "managed")
PROCESSES = 8
LIMIT = 2 * GIB
HELD = "= 0"
ENOUGH = 0.8  # of the limit: a library that refused everything would hold it too
REFUSED = 2  # the client's exit status when the driver had no memory
# Name of the row, argument of the client, settings.
ALLOCATORS = (
    ("torch_caching", "fill", {}),
    ("torch_expandable_segments", "fill", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("torch_cuda_malloc_async", "fill", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ("torch_cuda_graphs", "graphs", {}),
)


def cases(settings: Settings) -> Iterator[Case]:
    """Every way, eight processes at once, PyTorch's allocators; deep ones with a larger limit."""
    for way in WAYS:
        yield Case(f"by_{way}", 5, partial(_by_way, way))
    yield Case("8_processes", 10, _by_processes)
    for name, what, env in ALLOCATORS:
        yield Case(f"by_{name}", 25, partial(_by_torch, name, what, env), needs="torch")
    for way in WAYS:
        yield Case(f"by_{way}_of_8_gib", 10, partial(_by_way, way, limit=8 * GIB), deep=True)


def _by_way(way: str, machine: Machine, limit: int = LIMIT) -> Iterable[Row]:
    name = way if limit == LIMIT else f"{way}_of_{limit // GIB}_gib"
    with machine.container(limit) as container:
        command = machine.client("alloc-to-limit", "--way", way, "--step", 16, "--hold", 600)
        return list(judge(name, container, [container.start(*command)]))


def _by_processes(machine: Machine) -> Iterable[Row]:
    with machine.container(LIMIT) as container:
        command = machine.client("alloc-to-limit", "--step", 4, "--hold", 600)
        several = [container.start(*command) for _ in range(PROCESSES)]
        return list(judge(f"{PROCESSES}_processes", container, several))


def _by_torch(name: str, what: str, env: dict[str, str], machine: Machine) -> Iterable[Row]:
    lacks = machine.lacks("torch")
    if lacks:
        return missing(
            [f"gpu_memory_over_{name}_bytes", f"gpu_memory_charge_minus_nvml_{name}_bytes"],
            "bytes",
            HELD,
            lacks,
        )
    with machine.container(LIMIT) as container, agent(container):
        return list(judge(name, container, [container.start(*torch_command(machine, what), **env)]))


def judge(name: str, container: Container, processes: list[subprocess.Popen[str]]) -> Iterator[Row]:
    """Each process says ``held_mib <n> error <code>`` once it was refused, and holds on to what it has.

    Two rows: bytes over the limit, and what is charged less what NVML counts (below 0: not all was charged).
    """
    over, charged = f"gpu_memory_over_{name}_bytes", f"gpu_memory_charge_minus_nvml_{name}_bytes"
    held, notes = 0, []
    for process in processes:
        line = first_line(process, "held_mib")
        if line:
            held += int(line.split()[1]) * MIB
            continue
        why = complaint(process)
        if process.returncode != REFUSED:
            yield Row(over, None, "bytes", HELD, note=f"the client failed: {why}")
            yield Row(charged, None, "bytes", "≥ 0", note=f"the client failed: {why}")
            return
        notes.append("one was refused its context")
    by_process = used = _settled(container)
    if used is None:
        used = _by_card(container)
        notes.append(
            "by the card's own count, as NVML shows none of our processes: nobody else may use it now"
        )
    if used is None:
        notes = ["NVML does not count memory here"]
    else:
        notes.insert(
            0,
            f"{held // MIB} MiB allocated, {used // MIB} MiB on the card, limit {container.memory // MIB} MiB",
        )
        if used < container.memory * ENOUGH:
            notes.append("less than four fifths of the limit could be had")
    note = "; ".join(dict.fromkeys(notes))
    yield Row(over, None if used is None else max(0, used - container.memory), "bytes", HELD, note=note)
    account = container.use().memory + container.beyond
    difference = None if used is None else account - used
    by = "NVML's count of its processes" if by_process is not None else note
    yield Row(
        charged,
        difference,
        "bytes",
        "≥ 0",
        note=f"{account // MIB} MiB charged, {container.beyond // MIB} of them by the agent; {by}",
    )


def _settled(container: Container) -> int | None:
    """The highest of a few counts: NVML lags behind allocations."""
    seen = []
    for _ in range(5):
        used = container.machine.memory_of(*container.pids)
        if used is not None:
            seen.append(used)
        threading.Event().wait(0.1)
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
        if not first_line(process, "held_mib"):
            return 0
        deadline = time.monotonic() + 3  # NVML lists a process within one
        while (used := machine.memory_of(process.pid)) is None:
            if time.monotonic() > deadline or process.poll() is not None:
                now = machine.card_used()
                return 0 if now is None or before is None else max(0, now - before)
            threading.Event().wait(0.05)
        threading.Event().wait(0.5)
        return machine.memory_of(process.pid) or used
    finally:
        process.kill()
        process.communicate()
