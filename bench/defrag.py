"""``defrag_false_proofs``: clusters that are nearly full, where the plan of the fewest moves is looked for
again by trying every way in which fewer pods could move, on any nodes. A plan is false if it says proven
and fewer moves do it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Final

from bench.rows import Row
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Ledger, Share
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import SELF, Link, Topology
from gpu_manager.domain.whatif.defragmentation import defragment
from gpu_manager.domain.whatif.simulation import SimNode, SimPod

CASES: Final = 200
_MOST_TRIED = 2  # moves that are tried in every way

Held = Mapping[str, tuple[str, int]]
"""Pod → its card and cores."""


def rows() -> Iterator[Row]:
    """The row."""
    false, proven, found = false_proofs(range(CASES))
    note = f"of {CASES} clusters of 3 to 5 nodes, {found} with a plan; {proven} answers say proven"
    yield Row("defrag_false_proofs", len(false), "", "≤ 0", None, full=True, note=note)


def false_proofs(seeds: Sequence[int]) -> tuple[list[int], int, int]:
    """Return the seeds of which a proof is false, how many answers were called proven, and how many had a
    plan.
    """
    false, proven, found = [], 0, 0
    for seed in seeds:
        nodes, held, asked = _case(random.Random(seed))
        plan = defragment(nodes, _pod("new", asked))
        found += plan.placement is not None
        if not plan.proven:
            continue
        proven += 1
        fewer = len(plan.moves) if plan.placement is not None else _MOST_TRIED + 1
        if any(_possible(nodes, held, asked, moves) for moves in range(min(fewer, _MOST_TRIED + 1))):
            false.append(seed)
    return false, proven, found


def _case(dice: random.Random) -> tuple[list[SimNode], Held, int]:
    nodes, held = [], dict[str, tuple[str, int]]()
    for n in range(dice.randint(3, 5)):
        node = _node(f"n{n}", dice.choice((1, 1, 2)))
        for state in node.cards:
            left = dice.choice((0, 10, 20, 30, 40))
            while (room := CORES_PER_CARD - left - _on(held, state.card.uuid)) >= 10:
                cores = min(room, 10 * dice.randint(1, 6))
                name = f"p{len(held)}"
                held[name] = state.card.uuid, cores
                share = (Share(state.card.uuid, Amount(cores, DEFAULT_UNIT)),)
                node = node.with_pod(_pod(name, cores), {"main": share})
        nodes.append(node)
    return nodes, held, dice.choice((50, 60, 70, 80, 90, 100))


def _on(held: Held, card: str) -> int:
    return sum(cores for where, cores in held.values() if where == card)


def _possible(nodes: Sequence[SimNode], held: Held, asked: int, moves: int) -> bool:
    """True if the pod fits once so many pods lie on other cards, whichever these are."""
    cards = [state.card.uuid for node in nodes for state in node.cards]
    for leave in combinations(held, moves):
        rest = {name: where for name, where in held.items() if name not in leave}
        free = {card: CORES_PER_CARD - _on(rest, card) for card in cards}
        sizes = [*(held[name][1] for name in leave), asked]
        for where in product(cards, repeat=len(sizes)):
            taken = dict.fromkeys(where, 0)
            for card, cores in zip(where, sizes, strict=True):
                taken[card] += cores
            if all(cores <= free[card] for card, cores in taken.items()):
                return True
    return False


def _node(name: str, cards: int) -> SimNode:
    links = tuple(tuple(SELF if i == j else Link.parse("PIX") for j in range(cards)) for i in range(cards))
    states = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), "A100", 64 * DEFAULT_UNIT)) for i in range(cards)
    )
    return SimNode(name, states, Topology(links), Ledger((s.card for s in states), DEFAULT_UNIT))


def _pod(name: str, cores: int) -> SimPod:
    memory = 0 if cores >= CORES_PER_CARD else DEFAULT_UNIT
    asked = ContainerRequest("main", ContainerKind.APP, 0, Request(cores, memory))
    return SimPod(PodUid(name), f"default/{name}", PodRequest(PodUid(name), (asked,)))
