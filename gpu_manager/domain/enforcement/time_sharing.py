"""Divisors for measured GPU time while several containers share a card; containers with longer time slices.

A card runs one process at a time and switches among those that have work. A container measures by events how
long its work took; while n processes take turns, an n-th of that is its own. Only the host can know n: each
library enters in its usage page in which milliseconds its processes had work in flight, and this module
overlays these timelines. Time slices are equally long, whatever a process runs (2.2 ms on an H100). Work that
has not ended is in no timeline yet, nor is any work of a library older than minor 3 of the page: for that
time the processes observed with work in flight count.

Tenants could lie about work in flight. So their claims count only as far as charged time supports them: a
container that claims work without using time is believed for at most :data:`TRUST_SECONDS`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

# Finds containers that gave themselves longer time slices than others have, from their neighbours' waits.
# A card gives each process with work a time slice of 2 to 2.5 ms. A process may ask the driver for a longer
# one; no other program can observe that, but a neighbour's launch that fits into one time slice is then
# interrupted for as long. Libraries count such launches in their usage pages. A sample counts if exactly
# one other container used the card; the wait is compared with three time slices of each other process and
# the longest kernel.
# A neighbour's figures are no proof. So the driver must have seen the accused use the card for half of the
# time that the neighbour claims to have waited, and nobody is evicted for it.


THREE_TURNS: Final = 0.008
"""Seconds: an H100 (driver 580) takes turns of 2.2 to 2.5 ms."""
SAMPLES: Final = 60
NEEDED: Final = 30
"""So many of the last :data:`SAMPLES` that had a launch of known length must show a stall."""
CONFIRMED: Final = 0.5


@dataclass(frozen=True, slots=True)
class Stalls:
    """Launches of known duration that a library measured beside other containers' work, how many of them took
    far longer, and by how many ``seconds`` in total.
    """

    known: int = 0
    stalled: int = 0
    seconds: float = 0.0

    def since(self, before: Stalls) -> Stalls:
        """What was added since ``before``; nothing if the page was reset."""
        if self.known < before.known or self.stalled < before.stalled or self.seconds < before.seconds:
            return NO_STALLS
        return Stalls(self.known - before.known, self.stalled - before.stalled, self.seconds - before.seconds)


NO_STALLS: Final = Stalls()


@dataclass(frozen=True, slots=True)
class SliceReading:
    """One second of a container that shared the card with exactly one other container.

    ``stalls`` are its own; ``processes`` those of both on the card; ``longest``: seconds of the longest
    kernel that it may have waited for; ``busy``: seconds for which the driver saw the other container use the
    card.
    """

    stalls: Stalls
    processes: int
    longest: float
    busy: float

    @property
    def wait(self) -> float:
        """The mean wait of a stalled launch, if that is longer than time slices and kernels last; else 0."""
        if not self.stalls.stalled:
            return 0.0
        wait = self.stalls.seconds / self.stalls.stalled
        return wait if wait > (self.processes - 1) * (THREE_TURNS + self.longest) else 0.0


class LongSlices:
    """The readings of the last samples, by the container that waited and the container that kept the card."""

    def __init__(self) -> None:
        self._readings: dict[tuple[Hashable, Hashable], deque[SliceReading]] = {}

    def add(self, pair: tuple[Hashable, Hashable], reading: SliceReading) -> None:
        """Add a reading; one without a launch of known duration has no effect."""
        if reading.stalls.known:
            self._readings.setdefault(pair, deque(maxlen=SAMPLES)).append(reading)

    def evidence(self, pair: tuple[Hashable, Hashable]) -> str:
        """The evidence against the accused, empty if it does not suffice."""
        readings = self._readings.get(pair, ())
        stalled = [reading for reading in readings if reading.wait]
        waited = sum(reading.stalls.seconds for reading in stalled)
        if len(stalled) < NEEDED or sum(reading.busy for reading in readings) < CONFIRMED * waited:
            return ""
        last = stalled[-1]
        return (
            f"launches of known length of its only neighbour were interrupted for {last.wait * 1e3:.0f} ms "
            f"each; a turn on the card is 2 to 3 ms and no kernel took longer than {last.longest * 1e3:.0f}: "
            "it has given itself a longer time slice"
        )

    def forget(self, known: Collection[Hashable]) -> None:
        """Forget all pairs but those of these containers."""
        self._readings = {pair: kept for pair, kept in self._readings.items() if set(pair) <= set(known)}


TRUST_SECONDS: Final = 0.5
"""Limit of claims ahead of measured use: work is measured only when it ends."""
TRUST_CAP_SECONDS: Final = 2.0
LAG: Final = 1.1
"""Factor by which a container may seem in flight longer than it is: its end is noticed a little late."""
DELAY_MS: Final = 50
"""Time from the end of most work until it is in the timeline: what is younger is not judged yet."""
BEHIND_MS: Final = 400
"""Oldest time that is judged: a timeline keeps half a second."""
UNSEEN_SECONDS: Final = 2.5
"""From a container's first work until the driver's figure counts: it is of the second before it is read."""
OBSERVED_SECONDS: Final = 6.0
"""Period over which the driver's figures are averaged. While contexts take turns, it gives each of its few
samples a second to one of them as a whole: an H100 with driver 580 said 0.8 and 0.2, then 0.4 and 0.6, of two
that had 0.42 each. So they say how much a container works at most, and not how the card was divided."""
MOST_MS: Final = 2000
"""The most other processes that a container met are published for so long, and for as long again at most."""
KEPT: Final = 0.9
"""How much of what earlier periods said of charged time counts: about a second is told of."""
SLICE_MS: Final = 3
"""About a time slice: a launch may wait for so long before it begins."""
LEAST_PART: Final = 1 / 256
"""What is told of others that are charged nothing: 0 would say that nothing is known."""
_MARGIN: Final = 1.25
"""What is said of a past window overrules only claims far beyond it."""


@dataclass(frozen=True, slots=True)
class CardActivity:
    """A container at one moment: processes with work in flight, and GPU time charged so far (ns).

    ``present`` is False for a container that has ended or has been idle for a while. ``processes`` are alive.
    ``in_flight_ns`` is the time with work in flight so far; 0 from a library older than minor 7 of the page.
    """

    at_work: int
    busy_ns: int
    present: bool = True
    processes: int = 1
    in_flight_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Period:
    """A container's activity in a period, all in milliseconds.

    ``in_flight``: time with work in flight; ``own``: its own part of that when time is divided evenly;
    ``others``: time for which other containers had work in flight.
    """

    in_flight: float = 0.0
    own: float = 0.0
    others: float = 0.0
    length: int = 0


@dataclass(slots=True, eq=False)
class _Tenant:
    trust: float = TRUST_SECONDS
    busy_ns: int | None = None
    since_first_work: float = 0.0
    looks: list[tuple[int, int, int]] = field(default_factory=list)  # from, to (ms), processes at work
    period: _Period | None = None  # the last one judged since a container came or went
    factor: float = 1.0
    left_alone: bool = True  # as of the last sample
    observed: float | None = None  # the share that the driver saw it use, over OBSERVED_SECONDS
    processes: int = 1
    totals: list[tuple[int, float, float]] = field(
        default_factory=list
    )  # when, in flight, charged until then (ms)
    most: tuple[int, int] = (0, 0)  # other processes at work beside it, since most_from and as long before
    most_from: int = 0
    in_flight: float = 0.0  # ms, lately: the last period in full, each before it by a part less
    charged: float = 0.0  # ms, as lately
    beside: float = 0.0  # ms that other containers were charged meanwhile
    worked: float = 0.0  # ms in which any of its processes was seen at work
    at_work: float = 0.0  # the same, for each process


class SharedCard:
    """The time sharing of one card: gets samples, and returns factors once per period."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._sampled_ms = 0
        self._present: frozenset[str] = frozenset()
        self.judged_ms = 0
        """Up to when timelines were judged (CLOCK_MONOTONIC): the next period begins here."""

    def sample(
        self, now: float, seen: Mapping[str, CardActivity], driver_shares: Mapping[str, float] | None = None
    ) -> None:
        """Record the containers at work since the last sample. ``now`` is CLOCK_MONOTONIC in seconds.

        ``driver_shares`` is the share of the card's time that the driver saw a container use, if known.
        """
        for gone in self._tenants.keys() - seen.keys():
            del self._tenants[gone]
        before, self._sampled_ms = self._sampled_ms or int(now * 1e3), int(now * 1e3)
        present = frozenset(name for name, one in seen.items() if one.present)
        if present != self._present:  # earlier periods do not apply from now on
            self._present = present
            self.judged_ms = before
            for tenant in self._tenants.values():
                tenant.period = None
        for name, one in seen.items():
            tenant = self._tenants.setdefault(name, _Tenant())
            _earn(tenant, one, (self._sampled_ms - before) * 1e-3, (driver_shares or {}).get(name))
            tenant.processes = one.processes
            tenant.totals.append((self._sampled_ms, one.in_flight_ns * 1e-6, one.busy_ns * 1e-6))
            tenant.looks.append((before, self._sampled_ms, one.at_work))
            tenant.left_alone = len(present) - one.present == 0

    def factors(self, timelines: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
        """Return each container's divisor for the next period.

        ``timelines`` are each container's milliseconds since :attr:`judged_ms`: how many contexts had work in
        flight in each.
        """
        end = self._sampled_ms - DELAY_MS
        begin = max(self.judged_ms, end - BEHIND_MS)
        if end > begin:
            self.judged_ms = end
            self._judge(begin, end, timelines)
        at_work = {
            name: _mean_at_work(tenant.looks) if tenant.trust > 0 else 0.0
            for name, tenant in self._tenants.items()
        }
        for name, tenant in self._tenants.items():
            others = sum(at for other, at in at_work.items() if other != name)
            tenant.factor = 1.0 if tenant.left_alone else _factor(tenant.period, others)
        return {name: tenant.factor for name, tenant in self._tenants.items()}

    def others_most(self) -> dict[str, int]:
        """Return how many processes of other containers, at most, each container lately met in a millisecond.

        It counts milliseconds in which the container had work in flight; 0 for one that met none.
        """
        return {name: 0 if tenant.left_alone else max(tenant.most) for name, tenant in self._tenants.items()}

    def others_part(self) -> dict[str, float]:
        """Return the part of a process's time in flight for which others were charged; 0 if it is not known.

        For one of several processes of a container its siblings count as others.
        """
        parts = {}
        for name, tenant in self._tenants.items():
            siblings = (1 - tenant.worked / tenant.at_work) * tenant.charged if tenant.at_work else 0.0
            others = min(tenant.beside + siblings, tenant.in_flight)
            parts[name] = max(others / tenant.in_flight, LEAST_PART) if tenant.in_flight else 0.0
        return parts

    def _judge(self, begin: int, end: int, timelines: Mapping[str, Mapping[int, float]]) -> None:
        """Overlay the timelines from ``begin`` to ``end``."""
        passed = {name: _passed(tenant, begin, end) for name, tenant in self._tenants.items()}
        claimed = {
            name: _claimed(tenant, begin, end, timelines.get(name, {}))
            for name, tenant in self._tenants.items()
        }
        raised = {name: _raised(claims, passed[name][0]) for name, claims in claimed.items()}
        _remember_charged(self._tenants, passed, claimed, raised)
        claims = {name: _believed(tenant, raised[name]) for name, tenant in self._tenants.items()}
        totals = [sum(values) for values in zip(*claims.values(), strict=True)]
        for name, tenant in self._tenants.items():
            mine = claims[name]
            rest = [claim for other, claim in claims.items() if other != name]
            counts = [one.processes for other, one in self._tenants.items() if other != name]
            own = sum(
                amount * _mean_inverse([max(0.0, amount - 1), *(other[at] for other in rest)])
                if total > amount or amount > 1
                else amount
                for at, (amount, total) in enumerate(zip(mine, totals, strict=True))
                if amount
            )
            met = (
                sum(min(math.ceil(claim[at]), count) for claim, count in zip(rest, counts, strict=True))
                for at, amount in enumerate(mine)
                if amount
            )
            _remember_most(tenant, max(met, default=0), end)
            in_flight = sum(mine)
            tenant.period = _Period(in_flight, own, sum(totals) - in_flight, end - begin)


def _remember_most(tenant: _Tenant, met: int, end: int) -> None:
    """Keep the most others of the present and the last :data:`MOST_MS`."""
    passed = end - tenant.most_from
    if passed >= MOST_MS:
        tenant.most = (0, tenant.most[0] if passed < 2 * MOST_MS else 0)
        tenant.most_from = end
    tenant.most = (max(tenant.most[0], met), tenant.most[1])


def _earn(tenant: _Tenant, seen: CardActivity, seconds: float, driver_share: float | None) -> None:
    """Add trust for charged time: the container's claims are believed for as long."""
    before, tenant.busy_ns = tenant.busy_ns, seen.busy_ns
    charged = max(0, seen.busy_ns - before) * 1e-9 if before is not None else 0.0
    supported = charged * tenant.factor * LAG
    if seen.at_work or tenant.since_first_work:
        tenant.since_first_work += seconds
    if driver_share is not None and tenant.since_first_work > UNSEEN_SECONDS:
        before_now = driver_share if tenant.observed is None else tenant.observed
        tenant.observed = before_now + (driver_share - before_now) * min(1.0, seconds / OBSERVED_SECONDS)
        supported = min(supported, (tenant.observed * _MARGIN + 0.02) * seconds * tenant.factor)
    tenant.trust = min(TRUST_CAP_SECONDS, tenant.trust + supported)


def _claimed(tenant: _Tenant, begin: int, end: int, timeline: Mapping[int, float]) -> list[float]:
    """How many contexts had work in flight according to the container, in each millisecond."""
    entered = max(timeline, default=begin - 1)
    claims = [timeline.get(ms, 0.0) for ms in range(begin, end)]
    for since, until, at_work in tenant.looks:
        for ms in range(max(begin, since, entered + 1), min(end, until)):
            claims[ms - begin] = at_work
    tenant.looks = [look for look in tenant.looks if look[1] > end]
    return claims


def _passed(tenant: _Tenant, begin: int, end: int) -> tuple[float, float]:
    """Return the milliseconds in flight, and charged, from ``begin`` to ``end``, by the samples next to them.

    Nobody is charged more than a card's whole time: what a page says beyond that explains nobody's waits.
    """
    times = [at for at, _, _ in tenant.totals]
    first, last = (tenant.totals[min(bisect_left(times, ms), len(times) - 1)] for ms in (begin, end))
    del tenant.totals[: tenant.totals.index(first)]
    part = (end - begin) / (last[0] - first[0]) if last[0] > first[0] else 0.0
    return (last[1] - first[1]) * part, min((last[2] - first[2]) * part, end - begin)


def _remember_charged(
    tenants: Mapping[str, _Tenant],
    passed: Mapping[str, tuple[float, float]],
    claimed: Mapping[str, Sequence[float]],
    raised: Mapping[str, Sequence[float]],
) -> None:
    """Keep each container's time in flight, and what others were charged for milliseconds in which it was.

    Charges are spread as the claims are, and evenly among those with work in flight: who is alone has more.
    A launch's time in flight is known at its end: what began before these milliseconds does not count.
    """
    at_work = [max(1.0, sum(values)) for values in zip(*raised.values(), strict=True)]
    charges = {
        name: _scaled([one / total for one, total in zip(claimed[name], at_work, strict=True)], charged)
        for name, (_, charged) in passed.items()
    }
    totals = [sum(values) for values in zip(*charges.values(), strict=True)]
    for name, tenant in tenants.items():
        in_flight, charged = passed[name]
        parts = [min(1.0, claim) for claim in raised[name]]
        parts = _scaled(parts, min(sum(parts), in_flight))
        looks = [(until - since, processes) for since, until, processes in tenant.looks if processes]
        tenant.worked = tenant.worked * KEPT + sum(length for length, _ in looks)
        tenant.at_work = tenant.at_work * KEPT + sum(length * processes for length, processes in looks)
        tenant.in_flight = tenant.in_flight * KEPT + sum(parts)
        tenant.charged = tenant.charged * KEPT + charged
        others = (min(total - own, 1.0) for total, own in zip(totals, charges[name], strict=True))
        tenant.beside = tenant.beside * KEPT + sum(a * b for a, b in zip(parts, others, strict=True))


def _scaled(parts: Sequence[float], total: float) -> list[float]:
    """These parts in proportion, ``total`` in all; even ones if there are none."""
    before = sum(parts)
    return [part * total / before for part in parts] if before else [total / len(parts)] * len(parts)


def _raised(claims: Sequence[float], in_flight: float) -> Sequence[float]:
    """The claims, raised to the time in flight: a timeline has what was charged, and where it may have run,
    not what waited for others. Milliseconds with a claim are raised first, then those shortly before one.
    """
    ahead = _ahead(claims)
    for reach in (0, SLICE_MS, 2 * SLICE_MS, len(claims)):
        lacks = in_flight - sum(min(1.0, claim) for claim in claims)
        room = sum(
            1.0 - claim for claim, far in zip(claims, ahead, strict=True) if far <= reach and claim < 1.0
        )
        if lacks <= 0 or not room:
            continue
        part = min(1.0, lacks / room)
        claims = [
            claim + (1.0 - claim) * part if far <= reach and claim < 1.0 else claim
            for claim, far in zip(claims, ahead, strict=True)
        ]
    return claims


def _ahead(claims: Sequence[float]) -> list[int]:
    """Milliseconds from each to the next one with a claim; if none follows, as many as there are."""
    found, far = [], len(claims)
    for claim in reversed(claims):
        far = 0 if claim else min(far + 1, len(claims))
        found.append(far)
    return found[::-1]


def _believed(tenant: _Tenant, claims: Sequence[float]) -> Sequence[float]:
    """The claims as far as the container is trusted; reduces its trust by their sum."""
    claimed = sum(claims) * 1e-3
    spent = min(claimed, tenant.trust)
    tenant.trust -= spent
    return claims if spent == claimed else [claim * spent / claimed for claim in claims]


def _mean_inverse(others: Sequence[float]) -> float:
    """The mean of 1 / (1 + n), where n of the others are in flight.

    Within a millisecond only the length of activity is known: it is assumed to lie anywhere.
    """
    always, chances = 0, [1.0]
    for amount in others:
        always += int(amount)
        part = amount % 1
        if part:
            chances = [
                without * (1 - part) + one_less * part
                for without, one_less in zip([*chances, 0.0], [0.0, *chances], strict=True)
            ]
    return sum(chance / (1 + always + n) for n, chance in enumerate(chances))


def _mean_at_work(looks: Sequence[tuple[int, int, int]]) -> float:
    length = sum(until - since for since, until, _ in looks)
    if not length:
        return looks[-1][2] if looks else 0.0
    return sum((until - since) * at_work for since, until, at_work in looks) / length


def _factor(period: _Period | None, others_now: float) -> float:
    """The divisor from the last period; without one, as if as many containers remained at work as lately.

    One period only: shares of a card change within tenths of a second, and a longer mean would lag.
    """
    if period is None:
        return 1.0 + others_now
    return period.in_flight / period.own if period.own else 1 + period.others / period.length
