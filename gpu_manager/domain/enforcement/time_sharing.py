"""By how much a card's time is divided while a container has work on it.

A card runs one process at a time and turns among those that have work. A container measures how long its
work took by events; while n processes take turns, an n-th of that was its own. Which n applied is seen by the
host alone: it samples who has work in flight. Time is divided, so what is averaged is 1/n.

Pure. What tenants say of themselves is believed as far as the time they were charged supports it: a process
in flight uses time, and having used time is what limits a container, so a container that claims to be in
flight all day without using any convinces nobody for longer than :data:`TRUST_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TRUST_SECONDS: Final = 0.5
"""Claims ahead of measured use that are believed at most: work is measured when it ends."""
TRUST_CAP_SECONDS: Final = 2.0
LAG: Final = 1.1
"""Work is known to be over a little after it is: so much longer may a container seem to be in flight."""
MEMORY_SECONDS: Final = 30.0
"""Over how long the driver's figures are compared with what was charged: they are coarse, not wrong."""
PRIOR_SECONDS: Final = 1.0
"""GPU seconds of agreement that the comparison starts with, so that the first figures do not swing it."""
GAIN_LEAST: Final = 0.5
GAIN_MOST: Final = 2.0
SMOOTHING: Final = 0.4
"""Weight of the newest period in the published factor; a change of who is active takes the period alone."""
_MARGIN: Final = 1.25
"""The driver's own figure is a percentage of an old window: it refutes only what is far beyond it."""


@dataclass(frozen=True, slots=True)
class CardActivity:
    """One container at one moment: processes with work in flight, GPU time charged so far (ns), and whether
    it is to be reckoned with at all: one that has ended, or has not worked for a while, is not.
    """

    at_work: int
    busy_ns: int
    present: bool = True


@dataclass(slots=True, eq=False)
class _Tenant:
    trust: float = TRUST_SECONDS
    busy_ns: int | None = None
    inverse: float = 0.0
    in_flight: float = 0.0
    others: float = 0.0
    factor: float = 1.0
    alone: bool = True  # in the last period
    left_alone: bool = True  # as of the last sample
    gain: float = 1.0
    charged: float = 0.0  # GPU seconds since the last comparison, without the gain
    compared: float = 0.0  # the same over the memory, ...
    observed: float = 0.0  # ... and what the driver saw


class SharedCard:
    """What is known of the containers of one card; fed with samples, asked for factors once a period."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._sampled = 0.0

    def sample(
        self, seconds: float, seen: Mapping[str, CardActivity], truth: Mapping[str, float] | None = None
    ) -> None:
        """Take in who is at work, for the ``seconds`` since the last sample.

        ``truth`` is the share of the card's time that the driver saw a container use, where it can tell.
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
        present = sum(one.present for one in seen.values())
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
        """Each container's divisor for the time to come; begins a new period."""
        for tenant in self._tenants.values():
            others = tenant.others / self._sampled if self._sampled else 0.0
            inverse = tenant.inverse / tenant.in_flight if tenant.in_flight else 1 / (1 + others)
            if tenant.left_alone:
                inverse = 1.0
            weight = 1.0 if tenant.left_alone or tenant.alone else SMOOTHING
            tenant.factor = 1 / (1 / tenant.factor + weight * (inverse - 1 / tenant.factor))
            tenant.alone = tenant.left_alone
            tenant.inverse = tenant.in_flight = tenant.others = 0.0
        self._sampled = 0.0
        return {name: tenant.factor for name, tenant in self._tenants.items()}

    def gains(self, seconds: float, truth: Mapping[str, float]) -> dict[str, float]:
        """What to multiply charges with, so that they divide the card as the driver saw it divided.

        Turns among processes are not dealt to the nanosecond: who works in short spells gets a little more of
        each turn than an n-th. Only how containers compare is taken from the driver, not the amount.
        ``seconds`` is the time since the last call. Where fewer than two are known, nothing is corrected.
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
        """How many processes at work this sample is taken for."""
        before, tenant.busy_ns = tenant.busy_ns, seen.busy_ns
        used = max(0, seen.busy_ns - before) * 1e-9 if before is not None else 0.0
        raw = used / tenant.gain
        tenant.charged += raw
        supported = raw * tenant.factor * LAG
        if truth is not None:
            supported = min(supported, (truth * _MARGIN + 0.02) * seconds * tenant.factor)
        tenant.trust = min(TRUST_CAP_SECONDS, tenant.trust + supported)
        claimed = seen.at_work * seconds
        spent = min(claimed, tenant.trust)
        tenant.trust -= spent
        return spent / seconds if seconds > 0 else 0.0
