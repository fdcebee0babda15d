"""Publishes to each container's page what only the host can observe: the factor by which a shared card's time
is divided, memory that the driver counts beyond the account, and a heartbeat.

Costs next to nothing while no container works. The usage sampler's last reading shows which containers work.
As it is up to a second old, one word in the pages of a few idle containers is read four times a second; on a
node with many, twice a second and in rotation. A working container gets a heartbeat every second. If one of
several containers of a card works, the others are checked twenty times a second; if two work, forty times,
and the factor is published every 100 ms. A container seen for the first time gets all values once: its page
may still have values written by an earlier agent.

How long neighbours waited for one another's time slices is evidence for illegally long slices. A second
counts if two containers had the card to themselves in it and in the second before. The driver's figures per
process decide that, so cards without such figures are not judged.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import NO_EXCESS, Excess
from gpu_manager.domain.enforcement.evasion import EvasionReason
from gpu_manager.domain.enforcement.time_sharing import CardActivity, LongSlices, SharedCard, SliceReading
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import Activity, ActivityPages, Correction
from gpu_manager.runtime import threads
from gpu_manager.services.enforcement.usage_sample import (
    Place,
    Sample,
    ShareUse,
    driver_share,
    is_beside_others,
)
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


class SliceCheck:
    """Collects the evidence. One thread calls ``verdicts``, once per sample."""

    def __init__(self) -> None:
        self._slices = LongSlices()
        self._at = 0.0
        self._judged: frozenset[Place] = frozenset()
        self._pairs: dict[CardUuid, frozenset[Place]] = {}

    def verdicts(self, sample: Sample) -> dict[tuple[Place, EvasionReason], str]:
        """The evidence against each judged container; empty for none, also for an idle container."""
        seconds, self._at = sample.at - self._at, sample.at
        working: dict[CardUuid, list[ShareUse]] = {}
        for use in sample.shares:
            if use.core or driver_share(sample.processes.get(use.place, ())):
                working.setdefault(use.share.card, []).append(use)
        before, self._pairs = self._pairs, {}
        found = dict.fromkeys(self._judged, "")
        for card, uses in working.items():
            both = frozenset(use.place for use in uses)
            if not _are_alone(card, uses, sample):
                found = {place: text for place, text in found.items() if place not in both}
                continue
            self._pairs[card] = both
            for waiting, other in (uses, uses[::-1]):
                pair = waiting.place, other.place
                if before.get(card) == both:
                    self._slices.add(pair, _reading(waiting, other, sample, seconds))
                found[other.place] = self._slices.evidence(pair)
        known = {use.place for use in sample.shares}
        self._slices.forget(known)
        self._judged = (self._judged | found.keys()) & known
        return {(place, EvasionReason.SLICE): text for place, text in found.items()}


def _are_alone(card: CardUuid, uses: Sequence[ShareUse], sample: Sample) -> bool:
    told = sample.cards.get(card)
    if len(uses) != 2 or told is None or not told.samples_processes:
        return False
    processes = [process for use in uses for process in sample.processes.get(use.place, ())]
    return not is_beside_others(processes, sample.busy.get(card, 0.0))


def _reading(waiting: ShareUse, other: ShareUse, sample: Sample, seconds: float) -> SliceReading:
    own, others = (sample.processes.get(use.place, ()) for use in (waiting, other))
    longest = max(other.longest, waiting.longest if len(own) > 1 else 0.0)
    busy = (driver_share(others) or 0.0) * seconds
    return SliceReading(waiting.stalls, len(own) + len(others), longest, busy)


SURVEY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.05
SAMPLE_SECONDS: Final = 0.025
PUBLISH_SECONDS: Final = 0.1
GLANCE_SECONDS: Final = 0.25
TURN_SECONDS: Final = 0.5
GLANCES: Final = 16
"""Containers on idle cards that are looked at every :data:`GLANCE_SECONDS`; of more than these the next ones
every :data:`TURN_SECONDS`."""
GLANCES_MOST: Final = 2 * GLANCES
"""Of more than these none is looked at: the usage sampler reads each of them before its turn comes."""
BELIEVED_SECONDS: Final = 3.0
"""A container that was seen to begin is at work for so long whatever the usage sampler's figures say."""
HEARTBEAT_SECONDS: Final = 1.0
RECENT_NS: Final = 300_000_000
"""A container whose last work is no older is active: throttled ones pause for longer than a sample."""
_STEP: Final = 1 / 256
"""The page's own step: a smaller change is none."""
_PARTS: Final = 64
"""Others' part of the time is published in steps of one in so many."""
_JITTER: Final = 0.6180339887498949
"""Sampling at an irrational rhythm: work that repeats is not met at the same point each time."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a container was told of those beside it."""

    factor: float = 1.0
    most: int = 0
    part: float = 0.0


_ALONE: Final = _Told()


@dataclass(frozen=True, slots=True)
class CardTenant:
    """A container on a card: its directory's name, whether it used the card in the last second, and the
    share of the card's time that the driver saw it use, if known. ``beyond``: bytes that the driver counts
    on top of its account; ``excess``: bytes of the account that the driver does not count. ``priority`` is
    the container's class; ``gain`` the factor by which it is charged more than its library measures.
    ``began``: it has had work in flight since the sample before, in which it was idle.
    """

    name: str
    card: CardUuid
    at_work: bool
    driver_share: float | None = None
    beyond: int = 0
    excess: Excess = NO_EXCESS
    priority: Priority = Priority.NORMAL
    gain: float = 1.0
    began: bool = False


@dataclass(slots=True)
class _Watched:
    """A card on which at least one container works."""

    names: tuple[str, ...]
    shared: SharedCard = field(default_factory=SharedCard)
    driver_share: Mapping[str, float] = field(default_factory=dict)
    next_at: float = 0.0
    publish_at: float = 0.0
    contended: bool = False
    present: frozenset[str] = frozenset()


_Company = tuple[CardUuid, Priority | None]
"""The containers of a card that take turns: all of them (None), or those of one class."""


def _company_of(tenants: Iterable[CardTenant]) -> Callable[[CardTenant], _Company]:
    """A function from a container to those that divide the card's time with it. Best-effort containers make
    way for protected ones, so the two classes do not divide it; if there is a normal container too, which
    does not make way, all divide it.
    """
    classes: dict[CardUuid, set[Priority]] = {}
    for tenant in tenants:
        classes.setdefault(tenant.card, set()).add(tenant.priority)
    apart = {card for card, found in classes.items() if found == {Priority.PROTECTED, Priority.BEST_EFFORT}}
    return lambda tenant: (tenant.card, tenant.priority if tenant.card in apart else None)


def _seen(activity: Activity, now_ns: int) -> CardActivity:
    recent = now_ns - activity.last_busy_ns < RECENT_NS
    present = activity.processes > 0 and (activity.at_work > 0 or recent)
    return CardActivity(
        activity.at_work, activity.busy_ns, present, activity.processes, activity.in_flight_ns
    )


class TimeSharing:
    """The loop. ``tenants`` is called once a second and when ``due`` is set, from its thread, and must be
    quick. If it returns the same object as before, while no container works and everything is published, the
    object is not processed again.
    """

    def __init__(
        self,
        pages: ActivityPages,
        tenants: Callable[[], Sequence[CardTenant]],
        clock: Clock,
        metrics: ServiceMetrics,
    ) -> None:
        self.due = threading.Event()
        self._pages = pages
        self._card_tenants = tenants
        self._clock = clock
        self._metrics = metrics
        self._watched: dict[_Company, _Watched] = {}
        self._published: dict[tuple[str, CardUuid], _Told] = {}
        self._adjusted: dict[tuple[str, CardUuid], tuple[int, Excess, float]] = {}
        self._beat: dict[str, float] = {}
        self._survey_at = 0.0
        self._glance_at = 0.0
        self._resting: deque[tuple[str, CardUuid]] = deque()
        self._began: dict[tuple[str, CardUuid], float] = {}
        self._calm: Sequence[CardTenant] | None = None
        self._untold = False
        self._rhythm = 0.0

    def run(self, stop: threading.Event) -> None:
        """Run until stopped, whatever the pages contain."""
        pause = 0.0
        while not stop.is_set():
            if self.due.wait(pause):
                self.due.clear()
                self._survey_at = 0.0
            try:
                pause = self.step()
            except Exception:  # noqa: BLE001 - a run loop: pages are written by tenants
                pause = SURVEY_SECONDS
                self._metrics.scrape_errors.labels("time-sharing").inc()
                threads.failed("time_sharing_round_failed")

    def step(self) -> float:
        """Do what is due; returns the seconds until the next action."""
        now = self._clock.monotonic()
        surveys = now >= self._survey_at
        if surveys or now >= self._glance_at:
            surveys = self._someone_began(now) or surveys
        if surveys:
            self._survey(now)
            self._survey_at = now + SURVEY_SECONDS
        due = min(self._survey_at, self._glance_at) if self._resting else self._survey_at
        for (card, _), watched in self._watched.items():
            if len(watched.names) < 2:
                continue
            if now >= watched.next_at:
                self._sample(card, watched, now)
            due = min(due, watched.next_at)
        return max(0.0, due - self._clock.monotonic())

    @property
    def _glance_pause(self) -> float:
        return GLANCE_SECONDS if len(self._resting) <= GLANCES else TURN_SECONDS

    def _someone_began(self, now: float) -> bool:
        """Check the next few containers on idle cards: True if one has begun to work since its last check."""
        if not self._resting:
            return False
        self._glance_at = now + self._glance_pause
        self._resting.rotate(-GLANCES)
        places = list(itertools.islice(self._resting, GLANCES))
        recently = int(now * 1e9) - RECENT_NS
        began = [
            place
            for place, last in zip(places, self._pages.last_busy_ns(places), strict=True)
            if last > recently
        ]
        self._began.update(dict.fromkeys(began, now))
        return bool(began)

    def _survey(self, now: float) -> None:
        present = self._card_tenants()
        if present is not self._calm:
            self._began |= {(one.name, one.card): now for one in present if one.began}
        self._began = {key: at for key, at in self._began.items() if now - at < BELIEVED_SECONDS}
        if present is self._calm and not self._began:
            return
        self._calm, self._untold = None, False
        company = _company_of(present)
        together: dict[_Company, list[CardTenant]] = {}
        resting: set[tuple[str, CardUuid]] = set()
        for found in present:
            tenant = replace(found, at_work=True) if (found.name, found.card) in self._began else found
            together.setdefault(company(tenant), []).append(tenant)
            self._adjust(tenant, now)
        kept: dict[_Company, _Watched] = {}
        for place, tenants in together.items():
            card = place[0]
            if not any(tenant.at_work for tenant in tenants):
                self._part(card, tenants)
                resting.update((tenant.name, card) for tenant in tenants if len(tenants) > 1)
                continue
            watched = kept[place] = self._watched.get(place) or _Watched(())
            watched.names = tuple(tenant.name for tenant in tenants)
            watched.driver_share = {
                tenant.name: tenant.driver_share for tenant in tenants if tenant.driver_share is not None
            }
            if len(tenants) < 2:
                self._part(card, tenants)
            for tenant in tenants:
                if tenant.at_work:
                    self._heartbeat(tenant.name, now)
        self._watched = kept
        self._rest(resting)
        if not kept and not self._untold:
            self._calm = present
        self._forget({(tenant.name, card) for (card, _), tenants in together.items() for tenant in tenants})

    def _rest(self, places: set[tuple[str, CardUuid]]) -> None:
        """Check these containers from now on; the rotation continues, newcomers come last."""
        if len(places) > GLANCES_MOST:
            places = set()
        stay = [place for place in self._resting if place in places]
        self._resting = deque(stay + sorted(places.difference(stay)))

    def _forget(self, known: set[tuple[str, CardUuid]]) -> None:
        """Forget all containers but these."""
        if not self._adjusted.keys() - known and not self._published.keys() - known:
            return
        names = {name for name, _ in known}
        self._published = {key: value for key, value in self._published.items() if key in known}
        self._adjusted = {key: value for key, value in self._adjusted.items() if key in known}
        self._beat = {name: at for name, at in self._beat.items() if name in names}

    def _adjust(self, tenant: CardTenant, now: float) -> None:
        """Publish memory and time beyond the account if they have changed; for a new container, all
        corrections.
        """
        place, figures = (tenant.name, tenant.card), (tenant.beyond, tenant.excess, tenant.gain)
        if self._adjusted.get(place) == figures:
            return
        told = Correction(host_adjust=tenant.beyond, excess=tenant.excess, gain=tenant.gain)
        if place not in self._adjusted:
            told = replace(told, co_active=1.0, others_most=0, others_part=0.0)
        if self._write(tenant.name, now, {tenant.card: told}):
            self._adjusted[place] = figures

    def _part(self, card: CardUuid, tenants: Iterable[CardTenant]) -> None:
        """Reset the factor of a container that shares its card with no other."""
        for tenant in tenants:
            self._publish(tenant.name, card, _ALONE, self._clock.monotonic())

    def _sample(self, card: CardUuid, watched: _Watched, now: float) -> None:
        found = {name: self._activity(name, card) for name in watched.names}
        seen = {name: _seen(a, int(now * 1e9)) for name, a in found.items() if a is not None}
        present = frozenset(name for name, one in seen.items() if one.present)
        watched.shared.sample(now, seen, watched.driver_share)
        watched.contended = len(present) > 1
        if present != watched.present:  # a container that comes or goes changes the others' time
            watched.present = present
            watched.publish_at = now
        self._rhythm = (self._rhythm + _JITTER) % 1.0
        pause = SAMPLE_SECONDS * (0.6 + 0.8 * self._rhythm) if watched.contended else LOOK_SECONDS
        watched.next_at = now + pause
        if now >= watched.publish_at:
            watched.publish_at = now + PUBLISH_SECONDS - SAMPLE_SECONDS / 2
            timelines = {name: self._timeline(name, card, watched.shared.judged_ms, now) for name in seen}
            factors, most = watched.shared.factors(timelines), watched.shared.others_most()
            parts = watched.shared.others_part()
            for name, factor in factors.items():
                part = math.ceil(parts[name] * _PARTS) / _PARTS
                self._publish(name, card, _Told(factor, most[name], part), now)

    def _activity(self, name: str, card: CardUuid) -> Activity | None:
        try:
            return next((a for a in self._pages.activity(name) if a.card == card), None)
        except NodeUnready as error:
            self._metrics.scrape_errors.labels("pages").inc()
            log.debug("activity_unreadable", directory=name, reason=str(error))
            return None

    def _timeline(self, name: str, card: CardUuid, begin_ms: int, now: float) -> Mapping[int, float]:
        try:
            return self._pages.timeline(name, card, begin_ms, int(now * 1e3))
        except NodeUnready as error:
            self._metrics.scrape_errors.labels("pages").inc()
            log.debug("timeline_unreadable", directory=name, reason=str(error))
            return {}

    def _publish(self, name: str, card: CardUuid, told: _Told, now: float) -> None:
        """Publish what differs from the page, a factor by a step at least; 1 is published exactly."""
        before = self._published.get((name, card), _ALONE)
        if told.factor != 1.0 and abs(told.factor - before.factor) < _STEP:
            told = replace(told, factor=before.factor)
        if told == before:
            return
        correction = Correction(co_active=told.factor, others_most=told.most, others_part=told.part)
        if self._write(name, now, {card: correction}):
            self._published[name, card] = told

    def _heartbeat(self, name: str, now: float) -> None:
        if now - self._beat.get(name, -HEARTBEAT_SECONDS) >= HEARTBEAT_SECONDS * 0.9:
            self._write(name, now, {})

    def _write(self, name: str, now: float, corrections: Mapping[CardUuid, Correction]) -> bool:
        try:
            self._pages.publish(name, int(now * 1e9), corrections)
        except NodeUnready as error:
            self._metrics.scrape_errors.labels("pages").inc()
            log.debug("correction_not_written", directory=name, reason=str(error))
            self._untold = True
            return False
        self._beat[name] = now
        return True
