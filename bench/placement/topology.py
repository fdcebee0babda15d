"""Requests for several cards of one node: one by one, and coming and going over time.

A request's connectivity is the sum of the weights of its pairs. Over time the measure is hindsight: the most
that any choice of cards for the same sequence could have reached in all, found exactly, with the whole
future known. Which requests are taken depends on their sizes alone, so it is the same for every policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.card_sets import best_set
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT, GIB
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import (
    SELF,
    Affinity,
    Link,
    LinkKind,
    ParsedTopology,
    Topology,
    parse_topology,
)

SIZES: Final = ((1, 20), (2, 40), (3, 15), (4, 25))  # cards of a request, and in how many of a hundred
EVENTS: Final = 24
ANY: Final = ("NV1", "NV2", "NV4", "PIX", "PHB", "NODE", "SYS")
_LEVELS: Final = (LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS)
Machines = dict[str, ParsedTopology]
Chooser = Callable[[Topology, frozenset[int], int], tuple[int, ...]]


def machines(folder: Path) -> Machines:
    """The recorded matrices of more than one card, and three made up."""
    found = {
        path.stem: parse_topology(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.txt"))
    }
    pairs, host, socket, far = (Link.parse(kind) for kind in ("NV4", "PHB", "NODE", "SYS"))
    found |= {
        "made up: bridged pairs": _grouped(8, ((2, pairs), (4, host)), far),
        "made up: PXB quads": _grouped(8, ((2, Link.parse("PIX")), (4, Link.parse("PXB"))), far),
        "made up: six cards": _grouped(6, ((2, Link.parse("PIX")), (4, socket)), far),
    }
    return {name: parsed for name, parsed in found.items() if parsed.topology.size > 1}


def _grouped(size: int, levels: Sequence[tuple[int, Link]], far: Link) -> ParsedTopology:
    """Cards in groups within groups; ``levels``: cards in a group, and the link inside it."""

    def link(i: int, j: int) -> Link:
        return next((kind for cards, kind in levels if i // cards == j // cards), far)

    rows = tuple(tuple(SELF if i == j else link(i, j) for j in range(size)) for i in range(size))
    return ParsedTopology(Topology(rows), tuple(Affinity(str(i // 4)) for i in range(size)))


def irregular(count: int) -> dict[str, Topology]:
    """Machines of 4 to 8 cards with links by chance: of any kind, or one or two NVLinks as between V100s."""
    chance, made = random.Random("irregular"), dict[str, Topology]()
    for number in range(count):
        size, cells = chance.choice((4, 6, 8)), chance.choice((ANY, ("NV1", "NV2")))
        name = f"{number}: {size} cards, {'any links' if cells is ANY else 'NV1 and NV2'}"
        made[name] = random_machine(size, chance, cells)
    return made


def random_machine(size: int, chance: random.Random, cells: Sequence[str] = ANY) -> Topology:
    """One of these links between any two cards."""
    kinds = [Link.parse(cell) for cell in cells]
    links = {pair: chance.choice(kinds) for pair in combinations(range(size), 2)}
    rows = [[SELF if i == j else links[min(i, j), max(i, j)] for j in range(size)] for i in range(size)]
    return Topology(tuple(map(tuple, rows)))


class Product:
    """The node's own judgement, over a ledger."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._cards = [CardState(Card(i, CardUuid(f"GPU-{i}"), "M", 16 * GIB)) for i in range(topology.size)]
        self._ledger = Ledger((state.card for state in self._cards), DEFAULT_UNIT)

    def take(self, number: int, count: int) -> tuple[int, ...]:
        """Place and book."""
        ask = ContainerRequest("main", ContainerKind.APP, 0, Request(CORES_PER_CARD * count, 0))
        uid = PodUid(str(number))
        shares = place(PodRequest(uid, (ask,)), self._cards, self._topology, self._ledger)["main"]
        self._ledger.commit([Allocation(uid, "main", ContainerKind.APP, 0, shares)])
        return tuple(state.card.index for state in self._cards if state.card.uuid in {s.card for s in shares})

    def leave(self, number: int) -> None:
        """The pod is gone."""
        self._ledger.release(PodUid(str(number)))


class Plain:
    """A policy that looks at the free cards alone."""

    def __init__(self, topology: Topology, choose: Chooser) -> None:
        self._topology, self._choose = topology, choose
        self._held: dict[int, tuple[int, ...]] = {}

    def take(self, number: int, count: int) -> tuple[int, ...]:
        """Choose and remember."""
        busy = {card for cards in self._held.values() for card in cards}
        free = frozenset(range(self._topology.size)) - busy
        self._held[number] = self._choose(self._topology, free, count)
        return self._held[number]

    def leave(self, number: int) -> None:
        """The pod is gone."""
        del self._held[number]


def exact(topology: Topology, free: frozenset[int], count: int) -> tuple[int, ...]:
    """The product's choice for one request."""
    return best_set(topology, free, count) or ()


def first_fit(_: Topology, free: frozenset[int], count: int) -> tuple[int, ...]:
    """The lowest indices."""
    return tuple(sorted(free)[:count])


def greedy(topology: Topology, free: frozenset[int], count: int) -> tuple[int, ...]:
    """The best pair, then whatever card joins best; for one card the lowest index."""
    if count == 1:
        return first_fit(topology, free, 1)
    chosen = list(min(combinations(sorted(free), 2), key=lambda pair: (-topology.sum(pair), pair)))
    while len(chosen) < count:
        rest = sorted(free.difference(chosen))
        chosen.append(max(rest, key=lambda c: (sum(topology.weights[c][x] for x in chosen), -c)))
    return tuple(sorted(chosen))


def tree(parsed: ParsedTopology) -> Chooser:
    """The predecessor's link and fragment: a tree of PCIe levels, blind to NVLink; lowest indices inside."""
    size = parsed.topology.size
    groups = [_components(parsed, at) for at in range(len(_LEVELS) - 1)]
    everything = frozenset(range(size))

    def one(free: frozenset[int]) -> int:
        """Down from the root into the group with the fewest free cards."""
        inside = sorted(free)
        for each in reversed(groups):
            able = [sorted(group & free) for group in each if len(group) > 1 and group.intersection(inside)]
            inside = min(able, key=lambda cards: (len(cards), cards[0]), default=inside)
        return inside[0]

    def choose(_: Topology, free: frozenset[int], count: int) -> tuple[int, ...]:
        if count == 1:
            return (one(free),)
        for each in groups:  # the lowest level with room, there the fewest free cards
            able = [sorted(group & free) for group in each if len(group & free) >= count]
            if able:
                return tuple(min(able, key=lambda cards: (len(cards), cards[0]))[:count])
        return tuple(sorted(everything & free)[:count])

    return choose


def _components(parsed: ParsedTopology, most: int) -> list[frozenset[int]]:
    """Cards that reach each other without going above a level."""

    def joined(i: int, j: int) -> bool:
        kind = parsed.topology.link(i, j).kind
        if kind is LinkKind.NVLINK:  # the matrix hides the path beside it: that of the CPUs
            near = parsed.affinities[i].cpus == parsed.affinities[j].cpus
            kind = LinkKind.NODE if near else LinkKind.SYS
        return _LEVELS.index(kind) <= most

    groups: list[frozenset[int]] = []
    for card in range(parsed.topology.size):
        touching = [g for g in groups if any(joined(card, other) for other in g)]
        groups = [g for g in groups if g not in touching] + [frozenset({card}).union(*touching)]
    return groups


@dataclass(frozen=True, slots=True)
class Event:
    """A request comes (``count`` cards), or the one of that number leaves (0)."""

    number: int
    count: int


def sequence(size: int, seed: int) -> list[Event]:
    """Requests that fit and those that leave, in random order; the node is mostly full."""
    chance = random.Random(f"links {size} {seed}")
    held: dict[int, int] = {}
    events: list[Event] = []
    sizes, weights = zip(*[(k, w) for k, w in SIZES if k <= size // 2], strict=True)
    while len(events) < EVENTS:
        count = chance.choices(sizes, weights)[0]
        if count <= size - sum(held.values()):
            number = len(events)
            held[number] = count
            events.append(Event(number, count))
        elif held:
            number = chance.choice(sorted(held))
            del held[number]
            events.append(Event(number, 0))
    return events


def achieved(topology: Topology, events: Sequence[Event], policy: Product | Plain) -> int:
    """The connectivity of all requests together."""
    total = 0
    for event in events:
        if event.count:
            total += topology.sum(policy.take(event.number, event.count))
        else:
            policy.leave(event.number)
    return total


def hindsight(topology: Topology, events: Sequence[Event]) -> int:
    """The most that any choices reach: every way the node can stand, with the best sum that leads there."""
    size = topology.size
    sets = {k: [(_mask(c), topology.sum(c)) for c in combinations(range(size), k)] for k, _ in SIZES}
    ways: dict[tuple[int, ...], int] = {(): 0}
    live: list[int] = []
    for event in events:
        then: dict[tuple[int, ...], int] = {}
        if event.count:
            live.append(event.number)
            for held, total in ways.items():
                busy = sum(held)
                for mask, gain in sets[event.count]:
                    if not mask & busy:
                        then[*held, mask] = total + gain
        else:
            at = live.index(event.number)
            del live[at]
            for held, total in ways.items():
                left = held[:at] + held[at + 1 :]
                then[left] = max(then.get(left, 0), total)
        ways = then
    return max(ways.values())


def _mask(cards: Sequence[int]) -> int:
    return sum(1 << card for card in cards)


def singles(topology: Topology, chance: random.Random, count: int) -> Iterator[tuple[frozenset[int], int]]:
    """Free cards and a number of them, as found on nodes in use."""
    for _ in range(count):
        free = frozenset(chance.sample(range(topology.size), chance.randint(2, topology.size)))
        yield free, chance.randint(2, len(free))


def best(topology: Topology, free: frozenset[int], count: int) -> int:
    """By trying every set."""
    return max(topology.sum(cards) for cards in combinations(sorted(free), count))
