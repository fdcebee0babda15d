"""Running fractions that change their size, on a node of stand-ins, with the agent's own services.

Random events: pods come and go, some of them with equal parts of several cards, a leader that counts as the
extender does answers requests for other sizes, programs take and free memory within the limit that is in
force, the second of the agent's looks passes, containers, agent and kubelet restart, the agent's disk fails.
After each a watcher adds up every card.

In force: the time from the scheduler's answer to the page, with books and pages in files as on a node.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.resize_placed import placed_rows
from bench.rows import Row, in_memory, percentile
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.store import FileStore
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CARDS as CARDS_ANNOTATION
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resize.judgement import judge_room, size_of
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.ports.control_pages import Limit
from tests.fakes.node import container, pod
from tests.fakes.ports import cards
from tests.fakes.resizing import ResizingRig

SEED: Final = int(os.environ.get("BENCH_SEED", "1"))
CARDS: Final = 4
LEAKS: Final = ("leaked", "held ids withdrawn", "ids kept back")
_UNITS: Final = 64  # of one card
_SETTLED: Final = 61.0  # the agent gives nothing back within 60 s after registering


@dataclass
class Life:
    """A pod with one container: its spec, and the size that the leader answered last; totals of its cards."""

    obj: dict[str, Any]
    cards: tuple[CardUuid, ...]
    spec: Amount
    answered: Amount

    @property
    def uid(self) -> PodUid:
        """The pod's UID."""
        return PodUid(self.obj["metadata"]["uid"])

    @property
    def parts(self) -> int:
        """The number of its cards."""
        return len(self.cards)


class Driver:
    """Users, the leader, programs and bad luck; ``counts`` is what the watcher and the judges found."""

    def __init__(self, rig: ResizingRig, seed: int) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        self.alive: dict[str, Life] = {}
        self.counts: Counter[str] = Counter()
        self.over = 0  # bytes, the worst instant of the worst card
        self._names = 0
        self._full = rig.allocatable()
        self._racing = True
        self._raced: set[tuple[PodUid, int]] = set()  # took memory while a lower limit was on its way to them
        self._publish = rig.tenants.open
        rig.tenants.open = self._raced_publish  # type: ignore[method-assign]

    def _raced_publish(self, name: str, limits: Sequence[Limit]) -> None:
        """Before a limit is in force, the program may still take what the one before it allows."""
        for life in self.alive.values():
            grant = self.rig.state.view.grants.get((life.uid, "c"))
            mine = grant is not None and grant.directory == name
            if mine and self._racing and self.random.random() < 0.2:
                at = self.random.randrange(life.parts)
                before = self.rig.tenants.limits[name][at]
                if before.memory > self.rig.held.get((life.uid, "c", at), 0):
                    self.rig.program(life.obj, before.memory / DEFAULT_UNIT, part=at)
                    self._raced.add((life.uid, at))
        self._publish(name, limits)

    def run(self, events: int) -> None:
        """So many events, then everything is quiet, then everybody goes."""
        acts = (
            (self._create, 20),
            (self._resize, 30),
            (self._program, 25),
            (self.rig.second, 12),
            (self._delete, 9),
            (self._restart_container, 2),
            (self._restart_agent, 1),
            (self._restart_kubelet, 1),
            (self._full_disk, 1),
        )
        weights = [weight for _, weight in acts]
        for _ in range(events):
            self.random.choices([act for act, _ in acts], weights)[0]()
            self._watch()
        self._quiet()
        for life in list(self.alive.values()):
            self._end(life)
        found = self.rig.allocatable(), self.rig.state.withdrawing, len(self.rig.state.view.ledger)
        self.counts["leaked"] += found != (self._full, False, 0)

    def _books(self) -> Ledger:
        """The cards as the extender counts them: spec, what is booked, what is answered; the most of them."""
        ledger = Ledger((s.card for s in self.rig.states), DEFAULT_UNIT)
        for life in self.alive.values():
            held = self.rig.state.view.ledger.get(life.uid, "c")
            booked = size_of(held) if held else life.spec
            charged = life.spec.peak(booked).peak(life.answered)
            ledger.commit((_allocation(life, charged),))
        return ledger

    def _create(self) -> None:
        parts = self.random.choice((1, 1, 2, 3))
        part = Amount(self.random.randint(5, 60), self.random.randint(1, 40) * DEFAULT_UNIT)
        spec = Amount(part.cores * parts, part.memory * parts)
        ledger, units = self._books(), spec.memory // DEFAULT_UNIT
        fits = [s for s in self.rig.states if part.fits_in(ledger.free(s.card.uuid))]
        # kube-scheduler counts the node's allocatable less the specs of its pods.
        free = [
            there - sum(spec_of(life)[n] for life in self.alive.values())
            for n, there in enumerate(self.rig.allocatable())
        ]
        if len(fits) < parts or spec.cores > free[0] or units > free[1]:
            self.counts["waits"] += 1
            return
        states = self.random.sample(fits, parts)
        self._names += 1
        name = f"p{self._names}"
        chosen = [(state, part.cores, part.memory) for state in states]
        annotations = {CARDS_ANNOTATION: str(parts)} if parts > 1 else {}
        obj = pod(name, container("c", spec.cores, units), on={"c": chosen}, annotations=annotations)
        self.counts["placed"] += 1
        result = self.rig.admit(obj)
        if not result.admitted:
            self.counts["refused"] += 1
            return
        self.rig.start(obj)
        given = self.rig.state.view.grants[PodUid(obj["metadata"]["uid"]), "c"].allocation.cards
        self.counts["on another card"] += set(given) != {state.card.uuid for state in states}
        self.counts["on several cards"] += parts > 1
        self.rig.objects[name] = obj
        self.alive[name] = Life(obj, given, spec, spec)

    def _resize(self) -> None:
        if not self.alive:
            return
        life = self.random.choice(list(self.alive.values()))
        held = self.rig.state.view.ledger.get(life.uid, "c")
        if held is None or not life.answered.fits_in(size_of(held)):
            return  # the agent has not followed the last answer
        cores, units = self.random.randint(1, 99), self.random.randint(1, _UNITS)
        wanted = Amount(cores * life.parts, units * life.parts * DEFAULT_UNIT)
        if self.random.random() < 0.2:
            wanted = life.spec
        ledger = self._books()
        mine = ledger.get(life.uid, "c")
        states = {s.card.uuid: s for s in self.rig.states}
        if mine is None or judge_room(ledger, mine, wanted, states) is not None:
            self.counts["no room"] += 1
            return
        life.answered = wanted
        self.counts["resizes"] += 1
        self.rig.answer(life.obj, wanted.cores, wanted.memory // DEFAULT_UNIT)

    def _program(self) -> None:
        """It takes as much as its limit lets it, or frees some."""
        if self.alive:
            life = self.random.choice(list(self.alive.values()))
            at = self.random.randrange(life.parts)
            limit = self.rig.in_force(life.obj)[1] / life.parts
            most = max(limit, self.rig.held.get((life.uid, "c", at), 0) / DEFAULT_UNIT)
            wants = min(self.random.uniform(0, limit * 1.5), most)
            self.rig.program(life.obj, wants, part=at)
            if wants <= limit:
                self._raced.discard((life.uid, at))

    def _delete(self) -> None:
        if self.alive and self.random.random() < len(self.alive) / 12:
            self._end(self.random.choice(list(self.alive.values())))

    def _end(self, life: Life) -> None:
        name = life.obj["metadata"]["name"]
        self.rig.objects.pop(name)
        self.alive.pop(name)
        self.rig.delete(life.obj)
        self.rig.clock.pass_(_SETTLED)
        for _ in range(2):
            self.rig.reclaimer.round()
        for at in range(life.parts):
            self.rig.held.pop((life.uid, "c", at), None)

    def _restart_container(self) -> None:
        if self.alive:
            life = self.random.choice(list(self.alive.values()))
            self._free(life)
            self.rig.kubelet.start_container(life.uid, "c")

    def _restart_agent(self) -> None:
        before = {name: self.rig.booked(life.obj) for name, life in self.alive.items()}
        self.rig.restart_agent()
        after = {name: self.rig.booked(life.obj) for name, life in self.alive.items()}
        for name, life in self.alive.items():
            answered = life.answered.cores, life.answered.memory // DEFAULT_UNIT
            self.counts["lost"] += after[name] != before[name] and after[name] != answered

    def _restart_kubelet(self) -> None:
        self.rig.kubelet.restart()
        self.rig.plugin.register()
        self.rig.kubelet.resume()

    def _full_disk(self) -> None:
        self.rig.store.broken = True
        self._resize()
        self.rig.store.broken = False
        self.rig.second()

    def _quiet(self) -> None:
        """Programs free what they hold and take no more, and every container has the size of its last
        answer.
        """
        self._racing = False
        for life in self.alive.values():
            self._free(life)
        for _ in range(4):
            self.rig.second()
        for life in self.alive.values():
            size = life.answered.cores, life.answered.memory // DEFAULT_UNIT
            self.counts["lost"] += not self.rig.booked(life.obj) == self.rig.in_force(life.obj) == size

    def _free(self, life: Life) -> None:
        for at in range(life.parts):
            self.rig.program(life.obj, 0, part=at)

    def _watch(self) -> None:
        """Every card, at this instant: what is booked, and what programs have or may still take."""
        ledger, bytes_of = self.rig.state.view.ledger, Counter[CardUuid]()
        for life in self.alive.values():
            limit = self.rig.in_force(life.obj)[1] // life.parts * DEFAULT_UNIT
            for at, card in enumerate(life.cards):
                used = self.rig.held.get((life.uid, "c", at), 0)
                self.counts["killed"] += limit < used and (life.uid, at) not in self._raced
                bytes_of[card] += max(used, limit)
        for state in self.rig.states:
            capacity = state.card.capacity(DEFAULT_UNIT)
            self.over = max(self.over, bytes_of[state.card.uuid] - capacity.memory)
            self.counts["overcommit"] += not ledger.booked(state.card.uuid).fits_in(capacity)
        self._count_ids(ledger)
        held = frozenset(d for ids in self.rig.listed().values() for some in ids.values() for d in some)
        withdrawn = frozenset[str]().union(*self.rig.state.offer.withdrawn.values())
        self.counts["held ids withdrawn"] += len(held & withdrawn)

    def _count_ids(self, ledger: Ledger) -> None:
        """The kubelet may hand out as many ids as there is room, and no fewer than that."""
        there = self.rig.allocatable()
        rooms = [ledger.free(s.card.uuid) for s in self.rig.states]
        for n, total in enumerate(self._full):
            held = sum(spec_of(life)[n] for life in self.alive.values())
            room = sum(r.cores if n == 0 else r.memory // DEFAULT_UNIT for r in rooms)
            self.counts["ids beyond room"] += there[n] - held > room
            self.counts["ids kept back"] += there[n] - held < min(total - held, room)


def spec_of(life: Life) -> tuple[int, int]:
    """Cores and units."""
    return life.spec.cores, life.spec.memory // DEFAULT_UNIT


def _allocation(life: Life, amount: Amount) -> Allocation:
    part = amount.part(life.parts)
    shares = tuple(Share(card, part) for card in life.cards)
    return Allocation(life.uid, "c", ContainerKind.APP, 0, shares)


def rows(*, full: bool, only: str = "") -> Iterable[Row]:
    """``only``: events, placed, or force."""
    if only in ("", "events"):
        yield from _events(full=full)
    if only in ("", "placed"):
        yield from placed_rows(SEED, full=full)
    if only in ("", "force"):
        yield _in_force(full=full)


PARTS: Final = ("events", "placed", "force")


def _events(*, full: bool) -> Iterator[Row]:
    events = 10_000 if full else 1_000
    with (
        tempfile.TemporaryDirectory() as directory,
        ResizingRig(Path(directory), states=cards()[:CARDS]) as rig,
    ):
        driver = Driver(rig, SEED)
        driver.run(events)
    counts = driver.counts
    note = (
        f"{events} events, seed {SEED}: {counts['placed']} pods placed, {counts['on several cards']} of them "
        f"on several cards, {counts['resizes']} resizes, "
        f"{counts['no room']} without room"
    )
    for name, figure, unit in (
        ("resize_bytes_over", max(0, driver.over), "bytes"),
        ("resize_killed", counts["killed"], "programs"),
        ("resize_overcommit", counts["overcommit"] + counts["ids beyond room"], "instants"),
        ("resize_lost", counts["lost"], "sizes"),
        ("resize_leaked_ids", sum(counts[one] for one in LEAKS), "instants"),
        ("resize_refused_pods", counts["refused"] + counts["on another card"], "pods"),
    ):
        yield Row(name, figure, unit, "= 0", full=full, note=note)


def _in_force(*, full: bool) -> Row:
    """Each answer grows cores and memory; the fsync of as many bytes is measured beside it."""
    times: list[float] = []
    work: list[float] = []
    bare: list[float] = []
    with in_memory() as pages, tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with ResizingRig(root, states=cards()[:CARDS]) as rig:
            real: Any = FileControlPages(pages)
            store: Any = FileStore(root / "ledger")
            rig.tenants, rig.store = real, store
            rig.restart_agent()
            objects = [rig.run(f"p{n}", 10, 4, on={"c": [(rig.states[n % CARDS], 10, 4)]}) for n in range(20)]
            size = len(store.load() or b"")
            rig.state.changed = lambda: None  # the lists of devices are sent by threads of their own
            for n in range(400 if full else 100):
                obj, step = objects[n % len(objects)], n // len(objects) % 5
                if step == 0:  # back to its spec, untimed
                    rig.answer(obj, 10, 4)
                    for _ in range(3):
                        rig.second()
                began, worked = time.perf_counter(), time.process_time()
                rig.answer(obj, 11 + step, 5 + step)
                times.append(time.perf_counter() - began)
                work.append(time.process_time() - worked)
                if rig.booked(obj) != (11 + step, 5 + step):
                    raise RuntimeError(
                        f"growth {n} was not followed: {rig.booked(obj)}: {rig.pods.events[-1]}"
                    )
                bare.append(_fsync(root / "bare", size))
    sync = percentile(bare, 99) * 1000
    middle = (percentile(times, 50) - percentile(bare, 50)) * 1000
    note = (
        f"p99 of {len(times)} growths, less the p99 of a fsync of {size} bytes; median less median "
        f"{middle:.1f} ms, of the processor {percentile(work, 99) * 1000:.1f} ms (p99); 20 containers"
    )
    figure = max(percentile(times, 99) * 1000 - sync, middle)
    return Row("resize_in_force_ms", round(figure, 2), "ms", "≤ 20", round(sync, 2), full, note)


def _fsync(path: Path, size: int) -> float:
    began = time.perf_counter()
    with path.open("wb") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began
