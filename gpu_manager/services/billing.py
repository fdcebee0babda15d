"""The node's bills: sums of what each pod and namespace held and used of cards, and of the energy of each.

Only sums that are on the disk are exported. So no counter ever decreases, however the agent ends: Prometheus
would take a decrease for a reset, and the time would be billed twice.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_

import structlog

from gpu_manager.domain.billing import Bills, Holding, booked_peak, decode_bills, encode_bills
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.records import Store
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


# How much of each card's energy each container used: the driver's counter, shared by time on the card.
# A joule of the counter goes to exactly one row: to a container, by its share of the card's time since the
# reading before, or to nobody. So what all rows of a card grow by is what the card's own counter grows by.


TOLD_SECONDS = 300.0  # a container's row stays for so long after its end, so that the last joules are scraped

Holder = tuple[str, str, str]  # namespace, pod, container
NOBODY: Holder = ("", "", "")


@dataclass(slots=True)
class _Interval:
    """One card since the last reading of its counter: joules then, and card-seconds used since, by holder."""

    joules: float
    since: float
    used: dict[Holder, float] = field(default_factory=lambda: defaultdict(float))


class EnergyMeter:
    """One thread adds samples; anyone reads ``told``: joules since the start, by card and holder."""

    def __init__(self) -> None:
        self._intervals: dict[CardUuid, _Interval] = {}
        self._joules: dict[tuple[CardUuid, Holder], float] = defaultdict(float)
        self._seen: dict[Holder, float] = {}
        self._at: float | None = None
        self._named: tuple[Mapping[Key, Grant], frozenset[Key], Mapping[Key, Holder]] = ({}, frozenset(), {})
        self.told: Mapping[tuple[CardUuid, Holder], float] = {}

    def add(self, sample: Sample) -> None:
        """Take in a sample of usage, and the counters of its cards where they have moved."""
        seconds = 0.0 if self._at is None else max(0.0, sample.at - self._at)
        self._at = sample.at
        before, names = self._named[2], self._names(sample)
        for use in sample.shares:
            interval = self._intervals.get(use.share.card) if use.core else None
            if use.core and interval is not None and use.key in names:
                interval.used[names[use.key]] += use.core * seconds
        moved = [self._read(uuid, use.sensors.energy, sample.at) for uuid, use in sample.cards.items()]
        if any(moved) or names is not before:
            self._seen |= dict.fromkeys(names.values(), sample.at)
            self._forget(sample.at)
            self.told = dict(self._joules)

    def _names(self, sample: Sample) -> Mapping[Key, Holder]:
        """Who runs, by container; made anew only from other grants: the sampler changes none in place."""
        grants, ended, names = self._named
        if grants is not sample.grants or ended is not sample.ended:
            names = {
                key: (g.allocation.namespace, g.allocation.pod_name, g.allocation.container)
                for key, g in sample.grants.items()
                if g.allocation.pod_name and key not in sample.ended
            }
            self._named = sample.grants, sample.ended, names
        return names

    def _read(self, uuid: CardUuid, joules: float | None, now: float) -> bool:
        """True if the card's counter has moved since the last reading; what it moved by is shared then."""
        before = self._intervals.get(uuid)
        if joules is None or (before is not None and joules == before.joules):
            return False
        self._intervals[uuid] = _Interval(joules, now)
        if before is None or joules < before.joules:  # the first reading, or the driver began anew
            return False
        spent, used = joules - before.joules, sum(before.used.values())
        whole = max(now - before.since, used)  # several containers' figures may add up to more than the time
        for holder, seconds in before.used.items():
            self._joules[uuid, holder] += spent * seconds / whole
        self._joules[uuid, NOBODY] += spent * (whole - used) / whole if whole else spent
        return True

    def _forget(self, now: float) -> None:
        """Drop the rows of containers that ended a while ago."""
        gone = {holder for holder, at in self._seen.items() if now - at > TOLD_SECONDS}
        for holder in gone:
            del self._seen[holder]
        for row in [row for row in self._joules if row[1] in gone]:
            del self._joules[row]


LOOK_SECONDS = 1.0
NEWS_SECONDS, SAVE_SECONDS = (
    1.0,
    10.0,
)  # seconds between two writes: after a pod began or ended, and otherwise
_CALM_SECONDS = 0.2  # changes come in bursts, and Allocate goes first; begin and end are late alike


@dataclass(eq=False, repr=False)
class BillMeter:
    """One thread samples; ``told``, the exported sums, may be read from any thread.

    ``boot`` identifies this boot of the node: time in which it was off is not billed.
    """

    state: NodeState
    usage: UsageSampler
    store: Store
    clock: Clock
    metrics: ServiceMetrics
    boot: str

    def __post_init__(self) -> None:
        self._bills = Bills()
        self._at = self._saved = self.clock.monotonic()
        self._held: dict[PodUid, Holding] = {}
        self._peaks: dict[PodUid, tuple[tuple[Allocation, ...], Amount]] = {}
        self._sources: tuple[StateView, tuple[ShareUse, ...], frozenset[Key]] | None = None
        self._news = False
        self.told = Bills()

    def restore(self) -> None:
        """Continue from the disk; called once the books are rebuilt.

        A pod that is here now held its share also while no agent ran: nothing was granted meanwhile, and a
        grant of the last second before is not on the disk yet. A pod that ended meanwhile did so at an
        unknown time: half of the time is billed.
        """
        try:
            stored = self.store.load()
            if stored is None:
                return
            self._bills, boot, at = decode_bills(stored)
        except (NodeUnready, ValueError) as error:
            log.error("bills_lost", reason=str(error))
            self.metrics.scrape_errors.labels("bills").inc()
            return
        self.told = self._bills.copy()
        if boot == self.boot:
            self._at = min(at, self._at)
        known = {uid for uid, pod in self._bills.pods.items() if pod.ended is not None}
        there = self._holdings()
        granted = {
            uid: Holding(one.namespace, one.pod, one.booked)  # without its use, which was not sampled
            for uid, one in self._holdings(frozenset()).items()
            if uid not in known
        }
        self._held = {uid: one for uid, one in granted.items() if uid in there}
        away = self.clock.monotonic() - self._at
        ended = {uid: one for uid, one in granted.items() if uid not in there}
        self._bills.add(ended, away / 2, self.clock.now())

    def run(self, stop: threading.Event) -> None:
        """Sample once a second and soon after each change of books or pods; save when stopped."""
        while not stop.is_set():
            if self.state.touched.wait(LOOK_SECONDS):
                stop.wait(_CALM_SECONDS)
                self.state.touched.clear()
            self.look()
        self._add(self.clock.monotonic(), self.clock.now())
        self._save()

    def look(self) -> None:
        """Look at what is held now; sums are made where that has changed, and before they are saved."""
        at, now = self.clock.monotonic(), self.clock.now()
        before, held = self._held, self._current()
        if held is not before:
            self._add(at, now)
            self._held = held
            self._news |= self._bills.close(held.keys(), now) or not held.keys() <= before.keys()
        due = NEWS_SECONDS if self._news else SAVE_SECONDS
        if at - self._saved >= due and (held or self._news):
            self._add(at, now)
            self._news |= self._bills.close(held.keys(), now)  # pods that ended long ago go too
            self._save()

    def _add(self, at: float, now: float) -> None:
        """Add what was held until ``at``: one sum for all the time in which nothing changed."""
        if at > self._at:
            self._bills.add(self._held, at - self._at, now)
            self._at = at

    def _save(self) -> None:
        self._saved = self.clock.monotonic()
        try:
            self.store.save(encode_bills(self._bills, self.boot, self._at))
        except NodeUnready as error:
            log.error("bills_not_saved", reason=str(error))
            self.metrics.scrape_errors.labels("bills").inc()
            return
        self._news = False
        self.told = self._bills.copy()

    def _current(self) -> dict[PodUid, Holding]:
        """The holdings now: the same mapping for as long as books and figures are."""
        view, shares = self.state.view, self.usage.last.shares
        ended = self.usage.ended.among(view.grants)
        before = self._sources
        if before is not None and before[0] is view and before[1] is shares and before[2] == ended:
            return self._held
        held = self._holdings(ended)
        self._sources = view, shares, ended
        return held

    def _holdings(self, ended: frozenset[Key] | None = None) -> dict[PodUid, Holding]:
        """The holdings of all named pods that have not ended; ``ended`` overrides which containers have."""
        view, sample = self.state.view, self.usage.last
        if ended is None:
            ended = self.usage.ended.among(view.grants)
        pods: dict[PodUid, list[Key]] = {}
        for key, grant in view.grants.items():
            if grant.allocation.pod_name and not grant.allocation.is_admin:
                pods.setdefault(key[0], []).append(key)
        uses: dict[PodUid, list[ShareUse]] = {}
        for use in sample.shares:
            if use.key not in ended:
                uses.setdefault(use.key[0], []).append(use)
        held = {
            uid: tuple(view.ledger.of_pod(uid).values())
            for uid, keys in pods.items()
            if not ended.issuperset(keys)
        }
        self._peaks = {uid: self._peak(uid, allocations) for uid, allocations in held.items()}
        return {uid: _holding(*self._peaks[uid], uses.get(uid, ())) for uid in held}

    def _peak(self, uid: PodUid, held: tuple[Allocation, ...]) -> tuple[tuple[Allocation, ...], Amount]:
        """A pod's allocations and their peak, computed again only where the allocations have changed."""
        before = self._peaks.get(uid)
        same = before is not None and len(before[0]) == len(held) and all(map(is_, before[0], held))
        return before if before is not None and same else (held, booked_peak(held))


def _holding(held: tuple[Allocation, ...], booked: Amount, uses: Iterable[ShareUse]) -> Holding:
    """The holding of a pod that books its peak. Waste is counted by container, where its use is known."""
    known, first = tuple(uses), held[0]
    cores = [(u.core * CORES_PER_CARD, u.share.amount.cores) for u in known if u.core is not None]
    memory = [(float(u.held), u.share.amount.memory) for u in known if u.held is not None]
    return Holding(
        first.namespace,
        first.pod_name,
        booked,
        cores_used=sum(used for used, _ in cores),
        cores_wasted=_wasted(cores, booked.cores),
        memory_used=sum(used for used, _ in memory),
        memory_wasted=_wasted(memory, booked.memory),
    )


def _wasted(uses: Sequence[tuple[float, int]], booked: int) -> float:
    """Waste of (used, limit) pairs, at most what the pod books and does not use.

    App containers hold their limits while init containers run before them, but the pod books the peak alone.
    """
    idle = sum(max(0.0, limit - used) for used, limit in uses)
    return min(idle, max(0.0, booked - sum(min(used, limit) for used, limit in uses)))
