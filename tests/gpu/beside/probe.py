"""T0: may a process without privileges set the time slice of its own channel groups, leave the card in the middle of a kernel
and come back, and how fast? Nothing but the groups of processes started here is touched, and no setting of the card.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from bench.rows import Row, percentile
from tests.gpu.beside.arms import left_out, note_of
from tests.gpu.beside.workers import Worker, together
from tests.gpu.container import Failed
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

VERBS = ("slice 5000", "slice 2000", "preempt", "off", "on", "level 2")
SLICES = (
    (2000, 2000),
    (500, 500),
    (10_000, 10_000),
    (30_000, 30_000),
    (7000, 3000),
    (9000, 1000),
    (700, 300),
)
USERS = {"root": 0, "nobody": 65534}
CALLS, STOPS = 20, 100
FLOOD_US, BATCH = 5_000, 10
REQUEST_US, LONG_US = 200, 50_000
OFF_WITHIN_MS = 0.5
NONE = "the driver made no channel group by a call of ioctl that could be seen"
_AS = "import os, sys; os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"


@dataclass(slots=True)
class Groups:
    """A flood of kernels, and the pipe by which its own channel groups are told what to do."""

    worker: Worker
    lines: IO[str]
    answers: IO[str]

    def tell(self, line: str) -> tuple[int, float, int]:
        """(status, microseconds of the slowest call, figure). Raises Failed: the process has ended."""
        self.lines.write(line + "\n")
        self.lines.flush()
        words = self.answers.readline().split()
        if len(words) != 3:
            raise Failed(f"no answer to {line!r}")
        return int(words[0]), float(words[1]), int(words[2])


def cases(settings: Settings) -> Iterator[Case]:
    """The calls first: without them nothing else of this group has an answer."""
    seconds = settings.seconds / 2
    yield Case("probe_calls", 10, partial(_calls, calls=settings.count(CALLS)))
    yield Case("probe_slices", 8 + len(SLICES) * (seconds + 0.3), partial(_slices, seconds=seconds))
    yield Case("probe_stops", 25, partial(_stops, stops=settings.count(STOPS)))


@contextmanager
def _flood(machine: Machine, us: int, batch: int, user: str = "root") -> Iterator[Groups]:
    """A process of this user, ready, with its pipe. Raises Failed."""
    library = machine.preload("groups")
    machine.root.chmod(0o711)  # for the other user
    place = machine.root / f"groups-{user}-{os.urandom(4).hex()}"
    paths = {"GROUPS_IN": Path(f"{place}.in"), "GROUPS_OUT": Path(f"{place}.out")}
    for path in paths.values():
        os.mkfifo(path)
        path.chmod(0o666)
    client = machine.root / "client"
    if not client.exists():  # where the other user may read it
        shutil.copy(machine.native.client or "", client)
    command = (str(client), "worker", "--us", str(us), "--kernels", str(batch))
    if USERS[user]:
        command = (sys.executable, "-c", _AS, str(USERS[user]), *command)
    process = machine.bare(*command, LD_PRELOAD=library, **{name: str(path) for name, path in paths.items()})
    worker = Worker(process)
    try:
        worker.wait_ready()
        with paths["GROUPS_IN"].open("w") as lines, paths["GROUPS_OUT"].open() as answers:
            yield Groups(worker, lines, answers)
    finally:
        worker.end()


def _calls(machine: Machine, *, calls: int) -> Iterator[Row]:
    """Each command as each user: its status, and how long it takes."""
    for user in USERS:
        try:
            with _flood(machine, FLOOD_US, BATCH, user) as flood:
                yield from _tried(flood, user, machine, calls)
        except Failed as why:
            names = [f"gpu_probe_{user}_may"]
            yield from left_out(machine, names, "commands", "= 5", f"no program began as {user}: {why}")


def _tried(flood: Groups, user: str, machine: Machine, calls: int) -> Iterator[Row]:
    groups, name = flood.tell("count")[2], f"gpu_probe_{user}"
    if not groups:
        yield from left_out(machine, [f"{name}_groups", f"{name}_may"], "groups", "≥ 1", NONE)
        return
    yield Row(f"{name}_groups", groups, "groups", "≥ 1", note=note_of(machine, "that compute"))
    slice_us = flood.tell("facts")[2]
    flood.worker.begin(600)
    seen = {verb: [flood.tell(verb) for _ in range(1 if verb == "off" else calls)] for verb in VERBS}
    flood.tell(f"slice {slice_us}")
    able = [verb for verb in VERBS[:5] if not seen[verb][-1][0]]
    shown = ", ".join(f"{verb}: status {tries[-1][0]:#x}" for verb, tries in seen.items())
    yield Row(
        f"{name}_may",
        len(able),
        "commands",
        "= 5",
        note=note_of(machine, f"{shown}; the slice was {slice_us} us"),
    )
    for verb, tries in seen.items():
        took = [us for _, us, _ in tries]
        shown = f"{min(took):.0f} to {max(took):.0f} in {len(took)} calls, status {tries[-1][0]:#x}"
        name_us = f"{name}_{verb.replace(' ', '_')}_us"
        yield Row(name_us, round(statistics.median(took), 1), "us", "≥ 0", note=note_of(machine, shown))


def _slices(machine: Machine, *, seconds: float) -> Iterator[Row]:
    """Two floods with slices of their own: how the card is divided, and what both have of it together."""
    with ExitStack() as stack:
        floods = [stack.enter_context(_flood(machine, FLOOD_US, BATCH)) for _ in range(2)]
        if not floods[0].tell("count")[2]:
            yield from left_out(
                machine, [f"gpu_probe_{a}_{b}_sum" for a, b in SLICES], "of one alone", "≥ 0.97", NONE
            )
            return
        alone = floods[0].worker.run(seconds)["share"]
        for slices in SLICES:
            statuses = [flood.tell(f"slice {us}")[0] for flood, us in zip(floods, slices, strict=True)]
            got = [answer["share"] / alone for answer in together([(f.worker, 0.0) for f in floods], seconds)]
            name = f"gpu_probe_{slices[0]}_{slices[1]}"
            due = slices[0] / sum(slices)
            note = note_of(machine, f"got {got[0]:.1%} and {got[1]:.1%}, statuses {statuses}")
            yield Row(
                f"{name}_error", round(abs(got[0] / sum(got) - due) * 100, 2), "points", "≤ 1", note=note
            )
            yield Row(f"{name}_sum", round(sum(got), 3), "of one alone", "≥ 0.97", 1.0, note=note)


def _stops(machine: Machine, *, stops: int) -> Iterator[Row]:
    """A request beside a kernel of 50 ms that is taken off the card for it, and whether that kernel then ends rightly."""
    with ExitStack() as stack:
        flood = stack.enter_context(_flood(machine, LONG_US, 1))
        names = ["gpu_probe_request_beside_off_ms", "gpu_probe_value_after_stops"]
        if not flood.tell("count")[2]:
            yield from left_out(machine, names, "ms", f"≤ {OFF_WITHIN_MS}", NONE)
            return
        service = Worker(machine.bare(*machine.client("worker", "--us", REQUEST_US)))
        stack.callback(service.end)
        service.wait_ready()
        alone = [service.run(1e-6)["p50"] for _ in range(stops)]
        right = flood.worker.run(0.2)["value"]
        flood.worker.begin(0.12 * stops)
        waits, stopped = [], []
        for _ in range(stops):
            status, us, _ = flood.tell("off")
            waits.append(us / 1000 + service.run(1e-6)["p50"] - statistics.median(alone))
            stopped.append(status)
            flood.tell("on")
        value = flood.worker.answer(0.12 * stops + 60)["value"]
        note = f"with the call; a request of {REQUEST_US} us took {statistics.median(alone):.3f} ms alone; statuses {sorted(set(stopped))}"
        yield Row(
            names[0], round(percentile(waits, 99), 3), "ms", f"≤ {OFF_WITHIN_MS}", note=note_of(machine, note)
        )
        note = f"1: what a kernel computes is the same after {stops} stops ({right:.0f}, {value:.0f})"
        yield Row(names[1], float(value == right), "yes", "= 1", note=note_of(machine, note))
