"""Usage of cards by container, sampled once a second: from pages for fractions, from NVML and cgroups else.

A scrape renders the last sample without I/O. What cannot be read is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import is_

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import (
    NO_EXCESS,
    CountedTwice,
    Excess,
    Unaccounted,
    divide_twice,
)
from gpu_manager.domain.errors import NodeUnready, Tampered
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.pod import PodUid
from gpu_manager.ports.cards import Cards, CardUse, ProcessUse
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import ControlPages, TenantUse
from gpu_manager.ports.pods import Pods
from gpu_manager.ports.processes import Processes
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.container_grants import ContainerGrants
from gpu_manager.services.enforcement.ended_containers import EndedContainers
from gpu_manager.services.enforcement.page_slots import PageSlots
from gpu_manager.services.enforcement.process_owners import ProcessOwners
from gpu_manager.services.enforcement.time_sharing import CardTenant
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 1.0
_SILENT = CardUse(CardUuid(""), lists_processes=False, samples_processes=False)


@dataclass(frozen=True, slots=True)
class ShareUse:
    """Usage of one container on one card. Bytes, ratios of one card, seconds; ``None``: unknown.

    ``memory`` is the account's, ``beyond`` what the driver counts on top of it (contexts, code),
    ``excess`` what it does not count of it, ``twice`` what it counts for several processes that share it.
    ``longest`` is its longest kernel or graph so far.
    ``held_idle`` is the part of ``throttled`` in which nothing of the container was in flight on the card.
    ``enforcement`` is ``active`` (its page is read), ``exclusive`` (a whole card, nothing to enforce),
    ``tampered`` (its page cannot be trusted) or ``unknown`` (it cannot be read); ``reason`` says why.
    """

    key: Key
    share: Share
    enforcement: str
    memory: int | None = None
    core: float | None = None
    throttled: float | None = None
    refusals: int | None = None
    refused_bytes: int = 0
    pids: tuple[int, ...] = ()
    reason: str = ""
    beyond: int = 0
    excess: Excess = NO_EXCESS
    twice: int = 0
    held_idle: float = 0.0
    longest: float = 0.0

    @property
    def held(self) -> int | None:
        """Bytes of the card's memory that it holds in all, which its limit is compared with."""
        return None if self.memory is None else self.memory + self.beyond


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample (``at``: monotonic seconds).

    ``processes`` are the driver's, by the container whose cgroup they are in, granted that card or not; a
    card that is not in ``cards`` told nothing of its processes either. ``ended`` are granted containers that
    run no more, although the books still hold their share. ``shares`` is the last sample's own tuple where
    no figure has changed.
    """

    at: float
    grants: Mapping[Key, Grant] = field(default_factory=dict)
    cards: Mapping[CardUuid, CardUse] = field(default_factory=dict)
    shares: tuple[ShareUse, ...] = ()
    processes: Mapping[tuple[Key, CardUuid], Sequence[ProcessUse]] = field(default_factory=dict)
    ended: frozenset[Key] = frozenset()


@dataclass(slots=True)
class _Resting:
    """A container that did nothing: its grant, what was last read of its page and when, and its result."""

    grant: Grant
    read: Sequence[TenantUse]
    at: float
    shown: tuple[ShareUse, ...]


@dataclass(slots=True)
class _Before:
    """The last reading of one page, from which busy time becomes a ratio, and its result."""

    at: float
    use: TenantUse
    shown: ShareUse


class UsageSampler:
    """Keeps the last :class:`Sample`; one thread samples, any may read."""

    def __init__(
        self,
        state: NodeState,
        cards: Cards,
        pods: Pods,
        tenants: ControlPages,
        processes: Processes,
        clock: Clock,
        metrics: ServiceMetrics,
        slots: PageSlots | None = None,
    ) -> None:
        """``slots`` finds processes that the page does not account for; without it, all count as
        accounted.
        """
        self._state = state
        self._slots = slots
        self._cards = cards
        self._pods = pods
        self._tenants = tenants
        self._owners = ProcessOwners(processes)
        self._clock = clock
        self._metrics = metrics
        self.ended = EndedContainers(pods, processes, clock)
        self._before: dict[tuple[Key, CardUuid], _Before] = {}
        self._resting: dict[Key, _Resting] = {}
        self._containers = ContainerGrants()
        self._unaccounted: dict[tuple[Key, CardUuid], Unaccounted] = {}
        self._twice: dict[CardUuid, CountedTwice] = {}
        self.last = Sample(clock.monotonic())
        self._tenants_now: tuple[Sample, tuple[CardTenant, ...]] = (self.last, ())

    def sample(self) -> Sample:
        """Take one sample."""
        now = self._clock.monotonic()
        grants = self._state.view.grants
        card_uses, processes = self._card_figures()
        containers = self._containers.of(self._pods.local(), grants)
        by_share = self._by_share(containers, processes, grants, card_uses)
        twice = self._counted_twice(processes, card_uses, by_share)
        seen = {key for key, _ in by_share}
        shares: list[ShareUse] = []
        unchanged = self._tenants.unchanged(resting.grant.directory for resting in self._resting.values())
        for key, grant in grants.items():
            resting = self._resting.get(key)
            if resting is not None:
                same = resting.grant is grant and unchanged.get(grant.directory) is resting.read
                if same and key not in seen:
                    resting.at = now
                    shares += resting.shown
                    continue
                self._wake(resting)
            if _paged(grant):
                shares += self._fraction(grant, now, by_share, card_uses, twice, watched=key in seen)
            else:
                started = grant.key in chain.from_iterable(containers.values())
                shares += self._whole(grant, by_share, card_uses, started=started)
        told, before = tuple(shares), self.last.shares
        if len(told) == len(before) and all(map(is_, told, before)):
            told = before
        if grants is not self.last.grants:
            self._forget(grants)
        self.last = Sample(now, grants, card_uses, told, by_share, self.ended.among(grants))
        return self.last

    def tenants(self) -> tuple[CardTenant, ...]:
        """Containers with a page by card, and whether they worked in the last second.

        The same tuple while nothing of it has changed.
        """
        sample, (before, tenants) = self.last, self._tenants_now
        idle = not sample.processes and not before.processes
        if not (idle and sample.shares is before.shares and sample.grants is before.grants):
            tenants = self._tenants_of(sample)
        self._tenants_now = sample, tenants
        return tenants

    @staticmethod
    def _tenants_of(sample: Sample) -> tuple[CardTenant, ...]:
        return tuple(
            CardTenant(
                name=sample.grants[use.key].directory,
                card=use.share.card,
                at_work=bool(use.core),
                driver_share=_driver_share(sample.processes.get((use.key, use.share.card), ())),
                beyond=use.beyond,
                excess=use.excess,
                priority=sample.grants[use.key].allocation.priority,
            )
            for use in sample.shares
            if use.enforcement == "active"
        )

    def _card_figures(self) -> tuple[dict[CardUuid, CardUse], list[ProcessUse]]:
        try:
            cards, processes = self._cards.usage()
        except NodeUnready as error:
            self._metrics.scrape_errors.labels("cards").inc()
            log.debug("cards_unreadable", reason=str(error))
            return {}, []
        return {use.uuid: use for use in cards}, list(processes)

    def _fraction(
        self,
        grant: Grant,
        now: float,
        by_share: Mapping[tuple[Key, CardUuid], list[ProcessUse]],
        cards: Mapping[CardUuid, CardUse],
        twice: Mapping[tuple[Key, CardUuid], tuple[int, int]],
        *,
        watched: bool,
    ) -> Iterable[ShareUse]:
        """Usage of a container with a page; ``watched``: the driver has processes of it."""
        try:
            read = self._tenants.usage(grant.directory)
        except NodeUnready as error:
            self._metrics.scrape_errors.labels("pages").inc()
            state = "tampered" if isinstance(error, Tampered) else "unknown"
            return [ShareUse(grant.key, s, state, reason=str(error)) for s in grant.allocation.shares]
        by_card = {use.card: use for use in read}
        shown = tuple(
            self._weighed(
                self._share(
                    grant, share, by_card.get(share.card), now, by_share.get((grant.key, share.card), [])
                ),
                by_share,
                cards,
                twice.get((grant.key, share.card), (0, 0)),
                int(now * 1e9),
            )
            for share in grant.allocation.shares
        )
        if not watched and all(
            use.core == 0.0 and (use.key, use.share.card) not in self._unaccounted for use in shown
        ):
            self._resting[grant.key] = _Resting(grant, read, now, shown)
        return shown

    def _wake(self, resting: _Resting) -> None:
        """Continue from the page's last reading."""
        del self._resting[resting.grant.key]
        for share in resting.grant.allocation.shares:
            before = self._before.get((resting.grant.key, share.card))
            if before is not None:
                before.at = resting.at

    def _forget(self, grants: Collection[Key]) -> None:
        """Forget all containers but these."""
        self._before = {k: v for k, v in self._before.items() if k[0] in grants}
        self._unaccounted = {k: v for k, v in self._unaccounted.items() if k[0] in grants}
        self._resting = {k: v for k, v in self._resting.items() if k in grants}

    def _weighed(
        self,
        use: ShareUse,
        by_share: Mapping[tuple[Key, CardUuid], list[ProcessUse]],
        cards: Mapping[CardUuid, CardUse],
        twice: tuple[int, int],
        looked_ns: int,
    ) -> ShareUse:
        """The shares with memory beyond the account; the driver's last figure where it gives none."""
        if use.enforcement != "active" or use.memory is None:
            return use
        place = use.key, use.share.card
        processes = by_share.get(place, [])
        before = self._unaccounted.get(place)
        if not processes and before is None:
            return use  # most containers idle most of the time
        known = [p.memory for p in processes if p.memory is not None]
        excess = NO_EXCESS
        if use.share.card in cards and len(known) == len(processes):
            found = (before or Unaccounted()).seen(sum(known) - twice[0], use.memory, use.share.amount.memory)
            if processes:
                self._unaccounted[place] = found
                read = self._before.get(place)
                if read is not None and read.use.untold:
                    excess = Excess.seen(looked_ns, sum(known), use.memory, read.use.movable)
            else:
                self._unaccounted.pop(place)
        else:
            found = before or Unaccounted()
        if found.bytes == use.beyond and excess == use.excess and twice[1] == use.twice:
            return use
        return replace(use, beyond=found.bytes, excess=excess, twice=twice[1])

    def _counted_twice(
        self,
        processes: Sequence[ProcessUse],
        cards: Mapping[CardUuid, CardUse],
        by_share: Mapping[tuple[Key, CardUuid], list[ProcessUse]],
    ) -> Mapping[tuple[Key, CardUuid], tuple[int, int]]:
        """What the driver counts for several processes at once, of each container with a page: for some
        samples now, and in this one.
        """
        held: dict[CardUuid, list[int | None]] = {}
        for process in processes:
            held.setdefault(process.uuid, []).append(process.memory)
        before, self._twice = self._twice, {}
        for card, each in held.items():
            used = cards[card].memory_used if card in cards else None
            known = [memory for memory in each if memory is not None]
            if used is not None and len(known) == len(each):
                self._twice[card] = before.get(card, CountedTwice()).seen(sum(known), used)
        beyond: dict[CardUuid, dict[tuple[Key, CardUuid], int]] = {}
        for place, own in by_share.items():
            counted = self._twice.get(place[1])
            read = self._before.get(place)
            if counted is not None and counted.now and read is not None:
                driver = sum(process.memory or 0 for process in own)
                beyond.setdefault(place[1], {})[place] = driver - read.use.memory
        found: dict[tuple[Key, CardUuid], tuple[int, int]] = {}
        for card, parts in beyond.items():
            lasting = divide_twice(self._twice[card].bytes, parts)
            now = divide_twice(self._twice[card].now, parts)
            found |= {place: (lasting[place], now[place]) for place in parts}
        return found

    def _share(
        self, grant: Grant, share: Share, use: TenantUse | None, now: float, processes: list[ProcessUse]
    ) -> ShareUse:
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
        core = 0.0
        if before is not None and now > before.at and use.busy_seconds >= before.use.busy_seconds:
            core = min(1.0, (use.busy_seconds - before.use.busy_seconds) / (now - before.at))
        core = min(1.0, core + self._past_the_page(grant, processes))
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
            longest=use.longest_seconds,
        )
        self._before[place] = _Before(now, use, shown)
        return shown

    def _past_the_page(self, grant: Grant, processes: Sequence[ProcessUse]) -> float:
        """The share of the card's time that the driver saw used by processes without a slot in the page."""
        busy = [p for p in processes if p.utilisation]
        if self._slots is None or not busy:
            return 0.0
        hidden = (p for p in self._slots.of(grant.directory, busy) if p.registered is False)
        return sum(p.utilisation or 0.0 for p in hidden) / 100

    def _whole(
        self,
        grant: Grant,
        by_share: Mapping[tuple[Key, CardUuid], list[ProcessUse]],
        cards: Mapping[CardUuid, CardUse],
        *,
        started: bool,
    ) -> Iterable[ShareUse]:
        """Usage of whole cards, which have no page, from NVML's processes.

        No process on the card counts as no use, where the card lists its processes, all processes of the node
        are visible, and the container's are known.
        """
        known = started and self._slots is not None and self._slots.sees_host()
        for share in grant.allocation.shares:
            processes = by_share.get((grant.key, share.card), [])
            memory = [p.memory for p in processes if p.memory is not None]
            card = cards.get(share.card, _SILENT)
            idle = known and not processes
            yield ShareUse(
                grant.key,
                share,
                "exclusive" if share.whole else "unknown",
                memory=sum(memory) if memory else 0 if idle and card.lists_processes else None,
                core=0.0 if idle and card.samples_processes else _driver_share(processes),
                pids=tuple(sorted(p.pid for p in processes)),
            )

    def _by_share(
        self,
        containers: Mapping[tuple[PodUid, str], Sequence[Key]],
        processes: Sequence[ProcessUse],
        grants: Mapping[Key, Grant],
        cards: Mapping[CardUuid, CardUse],
    ) -> dict[tuple[Key, CardUuid], list[ProcessUse]]:
        """NVML's processes by the container in whose cgroup they are, or were."""
        by_share: dict[tuple[Key, CardUuid], list[ProcessUse]] = {}
        told = {uuid for uuid, use in cards.items() if use.lists_processes}
        for process, owner in self._owners.of(processes, told):
            keys = containers.get(owner)
            if keys:
                held = (key for key in keys if key in grants and process.uuid in grants[key].allocation.cards)
                key = next(held, keys[0])
                by_share.setdefault((key, process.uuid), []).append(process)
        return by_share


def unread(grant: Grant, share: Share) -> ShareUse:
    """Usage of a container that was not sampled yet: a fraction's page begins empty."""
    if not _paged(grant):
        return ShareUse(grant.key, share, "exclusive" if share.whole else "unknown")
    return ShareUse(grant.key, share, "active", memory=0, core=0.0, throttled=0.0, refusals=0)


def _is_idle(shown: ShareUse, share: Share, pids: tuple[int, ...]) -> bool:
    """True if an equal next reading gives equal figures."""
    return shown.core == 0.0 and shown.share is share and shown.pids == pids


def _driver_share(processes: Sequence[ProcessUse]) -> float | None:
    """The share of the card's time that the driver saw these processes use; None if it lists none."""
    seen = [p.utilisation for p in processes if p.utilisation is not None]
    return min(1.0, sum(seen) / 100) if seen else None


def _paged(grant: Grant) -> bool:
    return bool(grant.directory) and not any(s.whole for s in grant.allocation.shares)
