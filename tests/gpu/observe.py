"""Watches a program that works: how much it gets done, what its account says, and what NVML says."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_manager.domain.errors import NodeUnready
from tests.gpu.container import Container, Failed, complaint, first_line, said, shown
from tests.gpu.machine import Machine

_PERIOD = 0.25
_START = 0.2
"""Of the run: it is not judged by its first part, in which costs are learnt."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Rates are iterations a second, the others shares of the card's time between 0 and 1.

    ``share`` is the program's own count of its kernels' lengths, ``account`` what the container was charged,
    ``witness`` NVML's SM utilisation of the processes, or of the whole card where NVML lists none of them.
    """

    rate: float
    wall: float
    share: float | None = None
    account: float | None = None
    witness: float | None = None
    witness_of: str = ""


@dataclass(slots=True)
class _Sample:
    at: float
    busy: float | None
    seen: float | None
    of: str


def observe(
    machine: Machine, command: Sequence[str], container: Container | None = None, seconds: float = 300.0
) -> Seen:
    """Run it to its end. It prints ``running`` when it begins, and ``<iterations> N ... wall S`` last.

    Raises Failed: it ended badly, or took longer than ``seconds``.
    """
    process = container.start(*command) if container else machine.bare(*command)
    if first_line(process, "running", seconds) != "running":
        raise Failed(f"{' '.join(command)} did not begin: {complaint(process)}")
    return _watched(machine, process, container, lambda: said(process, seconds).splitlines()[-1])


def observe_round(
    machine: Machine,
    process: subprocess.Popen[str],
    container: Container | None = None,
    seconds: float = 300.0,
    line: str = "",
) -> Seen:
    """Let a started program, which prints the same for each line that it reads, go on until it has.

    Raises Failed: it ended, or took longer than ``seconds``.
    """

    def done() -> str:
        assert process.stdin
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        said_last = first_line(process, "iterations", seconds)
        if not said_last:
            raise Failed(f"{shown(process)} ended: {complaint(process)}")
        return said_last

    return _watched(machine, process, container, done)


def _watched(
    machine: Machine, process: subprocess.Popen[str], container: Container | None, ends: Callable[[], str]
) -> Seen:
    """``ends`` waits for the program's last line and returns it."""
    stop = threading.Event()
    samples: list[_Sample] = []
    thread = threading.Thread(target=_sample, args=(machine, process, container, stop, samples), daemon=True)
    begin = time.monotonic()
    thread.start()
    try:
        words = ends().split()
    finally:
        stop.set()
        thread.join(10)
    wall = float(words[words.index("wall") + 1])
    share = float(words[words.index("share") + 1]) / machine.clock if "share" in words else None
    judged = [s for s in samples if begin + wall * _START <= s.at <= begin + wall]
    return Seen(float(words[1]) / wall, wall, share, _charged(judged), *_witnessed(judged))


def _sample(
    machine: Machine,
    process: subprocess.Popen[str],
    container: Container | None,
    stop: threading.Event,
    into: list[_Sample],
) -> None:
    while not stop.wait(_PERIOD):
        try:
            busy = container.use().busy_seconds if container else None
        except NodeUnready:
            busy = None
        at = time.monotonic()
        mine = machine.busy().get(process.pid)
        seen = mine if mine is not None else machine.card_busy()
        into.append(_Sample(at, busy, seen, "the process" if mine is not None else "the card"))


def _charged(samples: Sequence[_Sample]) -> float | None:
    known = [(s.at, s.busy) for s in samples if s.busy is not None]
    if len(known) < 2:
        return None
    (first, least), (last, most) = known[0], known[-1]
    return (most - least) / (last - first)


def _witnessed(samples: Sequence[_Sample]) -> tuple[float | None, str]:
    seen = [s.seen for s in samples if s.seen is not None]
    if not seen:
        return None, ""
    return sum(seen) / len(seen) / 100, samples[-1].of


def within(seconds: float, holds: Callable[[], bool]) -> float | None:
    """Seconds until it holds; None if it does not within the bound."""
    begin = time.monotonic()
    while True:
        if holds():
            return time.monotonic() - begin
        if time.monotonic() - begin > seconds:
            return None
        os.sched_yield()
