"""The error of the use that the agent shows of containers: modelled time, real pages, its own readers.

Containers with a part of a card, with whole cards, idle ones, and evaders (processes without a slot in the
page) work in phases of seconds; pages and driver say what a library and NVML would. The oracle is the list of
phases. NVML is modelled by its documentation: one sample for each process that did anything within the last
period, which is 1/6 to 1 s by product, in whole percent; its clock has any phase to the agent's.
"""

from __future__ import annotations

import itertools
import random
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.rows import Row
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import PageSlots
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.nvml import FakeNvml, Gpu
from tests.fakes.page_evidence import Slots
from tests.fakes.ports import FakeClock
from vcuda.page.usage import SLOT_SIZE, USAGE_HEAD_SIZE, card_offset

SECONDS: Final = 600
KERNEL_SECONDS: Final = 0.15  # the library accounts for work when it has ended
PERIODS: Final = (1 / 6, 0.5, 1.0)
PHASES: Final = (0.0, 0.01, 0.37)
_SLOT_HIGH_OFFSET, _BUSY_OFFSET = 32, 256

# Container: (cores, the levels of its processes with a slot, of those without). A card has one line.
_CARDS: Final = (
    (("part", 30, (0.3,), ()), ("two processes", 50, (0.2, 0.25), ()), ("idle part", 20, (), ())),
    (("evader", 30, (0.1,), (0.4,)), ("beside it", 30, (0.3,), ()), ("evader alone", 30, (), (0.15,))),
    (("whole", 100, (0.9,), ()),),
    (("whole, two processes", 100, (0.5, 0.3), ()),),
    (("idle whole", 100, (), ()),),
    (("idle part, alone", 40, (0.0,), ()),),
)


class _Process:
    """Works in phases of 3 to 30 s, each at a level of its own up to the given one."""

    def __init__(self, pid: int, level: float, choose: random.Random, *, slot: bool) -> None:
        self.pid, self.slot = pid, slot
        self._ends, self._done, self._levels = [0.0], [0.0], [0.0]
        while level and self._ends[-1] < SECONDS + 2:
            lasts, at = choose.uniform(3, 30), level * choose.choice((0.0, 0.5, 1.0))
            self._ends.append(self._ends[-1] + lasts)
            self._done.append(self._done[-1] + lasts * at)
            self._levels.append(at)

    def busy(self, until: float) -> float:
        """Seconds of the card's time used since the start."""
        for end, done, level in zip(self._ends, self._done, self._levels, strict=True):
            if end >= until:
                return done - (end - until) * level if until > 0 else 0.0
        return self._done[-1]


@dataclass
class _Tenant:
    """A container, and the ratios that were shown of it."""

    name: str
    key: tuple[str, str]
    card: CardUuid
    processes: Sequence[_Process]
    page: Path | None
    shown: list[float] = field(default_factory=list)

    def write(self, at: float) -> None:
        """What the library's page says."""
        if self.page is None:
            return
        settled = at // KERNEL_SECONDS * KERNEL_SECONDS
        holders = [process for process in self.processes if process.slot]
        with self.page.open("r+b") as file:
            for index, process in enumerate(holders):
                file.seek(USAGE_HEAD_SIZE + index * SLOT_SIZE)
                file.write(struct.pack("<II", 1, process.pid))
            file.seek(_SLOT_HIGH_OFFSET)
            file.write(struct.pack("<I", len(holders)))
            file.seek(card_offset(0) + _BUSY_OFFSET)
            file.write(struct.pack("<Q", int(1e9 * sum(each.busy(settled) for each in holders))))

    def samples(self, at: float, period: float, phase: float) -> list[tuple[int, float, int]]:
        """What the driver says: pid, end of its last period, percent."""
        end = (at - phase) // period * period + phase
        ratios = ((p.pid, (p.busy(end) - p.busy(end - period)) / period) for p in self.processes)
        return [(pid, end, round(100 * ratio)) for pid, ratio in ratios if ratio > 0]

    @property
    def error(self) -> float:
        """Points of a card between the mean of what was shown and what was."""
        was = sum(process.busy(SECONDS) for process in self.processes) / SECONDS
        return 100 * abs(sum(self.shown) / SECONDS - was)


class _Node:
    """Six cards, their containers, and the agent's sampler over pages and NVML."""

    def __init__(self, rig: DirectRig, nvml: FakeNvml, cards: NvmlCards, directory: Path, seed: int) -> None:
        self.rig, self.nvml = rig, nvml
        self.pages = FileControlPages(directory)
        slots = PageSlots(self.pages, Slots())
        self.usage = UsageSampler(
            rig.state, cards, rig.pods, self.pages, rig.processes, rig.clock, rig.metrics, slots
        )
        pids, choose = itertools.count(100), random.Random(seed)
        self.tenants = [
            self._tenant(directory, index, each, pids, choose)
            for index, containers in enumerate(_CARDS)
            for each in containers
        ]

    def _tenant(
        self,
        directory: Path,
        index: int,
        given: tuple[str, int, tuple[float, ...], tuple[float, ...]],
        pids: Iterator[int],
        choose: random.Random,
    ) -> _Tenant:
        name, cores, counted, hidden = given
        rig, state, memory = self.rig, self.rig.states[index], 0 if cores == 100 else 8
        amounts = (state, cores, state.card.memory if cores == 100 else memory << 28)
        made = pod(f"p{next(pids)}", container("c", cores, memory), on={"c": [amounts]})
        before = set(rig.tenants.limits)
        admitted = rig.admit(made)
        if not admitted.admitted or rig.cards_of(made, "c") != (index,):
            raise RuntimeError(f"{name} is not on card {index}: {admitted}")
        uid = made["metadata"]["uid"]
        rig.kubelet.start_container(uid, "c", container_id=f"{next(pids):064x}")
        known = parse_pod(rig.kubelet.pod(uid))
        rig.pods.bind(known)
        processes = [_Process(next(pids), level, choose, slot=True) for level in counted]
        processes += [_Process(next(pids), level, choose, slot=False) for level in hidden]
        rig.processes.containers |= {
            each.pid: (PodUid(uid), known.containers[0].runtime_id) for each in processes
        }
        page = None
        for directory_name in set(rig.tenants.limits) - before if cores < 100 else ():
            self.pages.open(directory_name, rig.tenants.limits[directory_name])
            page = directory / directory_name / "usage"
        return _Tenant(name, (uid, "c"), state.card.uuid, processes, page)

    def run(self, period: float, phase: float, choose: random.Random) -> None:
        """Ten minutes, a sample a second, each up to 20 ms late."""
        start = self.rig.clock.monotonic()
        gpus = {CardUuid(gpu.uuid): gpu for gpu in self.nvml.gpus}
        for second in range(SECONDS + 1):
            at = second + choose.uniform(0, 0.02)
            self.rig.clock.pass_(start + at - self.rig.clock.monotonic())
            for gpu in gpus.values():
                gpu.compute, gpu.samples = {}, []
            for tenant in self.tenants:
                tenant.write(at)
                gpus[tenant.card].compute |= {process.pid: 1 << 28 for process in tenant.processes}
                gpus[tenant.card].samples += [
                    (pid, int((start + end) * 1e6), percent)
                    for pid, end, percent in tenant.samples(at, period, phase)
                ]
            shown = {use.key: use.core for use in self.usage.sample().shares}
            for tenant in self.tenants if second else ():
                core = shown[tenant.key]
                if core is None:
                    raise RuntimeError(f"{tenant.name} has no figure")
                tenant.shown.append(core)


def errors(period: float, phase: float, seed: int) -> dict[str, float]:
    """Container → points of a card that the mean of its figure is off."""
    with tempfile.TemporaryDirectory(prefix="vcuda-bench-") as place:
        clock = FakeClock(1_700_000_000.0)
        nvml = FakeNvml(*(Gpu(index) for index in range(len(_CARDS))))
        cards = NvmlCards(nvml, sysfs=Path(place), monotonic=clock.monotonic, wall=clock.now)
        with DirectRig(Path(place) / "node", cards.list(), clock=clock) as rig:
            node = _Node(rig, nvml, cards, Path(place) / "pages", seed)
            node.run(period, phase, random.Random(seed))
            node.pages.close()
            return {tenant.name: tenant.error for tenant in node.tenants}


def rows() -> Iterator[Row]:
    """The row of the worst container."""
    found = {
        (name, period, phase): error
        for seed, (period, phase) in enumerate(itertools.product(PERIODS, PHASES))
        for name, error in errors(period, phase, seed).items()
    }
    worst = max(found, key=lambda each: found[each])
    name, period, _ = worst
    note = (
        f"worst of {len(found)} means over {SECONDS} s of modelled time: fractions, whole cards, evaders and "
        f"idle ones, NVML modelled at {len(PERIODS)} sample periods and {len(PHASES)} phases to the agent's "
        f"second; it is {name!r} at {period:.2g} s"
    )
    yield Row("usage_error_points", round(found[worst], 2), "points", "≤ 1", note=note)
