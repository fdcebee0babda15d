"""Fragmentation: how much of a node's free cards the mix of requests cannot use, in cores. Needs numpy.

It is the weighted sum of two estimates:

*fill-up*   Fill the node with copies of one shape, for one card or a part of it, until no more fit; the
            idle rest, averaged over shapes.
*roll-out*  Place samples ("bags") of requests drawn from the mix, each on the card with the least room that
            fits; the idle rest, averaged over bags. All nodes get the same bags, so that nodes differ only
            by what they hold.

If more than half of the demand is for fractions and the cluster fills up, bags become shorter (down to less
than half) and the weight of the fill-up falls to nothing. Short bags show what the next few requests leave on
a card; longer ones would fill any card.

All sums are of integers: a value never depends on the other nodes in the same call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import FreeShape, Mix, RequestShape, Stock

BAGS: Final = 128
BAG: Final = 48  # requests in the middle bag
SPREAD: Final = 1.5  # the longest bag is this many times longer than the middle one, the shortest shorter
ALONE: Final = (20, 2.0, 0.0)  # the two above, and a factor on the fill-up, for fractions only
# From the first bound on bags adapt, at the second they are as for fractions only: part of the demand, and
# part of the cluster's cards that present pods requested.
MOSTLY: Final = (0.5, 0.9)
FILLING: Final = (0.5, 0.9)
_SEED: Final = 20_241
_BATCH: Final = 256  # rooms computed at a time, so that they fit a processor's cache
_ENDLESS: Final = 1 << 30  # host CPU if it is unknown
_PARTS: Final = 256  # the memory's weight is a multiple of 1/256 …
_VALUE: Final = 1000 * _PARTS  # … and this is one core
_WEIGHT: Final = 1_000_000  # a shape's weight in the fill-up is a multiple of a millionth

# A card packed into one number, so that one subtraction places a request and one minimum finds the best fit:
# cores, then a guard bit and units of memory, then the card's position to break ties.
_PLACE_BITS: Final = 6
_MEMORY_BITS: Final = 17
_MOST_MEMORY: Final = (1 << _MEMORY_BITS) - 1
_GUARD_AT: Final = _PLACE_BITS + _MEMORY_BITS
_CORES_AT: Final = _GUARD_AT + 1
_LIMIT: Final = np.uint32(1 << 31)  # more than any card has

_Ints = npt.NDArray[np.int64]


class RollOutRoutine(Protocol):
    """The roll-out computed elsewhere, with the same results: :mod:`gpu_manager.adapters.score_routine`."""

    def __call__(
        self,
        free: npt.NDArray[np.uint32],
        cpu: npt.NDArray[np.int32],
        model: _Ints,
        asked: npt.NDArray[np.uint32],
        asked_cpu: npt.NDArray[np.int32],
        least: int,
    ) -> tuple[_Ints, _Ints]:
        """Return the cores and units of memory left in each room, summed over bags.

        ``free``: packed cards by room and card; ``cpu`` and ``model`` by room; ``asked``: packed requests by
        step, model and bag, ``asked_cpu`` by step and bag. A room is done once all its cards are below
        ``least``.
        """


class Fragmentation:
    """Fragmentation of rooms under one mix. ``parts``: the weights of the fill-up (while fractions are at
    most half of the demand) and of the roll-out.
    """

    def __init__(
        self,
        mix: Mix,
        stock: Mapping[str, Stock],
        parts: tuple[float, float] = (0.03, 1.0),
        alone: tuple[float, float, float] = ALONE,
        routine: RollOutRoutine | None = None,
    ) -> None:
        """``alone``: for a demand for fractions only, the requests in the middle bag, how many times longer
        the longest is, and the factor on the weight of the fill-up. ``routine``: computes roll-outs.
        """
        near = fractions_alone(mix, sum(each.cards for each in stock.values()))
        (fill, roll), (bag, spread, kept) = parts, alone
        self._weights = fill * (1 - near * (1 - kept)), roll
        self._models = {model: at for at, model in enumerate(sorted(stock))}
        self._memory_weight = round(mix.memory_weight(stock) * _PARTS)
        self._with_memory = any(shape.memory for shape, _ in mix.counts)
        self._known: dict[FreeShape, float] = {}
        self._fill = _FillUp(mix, tuple(self._models))
        middle, longer = BAG * (bag / BAG) ** near, SPREAD * (spread / SPREAD) ** near
        lengths = _lengths(middle, longer, BAGS)
        self._roll = _RollOut(mix, tuple(self._models), lengths, routine, with_memory=self._with_memory)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, rooms: Sequence[FreeShape]) -> list[float]:
        """Return the fragmentation of each room, in cores; computed once per room."""
        known = self._known
        new = [room for room in dict.fromkeys(rooms) if room not in known]
        for at in range(0, len(new), _BATCH):
            batch = new[at : at + _BATCH]
            known.update(zip(batch, self._work_out(batch), strict=True))
        return [known[room] for room in rooms]

    def _work_out(self, rooms: Sequence[FreeShape]) -> list[float]:
        cards = max(1, *(sum(1 for cores, _ in room.free if cores) for room in rooms))
        cores = np.zeros((len(rooms), cards), np.int64)
        memory = np.zeros((len(rooms), cards), np.int64)
        for at, room in enumerate(rooms):
            free = [card for card in room.free if card[0]]
            if free:
                cores[at, : len(free)], memory[at, : len(free)] = zip(*free, strict=True)
        cpu = np.array([_ENDLESS if r.cpu is None else r.cpu for r in rooms], np.int64)
        model = np.array([self._models[r.model] for r in rooms])
        sizes = np.array([max(1, r.memory) for r in rooms], np.int64)
        a_core = 1000 * (_PARTS - self._memory_weight)
        a_unit = (CORES_PER_CARD * 1000 * self._memory_weight + sizes // 2) // sizes
        fill = self._fill.idle(cores, memory, cpu, model, a_core, a_unit)
        rest_cores, rest_memory = self._roll.left(cores, memory, cpu, model)
        roll = rest_cores * a_core + rest_memory * a_unit
        first, second = self._weights
        filled = first / (_WEIGHT * _VALUE)
        rolled = second / (BAGS * _VALUE)
        return [filled * f + rolled * r for f, r in zip(fill.tolist(), roll.tolist(), strict=True)]


class _FillUp:
    """The fill-up estimate over all shapes for one card or a part of one, weighted by frequency."""

    def __init__(self, mix: Mix, models: Sequence[str]) -> None:
        singles = [(shape, n) for shape, n in mix.counts if 0 < shape.cores <= CORES_PER_CARD]
        shapes = [shape for shape, _ in singles]
        # Shapes for several cards count in the weight, but have their own measure (multi_gpu_slots).
        asking = sum(n for shape, n in mix.counts if shape.cores)
        spread = mix.total * sum(n * max(1, shape.cards) for shape, n in mix.counts if shape.cores)
        self._weights = np.array([round(_WEIGHT * asking * n / spread) for _, n in singles], np.int64)
        self._cores = np.array([s.cores for s in shapes], np.int64)
        self._memory = np.array([s.memory for s in shapes], np.int64)
        # A request without host CPU counts as a thousandth: without any free host CPU nothing runs.
        self._cpu = np.array([max(1, s.cpu) for s in shapes], np.int64)
        self._whole = self._cores == CORES_PER_CARD
        self._allowed = np.array([[s.allows(m) for s in shapes] for m in models], bool)
        # Copies that fit on a card, by its free cores.
        self._copies = np.arange(CORES_PER_CARD + 1)[:, None] // np.maximum(1, self._cores)[None, :]
        self._by_memory = np.flatnonzero(self._memory)

    def idle(
        self, cores: _Ints, memory: _Ints, cpu: _Ints, model: _Ints, a_core: int, a_unit: _Ints
    ) -> _Ints:
        """Return the weighted idle value of each room, in parts of a core and of a weight."""
        free = cores.sum(1) * a_core + memory.sum(1) * a_unit
        if not len(self._weights):
            return np.zeros_like(free)
        copies = self._copies[cores]
        by_memory = memory[:, :, None] // self._memory[self._by_memory]
        copies[:, :, self._by_memory] = np.minimum(copies[:, :, self._by_memory], by_memory)
        held = copies.sum(1)
        np.minimum(held, cpu[:, None] // self._cpu, out=held)
        held *= self._allowed[model]
        part = self._cores * a_core + self._memory * a_unit[:, None]
        value = np.where(self._whole, CORES_PER_CARD * _VALUE, part)
        used: _Ints = (held * value * self._weights).sum(1)
        rest: _Ints = free * int(self._weights.sum()) - used
        return rest


class _RollOut:
    """The roll-out estimate: bags of requests for a fraction or for one whole card."""

    def __init__(
        self,
        mix: Mix,
        models: Sequence[str],
        lengths: Sequence[int],
        routine: RollOutRoutine | None = None,
        *,
        with_memory: bool,
    ) -> None:
        """``lengths``: of the bags, in rising order."""
        self._routine = routine or roll_out
        self._with_memory = with_memory
        singles = [(shape, n) for shape, n in mix.counts if 0 < shape.cores <= CORES_PER_CARD]
        drawn = _draw([n for _, n in singles], mix.number, lengths)
        shapes = [shape for shape, _ in singles]
        # One more shape stands for "no request": it fits nowhere.
        never = RequestShape(CORES_PER_CARD + 1, cpu=0)
        asked = np.array([_packed(shape) for shape in (*shapes, never)], np.uint32)
        table = np.tile(asked, (max(1, len(models)), 1))
        for row, model in enumerate(models):
            for at, shape in enumerate(shapes):
                if not shape.allows(model):
                    table[row, at] = asked[-1]
        self._asked = np.ascontiguousarray(np.moveaxis(table[:, drawn], 1, 0))  # step, model, bag
        self._cpu = np.array([*(s.cpu for s in shapes), 0], np.int32)[drawn]  # step, bag
        self._least = min((s.cores for s in shapes), default=CORES_PER_CARD) << _CORES_AT

    def left(self, cores: _Ints, memory: _Ints, cpu: _Ints, model: _Ints) -> tuple[_Ints, _Ints]:
        """Return the cores and units of memory left in each room, summed over bags."""
        packed = (cores << _CORES_AT) + np.arange(cores.shape[1])
        if self._with_memory:
            packed |= np.minimum(memory, _MOST_MEMORY) << _PLACE_BITS
        wide, host_cpu = packed.astype(np.uint32), cpu.astype(np.int32)
        return self._routine(wide, host_cpu, model, self._asked, self._cpu, self._least)


def _packed(shape: RequestShape) -> int:
    return shape.cores << _CORES_AT | min(shape.memory, _MOST_MEMORY) << _PLACE_BITS


def roll_out(
    free: npt.NDArray[np.uint32],
    cpu: npt.NDArray[np.int32],
    model: _Ints,
    asked: npt.NDArray[np.uint32],
    asked_cpu: npt.NDArray[np.int32],
    least: int,
) -> tuple[_Ints, _Ints]:
    """A :class:`RollOutRoutine`, for a package that was built without the one in C."""
    bags = asked.shape[2]
    cards = np.repeat(free.T[:, :, None], bags, axis=2)  # card, room, bag
    host = np.repeat(cpu[:, None], bags, axis=1)
    for requests, needs in zip(asked[:, model], asked_cpu, strict=True):
        if cards.max(initial=0) < least:
            break
        rest = cards - requests  # wraps round, past the limit, for a card with too few cores
        # A card with too little memory borrows the guard bit, which puts it past the limit too.
        best = (rest | (rest >> _GUARD_AT & 1) << 31).min(0, initial=_LIMIT)
        placed = (best < _LIMIT) & (host >= needs)
        host -= np.where(placed, needs, 0).astype(np.int32)
        np.copyto(cards, rest, where=(rest == best) & placed)
    cores = cards >> _CORES_AT
    units = np.where(cores, cards >> _PLACE_BITS & _MOST_MEMORY, 0)
    return cores.sum((0, 2), np.int64), units.sum((0, 2), np.int64)


def fractions_alone(mix: Mix, cards: int) -> float:
    """How far bags adapt to fractions: 1 if nine tenths of the demand are for fractions and nine tenths of
    the cluster's ``cards`` have been requested; 0 up to half of the demand, or of the cards.

    While much is idle, longer bags keep pods on the nodes in use. Pods that have left count as no request.
    """
    parts = sum(n * shape.cores for shape, n in mix.counts if shape.cores < CORES_PER_CARD)
    if not parts or not cards:
        return 0.0
    asked = sum(n * shape.cores for shape, n in mix.counts)
    return _between(parts / asked, MOSTLY) * _between(
        asked * (1 - mix.turnover) / (CORES_PER_CARD * cards), FILLING
    )


def _between(value: float, bounds: tuple[float, float]) -> float:
    """Return how far the value lies from the first bound to the second: 0 to 1."""
    first, last = bounds
    return min(1.0, max(0.0, (value - first) / (last - first)))


def _lengths(middle: float, spread: float, bags: int) -> list[int]:
    """Return the requests in each bag, in rising order."""
    return [round(middle * spread ** (2 * (k + 0.5) / bags - 1)) for k in range(bags)]


def _draw(counts: Sequence[int], number: int, lengths: Sequence[int]) -> npt.NDArray[np.intp]:
    """Return the shape of each bag of these lengths at each step; the last index + 1 where the bag has ended.

    Bags are stratified: a bag of n has one request from each n-th of the mix, in random order. So every bag
    is a fair sample, and their mean varies little between draws.
    """
    drawn = np.full((max(lengths), len(lengths)), len(counts), np.intp)
    if not counts:
        return drawn
    random = np.random.default_rng((_SEED, number))
    edges = np.cumsum(counts)
    for k, length in enumerate(lengths):
        points = (np.arange(length) + random.random(length)) / length * edges[-1]
        bag = np.searchsorted(edges, points, side="right")
        drawn[:length, k] = np.minimum(bag, len(counts) - 1)[np.argsort(random.random(length), kind="stable")]
    return drawn
