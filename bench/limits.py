"""What a container gets: never more memory than its limit, and its share of the card's time.

To add rows: a function ``(*, full: bool) -> Iterable[Row]``, and its name in ``PARTS``. Each part takes six
minutes at most, also at full size: figures of time are true of a quiet machine only.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Final

from bench import (
    limits_beside,
    limits_core,
    limits_dispatch,
    limits_evader,
    limits_names,
    limits_settle,
    limits_share,
    limits_shared_memory,
    limits_threads,
    limits_witness,
)
from bench.native import container
from bench.rows import Measure, Row, rows_of
from tests.native.driven import Container, program

MEMORY: Final = 6 << 30
"""Room for 64 contexts and as much again to fight over."""


HEAL_SECONDS: Final = 1.0
"""How long the account may hold what the dead had."""


class Crowd:
    """Processes that take memory in every way, and one that looks at account and card as often as it can."""

    def __init__(self, made: Container, count: int) -> None:
        self._made, self._seed = made, 0
        self._watch = self._start("prog_watch", made.usage_file, MEMORY)
        assert self._watch.stdout
        self._watch.stdout.readline()
        self._hammers = [self._hammer() for _ in range(count)]

    def _start(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [str(program(name)), *map(str, arguments)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._made.env()
        )

    def _hammer(self) -> subprocess.Popen[str]:
        self._seed += 1
        return self._start("prog_hammer", self._seed, 2)

    def kill(self, which: int) -> None:
        """At whatever instruction it is, and another takes its place."""
        self._end(self._hammers[which])
        self._hammers[which] = self._hammer()

    @staticmethod
    def _end(victim: subprocess.Popen[str]) -> None:
        victim.kill()
        said, _ = victim.communicate()
        if victim.returncode != -signal.SIGKILL:
            raise RuntimeError(
                f"a process that takes memory ended by itself with {victim.returncode}: {said}"
            )

    def heal_ms(self) -> float:
        """Kill all but one, and wait until the account holds nothing of theirs; in ms."""
        for victim in self._hammers[1:]:
            self._end(victim)
        started = time.monotonic()
        while len(self._made.usage.slots) > 1 and time.monotonic() - started < HEAL_SECONDS * 10:
            time.sleep(0.001)
        return (time.monotonic() - started) * 1e3

    def end(self) -> tuple[int, int, int]:
        """Samples taken, and the most by which account and card were past the limit."""
        self._end(self._hammers[0])
        out, _ = self._watch.communicate(timeout=60)
        samples, account, _, card = map(int, out.split()[-4:])
        return samples, account, card


def crowd(count: int, kills: int) -> tuple[int, int, int, float]:
    """Samples, bytes over by the account and by the card, and how long the account took to be true again."""
    chance = random.Random(count)  # the same kills in every run
    with container(MEMORY) as made:
        people = Crowd(made, count)
        for _ in range(kills):
            time.sleep(chance.random() * 0.01)
            people.kill(chance.randrange(count))
        healed = people.heal_ms()
        return *people.end(), healed


def memory(*, full: bool) -> Iterable[Row]:
    """Every allocating entry point, 1 to 64 processes of two threads, kill -9 at random instants; and
    memory that is exported, released and held by its descriptors alone."""
    samples = kills = over = 0
    healed = 0.0
    for count in (1, 2, 4, 8, 16, 32, 64):
        rounds = 150 if full else 20
        seen, account, card, ms = crowd(count, rounds)
        samples, kills, over, healed = (
            samples + seen,
            kills + rounds,
            max(over, account, card),
            max(healed, ms),
        )
    if healed > HEAL_SECONDS * 1e3:
        raise RuntimeError(f"the account held dead processes' bytes for {healed:.0f} ms")
    over = max(over, *limits_shared_memory.kept_descriptors(MEMORY))
    looks = f"{samples} looks at account and modelled card, {kills} kills"
    note = f"{looks}; true again after {healed:.0f} ms; a tenant that keeps descriptors"
    yield Row("memory_bytes_over", over, "bytes", "≤ 0", None, full, note)


PARTS: Mapping[str, Measure] = {
    "memory": memory,
    "shared-memory": limits_shared_memory.rows,
    "evader": limits_evader.rows,
    "alone": limits_share.alone,
    "split": limits_share.together,
    "waiting": limits_share.waiting,
    "change": limits_share.changes,
    "settle": limits_settle.rows,
    "dispatch": limits_dispatch.rows,
    "threads": limits_threads.rows,
    "core": limits_core.rows,
    "names": limits_names.rows,
    "beside": limits_beside.rows,
    "witness": limits_witness.rows,
}


def rows(*, full: bool, only: str = "") -> list[Row]:
    """The group's rows, or those of one part."""
    return list(rows_of(PARTS, only, full=full))
