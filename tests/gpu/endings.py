"""Processes that end badly, fork, or capture beside a thread that launches: none hangs, none leaves a charge behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from bench.rows import Row
from tests.gpu.container import GIB, MIB, Container, first_line, said
from tests.gpu.dispatch import torch_command
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings, missing

EXITS, KILLS, CAPTURES = 500, 64, 500
HOWS = ("return", "exit", "thread")
MODES = ("global", "thread", "relaxed")
AT_ONCE = 8
HANGS_AFTER = 60.0
FREED_WITHIN = 1.0


def cases(settings: Settings) -> Iterator[Case]:
    """500 exits with work in flight, captures, forks, kills. Limits hold meanwhile: cores 50, 4 GiB."""
    exits, kills, captures = map(settings.count, (EXITS, KILLS, CAPTURES))
    yield Case("exits", exits * 0.15 + 5, partial(_exits, times=exits))
    for mode in MODES:
        yield Case(f"capture_{mode}", 15, partial(_captures, mode, rounds=captures))
    yield Case("forks", 40, _forks, needs="torch")
    yield Case("kills", kills * 0.2 + 5, partial(_kills, times=kills))


def _exits(machine: Machine, *, times: int) -> Iterator[Row]:
    ends: Counter[str] = Counter()
    with machine.container(4 * GIB, 50) as container:
        hows = itertools.islice(itertools.cycle(HOWS), times)
        for some in (
            itertools.batched(hows, AT_ONCE) if hasattr(itertools, "batched") else _batches(list(hows))
        ):
            started = [container.start(*machine.client("leave", "--how", how)) for how in some]
            ends.update(_end(process) for process in started)
        yield Row("gpu_exits_wrong", times - ends["well"], "exits", "= 0", note=_shown(ends, times))
        yield _left("gpu_exits_left_charged_bytes", container)


def _batches(items: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(items), AT_ONCE):
        yield items[at : at + AT_ONCE]


def _end(process: subprocess.Popen[str]) -> str:
    """``well``, or what was wrong with it."""
    try:
        _, err = process.communicate(timeout=HANGS_AFTER)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "hung"
    if process.returncode == 0 and not err.strip():
        return "well"
    return f"status {process.returncode}: {err.strip()[-120:]}"


def _shown(ends: Counter[str], times: int) -> str:
    wrong = "; ".join(f"{count} x {end}" for end, count in ends.most_common() if end != "well")
    return f"{times} processes that return, _exit or return beside a launching thread" + (
        f": {wrong}" if wrong else ""
    )


def _left(name: str, container: Container) -> Row:
    """What is charged once nobody is left, given a moment."""
    begin = time.monotonic()
    while (left := container.use().memory) and time.monotonic() - begin < FREED_WITHIN:
        threading.Event().wait(0.01)
    note = f"after {(time.monotonic() - begin) * 1000:.0f} ms, with no process left"
    return Row(name, left, "bytes", "= 0", note=note)


def _captures(mode: str, machine: Machine, *, rounds: int) -> Iterator[Row]:
    """Beside the same bare: a driver may refuse some captures by itself."""
    command = machine.client("capture", "--mode", mode, "--rounds", rounds, "--us", 50)
    bare = said(machine.bare(*command), 120).split()
    with machine.container(4 * GIB, 50) as container:
        ours = said(container.start(*command), 240).split()
    failed, without = int(ours[3]), int(bare[3])
    note = f"of {rounds} beside a launching thread at limit 50, first error {ours[5]}; bare {without} fail"
    yield Row(
        f"gpu_captures_{mode}_failed", max(0, failed - without), "captures", "= 0", float(without), note=note
    )
    yield Row(
        f"gpu_captures_{mode}_launch_error", float(ours[9]), "error", "= 0", note="of the thread beside it"
    )


def _forks(machine: Machine) -> Iterator[Row]:
    lacks = machine.lacks("torch")
    if lacks:
        yield from missing(["gpu_forks_work"], "yes", "= 1", lacks)
        return
    with machine.container(8 * GIB, 50) as container:
        shown = said(container.start(*torch_command(machine, "forks")), 180)
    words = shown.replace(",", "").split()
    right = words[:1] == ["works"] and words[2] == words[4]
    yield Row(
        "gpu_forks_work",
        float(right),
        "yes",
        "= 1",
        note=f"DataLoader, 4 forked workers, three times: {shown.strip()}",
    )


def _kills(machine: Machine, *, times: int) -> Iterator[Row]:
    """Killed while they allocate; then a new process can have all of the memory again."""
    with machine.container(2 * GIB, 50) as container:
        command = machine.client("alloc-to-limit", "--step", 1, "--hold", 600)
        for at in range(times):
            process = container.start(*command)
            first_line(process, "before")
            threading.Event().wait(0.002 * (at % 16))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        yield _left("gpu_kills_left_charged_bytes", container)
        process = container.start(*machine.client("alloc-to-limit", "--step", 16, "--hold", 600))
        line = first_line(process, "held_mib")
        held = int(line.split()[1]) if line else 0
        missed = (container.memory - machine.reserve) // MIB - held
        note = (
            f"MiB less than the limit and a context that one process gets after {times} were killed: {line}"
        )
        yield Row("gpu_kills_missed_mib", max(0, missed), "MiB", "≤ 32", note=note)
