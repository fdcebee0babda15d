"""Whether the roll-out in C answers as the one in Python, over drawn mixes and rooms."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from bench.rows import Row
from gpu_manager.adapters.score_routine import roll_out_routine
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.fragmentation import Fragmentation
from gpu_manager.domain.score.request_mix import FreeShape, Mix, RequestShape, Stock

_UNITS: Final = (64, 160)  # of memory on a card of each model
_MODELS: Final = ("A", "B")
_ROOMS: Final = 500  # in one call


def rows(*, full: bool) -> Iterator[Row]:
    """The row."""
    routine, wanted = roll_out_routine(), 100_000 if full else 5_000
    if routine is None:
        note = "the package was built without the routine"
        yield Row("routine_differences", None, "count", "≤ 0", None, full, note)
        return
    different = 0
    stock = {model: Stock(100, units) for model, units in zip(_MODELS, _UNITS, strict=True)}
    for seed in range(wanted // _ROOMS):
        dice = random.Random(seed)
        mix, rooms = _mix(dice, seed), [_room(dice) for _ in range(_ROOMS)]
        plain, quick = Fragmentation(mix, stock), Fragmentation(mix, stock, routine=routine)
        pairs = zip(plain.of(rooms), quick.of(rooms), strict=True)
        different += sum(one != other for one, other in pairs)
    note = (
        f"{wanted:,} rooms of up to 16 cards under {wanted // _ROOMS} mixes, with and without memory and CPU"
    )
    yield Row("routine_differences", different, "count", "≤ 0", None, full, note)


def _mix(dice: random.Random, number: int) -> Mix:
    counts: dict[RequestShape, int] = {}
    for _ in range(dice.randint(1, 30)):
        cores = dice.choice((dice.randint(1, 99), 100, 200, 0))
        memory = dice.randint(1, min(_UNITS)) if 0 < cores < CORES_PER_CARD and number % 3 else 0
        cpu = dice.choice((0, dice.randint(1, 30_000)))
        shape = RequestShape(cores, memory, cpu, dice.choice(((), ("A",), ("B",), ("A", "B"))))
        counts[shape] = dice.randint(1, 200)
    return Mix(tuple(sorted(counts.items())), sum(counts.values()), number, dice.random())


def _room(dice: random.Random) -> FreeShape:
    at = dice.randrange(len(_MODELS))
    free = [_card(dice, _UNITS[at]) for _ in range(dice.choice((1, 2, 4, 8, 8, 16)))]
    cpu = dice.choice((None, dice.randint(-2_000, 128_000)))
    return FreeShape(_MODELS[at], _UNITS[at], cpu, tuple(sorted(free)))


def _card(dice: random.Random, units: int) -> tuple[int, int]:
    if dice.random() < 0.3:
        return CORES_PER_CARD, units
    return dice.randint(0, CORES_PER_CARD - 1), dice.randint(0, units)
