"""Equal parts of several cards: the chosen sets against every set there is, what the choice takes, and
shuffled admissions as in the group association, half of them with such parts. MIG instances stand in
:mod:`bench.mig`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final

from bench import association, mig, soak
from bench.placement.topology import random_machine
from bench.rows import Measure, Row, rows_of
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CARDS
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PlacementPolicy, PodRequest, Request
from gpu_manager.domain.topology import Topology

UNITS: Final = 64  # of memory on every card
LARGEST: Final = 16  # cards of a node
CASES: Final = {True: 10_000, False: 1_000}
REPEATS: Final = 5
QUICK: Final = 1_000  # admissions


@dataclass(frozen=True, slots=True)
class Case:
    """A node whose cards are used in part, ``held`` of each (cores, units), and parts asked of it."""

    topology: Topology
    held: tuple[tuple[int, int], ...]
    request: Request
    policy: PlacementPolicy

    @property
    def states(self) -> list[CardState]:
        """The node's cards."""
        return [
            CardState(Card(at, CardUuid(f"GPU-{at}"), "A100", UNITS * DEFAULT_UNIT))
            for at in range(self.topology.size)
        ]

    def ledger(self) -> Ledger:
        """What is held of them, each by a pod of its own."""
        states = self.states
        ledger = Ledger((state.card for state in states), DEFAULT_UNIT)
        for at, (cores, units) in enumerate(self.held):
            if cores or units:
                share = Share(states[at].card.uuid, Amount(cores, units * DEFAULT_UNIT))
                ledger.commit([Allocation(PodUid(f"held-{at}"), "c", ContainerKind.APP, 0, (share,))])
        return ledger

    def chosen(self) -> tuple[int, ...] | None:
        """What the product takes; None for nothing."""
        asked = ContainerRequest("main", ContainerKind.APP, 0, self.request)
        request = PodRequest(PodUid("p"), (asked,), placement=self.policy)
        found = find(request, self.states, self.topology, self.ledger())
        return None if found is None else tuple(int(share.card[4:]) for share in found["main"])


def best_of_all(case: Case) -> tuple[int, ...] | None:
    """The set that ADR 24 wants, by going through every set."""
    count, part = case.request.parts, case.request.amount
    left = {
        at: (100 - cores - part.cores, UNITS - units - part.memory // DEFAULT_UNIT, at)
        for at, (cores, units) in enumerate(case.held)
    }
    rooms = [at for at, (cores, units, _) in left.items() if cores >= 0 and units >= 0]

    def worth(cards: Sequence[int]) -> tuple[object, ...]:
        idle = sum(case.held[at] == (0, 0) for at in cards)
        links = -sum(case.topology.weights[one][other] for one, other in combinations(cards, 2))
        first = {
            PlacementPolicy.BINPACK: (idle, links),
            PlacementPolicy.SPREAD: (-idle, links),
            PlacementPolicy.TOPOLOGY: (links, idle),
        }[case.policy]
        return *first, sorted(left[at] for at in cards)

    return min(combinations(rooms, count), key=worth, default=None)


def cases(number: int, seed: int = 0) -> Iterator[Case]:
    """Machines of 2 to 16 cards with links by chance, regular ones among them, used in part by chance."""
    chance = random.Random(seed)
    kinds = (("NV1", "NV2"), ("SYS",), ("PIX", "PHB", "NODE", "SYS"), ("NV4", "SYS"), ("NV18",))
    for _ in range(number):
        size = chance.choice((2, 3, 4, 4, 6, 8, 8, 10, 16))
        topology = random_machine(size, chance, chance.choice(kinds))
        parts = chance.randint(2, min(size, 4 if size == LARGEST else 8))
        yield Case(
            topology,
            tuple(_held(chance) for _ in range(size)),
            Request(chance.randint(1, 60) * parts, chance.randint(1, 40) * parts * DEFAULT_UNIT, parts),
            chance.choice(list(PlacementPolicy)),
        )


def _held(chance: random.Random) -> tuple[int, int]:
    if chance.random() < 0.35:
        return 0, 0
    return chance.choice((10, 20, 30, 50, 70, 100)), chance.choice((4, 8, 8, 16, 32, 64))


def choices(*, full: bool) -> Iterator[Row]:
    """Whether the chosen sets are the best of all sets."""
    wrong = placed = 0
    for case in cases(CASES[full]):
        best = best_of_all(case)
        wrong += case.chosen() != best
        placed += best is not None
    yield Row(
        "multi_card_sets_wrong",
        wrong,
        "sets",
        "= 0",
        full=full,
        note=f"of {CASES[full]} nodes of 2 to 16 cards used in part, {placed} with room, under all policies: "
        "every set compared",
    )


def times(*, full: bool) -> Iterator[Row]:
    """Time the choice of cards for equal parts of several cards: the slowest case on nodes of 16 cards.

    The baseline is the slowest choice of one card for one part on the same nodes.
    """
    chance = random.Random(5)
    worst, where, one = 0.0, "", 0.0
    for number in range(40 if full else 10):
        topology = random_machine(LARGEST, chance)
        for parts in (2, 4, 8, 12):
            held = tuple(_held(chance) if chance.random() < 0.5 else (10, 4) for _ in range(LARGEST))
            for policy in PlacementPolicy:
                case = Case(topology, held, Request(5 * parts, parts * DEFAULT_UNIT, parts), policy)
                seconds = _seconds(case)
                one = max(one, _seconds(Case(topology, held, Request(5, DEFAULT_UNIT), policy)))
                if seconds > worst:
                    worst, where = seconds, f"{parts} cards of machine {number} under {policy.value}"
    yield Row(
        "multi_card_ms",
        round(worst * 1e3, 3),
        "ms",
        "≤ 1",
        baseline=round(one * 1e3, 3),
        full=full,
        note=f"processor time of a whole placement on {LARGEST} cards, the best of {REPEATS}; "
        f"slowest: {where}; baseline: a part of one card",
    )


def _seconds(case: Case) -> float:
    request = PodRequest(
        PodUid("p"),
        (ContainerRequest("main", ContainerKind.APP, 0, case.request),),
        placement=case.policy,
    )
    question = partial(find, request, case.states, case.topology, case.ledger())
    question()  # the first on a machine sorts its sets, once
    taken = []
    for _ in range(REPEATS):
        started = time.thread_time()  # a pure function: what else the machine does is not its
        question()
        taken.append(time.thread_time() - started)
    return min(taken)


def _shape(chance: random.Random) -> dict[str, Any]:
    """Half of the pods have parts of two to four cards; a second container has one card, or parts too."""
    if chance.random() < 0.5:
        return association.shape_by_chance(chance)
    parts = chance.choice((2, 2, 3, 4))
    containers = [("c", chance.choice((10, 20, 25, 33, 50, 60)) * parts, chance.choice((4, 8, 20)) * parts)]
    written = str(parts) if chance.random() < 0.5 else f"c={parts}"
    if chance.random() < 0.3:
        containers.append(("d", 12 * parts, 2 * parts))
    return {"containers": containers, "annotations": {CARDS: written}}


def measure(seed: int, admissions: int = soak.ADMISSIONS) -> soak.Outcome:
    """One slice of the soak."""
    return association.measure(seed, admissions, _shape)


def admissions(*, full: bool) -> Iterable[Row]:
    """Shuffled admissions with faults: the judge reads the limits under the mounts of every container."""
    return association.shuffled(measure, "multi_card", full=full, quick=QUICK, what="half with parts")


PARTS: Final[dict[str, Measure]] = {
    "choices": choices,
    "times": times,
    "admissions": admissions,
    "mig_layouts": mig.layouts,
    "mig_admissions": mig.admissions,
}


def rows(*, full: bool, only: str = "") -> list[Row]:
    """The group's table, or one part of it."""
    return list(rows_of(PARTS, only, full=full))
