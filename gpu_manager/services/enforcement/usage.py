"""Usage of cards by container, sampled once a second: from pages for fractions, otherwise from NVML and
cgroups.

A scrape renders the last sample without I/O. What cannot be read is left out, and counted.

Some granted containers have ended while the ledger still holds their shares: it keeps a share until the
kubelet has forgotten the pod, which takes up to a minute, because the kubelet does not give the ids to
another pod before. Metrics and bills end earlier, with the container.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from itertools import chain
from operator import is_

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import account_error
from gpu_manager.domain.enforcement.time_sharing import NO_STALLS
from gpu_manager.domain.errors import NodeUnready, Tampered
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.ports.api_server import KnownPod, Pods
from gpu_manager.ports.cards import Cards, CardUse, ProcessUse
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Processes
from gpu_manager.ports.control_pages import ControlPages, TenantUse
from gpu_manager.services.allocation.books import Grant, Key, is_claims
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.evasion_detector import MemoryPastAccount
from gpu_manager.services.enforcement.time_sharing import CardTenant
from gpu_manager.services.enforcement.usage_sample import (
    ContainerGrants,
    DriverSample,
    PageSlots,
    Place,
    ProcessOwners,
    Sample,
    ShareUse,
    driver_share,
    has_page,
)
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

ABSENT_SECONDS = 1.0  # a pod that is not in the watch and has no process for this long has ended


class EndedContainers:
    """Finds the ended containers of one node. Thread-safe."""

    def __init__(self, pods: Pods, processes: Processes, clock: Clock) -> None:
        self._pods = pods
        self._processes = processes
        self._clock = clock
        self._lock = threading.Lock()
        self._absent: dict[PodUid, float] = {}  # pods absent from the API and without a process → since when
        self._ended: frozenset[PodUid] = frozenset()
        self._settled: tuple[Collection[Key], Mapping[str, Sequence[KnownPod]], frozenset[Key]] | None = None

    def among(self, granted: Collection[Key]) -> frozenset[Key]:
        """The containers among ``granted`` that have ended for good.

        All containers of a pod have ended once the API shows its end or its object is deleted, and no process
        of it runs. A pod that the API has never shown may be about to start: it counts as ended after a
        second without a process. Of a running pod, completed init containers have ended. A claim's share has
        not ended as long as it is held: the kubelet reports at once when the last pod of a claim has ended.

        While ``granted`` and the API's pods are the same objects and every pod runs, the last answer is
        valid: neither is ever changed in place.
        """
        known = self._pods.local()
        with self._lock:
            if self._settled and self._settled[0] is granted and self._settled[1] is known:
                return self._settled[2]
            local = {PodUid(f.pod.uid): f for found in known.values() for f in reversed(found)}
            of_pods = [key for key in granted if not is_claims(key)]
            ended = self._ended_pods({uid for uid, _ in of_pods}, local)
            over = frozenset(key for key in of_pods if key[0] in ended or _is_over(local.get(key[0]), key[1]))
            running = all(_runs(local.get(uid)) for uid, _ in of_pods)
            self._settled = (granted, known, over) if running else None  # else processes are checked again
            return over

    def _ended_pods(self, granted: set[PodUid], local: Mapping[PodUid, KnownPod]) -> frozenset[PodUid]:
        """The pods that have ended. The lock is held."""
        now = self._clock.monotonic()
        absent: dict[PodUid, float] = {}
        ended: set[PodUid] = set()
        for uid in granted:
            found = local.get(uid)
            if _runs(found):
                continue
            # UIDs are never reused: processes of ended pods are not searched again.
            alive = False if uid in self._ended else self._processes.alive(uid)
            if found is None and alive is False:
                absent[uid] = self._absent.get(uid, now)
                if now - absent[uid] >= ABSENT_SECONDS:
                    ended.add(uid)
            elif found is not None and not alive:
                ended.add(uid)
        self._absent, self._ended = absent, frozenset(ended)
        return self._ended


def _runs(found: KnownPod | None) -> bool:
    """True if the pod runs according to the API."""
    return found is not None and not found.tombstone and not found.pod.terminal


def _is_over(found: KnownPod | None, container: str) -> bool:
    return found is not None and container in found.pod.ended_inits


PERIOD_SECONDS = 1.0
_SILENT = CardUse(CardUuid(""), lists_processes=False, samples_processes=False)


@dataclass(slots=True)
class _Resting:
    """An idle container: its grant, the last reading of its page, as it is until now, and its result."""

    grant: Grant
    read: Sequence[TenantUse]
    shown: tuple[ShareUse, ...]


@dataclass(slots=True)
class _Before:
    """The last reading of one page, from which the next busy ratio is computed, and its result."""

    at: float
    use: TenantUse
    shown: ShareUse


@dataclass(eq=False, repr=False)
class UsageSampler:
    """Keeps the last :class:`Sample`; one thread samples, any may read.

    ``slots`` finds processes that the page does not account for; without it, all count as accounted.
    ``gains``: factors by which containers must be charged more than their library measures.
    """

    state: NodeState
    cards: Cards
    pods: Pods
    pages: ControlPages
    processes: InitVar[Processes]
    clock: Clock
    metrics: ServiceMetrics
    slots: PageSlots | None = None
    gains: Callable[[], Mapping[Place, float]] = dict

    def __post_init__(self, processes: Processes) -> None:
        self._gains_now: Mapping[Place, float] = {}
        self._owners = ProcessOwners(processes)
        self.ended = EndedContainers(self.pods, processes, self.clock)
        self._before: dict[Place, _Before] = {}
        self._resting: dict[Key, _Resting] = {}
        self._containers = ContainerGrants()
        self._past_account = MemoryPastAccount(self._last_read)
        self.last = Sample(self.clock.monotonic())
        self._tenants_now: tuple[Sample, tuple[CardTenant, ...]] = (self.last, ())

    def sample(self) -> Sample:
        """Take one sample."""
        now = self.clock.monotonic()
        grants = self.state.view.grants
        containers = self._containers.of(self.pods.local(), grants)
        driver = self._ask_driver(containers, grants)
        self._past_account.begin(driver, int(now * 1e9))
        unchanged = self.pages.unchanged(resting.grant.directory for resting in self._resting.values())
        calm = grants is self.last.grants and not driver.by_place and len(self._resting) == len(grants)
        if calm and all(unchanged.get(one.grant.directory) is one.read for one in self._resting.values()):
            told = self.last.shares
        else:
            told = self._told(now, grants, containers, driver, unchanged)
        if grants is not self.last.grants:
            self._forget(grants)
        ended = self.ended.among(grants)
        self.last = Sample(
            now, grants, driver.cards, told, driver.by_place, ended, driver.busy, driver.processes
        )
        return self.last

    def _told(
        self,
        now: float,
        grants: Mapping[Key, Grant],
        containers: Mapping[tuple[PodUid, str], Sequence[Key]],
        driver: DriverSample,
        unchanged: Mapping[str, Sequence[TenantUse]],
    ) -> tuple[ShareUse, ...]:
        """What each container uses: the last sample's own tuple where that is the same."""
        seen = {key for key, _ in driver.by_place}
        shares: list[ShareUse] = []
        for key, grant in grants.items():
            resting = self._resting.get(key)
            if resting is not None:
                same = resting.grant is grant and unchanged.get(grant.directory) is resting.read
                if same and key not in seen:
                    shares += resting.shown
                    continue
                self._wake(resting)
            if has_page(grant):
                shares += self._fraction(grant, now, driver, watched=key in seen)
            else:
                started = grant.key in chain.from_iterable(containers.values())
                shares += self._whole(grant, driver, started=started)
        told, before = tuple(shares), self.last.shares
        return before if len(told) == len(before) and all(map(is_, told, before)) else told

    def tenants(self) -> tuple[CardTenant, ...]:
        """Containers with a page by card, and whether they worked in the last second.

        Returns the same tuple while nothing in it has changed.
        """
        sample, (before, tenants) = self.last, self._tenants_now
        idle, gains = not sample.processes and not before.processes, self.gains()
        same = sample.shares is before.shares and sample.grants is before.grants
        if not (idle and same and gains == self._gains_now):
            tenants = self._tenants_of(sample, gains)
        self._tenants_now, self._gains_now = (sample, tenants), gains
        return tenants

    @staticmethod
    def _tenants_of(sample: Sample, gains: Mapping[Place, float]) -> tuple[CardTenant, ...]:
        return tuple(
            CardTenant(
                name=sample.grants[use.key].directory,
                card=use.share.card,
                at_work=bool(use.core),
                began=use.began,
                driver_share=driver_share(sample.processes.get(use.place, ())),
                beyond=use.beyond,
                excess=use.excess,
                priority=sample.grants[use.key].allocation.priority,
                gain=gains.get(use.place, 1.0),
            )
            for use in sample.shares
            if use.enforcement == "active"
        )

    def _ask_driver(
        self, containers: Mapping[tuple[PodUid, str], Sequence[Key]], grants: Mapping[Key, Grant]
    ) -> DriverSample:
        try:
            uses, processes = self.cards.usage()
        except NodeUnready as error:
            self.metrics.scrape_errors.labels("cards").inc()
            log.debug("cards_unreadable", reason=str(error))
            uses, processes = [], []
        by_place: dict[Place, list[ProcessUse]] = {}
        for process, owner in self._owners.of(processes, {use.uuid for use in uses if use.lists_processes}):
            keys = containers.get(owner)
            if keys:
                held = (key for key in keys if key in grants and process.uuid in grants[key].allocation.cards)
                key = next(held, keys[0])
                by_place.setdefault((key, process.uuid), []).append(process)
        cards = {use.uuid: use for use in uses}
        busy = dict.fromkeys(cards, 0.0)
        for process in processes:
            busy[process.uuid] = busy.get(process.uuid, 0.0) + (process.utilisation or 0.0)
        return DriverSample(cards, processes, by_place, busy)

    def _fraction(
        self, grant: Grant, now: float, driver: DriverSample, *, watched: bool
    ) -> Iterable[ShareUse]:
        """Usage of a container with a page; ``watched``: the driver has processes of it."""
        try:
            read = self.pages.usage(grant.directory)
        except NodeUnready as error:
            self.metrics.scrape_errors.labels("pages").inc()
            state = "tampered" if isinstance(error, Tampered) else "unknown"
            return [ShareUse(grant.key, s, state, reason=str(error)) for s in grant.allocation.shares]
        by_card = {use.card: use for use in read}
        shown = tuple(
            self._past_account.added(self._share(grant, share, by_card.get(share.card), now, driver))
            for share in grant.allocation.shares
        )
        if not watched and not any(
            not _was_idle(use) or self._past_account.follows(use.place) for use in shown
        ):
            self._resting[grant.key] = _Resting(grant, read, shown)
        return shown

    def _last_read(self, place: Place) -> TenantUse | None:
        before = self._before.get(place)
        return before.use if before is not None else None

    def _wake(self, resting: _Resting) -> None:
        """Continue from the page's last reading, which was true in the last sample."""
        del self._resting[resting.grant.key]
        for share in resting.grant.allocation.shares:
            before = self._before.get((resting.grant.key, share.card))
            if before is not None:
                before.at = self.last.at

    def _forget(self, grants: Collection[Key]) -> None:
        """Forget all containers but these."""
        self._before = {k: v for k, v in self._before.items() if k[0] in grants}
        self._past_account.forget_all_but(grants)
        self._resting = {k: v for k, v in self._resting.items() if k in grants}

    def _share(
        self, grant: Grant, share: Share, use: TenantUse | None, now: float, driver: DriverSample
    ) -> ShareUse:
        processes = driver.of((grant.key, share.card))
        pids = tuple(sorted(p.pid for p in processes))
        if use is None:
            return ShareUse(
                grant.key, share, "active", memory=0, core=0.0, throttled=0.0, refusals=0, pids=pids
            )
        place = grant.key, share.card
        before = self._before.get(place)
        busy = any(p.utilisation for p in processes)
        if not busy and before is not None and before.use is use and _is_idle(before.shown, share, pids):
            before.at = now
            return before.shown
        account, launches, stalls, error = None, 0.0, NO_STALLS, None
        began = (
            before is not None
            and _was_idle(before.shown)
            and use.last_busy_seconds > before.use.last_busy_seconds
        )
        if before is not None and now > before.at and use.busy_seconds >= before.use.busy_seconds:
            seconds = now - before.at
            account = min(1.0, (use.busy_seconds - before.use.busy_seconds) / seconds)
            launches = max(0, use.launches - before.use.launches) / seconds
            if use.variance is not None and before.use.variance is not None:
                error = account_error(
                    account, (use.variance - before.use.variance) / seconds**2, launches,
                    processes=use.processes, shared=driver.has_others(processes, share.card),
                )  # fmt: skip
            if not use.movable:  # kernels on managed memory wait for that
                stalls = use.stalls.since(before.use.stalls)
        core = min(1.0, (account or 0.0) + self._past_the_page(grant, processes))
        shown = ShareUse(
            grant.key,
            share,
            "active",
            use.memory,
            core,
            use.throttled_seconds,
            use.refusals,
            use.refused_bytes,
            pids,
            held_idle=use.held_idle_seconds,
            in_flight=use.in_flight_seconds,
            longest=use.longest_seconds,
            account=account,
            error=error,
            launches=launches,
            stalls=stalls,
            began=began,
        )
        self._before[place] = _Before(now, use, shown)
        return shown

    def _past_the_page(self, grant: Grant, processes: Sequence[ProcessUse]) -> float:
        """The share of the card's time that the driver attributes to processes without a slot in the page."""
        busy = [p for p in processes if p.utilisation]
        if self.slots is None or not busy:
            return 0.0
        hidden = (p for p in self.slots.of(grant.directory, busy) if p.registered is False)
        return sum(p.utilisation or 0.0 for p in hidden) / 100

    def _whole(self, grant: Grant, driver: DriverSample, *, started: bool) -> Iterable[ShareUse]:
        """Usage of whole cards, which have no page, from NVML's processes.

        No process on the card counts as no use if the card lists its processes, all processes of the node are
        visible, and the container's are known.
        """
        known = started and self.slots is not None and self.slots.sees_host()
        for share in grant.allocation.shares:
            processes = driver.of((grant.key, share.card))
            memory = [p.memory for p in processes if p.memory is not None]
            card = driver.cards.get(share.card, _SILENT)
            idle = known and not processes
            yield ShareUse(
                grant.key,
                share,
                "exclusive" if share.whole else "unknown",
                memory=sum(memory) if memory else 0 if idle and card.lists_processes else None,
                core=0.0 if idle and card.samples_processes else driver_share(processes),
                pids=tuple(sorted(p.pid for p in processes)),
            )


def _was_idle(shown: ShareUse) -> bool:
    return shown.core == 0.0 and not shown.began


def _is_idle(shown: ShareUse, share: Share, pids: tuple[int, ...]) -> bool:
    """True if an equal next reading would give equal figures."""
    return _was_idle(shown) and shown.share is share and shown.pids == pids
