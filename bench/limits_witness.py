"""Does the agent name accounts that are wrong, and no honest one? On a modelled clock.

The driver is as unfriendly as an H100's was seen to be (driver 580; tests/data/cards and docs/real-card.md):
some five samples a second, each given to one process as a whole; each launch counted for 2.4 to 5.6 µs more
than its kernel runs; whole percents, rounded down. Seconds without a sample come on top, and calls that fail
where a program is honest. The agent's own reader reads it, and its own check judges. What a page says is
modelled, too: an honest account is up to 3 points wrong, as much as the limits' bars allow, and late by the
length of a kernel.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, floor, log
from types import SimpleNamespace
from typing import Any, Final, cast

import pynvml
from structlog.testing import capture_logs

from bench.rows import Row
from gpu_manager.adapters.nvml.usage import UsageReader
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.enforcement.second_witness import GAP
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.enforcement.account_check import AccountCheck
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse

WRONG, HONEST = 200, 1000
SOON, LATEST, QUICK_SECONDS = 90, 600, 120
LOOK_SECONDS: Final = (1 / 6, 1 / 4)  # from one of the driver's samples to the next
LAUNCH: Final = (2.4e-6, 5.6e-6)
FEW_LAUNCHES: Final = 3000.0
ROUND_SECONDS: Final = (1.002, 1.02)  # a second, and what a round of the agent takes
MOST_PROCESSES: Final = 2
LOST, FAILED = 0.02, 0.001
"""Chance of a second in which the driver has no sample, and of one in which it begins to fail for some."""


@dataclass(slots=True)
class Program:
    """Kernels of so many seconds that take ``busy`` of the card, with pauses for ``rest`` of each ``period``.

    ``others``: what others take of the card. ``counted``: seconds that the driver counts beyond each kernel.
    The account says ``wrong`` more or less of the card than it has. ``disturbed``: calls of the driver fail.
    """

    kernel: float
    busy: float
    period: float
    rest: float
    processes: int
    others: float
    counted: float
    wrong: float
    named: int | None = None
    late: float = 0.0
    looked: float = 0.0
    next_look: float = 0.0
    looks: list[tuple[int, int, int]] = field(default_factory=list)  # microseconds, whose, percent
    fails: int = 0
    disturbed: bool = False

    @property
    def mean(self) -> float:
        """Its share of the card in the long run."""
        return self.busy * (1 - self.rest)

    @property
    def launches(self) -> float:
        """Kernels a second while it works."""
        return self.busy / self.kernel

    def worked(self, since: float, until: float) -> float:
        """For how long of this time it worked, its pauses left out."""
        on = self.period * (1 - self.rest)

        def so_far(at: float) -> float:
            return at // self.period * on + min(at % self.period, on)

        return so_far(until) - so_far(since)


def drawn(chance: random.Random, *, wrong: bool, shared: bool, few: bool = False) -> Program:
    """A program; ``few``: one of few processes that launches few kernels a second."""
    while True:
        one = Program(
            kernel=exp(chance.uniform(log(2e-6), log(0.05))),
            busy=chance.uniform(0.1, 0.6 if shared else 0.99),
            period=exp(chance.uniform(log(0.05), log(20))),
            rest=chance.choice((0.0, 0.0, chance.uniform(0.1, 0.7))),
            processes=chance.choice((1, 1, 1, 2, 4)),
            others=0.0,
            counted=chance.uniform(*LAUNCH),
            wrong=chance.uniform(-0.03, 0.03),
            disturbed=not wrong,
        )
        if shared:
            one.others = chance.uniform(0.05, 1 - one.busy)
        if wrong:
            one.wrong = chance.uniform(GAP, 0.6) * chance.choice((1, -1))
        most = one.busy * (1 + one.wrong / one.mean)  # what it is told to use while it works
        possible = 0 <= most <= 1 or not wrong
        if possible and not (few and (one.launches > FEW_LAUNCHES or one.processes > MOST_PROCESSES)):
            return one


class Driver:
    """NVML of the modelled cards, for the agent's reader: a card's handle is its program."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.now = 1_000.0

    def __getattr__(self, name: str) -> Any:
        """Constants are the binding's; what is not written here this driver does not have."""

        def missing(*_: object) -> Any:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        return missing if name.startswith("nvmlDevice") else getattr(pynvml, name)

    def pass_(self, program: Program, until: float) -> None:
        """Take the samples that are due."""
        while program.next_look <= until:
            since, at = program.looked, program.next_look
            length = at - since
            worked = program.worked(since, at) / length if length else 0.0
            mine = min(worked, worked * (program.busy + program.launches * program.counted))
            others = program.others
            all_ = min(1.0, mine + others)
            whose = -1
            if mine and self._chance.random() < mine / (mine + others):
                whose = self._chance.randrange(program.processes)
            program.looks.append((int(at * 1e6), whose, floor(all_ * 100)))
            del program.looks[:-8]
            program.looked = at
            program.next_look = at + self._chance.uniform(*LOOK_SECONDS)

    def nvmlDeviceGetMemoryInfo(self, _: Program, __: object = None) -> Any:  # noqa: N802  # the binding's names
        return SimpleNamespace(total=80 * GIB, reserved=0, used=GIB)

    def nvmlDeviceGetUtilizationRates(self, program: Program) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=program.looks[-1][2] if program.looks else 0)

    def _list(self, program: Program) -> list[Any]:
        if program.fails:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        users = [*range(1, program.processes + 1), *([99] if program.others else [])]
        return [SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in users]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, program: Program) -> list[Any]:  # noqa: N802
        return self._list(program)

    def nvmlDeviceGetProcessUtilization(self, program: Program, since: int) -> list[Any]:  # noqa: N802
        if program.fails:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        fresh = [look for look in program.looks if look[0] > since]
        if not fresh or self._chance.random() < LOST:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        found = []
        for whose in {look[1] for look in fresh}:
            percent = sum(look[2] for look in fresh if look[1] == whose) // len(fresh)
            if percent:
                pid = 99 if whose < 0 else whose + 1
                found.append(SimpleNamespace(pid=pid, timeStamp=fresh[-1][0], smUtil=percent))
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def __call__(self) -> float:
        """The clock."""
        return self.now

    monotonic = __call__


def run(programs: Sequence[Program], seconds: int, chance: random.Random) -> None:
    """Each on a card of its own, for so many seconds or until it is named."""
    driver = Driver(chance)
    reader = UsageReader(driver, driver, driver)
    cards = [Card(n, CardUuid(f"GPU-{n}"), "H100", 80 * GIB) for n in range(len(programs))]
    sample = Sample(driver.now)
    node = SimpleNamespace(cards=(), index=str)
    check = AccountCheck(
        cast("Any", SimpleNamespace(node=node)),
        lambda: sample,
        cast("Any", SimpleNamespace(local=dict)),
        lambda: True,
        driver,
    )
    for one in programs:
        one.looked = one.next_look = driver.now
        driver.pass_(one, driver.now + 1)
    for second in range(1, seconds + 1):
        pause = chance.uniform(*ROUND_SECONDS)
        driver.now += pause
        uses, processes, shares, busy = {}, {}, [], {}
        for one, card in zip(programs, cards, strict=True):
            if one.named is not None:
                continue
            driver.pass_(one, driver.now)
            one.fails = (
                max(0, one.fails - 1)
                or (one.disturbed and chance.random() < FAILED and chance.randint(1, 20))
                or 0
            )
            try:
                use, told = reader.read(one, card)
            except pynvml.NVMLError:
                use, told = None, ()
            place = (PodUid(str(card.index)), "c"), card.uuid
            if use is not None:
                uses[card.uuid] = use
                processes[place] = [process for process in told if process.pid != 99]
                busy[card.uuid] = sum(process.utilisation or 0.0 for process in told)
            shares.append(_share(one, place[0], card.uuid, driver.now, pause, chance))
        sample = Sample(driver.now, {}, uses, tuple(shares), processes, frozenset(), busy)
        with capture_logs():
            check.look()
        for _, card_uuid in check.found.differing:
            one = programs[int(card_uuid.partition("-")[2])]
            one.named = one.named or second


def _share(
    one: Program, key: tuple[PodUid, str], card: CardUuid, now: float, pause: float, chance: random.Random
) -> ShareUse:
    """What the page says of the last second: work is accounted for when its kernel has ended."""
    late = min(one.kernel, 0.5) + chance.uniform(0.0, 0.05)
    worked = max(0.0, one.worked(now - pause - one.late, now - late)) / pause
    one.late = late
    told = worked * one.busy * (1 + one.wrong / one.mean)
    if one.others:
        told += chance.gauss(0.0, 0.01)
    return ShareUse(
        key, Share(card, Amount(30, GIB)), "active",
        account=min(1.0, max(0.0, told)), launches=worked * one.launches, longest=one.kernel,
    )  # fmt: skip


def rows(*, full: bool) -> Iterable[Row]:
    """Who is named and when: of every shape, of those that the driver can tell from honest ones, and of
    honest ones. The programs are drawn on the day.
    """
    seed = random.SystemRandom().randrange(1 << 31)
    chance = random.Random(seed)  # programs, not secrets
    every = [drawn(chance, wrong=True, shared=n % 2 == 1) for n in range(WRONG)]
    alone = [drawn(chance, wrong=True, shared=False, few=True) for _ in range(WRONG)]
    beside = [drawn(chance, wrong=True, shared=True, few=True) for _ in range(WRONG)]
    honest = [drawn(chance, wrong=False, shared=n % 2 == 1) for n in range(HONEST)]
    seconds = LATEST if full else QUICK_SECONDS
    for programs, longest in ((every, SOON), (alone, SOON), (beside, LATEST), (honest, seconds)):
        run(programs, longest, chance)
    missed = [one for one in every if not one.named]
    many, others = (sum(map(of, missed)) for of in (launches_much, has_company))
    what = f"modelled clock, a driver that errs as an H100's does, seed {seed}"
    note = (
        f"of {WRONG} programs of every shape, 10 to 60 points wrong, within {SOON} s; not named: {many} with "
        f"over {FEW_LAUNCHES:.0f} launches a second, {others} beside others' work, "
        f"{len(missed) - many - others} more; {what}"
    )
    yield Row("witness_named", 1 - len(missed) / WRONG, "ratio", "= 1", None, full, note)
    note = (
        f"of {WRONG} such that have the card to themselves, with at most {MOST_PROCESSES} processes and "
        f"{FEW_LAUNCHES:.0f} launches a second, within {SOON} s"
    )
    found = sum(one.named is not None for one in alone) / WRONG
    yield Row("witness_named_alone", found, "ratio", "= 1", None, full, note)
    last = [one.named or LATEST + 1 for one in beside]
    note = f"the slowest of {WRONG} beside others' work; {sum(at <= SOON for at in last)} within {SOON} s"
    yield Row("witness_named_beside_s", max(last), "s", f"≤ {LATEST}", None, full, note)
    named = [one for one in honest if one.named]
    note = (
        f"of {HONEST} of every shape with accounts right within 3 points, half of them beside others' work, "
        f"for {seconds} s each" + (f"; the first: {replace(named[0], looks=[])}" if named else "")
    )
    yield Row("witness_honest_named", len(named), "programs", "= 0", None, full, note)


def launches_much(one: Program) -> bool:
    """True if the driver's figure is too high for what so many launches add to it."""
    return one.launches > FEW_LAUNCHES


def has_company(one: Program) -> bool:
    """True if the driver gives some samples of its work to others, and launches are not why it is missed."""
    return one.others > 0 and not launches_much(one)
