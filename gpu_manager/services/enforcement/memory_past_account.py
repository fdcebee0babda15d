"""Memory that the driver counts for each container beyond its account, from one sample to the next.

That is memory that is not charged, memory that is charged but gone, and memory that the driver counts for
several processes at once; :mod:`gpu_manager.domain.enforcement.driver_overhead` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import (
    NO_EXCESS,
    CountedTwice,
    Excess,
    Unaccounted,
    divide_twice,
)
from gpu_manager.ports.control_pages import TenantUse
from gpu_manager.services.allocation.books import Key
from gpu_manager.services.enforcement.usage_sample import DriverSample, Place, ShareUse


@dataclass(frozen=True, slots=True)
class _Twice:
    """Bytes of one container that the driver counts more than once: confirmed by several samples, and now."""

    lasting: int = 0
    now: int = 0


_NONE = _Twice()


class MemoryPastAccount:
    """Processes one sample: :meth:`begin`, then :meth:`added` for each container whose page was read."""

    def __init__(self, last_read: Callable[[Place], TenantUse | None]) -> None:
        """``last_read``: the container's usage of the card when its page was last read."""
        self._last_read = last_read
        self._driver = DriverSample()
        self._looked_ns = 0
        self._unaccounted: dict[Place, Unaccounted] = {}
        self._counted_twice: dict[CardUuid, CountedTwice] = {}
        self._twice: Mapping[Place, _Twice] = {}

    def begin(self, driver: DriverSample, looked_ns: int) -> None:
        """Begin a sample of the driver. ``looked_ns`` (CLOCK_MONOTONIC) is a time before it was read."""
        self._driver, self._looked_ns = driver, looked_ns
        self._counted_twice = self._counted_twice_by_card()
        self._twice = self._counted_twice_by_place()

    def added(self, use: ShareUse) -> ShareUse:
        """The usage with the memory that its account lacks; with the last figure if the driver has none."""
        if use.enforcement != "active" or use.memory is None:
            return use
        processes = self._driver.of(use.place)
        before = self._unaccounted.get(use.place)
        if not processes and before is None:
            return use  # most containers idle most of the time
        twice = self._twice.get(use.place, _NONE)
        known = [p.memory for p in processes if p.memory is not None]
        found, excess = before or Unaccounted(), NO_EXCESS
        if use.share.card in self._driver.cards and len(known) == len(processes):
            counted = sum(known)
            found = found.seen(counted - twice.lasting, use.memory, use.share.amount.memory)
            if processes:
                self._unaccounted[use.place] = found
                excess = self._excess(use.place, counted, use.memory)
            else:
                self._unaccounted.pop(use.place)
        if found.bytes == use.beyond and excess == use.excess and twice.now == use.twice:
            return use
        return replace(use, beyond=found.bytes, excess=excess, twice=twice.now)

    def follows(self, place: Place) -> bool:
        """True while the container's figure may change although the container does nothing."""
        return place in self._unaccounted

    def forget_all_but(self, grants: Collection[Key]) -> None:
        """Forget all containers but these."""
        self._unaccounted = {place: one for place, one in self._unaccounted.items() if place[0] in grants}

    def _excess(self, place: Place, counted: int, account: int) -> Excess:
        read = self._last_read(place)
        if read is None or not read.untold:
            return NO_EXCESS
        return Excess.seen(self._looked_ns, counted, account, read.movable)

    def _counted_twice_by_card(self) -> dict[CardUuid, CountedTwice]:
        """By card, what the driver counts twice, for cards that report their used memory and all their
        processes.
        """
        held: dict[CardUuid, list[int | None]] = {}
        for process in self._driver.processes:
            held.setdefault(process.uuid, []).append(process.memory)
        found: dict[CardUuid, CountedTwice] = {}
        for card, each in held.items():
            said = self._driver.cards.get(card)
            known = [memory for memory in each if memory is not None]
            if said is not None and said.memory_used is not None and len(known) == len(each):
                before = self._counted_twice.get(card, CountedTwice())
                found[card] = before.seen(sum(known), said.memory_used)
        return found

    def _counted_twice_by_place(self) -> Mapping[Place, _Twice]:
        """The cards' figures, divided among the containers with a page."""
        beyond: dict[CardUuid, dict[Place, int]] = {}
        for place, own in self._driver.by_place.items():
            counted, read = self._counted_twice.get(place[1]), self._last_read(place)
            if counted is not None and counted.now and read is not None:
                driver = sum(process.memory or 0 for process in own)
                beyond.setdefault(place[1], {})[place] = driver - read.memory
        found: dict[Place, _Twice] = {}
        for card, parts in beyond.items():
            lasting = divide_twice(self._counted_twice[card].bytes, parts)
            now = divide_twice(self._counted_twice[card].now, parts)
            found |= {place: _Twice(lasting[place], now[place]) for place in parts}
        return found
