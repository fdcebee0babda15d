"""How much of each card's energy each container used: the driver's counter, shared by time on the card.

A joule of the counter goes to exactly one row: to a container, by its share of the card's time since the
reading before, or to nobody. So what all rows of a card grow by is what the card's own counter grows by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_manager.domain.card import CardUuid
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.enforcement.usage_sample import Sample

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
