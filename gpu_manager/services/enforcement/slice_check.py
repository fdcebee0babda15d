"""Collects how long neighbours waited for one another's time slices: evidence for illegally long slices.

A second counts if two containers had the card to themselves in it and in the second before. The driver's
figures per process decide that, so cards without such figures are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.evasion import EvasionReason
from gpu_manager.domain.enforcement.time_slices import LongSlices, SliceReading
from gpu_manager.services.enforcement.usage_sample import (
    Place,
    Sample,
    ShareUse,
    driver_share,
    is_beside_others,
)


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
