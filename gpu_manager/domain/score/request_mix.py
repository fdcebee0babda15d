"""The shapes of requests as the score sees them, and their mix so far."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.request import admits_model

GROWTH: Final = 1.15  # the mix is refreshed once this many times as many pods have arrived
MOST_LEFT: Final = 0.95  # of the arrivals before the count began; the highest estimate
REMEMBERED: Final = 1 << 15  # arrivals after which every count is halved, so that old requests fade


class RequestShape(NamedTuple):
    """A kind of request: a fraction of a card, whole cards, or none (a pod with host CPU only).

    ``cores`` as in a request (below 100 a fraction, then multiples of 100), ``memory`` in units, ``cpu`` in
    thousandths, ``models`` the allow list (empty for any). A tuple: hashed often, ordered by content.
    """

    cores: int
    memory: int = 0
    cpu: int = 0
    models: tuple[str, ...] = ()

    @property
    def cards(self) -> int:
        """The number of whole cards; 0 for a fraction and for none."""
        return self.cores // CORES_PER_CARD

    def allows(self, model: str) -> bool:
        """True if the request accepts cards of the model."""
        return admits_model(self.models, model, several=self.cards > 1)


class FreeShape(NamedTuple):
    """The free part of a node's cards of one model. A tuple, like :class:`RequestShape`.

    ``memory``: units on an empty card. ``cpu``: the node's free host CPU in thousandths, None if unknown.
    ``free``: cores and units of each card that may take work, in rising order.
    """

    model: str
    memory: int
    cpu: int | None
    free: tuple[tuple[int, int], ...]

    @property
    def cores(self) -> int:
        """The free cores of all cards together."""
        return sum(cores for cores, _ in self.free)

    def less(self, shape: RequestShape, card: tuple[int, int] | None = None) -> FreeShape:
        """Return what is left after ``shape``; a fraction comes from a card whose free part is ``card``."""
        free = list(self.free)
        if shape.cards:
            for _ in range(shape.cards):
                free.remove((CORES_PER_CARD, self.memory))
            free += [(0, 0)] * shape.cards
        elif card is not None:
            free.remove(card)
            free.append((card[0] - shape.cores, card[1] - shape.memory))
        cpu = None if self.cpu is None else self.cpu - shape.cpu
        return FreeShape(self.model, self.memory, cpu, tuple(sorted(free)))


class Stock(NamedTuple):
    """The cards of one model in the cluster: how many, and units of memory on each."""

    cards: int
    memory: int


@dataclass(frozen=True, slots=True)
class Mix:
    """The number of requests of each shape among ``total`` arrivals, ordered by the shapes' contents.

    ``number`` counts the refreshes and seeds the draw of bags. ``turnover`` is the part of the arrivals that
    has left again, 0 to 1.
    """

    counts: tuple[tuple[RequestShape, int], ...]
    total: int
    number: int
    turnover: float = 0.0

    def memory_weight(self, stock: Mapping[str, Stock]) -> float:
        """Return memory's part of the demand by fractions, counted in cards, 0 to 1: the scarcer weighs more.

        Whole cards do not count, since they take both; 0 if no fraction requests memory.
        """
        cards = sum(s.cards for s in stock.values())
        mean = sum(s.cards * s.memory for s in stock.values()) / cards if cards else 0
        parts = [(shape, n) for shape, n in self.counts if 0 < shape.cores < CORES_PER_CARD]
        cores = sum(shape.cores * n for shape, n in parts) / CORES_PER_CARD
        memory = sum(shape.memory * n for shape, n in parts) / mean if mean else 0.0
        return memory / (cores + memory) if cores + memory else 0.0


class Arrivals:
    """Counts arrivals and departures. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[RequestShape, int] = {}
        self._total = 0
        self._gone = 0
        self._before = 0  # came and left before the count began, as estimated
        self._last = 0
        self._number = 0

    def __len__(self) -> int:
        return self._total

    def copy(self) -> Arrivals:
        """Return an independent copy."""
        other = Arrivals()
        other._counts, other._number = self._counts.copy(), self._number
        other._total, other._gone, other._last = self._total, self._gone, self._last
        other._before = self._before
        return other

    def add(self, shape: RequestShape) -> None:
        """Count one arrival of the shape."""
        self._counts[shape] = self._counts.get(shape, 0) + 1
        self._total += 1
        if self._total >= REMEMBERED:
            self._counts = {kept: n // 2 for kept, n in self._counts.items() if n > 1}
            self._gone, self._before = self._gone // 2, self._before // 2
            self._total = self._last = sum(self._counts.values())

    def leave(self, shapes: int = 1) -> None:
        """Count departures."""
        self._gone += shapes

    def began(self, created: Sequence[float], since: float) -> None:
        """Estimate how many pods left before the count began, from the creation times of the present pods.

        ``created``: seconds, in any order. ``since``: when the oldest node was created; pods could come from
        then on. At a steady rate of arrivals the younger half came in the time since the median one. Had no
        pod left, the older half took as long; the rest of the time is the part of them that has left.
        """
        if not created:
            return
        newest, first = max(created), min(since, *created)
        if newest > first:
            left = max(0.0, 1 - 2 * (newest - statistics.median(created)) / (newest - first))
            left = min(MOST_LEFT, left)
            self._before = round(len(created) * left / (1 - left))

    @property
    def due(self) -> bool:
        """True once a new :meth:`mix` is worth its cost: after every arrival at first, then 15 % more."""
        return self._total >= max(self._last + 1, self._last * GROWTH)

    def mix(self) -> Mix:
        """Return the mix of all arrivals so far."""
        self._last = self._total
        self._number += 1
        came = self._total + self._before
        turnover = min(1.0, (self._gone + self._before) / came) if came else 0.0
        return Mix(tuple(sorted(self._counts.items())), self._total, self._number - 1, turnover)
