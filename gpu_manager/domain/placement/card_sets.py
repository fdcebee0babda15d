"""Choose sets of cards by topology and by the kubelet's NUMA policy: the best-linked set, the single card
whose loss costs least, different cards for equal parts.

A greedy choice is not enough: on a cube mesh the best pair is often not part of the best four, and a card
taken from the wrong group spoils the group for the next request. So every set is scored once per matrix: the
subsets of up to :data:`PREPARED` cards are sorted by preference, and for each card one integer has a bit for
every set that contains it. A query takes a few ORs to drop the sets with a busy card; the lowest bit left is
the answer. On larger nodes a set is grown and then improved by exchanges, which is no longer exact.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, count
from operator import add, neg, sub
from typing import Final

from gpu_manager.domain.card import Card, CardState
from gpu_manager.domain.placement.trial_placement import ContainerGroup, TrialPlacement
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.domain.topology import Link, LinkKind, NumaPolicy, Topology

# Choose the cards of a container with equal parts of several cards: always different ones.
# The choice narrows the sets of cards with room step by step; a step keeps the sets with the fewest cards
# of a kind, or those with the largest sum of links. The order of the steps is the policy's:
# * `binpack`: cards that suit the pod's priority, fewest idle cards, links; * `spread`: the same, but most
# idle cards; * `topology`: cards that the pod uses already, links, then as `binpack`.
# Of the sets that are left, the one with the least left over is taken: compared card by card, the fullest
# first (by free cores, then free memory, then index). Exact up to
# :data:`~gpu_manager.domain.placement.card_sets.PREPARED` cards, where one integer has a bit for every set;
# beyond, the cards are chosen one by one.


LINKS: Final = None
"""This step keeps the sets with the best links; every other one keeps those with the fewest of its cards."""

Steps = Sequence[Collection[int] | None]


def several_cards(
    trial: TrialPlacement, group: ContainerGroup, policy: PlacementPolicy, topology: Topology
) -> tuple[int, ...] | None:
    """Return the positions of the cards, in rising order; None where too few open cards have room."""
    rooms = sorted(trial.with_room(group))
    if len(rooms) < group.parts:
        return None
    fullest = [at for *_, at in rooms]
    steps = _steps(trial, fullest, policy)
    if topology.size > PREPARED:
        return _one_by_one(topology, fullest, group.parts, steps)
    return _of_sets(topology, ranked(topology.ranks, trial.numa)[group.parts], fullest, steps)


def _steps(trial: TrialPlacement, rooms: Sequence[int], policy: PlacementPolicy) -> Steps:
    idle = frozenset(at for at in rooms if trial.idle(at))
    if policy is PlacementPolicy.SPREAD:
        return (*_unsuited(trial, rooms), frozenset(rooms) - idle, LINKS)
    if policy is PlacementPolicy.TOPOLOGY:
        away = frozenset(at for at in rooms if not trial.held(at))
        return (away, LINKS, *_unsuited(trial, rooms), idle)
    return (*_unsuited(trial, rooms), idle, LINKS)


def _unsuited(trial: TrialPlacement, rooms: Sequence[int]) -> Iterator[Collection[int]]:
    """The cards that suit the pod's priority worst, then those that suit it better, without the best."""
    suits = trial.unprotected
    if suits is not None:
        for value in sorted({suits[at] for at in rooms}, reverse=True)[:-1]:
            yield frozenset(at for at in rooms if suits[at] == value)


def _of_sets(topology: Topology, ranks: Ranks, fullest: Sequence[int], steps: Steps) -> tuple[int, ...]:
    sets = ranks.without(topology.size, frozenset(fullest))
    for step in steps:
        sets = ranks.as_good(sets) if step is LINKS else _fewest(ranks, sets, step)
    chosen: list[int] = []
    for at in fullest:
        if with_it := sets & ranks.holding[at]:
            sets = with_it
            chosen.append(at)
    return tuple(sorted(chosen))


def _fewest(ranks: Ranks, sets: int, cards: Collection[int]) -> int:
    """Return a bit for every set with as few of these cards as any."""
    by_number = [sets]  # of these cards in the set
    for at in cards:
        with_it = [some & ranks.holding[at] for some in by_number]
        by_number = [
            (some ^ held) | more
            for some, held, more in zip((*by_number, 0), (*with_it, 0), (0, *with_it), strict=True)
        ]
    return next(some for some in by_number if some)


def _one_by_one(topology: Topology, fullest: Sequence[int], count: int, steps: Steps) -> tuple[int, ...]:
    """Take the best card by the steps, then the next beside it; of equal ones the fullest."""
    chosen: list[int] = []
    while len(chosen) < count:
        rest = [at for at in fullest if at not in chosen]
        chosen.append(
            min(
                rest,
                key=lambda at: tuple(
                    -sum(topology.ranks[at][other] for other in chosen or rest)
                    if step is LINKS
                    else at in step
                    for step in steps
                ),
            )
        )
    return tuple(sorted(chosen))


PREPARED = 16  # cards; time and memory double with each: 16 take 0.1 s and 1 MiB
NVLINK = Link(LinkKind.NVLINK, 1).weight
TIED = 80  # equal sets that are compared by the cards they leave free; if there are more, the lowest ones
GROWN = 32  # on larger nodes sets of k are grown from 2 + GROWN // k cards each
ROUNDS = 8  # of exchanges after that; both bounds limit the work that a hostile inventory can cause

Weights = tuple[tuple[int, ...], ...]
Numa = tuple[int | None, ...]


def best_set(topology: Topology, free: frozenset[int], k: int, numa: Numa = ()) -> tuple[int, ...] | None:
    """Return the ``k`` free cards with the largest sum of links over pairs.

    Ties go to the set on the fewest NUMA nodes; then, on machines with NVLinks, to the one that leaves the
    best-linked cards free, then to the one least linked to the whole machine (busy cards come back); then to
    the lexicographically lowest. ``numa``: each card's NUMA node, if it is known.

    None if fewer than ``k`` are free. Exact up to :data:`PREPARED` cards; beyond, a set that no exchange of
    one card improves, and of equal ones the lowest.
    """
    if not 0 < k <= len(free):
        return None
    if topology.size > PREPARED:
        return grown_set(topology, free, k, numa)
    size = topology.size
    ranks = ranked(topology.ranks, numa)[k]
    mask = ranks.sets[_least_linked(ranks, topology.ranks, free, ranks.without(size, free))]
    return tuple(i for i in range(size) if mask >> (size - 1 - i) & 1)


def _least_linked(ranks: Ranks, weights: Weights, free: frozenset[int], sets: int) -> int:
    """Return the rank of the set that is least linked to the other free cards, then to all cards, among the
    sets that are as good as the best.

    These sets have the same sum inside: the less their cards are linked to all free ones, the more the
    remaining cards are linked to each other. Busy cards become free again later.
    """
    size, first = len(weights), ranks.first(sets)
    equal = sets & ((1 << ranks.ends[first]) - 1)
    linked = [(sum(map(row.__getitem__, free)), sum(row)) for row in weights]
    if len({linked[card] for card in free}) == 1 or not equal & (equal - 1):
        return first

    def links(rank: int) -> tuple[int, int]:
        mask = ranks.sets[rank]
        inside = [linked[card] for card in range(size) if mask >> (size - 1 - card) & 1]
        return sum(now for now, _ in inside), sum(later for _, later in inside)

    best = links(first), first
    for _ in range(TIED):
        equal &= equal - 1
        if not equal:
            break
        rank = ranks.first(equal)
        best = min(best, (links(rank), rank))
    return best[1]


def grown_set(topology: Topology, free: frozenset[int], k: int, numa: Numa = ()) -> tuple[int, ...]:
    """Return :func:`best_set` as for a machine of more than :data:`PREPARED` cards; at least ``k`` are
    free.
    """
    return _Exchange(topology.ranks, free, k).best(numa)


def fragment(topology: Topology, free: frozenset[int], numa: Numa = ()) -> int | None:
    """Return the free card whose loss leaves the largest sum of best scores over all set sizes.

    So cards of broken groups go first, and full groups stay whole. Ties go, on machines with NVLinks, to the
    card least linked to the whole machine, since busy cards come back, then to the lowest. None if no card is
    free. Beyond :data:`PREPARED` cards it is the one with the least links to the others. ``numa`` as for
    :func:`best_set`, whose table it shares, has no effect here.
    """
    if not free:
        return None
    if topology.size > PREPARED:
        return min(free, key=lambda card: (sum(topology.ranks[card][other] for other in free), card))
    scores = _left_prepared(topology, free, numa)
    linked = _has_nvlinks(topology.ranks)
    return min(scores, key=lambda card: (-scores[card], sum(topology.ranks[card]) if linked else 0, card))


def _has_nvlinks(weights: Weights) -> bool:
    return any(max(row) >= NVLINK for row in weights)


def _left_prepared(topology: Topology, free: frozenset[int], numa: Numa) -> dict[int, int]:
    scores = dict.fromkeys(free, 0)
    table = ranked(topology.ranks, numa)
    for k in range(2, len(free)):
        ranks = table[k]
        sets = ranks.without(topology.size, free)
        for card in free:
            scores[card] += ranks.scores[ranks.first(sets & ~ranks.holding[card])]
    return scores


@dataclass(frozen=True, slots=True)
class Ranks:
    """All sets of one size, best first. Card i is bit ``size - 1 - i``, so a larger mask has lower cards."""

    sets: array[int]
    scores: array[int]
    holding: tuple[int, ...]  # for each card: bit r is set if the set of rank r holds it
    ends: array[int]  # for each rank the first that is not compared with it by the cards they leave free

    def without(self, size: int, free: frozenset[int]) -> int:
        """Return a bit for every set without a busy card."""
        blocked = 0
        for card in range(size):
            if card not in free:
                blocked |= self.holding[card]
        return ((1 << len(self.sets)) - 1) & ~blocked

    @staticmethod
    def first(sets: int) -> int:
        """Return the rank of the best of these sets."""
        return (sets & -sets).bit_length() - 1

    def as_good(self, sets: int) -> int:
        """Return a bit for each of these sets that has the largest sum among them."""
        first = self.first(sets)
        return sets & ((1 << bisect_right(self.scores, -self.scores[first], first, key=neg)) - 1)


@lru_cache(maxsize=16)  # a cluster has few kinds of machine; keyed by value, so equal nodes share one table
def ranked(weights: Weights, numa: Numa = ()) -> dict[int, Ranks]:
    """Return the sets of each size of a machine of at most :data:`PREPARED` cards."""
    size = len(weights)
    scores = _scores(weights)
    groups: list[list[int]] = [[] for _ in range(size + 1)]
    for mask in range(len(scores) - 1, 0, -1):
        groups[mask.bit_count()].append(mask)
    table: dict[int, Ranks] = {}
    nodes = _nodes(numa)
    order = (
        [score * (size + 1) - count for score, count in zip(scores, nodes, strict=True)] if nodes else scores
    )
    # Without NVLinks equal sets go by index, as the predecessor's tree did.
    linked = _has_nvlinks(weights)
    for k in range(1, size + 1):
        # The sort is stable, reverse too: equal sets stay in falling order of mask, lowest cards first.
        sets = array("H", sorted(groups[k], key=order.__getitem__, reverse=True))
        holding = tuple(_column(sets, size - 1 - card) for card in range(size))
        scored = array("q", map(scores.__getitem__, sets))
        ends = _ends([order[mask] for mask in sets]) if linked else array("I", range(1, len(sets) + 1))
        table[k] = Ranks(sets, scored, holding, ends)
    return table


def _ends(values: Sequence[int]) -> array[int]:
    """Return for each position the first one after it that has another value."""
    ends = array("I", [len(values)]) * len(values)
    for at in range(len(values) - 2, -1, -1):
        ends[at] = ends[at + 1] if values[at] == values[at + 1] else at + 1
    return ends


def _scores(weights: Weights) -> list[int]:
    """Return the score of every mask, adding card by card from the last (bit 0)."""
    size = len(weights)
    scores = [0]
    for bit in range(size):
        row = weights[size - 1 - bit]
        added = [0]
        for lower in range(bit):
            link = row[size - 1 - lower]
            added += [score + link for score in added]
        scores += [score + more for score, more in zip(scores, added, strict=True)]
    return scores


def _nodes(numa: Numa) -> list[int]:
    """Return the number of NUMA nodes of every mask, empty if all cards lie on one."""
    known = sorted(set(numa), key=str)
    if len(known) < 2:
        return []
    seen = [0]
    for node in reversed(numa):
        bit = 1 << known.index(node)
        seen += [others | bit for others in seen]
    return list(map(int.bit_count, seen))


def _column(sets: array[int], bit: int) -> int:
    """Return an integer whose bit r says whether set r has ``bit``."""
    digits = "".join("1" if mask >> bit & 1 else "0" for mask in reversed(sets))
    return int(digits, 2)


@lru_cache(maxsize=16)
def _joins(weights: Weights) -> tuple[tuple[int, int, int], ...]:
    """The links that join groups of cards to larger ones, best first: weight, card, card."""
    size = len(weights)
    group = list(range(size))
    links = sorted((-weights[i][j], i, j) for i in range(size) for j in range(i + 1, size))
    joins: list[tuple[int, int, int]] = []
    for weight, i, j in links:
        if group[i] != group[j]:
            joins.append((-weight, i, j))
            group = [group[i] if each == group[j] else each for each in group]
    return tuple(joins)


def _grouped_set(weights: Weights, free: frozenset[int], k: int) -> tuple[int, ...]:
    """The best set, assuming that any two groups are linked everywhere by their best link: exact on regular
    machines.
    """
    size = len(weights)
    # For each group and number of cards one integer: the sum above the set's mask, card i at ``size - 1 -
    # i``.
    sums = {i: [0, 1 << (size - 1 - i)][: 1 + (i in free)] for i in range(size)}
    of = list(range(size))
    for weight, i, j in _joins(weights):
        one, other = sorted((sums[of[i]], sums.pop(of[j])), key=len)
        best = [0] * min(k + 1, len(one) + len(other) - 1)
        for m, part in enumerate(one):
            reach = slice(m, m + len(other))  # with 0, 1, … cards of the other group
            best[reach] = map(max, best[reach], map(add, other, count(part, weight * m << size)))
        sums[of[i]], gone = best, of[j]
        of = [of[i] if each == gone else each for each in of]
    (whole,) = sums.values()
    return tuple(i for i in range(size) if whole[k] >> (size - 1 - i) & 1)


class _Exchange:
    """A good set of ``k`` free cards: grown, then improved by exchanging cards while that helps.

    The search starts from the best set of a regular machine and from each of the best-linked cards (from more
    of them if the set is small); the best result counts, the lowest of equals. The work is bounded, whatever
    the links are.
    """

    def __init__(self, weights: Weights, free: frozenset[int], k: int) -> None:
        self._rows = weights
        self._k = k
        self._free = free
        # The penalty for an excluded card outweighs every possible gain.
        self._bar = 1 + 2 * sum(map(max, weights)) * len(weights)

    def best(self, numa: Numa = ()) -> tuple[int, ...]:
        """The set, in rising order."""
        rows, free = self._rows, self._free
        linked = {card: sum(sorted(rows[card][o] for o in free if o != card)[1 - self._k :]) for card in free}
        starts = sorted(free, key=lambda card: (-linked[card], card))[: 2 + GROWN // self._k]
        begun = [_grouped_set(rows, free, self._k), *((card,) for card in starts)]
        found = map(self._from, begun)
        return min((-score, len({numa[c] for c in cards}) if numa else 0, cards) for score, cards in found)[
            -1
        ]

    def _from(self, start: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The set grown from these cards and then improved, and its sum."""
        chosen, bar = list(start), self._bar
        # The gain of each card, less the penalty if it is taken.
        worth = [sum(row[card] for card in start) for row in self._rows]
        for card in range(len(self._rows)):
            if card not in self._free or card in start:
                worth[card] -= bar
        while len(chosen) < self._k:
            card = worth.index(max(worth))  # the lowest of equals
            chosen.append(card)
            worth[card] -= bar
            worth = list(map(add, worth, self._rows[card]))
        for _ in range(ROUNDS):
            gained = [self._exchanged(at, chosen, worth) for at in range(self._k)]
            if not any(gained):
                break
        return sum(worth[card] + bar for card in chosen) // 2, tuple(sorted(chosen))

    def _exchanged(self, at: int, chosen: list[int], worth: list[int]) -> bool:
        """Exchange a card for a better one, or for an equal one of a lower index; False if there is none."""
        leaves = chosen[at]
        without = list(map(sub, worth, self._rows[leaves]))
        most = max(without)
        comes = without.index(most)
        if (most, -comes) <= (worth[leaves] + self._bar, -leaves):
            return False
        chosen[at] = comes
        worth[:] = map(add, without, self._rows[comes])
        worth[leaves] += self._bar
        worth[comes] -= self._bar
        return True


# The kubelet's NUMA policy: on which NUMA nodes a container's device ids lie, and which sets of cards it
# admits.
# The kubelet lets a container have devices of the fewest NUMA nodes that could serve the request if nothing
# were taken (`restricted`), or of a single one (`single-numa-node`), and fails the pod for good otherwise.
# Under every policy but `none` it chooses the NUMA nodes itself, by the free ids that it counts there: the
# fewest nodes, then those with the lowest numbers (kubelet 1.36.3, topologymanager and bitmask.IsLessThan).


MOST_NODES: Final = 8  # NUMA nodes: on machines with more the kubelet by default aligns nothing


def admitted_set(
    topology: Topology, cards: Sequence[CardState], free: frozenset[int], k: int
) -> tuple[int, ...] | None:
    """Return the :func:`~gpu_manager.domain.placement.card_sets.best_set` among the sets that the kubelet
    admits.

    None if there is none. Of equal sums the set on the fewest NUMA nodes wins, then the lowest positions.
    """
    numa = tuple(state.card.numa for state in cards)
    if not topology.numa_policy.strict:
        return best_set(topology, free, k, numa)
    found = [best_set(topology, free & group, k, numa) for group in _groups(topology.numa_policy, cards, k)]
    return min(
        (each for each in found if each is not None),
        key=lambda each: (-topology.rank(each), len({numa[at] for at in each}), each),
        default=None,
    )


def numbered(cards: Iterable[Card]) -> Sequence[int] | None:
    """Return the numbers of the NUMA nodes of these cards; None if the kubelet aligns nothing by them."""
    nodes = {card.numa for card in cards}
    known = sorted(node for node in nodes if node is not None)
    return known if len(known) == len(nodes) and 1 < len(known) <= MOST_NODES else None


def most_together(topology: Topology, cards: Sequence[CardState]) -> int:
    """Return how many whole cards one container could have at most if all open cards were idle."""
    one = topology.numa_policy is NumaPolicy.SINGLE
    groups = _groups(NumaPolicy.SINGLE, cards, 1) if one else [range(len(cards))]
    return max(
        (sum(cards[at].open and cards[at].card.undivided for at in group) for group in groups), default=0
    )


def aligned(
    topology: Topology,
    cards: Sequence[CardState],
    free: Callable[[int], tuple[int, int]],
    cores: int,
    units: int,
) -> frozenset[int] | None:
    """Return the positions of the cards whose ids the kubelet prefers for a container.

    The container requests ``cores`` ids of cores and ``units`` ids of memory. None if the kubelet has no
    preference, or none that can be followed. ``free`` has the free ids of both, by position. The kubelet
    counts the ids of a NUMA node, not knowing that a share lies on one card: possibly none of these cards has
    room.
    """
    ours = [at for at, state in enumerate(cards) if not state.card.mig]
    numbers = numbered([cards[at].card for at in ours])
    if topology.numa_policy is NumaPolicy.NONE or numbers is None:
        return None
    there = {node: [at for at in ours if cards[at].card.numa == node] for node in numbers}
    most = sorted((CORES_PER_CARD * len(group) for group in there.values()), reverse=True)
    width = next((n for n in range(1, len(most) + 1) if sum(most[:n]) >= cores), 0)
    has = {node: [free(at) for at in group if cards[at].open] for node, group in there.items()}
    left = {node: (sum(c for c, _ in found), sum(u for _, u in found)) for node, found in has.items()}
    for some in sorted(combinations(numbers, width), key=lambda some: sum(1 << node for node in some)):
        if sum(left[n][0] for n in some) >= cores and sum(left[n][1] for n in some) >= units:
            return frozenset(at for node in some for at in there[node])
    return None


def _groups(policy: NumaPolicy, cards: Sequence[CardState], k: int) -> Iterator[frozenset[int]]:
    """Positions of the cards of each choice of NUMA nodes; all cards if the kubelet knows no NUMA nodes."""
    ours = [at for at, state in enumerate(cards) if not state.card.mig]
    nodes = {cards[at].card.numa for at in ours}
    if None in nodes or len(nodes) > MOST_NODES:
        yield frozenset(ours)
        return
    for width in range(1, 1 + (1 if policy is NumaPolicy.SINGLE else len(nodes))):
        choices = combinations(sorted(node for node in nodes if node is not None), width)
        groups = [frozenset(at for at in ours if cards[at].card.numa in some) for some in choices]
        if any(len(group) >= k for group in groups):
            yield from groups
            return
