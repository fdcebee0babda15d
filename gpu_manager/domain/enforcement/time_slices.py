"""Finds containers that gave themselves longer time slices than others have, from their neighbours' waits.

A card gives each process with work a time slice of 2 to 2.5 ms. A process may ask the driver for a longer
one; no other program can observe that, but a neighbour's launch that fits into one time slice is then
interrupted for as long. Libraries count such launches in their usage pages. A sample counts if exactly one
other container used the card; the wait is compared with three time slices of each other process and the
longest kernel.

A neighbour's figures are no proof. So the driver must have seen the accused use the card for half of the time
that the neighbour claims to have waited, and nobody is evicted for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Final

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
