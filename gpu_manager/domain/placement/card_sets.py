"""Choose sets of cards by topology: the best-linked set, and the single card whose loss costs least.

A greedy choice is not enough: on a cube mesh the best pair is often not part of the best four, and a card
taken from the wrong group spoils the group for the next request. So every set is scored once per matrix: the
subsets of up to :data:`PREPARED` cards are sorted by preference, and for each card one integer has a bit for
every set that contains it. A query takes a few ORs to drop the sets with a busy card; the lowest bit left is
the answer. Larger nodes are searched by branch and bound.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import lru_cache

from gpu_manager.domain.topology import Topology

PREPARED = 16  # cards; time and memory double with each: 16 take 0.1 s and 1 MiB
SEARCH_STEPS = 20_000  # for more cards; bounds the work that a hostile inventory can cause

Weights = tuple[tuple[int, ...], ...]


def best_set(topology: Topology, free: frozenset[int], k: int) -> tuple[int, ...] | None:
    """Return the ``k`` free cards with the largest sum over pairs; ties go to the lexicographically lowest.

    None if fewer than ``k`` are free. Exact, except that beyond :data:`PREPARED` cards the search stops after
    :data:`SEARCH_STEPS` with the best set so far. Real machines are regular and need far fewer steps.
    """
    if not 0 < k <= len(free):
        return None
    if topology.size > PREPARED:
        return _Search(topology.weights, free, k, SEARCH_STEPS).best
    size = topology.size
    ranks = _ranked(topology.weights)[k]
    mask = ranks.sets[ranks.first(ranks.without(size, free))]
    return tuple(i for i in range(size) if mask >> (size - 1 - i) & 1)


def fragment(topology: Topology, free: frozenset[int]) -> int | None:
    """Return the free card whose loss leaves the largest sum of best scores over all set sizes.

    So cards of broken groups go first, and full groups stay whole. Ties go to the lowest card.
    None if no card is free.
    """
    if not free:
        return None
    left = _left_prepared if topology.size <= PREPARED else _left_searched
    scores = left(topology, free)
    return min(scores, key=lambda card: (-scores[card], card))


def _left_prepared(topology: Topology, free: frozenset[int]) -> dict[int, int]:
    scores = dict.fromkeys(free, 0)
    table = _ranked(topology.weights)
    for k in range(2, len(free)):
        ranks = table[k]
        sets = ranks.without(topology.size, free)
        for card in free:
            scores[card] += ranks.scores[ranks.first(sets & ~ranks.holding[card])]
    return scores


def _left_searched(topology: Topology, free: frozenset[int]) -> dict[int, int]:
    """Score the loss of each free card by search, for more cards than the table holds.

    A best set without the card stays the best when the card is lost. If all searches together take more than
    :data:`SEARCH_STEPS`, only the score of all remaining cards decides.
    """
    twins = _twins(topology.weights, sorted(free))
    cards = [card for card in sorted(free) if twins[card] is None]  # to lose either of two twins is the same
    scores = dict.fromkeys(cards, 0)
    steps = SEARCH_STEPS
    for k in range(2, len(free)):
        best = _Search(topology.weights, free, k, steps)
        steps = best.steps
        for card in cards:
            if card not in best.best:
                scores[card] += best.score
                continue
            search = _Search(topology.weights, free - {card}, k, steps, best.score)
            steps = search.steps
            scores[card] += search.score
            if steps <= 0:
                return {card: topology.sum(free - {card}) for card in cards}
    return scores


@dataclass(frozen=True, slots=True)
class _Ranks:
    """All sets of one size, best first. Card i is bit ``size - 1 - i``, so a larger mask has lower cards."""

    sets: array[int]
    scores: array[int]
    holding: tuple[int, ...]  # for each card: bit r is set if the set of rank r holds it

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


@lru_cache(maxsize=16)  # a cluster has few kinds of machine; keyed by value, so equal nodes share one table
def _ranked(weights: Weights) -> dict[int, _Ranks]:
    size = len(weights)
    scores = _scores(weights)
    groups: list[list[int]] = [[] for _ in range(size + 1)]
    for mask in range(len(scores) - 1, 0, -1):
        groups[mask.bit_count()].append(mask)
    table: dict[int, _Ranks] = {}
    for k in range(1, size + 1):
        # The sort is stable, reverse too: equal scores stay in falling order of mask, lowest cards first.
        sets = array("H", sorted(groups[k], key=scores.__getitem__, reverse=True))
        holding = tuple(_column(sets, size - 1 - card) for card in range(size))
        table[k] = _Ranks(sets, array("q", map(scores.__getitem__, sets)), holding)
    return table


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


def _column(sets: array[int], bit: int) -> int:
    """Return an integer whose bit r says whether set r has ``bit``."""
    digits = "".join("1" if mask >> bit & 1 else "0" for mask in reversed(sets))
    return int(digits, 2)


def _twins(weights: Weights, cards: list[int]) -> dict[int, int | None]:
    """Return for each card the next lower one with the same links to all others; None for the first."""
    twins: dict[int, int | None] = {}
    last: dict[int, int] = {}  # first card of a family → its last card so far
    for card in cards:
        twins[card] = None
        for first, lower in last.items():
            if all(weights[card][x] == weights[first][x] for x in cards if x not in (card, first)):
                twins[card], last[first] = lower, card
                break
        else:
            last[card] = card
    return twins


class _Search:
    """Branch and bound over the sets of ``k`` free cards, in lexicographic order; the first best set wins.

    Of twins (cards with the same links to all others) a set takes the lowest, which reduces a regular machine
    to a few families. The search ends when a set scores ``enough`` (no set can score more), or when ``steps``
    are used up; ``self.steps`` holds the rest.
    """

    def __init__(
        self, weights: Weights, free: frozenset[int], k: int, steps: int, enough: int | None = None
    ) -> None:
        self._weights = weights
        self._cards = sorted(free)
        self._enough = enough
        self.steps = steps
        self.best = self._greedy(k)
        self.score = sum(weights[a][b] for i, a in enumerate(self.best) for b in self.best[:i])
        if self.score != enough:
            self._twins = _twins(weights, self._cards)
            greedy = self.best, self.score
            self.score -= 1  # a lower set with the same score must still be found
            self._visit((), 0, self._cards, dict.fromkeys(self._cards, 0), k)
            if self.score < greedy[1]:  # out of steps before that
                self.best, self.score = greedy

    def _greedy(self, k: int) -> tuple[int, ...]:
        chosen: list[int] = []
        while len(chosen) < k:
            rest = [card for card in self._cards if card not in chosen]
            chosen.append(max(rest, key=lambda c: (sum(self._weights[c][x] for x in chosen), -c)))
        return tuple(sorted(chosen))

    def _visit(
        self, chosen: tuple[int, ...], score: int, rest: list[int], gain: dict[int, int], missing: int
    ) -> None:
        """Extend ``chosen`` by ``missing`` cards of ``rest``; ``gain`` is each card's links to ``chosen``."""
        if missing == 0:  # only a better set is visited to its end
            self.best, self.score = chosen, score
            return
        for at, card in enumerate(rest):
            twin = self._twins[card]
            if twin is not None and twin not in chosen:
                continue
            after = rest[at + 1 :]
            if len(after) < missing - 1 or self.steps <= 0 or self.score == self._enough:
                return
            self.steps -= 1
            row = self._weights[card]
            more = {c: gain[c] + row[c] for c in after}
            if self._bound(score + gain[card], after, more, missing - 1) > self.score:
                self._visit((*chosen, card), score + gain[card], after, more, missing - 1)

    def _bound(self, score: int, rest: list[int], gain: dict[int, int], missing: int) -> int:
        """Return an upper bound of any set reachable from here: each card with its best links."""
        doubled: list[int] = []
        for card in rest:
            row = self._weights[card]
            links = sorted((row[x] for x in rest if x != card), reverse=True)
            doubled.append(2 * gain[card] + sum(links[: missing - 1] if missing else ()))
        doubled.sort(reverse=True)
        return score + sum(doubled[:missing]) // 2
