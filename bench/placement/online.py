"""The best that anybody reaches who knows how often each request comes, but not which comes next.

Hindsight knows the whole sequence, so no choice made in time can be expected to reach it. Here every way the
node can stand is worked out, and from the last event back the choice that is worth the most in the mean: by
no rule can more be expected of sequences like these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, Final

import numpy as np

from bench.placement.topology import EVENTS, SIZES, Event
from gpu_manager.domain.placement.card_sets import best_set, fragment
from gpu_manager.domain.topology import Topology

_NEVER: Final = -1e9
Held = tuple[int, ...]  # a mask of cards for each request, in rising order
Choose = Callable[[frozenset[int], int], tuple[int, ...]]


class _Choices:
    """All choices for requests of one size: how the node stands before (``at``, in rising order), the cards
    taken, and how it stands after; ``begins``: the first choice of each standing of ``able``.
    """

    def __init__(self, found: Sequence[tuple[int, int, int]]) -> None:
        self.at, self.mask, self.then = (np.array(column) for column in zip(*found, strict=True))
        self.able, self.begins = np.unique(self.at, return_index=True)


class Standings:
    """Every way a machine of so many cards can be held, and how requests that come and go change it."""

    def __init__(self, size: int) -> None:
        several = [(count, weight) for count, weight in SIZES if count <= size // 2]
        whole = sum(weight for _, weight in several)
        self.size = size
        self.chance = {count: weight / whole for count, weight in several}
        self._number: dict[Held, int] = {(): 0}
        self._ways: list[Held] = [()]
        coming: dict[int, list[tuple[int, int, int]]] = {count: [] for count in self.chance}
        going: list[tuple[int, int]] = []
        for at, held in enumerate(self._ways):  # grows as it goes
            free = [card for card in range(size) if not sum(held) >> card & 1]
            for count, found in coming.items():
                for cards in combinations(free, count):
                    mask = sum(1 << card for card in cards)
                    found.append((at, mask, self._of(tuple(sorted((*held, mask))))))
            going += [(at, self._of(held[:n] + held[n + 1 :])) for n in range(len(held))]
        self.choices = {count: _Choices(found) for count, found in coming.items()}
        self._leaves, self._left = (np.array(column) for column in zip(*going, strict=True))
        self._requests = np.maximum(1, np.bincount(self._leaves, minlength=len(self._ways)))

    def _of(self, held: Held) -> int:
        if held not in self._number:
            self._number[held] = len(self._ways)
            self._ways.append(held)
        return self._number[held]

    def held(self, at: int) -> Held:
        """The requests of a standing."""
        return self._ways[at]

    def worth(self, gains: dict[int, Any]) -> list[Any]:
        """What is still to come of each standing, by the number of events left, if of each request the choice
        that is worth most is taken. ``gains``: of each size what every choice brings.
        """
        found = [np.zeros(len(self._ways))]
        for _ in range(EVENTS):
            later = found[-1]
            # A request that finds no room: one of those that are there leaves, each as likely.
            leaves = np.bincount(self._leaves, later[self._left], len(self._ways)) / self._requests
            now = np.zeros(len(self._ways))
            for count, chance in self.chance.items():
                choices, value = self.choices[count], leaves.copy()
                worth = gains[count] + later[choices.then]
                value[choices.able] = np.maximum.reduceat(worth, choices.begins)
                now += chance * value
            found.append(now)
        return found

    def choose(self, held: Held, count: int, gain: Any, later: Any) -> int:
        """The mask of the best choice."""
        choices, at = self.choices[count], self._number[held]
        those = slice(np.searchsorted(choices.at, at), np.searchsorted(choices.at, at, "right"))
        best = int(np.argmax(gain[those] + later[choices.then[those]]))
        return int(choices.mask[those][best])


standings = cache(Standings)


class Best:
    """The best choices on one machine, and what is expected of them and of the product's."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ways = standings(topology.size)
        self._sums = np.array([topology.sum(_cards(mask)) for mask in range(1 << topology.size)])
        self._gains = {count: self._sums[each.mask] for count, each in self._ways.choices.items()}
        self._worth = self._ways.worth(self._gains)

    @property
    def expected(self) -> float:
        """The connectivity of a sequence, in the mean over all sequences."""
        return float(self._worth[-1][0])

    def expected_of(self, choose: Choose) -> float:
        """The same of one who chooses by what is free."""
        everything = (1 << self._topology.size) - 1
        chosen = cache(lambda free, count: sum(1 << card for card in choose(frozenset(_cards(free)), count)))
        gains: dict[int, Any] = {}
        for count, choices in self._ways.choices.items():
            free = [everything - sum(self._ways.held(at)) for at in choices.able]
            wanted = np.array([chosen(each, count) for each in free])
            ends = np.append(choices.begins[1:], len(choices.at))
            taken = choices.mask == np.repeat(wanted, ends - choices.begins)
            gains[count] = np.where(taken, self._gains[count], _NEVER)
        return float(self._ways.worth(gains)[-1][0])

    @property
    def expected_of_best_now(self) -> float:
        """The same of one who always gives the best set of the moment, and of equal ones the best choice."""
        gains: dict[int, Any] = {}
        for count, choices in self._ways.choices.items():
            gain = self._gains[count]
            ends = np.append(choices.begins[1:], len(choices.at))
            most = np.repeat(np.maximum.reduceat(gain, choices.begins), ends - choices.begins)
            gains[count] = np.where(gain == most, gain, _NEVER)
        return float(self._ways.worth(gains)[-1][0])

    def achieved(self, events: Sequence[Event]) -> int:
        """The connectivity of all requests of a sequence together, by the best choices."""
        held: dict[int, int] = {}
        total = 0
        for at, event in enumerate(events):
            if not event.count:
                del held[event.number]
                continue
            later, gain = self._worth[len(events) - 1 - at], self._gains[event.count]
            mask = self._ways.choose(tuple(sorted(held.values())), event.count, gain, later)
            held[event.number] = mask
            total += int(self._sums[mask])
        return total


def product(topology: Topology) -> Choose:
    """The product's choice of idle cards."""

    def choose(free: frozenset[int], count: int) -> tuple[int, ...]:
        if count > 1:
            return best_set(topology, free, count) or ()
        card = fragment(topology, free)
        return () if card is None else (card,)

    return choose


def _cards(mask: int) -> list[int]:
    return [card for card in range(mask.bit_length()) if mask >> card & 1]
