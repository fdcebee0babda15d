"""Divisors for measured GPU time while several containers share a card.

A card runs one process at a time and switches among those that have work. A container measures by events how
long its work took; while n processes take turns, an n-th of that is its own. Only the host can sample n, the
number of processes with work in flight. Time is divided, so the average is taken over 1/n.

Tenants could lie about work in flight. So their claims count only as far as charged time supports them: a
container that claims work without using time is believed for :data:`TRUST_SECONDS` at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TRUST_SECONDS: Final = 0.5
"""Limit of claims ahead of measured use: work is measured only when it ends."""
TRUST_CAP_SECONDS: Final = 2.0
LAG: Final = 1.1
"""Factor by which a container may seem in flight longer than it is: its end is noticed a little late."""
MEMORY_SECONDS: Final = 30.0
"""Period over which the driver's coarse figures are compared with the charged time."""
PRIOR_SECONDS: Final = 1.0
"""GPU seconds of assumed agreement at the start, so that the first figures do not dominate."""
GAIN_LEAST: Final = 0.5
GAIN_MOST: Final = 2.0
SMOOTHING: Final = 0.4
"""Weight of the newest period in the published factor; 1 for a container that is alone, and more in the first
periods after one came or went, so that these count alike."""
UNSEEN_SECONDS: Final = 2.5
"""From a container's first work until the driver's figure counts: it is of the second before it is read."""
_MARGIN: Final = 1.25
"""The driver's figure is a percentage of a past window: it overrules only claims far beyond it."""


@dataclass(frozen=True, slots=True)
class CardActivity:
    """A container at one moment: processes with work in flight, and GPU time charged so far (ns).

    ``present`` is False for a container that has ended or has been idle for a while.
    """

    at_work: int
    busy_ns: int
    present: bool = True


@dataclass(slots=True, eq=False)
class _Tenant:
    trust: float = TRUST_SECONDS
    busy_ns: int | None = None
    since_first_work: float = 0.0
    inverse: float = 0.0
    in_flight: float = 0.0
    others: float = 0.0
    factor: float = 1.0
    periods: int = 0  # since a container came or went
    left_alone: bool = True  # as of the last sample
    gain: float = 1.0
    charged: float = 0.0  # GPU seconds since the last comparison, without the gain
    compared: float = 0.0  # the same over the memory, ...
    observed: float = 0.0  # ... and what the driver saw


class SharedCard:
    """The time sharing of one card: fed with samples, asked for factors once a period."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._sampled = 0.0
        self._present: frozenset[str] = frozenset()

    def sample(
        self, seconds: float, seen: Mapping[str, CardActivity], truth: Mapping[str, float] | None = None
    ) -> None:
        """Record the containers at work during the ``seconds`` since the last sample.

        ``truth`` is the share of the card's time that the driver saw a container use, if known.
        """
        for gone in self._tenants.keys() - seen.keys():
            del self._tenants[gone]
        believed = {
            name: self._believed(
                self._tenants.setdefault(name, _Tenant()), one, seconds, (truth or {}).get(name)
            )
            for name, one in seen.items()
        }
        total = sum(believed.values())
        present_names = frozenset(name for name, one in seen.items() if one.present)
        present = len(present_names)
        if present_names != self._present:
            self._present = present_names
            self._restart()
        self._sampled += seconds
        for name, one in seen.items():
            tenant = self._tenants[name]
            others = total - believed[name]
            tenant.others += others * seconds
            tenant.left_alone = present - one.present == 0
            if one.at_work:
                tenant.in_flight += seconds
                tenant.inverse += seconds / (max(1.0, believed[name]) + others)

    def factors(self) -> dict[str, float]:
        """Return each container's divisor for the next period, and start it."""
        for tenant in self._tenants.values():
            others = tenant.others / self._sampled if self._sampled else 0.0
            inverse = tenant.inverse / tenant.in_flight if tenant.in_flight else 1 / (1 + others)
            if tenant.left_alone:
                inverse = 1.0
            tenant.periods += 1
            weight = 1.0 if tenant.left_alone else max(SMOOTHING, 1 / tenant.periods)
            tenant.factor = 1 / (1 / tenant.factor + weight * (inverse - 1 / tenant.factor))
            tenant.inverse = tenant.in_flight = tenant.others = 0.0
        self._sampled = 0.0
        return {name: tenant.factor for name, tenant in self._tenants.items()}

    def _restart(self) -> None:
        """A container came or went: what was sampled before says nothing about the time from now on."""
        for tenant in self._tenants.values():
            tenant.inverse = tenant.in_flight = tenant.others = 0.0
            tenant.periods = 0
        self._sampled = 0.0

    def compare_from_now(self) -> None:
        """What was charged so far is not compared with what the driver sees next."""
        for tenant in self._tenants.values():
            tenant.charged = 0.0

    def gains(self, seconds: float, truth: Mapping[str, float]) -> dict[str, float]:
        """Return factors for the charges, so that they divide the card as the driver saw it divided.

        Processes do not take exactly equal turns: one with short kernels gets a little more than an n-th.
        Only the ratio between containers is taken from the driver, not the amount. ``seconds`` is the time
        since the last call. With fewer than two known containers nothing is corrected.
        """
        known = [tenant for name, tenant in self._tenants.items() if name in truth]
        for name, tenant in self._tenants.items():
            keep = max(0.0, 1 - seconds / MEMORY_SECONDS)
            tenant.compared = tenant.compared * keep + tenant.charged
            tenant.observed = tenant.observed * keep + truth.get(name, 0.0) * seconds
            tenant.charged = 0.0
        charged, observed = sum(t.compared for t in known), sum(t.observed for t in known)
        for tenant in self._tenants.values():
            tenant.gain = 1.0
            if len(known) > 1 and charged > 0 and observed > 0 and tenant in known:
                fair = tenant.observed * charged / observed
                gain = (fair + PRIOR_SECONDS) / (tenant.compared + PRIOR_SECONDS)
                tenant.gain = min(GAIN_MOST, max(GAIN_LEAST, gain))
        return {name: tenant.gain for name, tenant in self._tenants.items()}

    def _believed(self, tenant: _Tenant, seen: CardActivity, seconds: float, truth: float | None) -> float:
        """Return the number of processes at work that this sample counts as."""
        before, tenant.busy_ns = tenant.busy_ns, seen.busy_ns
        used = max(0, seen.busy_ns - before) * 1e-9 if before is not None else 0.0
        raw = used / tenant.gain
        tenant.charged += raw
        supported = raw * tenant.factor * LAG
        if seen.at_work or tenant.since_first_work:
            tenant.since_first_work += seconds
        if truth is not None and tenant.since_first_work > UNSEEN_SECONDS:
            supported = min(supported, (truth * _MARGIN + 0.02) * seconds * tenant.factor)
        tenant.trust = min(TRUST_CAP_SECONDS, tenant.trust + supported)
        claimed = seen.at_work * seconds
        spent = min(claimed, tenant.trust)
        tenant.trust -= spent
        return spent / seconds if seconds > 0 else 0.0
