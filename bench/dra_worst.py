"""How long kube-scheduler's allocator can search a node in vain, or find what it wants last.

A request that fits nowhere is tried under every placement of the requests before it: the search is as long as
the number of cards to the power of the number of requests. The worst node states are searched for: one card's
room or one share is changed at a time from traps that are known and from random states, and what takes longer
is kept. States found stay in build/oracle, so that a search of full size may be done in several runs, beside
other work, and measured in one on a quiet machine.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from bench.rows import Row
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.device import CORES, MEMORY, CapacityRange, SharedDevice
from gpu_manager.domain.resources import CORES_PER_CARD, MIB
from tests.oracle.dra_cases import MINORS, NODE, POOL, Case, build

MOST_CARDS: Final = 16
SHARES: Final = 4
DRAWS: Final = {False: 150, True: 2_000}  # states tried, of each order of requests
_UNIT: Final = 256 * MIB
_UNITS: Final = 320  # of a card of 80 GiB
_CHANGES: Final = 50  # from one start to the next
_AGAIN: Final = 5  # the least of so many is a state's figure: what else runs only adds

Share = tuple[int, int]
"""Cores, units of 256 MiB."""
Ask = Callable[["State"], float]


@dataclass(frozen=True)
class State:
    """A node's free room by card and a pod's shares, in the order in which it asks."""

    free: tuple[Share, ...]
    shares: tuple[Share, ...]


def largest_first(state: State) -> State:
    """The same in the order that costs least when the largest share is the one that fits nowhere."""
    return replace(state, shares=tuple(sorted(state.shares, reverse=True)))


def rows(directory: Path, *, full: bool) -> Iterator[Row]:
    """The worst that is found for pods of four unlike shares, largest first and in any order."""
    name, bar = "allocator_worst_ms", "≤ 100"
    if shutil.which("go") is None:
        yield Row(name, None, "ms", bar, full=full, note="Go is not installed: the allocator cannot be built")
        return
    worst: dict[tuple[int, int, bool], float] = {}
    for minor in MINORS:
        with _allocator(build(minor, directory)) as ask:
            for cards in (MOST_CARDS // 2, MOST_CARDS):
                for is_ordered in (True, False):
                    name_of_it = f"{minor}-{cards}-{'ordered' if is_ordered else 'any'}-{DRAWS[full]}"
                    kept = directory / f"worst-{name_of_it}.json"
                    found = read_state(kept)
                    if found is None:
                        draw = random.Random(f"bench/{minor}/{cards}")
                        found = search(ask, draw, cards, DRAWS[full], is_ordered=is_ordered)
                        kept.write_text(json.dumps(asdict(found)), encoding="utf-8")
                    worst[minor, cards, is_ordered] = min(ask(found) for _ in range(_AGAIN))
    figures = {
        (cards, is_ordered): max(worst[minor, cards, is_ordered] for minor in MINORS)
        for cards in (MOST_CARDS // 2, MOST_CARDS)
        for is_ordered in (True, False)
    }
    yield Row(
        name,
        round(figures[MOST_CARDS, True], 1),
        "ms",
        bar,
        round(figures[MOST_CARDS, False], 1),
        full,
        f"of processor time of kube-scheduler's allocator (1.36.3 and 1.37.2, the slower) on a node of "
        f"{MOST_CARDS} cards, for a pod of {SHARES} unlike shares, largest first; any order beside; with "
        f"{MOST_CARDS // 2} cards {figures[MOST_CARDS // 2, True]:.1f} and "
        f"{figures[MOST_CARDS // 2, False]:.1f}; the worst of {DRAWS[full]} states tried for each",
    )


def read_state(file: Path) -> State | None:
    """Return the state that an earlier search found; None if there was none."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return State(
        *(tuple((int(cores), int(units)) for cores, units in kept[key]) for key in ("free", "shares"))
    )


def search(ask: Ask, draw: random.Random, cards: int, draws: int, *, is_ordered: bool) -> State:
    """Return the state that takes longest of those that ``draws`` changes lead to."""
    order = largest_first if is_ordered else _as_it_is
    starts = itertools.cycle(
        (*(lambda trap=trap: trap(cards) for trap in _TRAPS), lambda: _random(draw, cards))
    )
    best, most = order(next(starts)()), -1.0
    now, took = best, most
    for number in range(draws):
        is_start = number % _CHANGES == 0
        new = order(next(starts)()) if is_start else _changed(draw, now)
        spent = ask(new)
        if is_start or spent >= took * 0.98:  # what else runs moves a figure by that much
            now, took = new, spent
        if spent > most:
            best, most = new, spent
    return best


def _impossible_last(cards: int) -> State:
    """Three small shares, and one with more cores than any card has."""
    return State(((90, _UNITS),) * cards, ((30, 1), (29, 1), (28, 1), (95, 1)))


def _impossible_smallest(cards: int) -> State:
    """The share with the fewest cores wants more memory than any card has."""
    return State(((90, 150),) * cards, ((20, 1), (19, 1), (18, 1), (1, 151)))


_TRAPS: Final = (_impossible_smallest, _impossible_last)


def _as_it_is(state: State) -> State:
    return state


def _random(draw: random.Random, cards: int) -> State:
    room = _room(draw)
    return State((room,) * cards, tuple(_share(draw, room) for _ in range(SHARES)))


def _changed(draw: random.Random, state: State) -> State:
    free, shares = list(state.free), list(state.shares)
    kind = draw.random()
    if kind < 0.4:
        shares[draw.randrange(len(shares))] = _share(draw, free[0])
    elif kind < 0.7:
        free[draw.randrange(len(free))] = _room(draw)
    else:
        free = [_room(draw)] * len(free)
    return State(tuple(free), tuple(shares)) if len(set(shares)) == len(shares) else state


def _room(draw: random.Random) -> Share:
    return draw.randint(0, CORES_PER_CARD), draw.randint(0, _UNITS)


def _share(draw: random.Random, room: Share) -> Share:
    """A share that is small beside a card's room, just above it in cores or in memory, or of any size."""
    cores, units = room
    small = max(1, draw.randint(0, cores // SHARES)), max(1, draw.randint(0, units // SHARES))
    kind = draw.randrange(4)
    if kind == 0:
        return min(cores + 1, CORES_PER_CARD), small[1]
    if kind == 1:
        return small[0], min(units + 1, _UNITS)
    return small if kind == 2 else (draw.randint(1, CORES_PER_CARD), draw.randint(1, _UNITS))


@contextmanager
def _allocator(program: Path) -> Iterator[Ask]:
    """Yield what tells the milliseconds of one search."""
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        asked, told = run.stdin, run.stdout
        assert asked is not None
        assert told is not None

        def ask(state: State) -> float:
            asked.write(json.dumps(_case(state)) + "\n")
            asked.flush()
            return float(json.loads(told.readline())["ms"])

        yield ask
        asked.close()


def _case(state: State) -> Case:
    ranges = {
        CORES: CapacityRange(1, 1, CORES_PER_CARD),
        MEMORY: CapacityRange(_UNIT, _UNIT, _UNITS * _UNIT),
    }
    devices = [
        SharedDevice(f"gpu-{index:08x}", ranges, {"uuid": f"GPU-{index:08x}", "index": index}, ())
        for index in range(len(state.free))
    ]
    results = [
        {
            "request": "gpu",
            "driver": DRA_DRIVER,
            "pool": POOL,
            "device": device.name,
            "shareID": f"{index:032x}",
            "consumedCapacity": {CORES: str(CORES_PER_CARD - cores), MEMORY: str((_UNITS - units) * _UNIT)},
        }
        for index, (device, (cores, units)) in enumerate(zip(devices, state.free, strict=True))
        if (cores, units) != (CORES_PER_CARD, _UNITS)
    ]
    requests = [
        {
            "name": f"r{number}",
            "exactly": {
                "deviceClassName": "vcuda",
                "allocationMode": "ExactCount",
                "count": 1,
                "capacity": {"requests": {CORES: str(cores), MEMORY: str(units * _UNIT)}},
            },
        }
        for number, (cores, units) in enumerate(state.shares)
    ]
    pool = {"name": POOL, "generation": 1, "resourceSliceCount": 1}
    published = [device.as_json() for device in devices]
    selector = {"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}
    return {
        "slices": [
            {
                "metadata": {"name": "slice"},
                "spec": {"driver": DRA_DRIVER, "nodeName": NODE, "pool": pool, "devices": published},
            }
        ],
        "classes": [{"metadata": {"name": "vcuda"}, "spec": {"selectors": [selector]}}],
        "allocated": [
            {
                "metadata": {"name": f"holder-{number}"},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }
            for number, result in enumerate(results)
        ],
        "claims": [
            {
                "metadata": {"name": "claim", "namespace": "team"},
                "spec": {"devices": {"requests": requests}},
            }
        ],
    }
