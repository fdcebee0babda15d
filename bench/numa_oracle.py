"""Could a container have had cards of the NUMA nodes that the kubelet had aligned its ids to?

The kubelet counts the ids of a NUMA node as if they were of one card. So some containers cannot lie where it
wants them, whoever chooses cards. The oracle takes the books as they were when the kubelet turned to the
container: had any cards of those nodes the room, if every pod that was only planned moved aside, each to any
card with room for it, and several whole cards to a set that the kubelet's policy admits? If not, no plugin
could have done otherwise then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.topology import NumaPolicy


def within_reach(
    books: Ledger,
    own: Sequence[Allocation],
    there: Collection[CardUuid],
    cards: Sequence[Card],
    policy: NumaPolicy,
) -> bool:
    """True if the container had room on the cards ``there``, of all these.

    ``own``: its allocation, after those of the ordinary init containers before it: an init container hands
    its ids, and so its card, on, and both are looked at as one. ``books`` stay as they are.
    """
    ledger, keys = books.copy(), {one.key for one in own}
    rest = sorted((a for a in ledger if not a.granted and a.key not in keys), key=_cores, reverse=True)
    for allocation in (*rest, *own):
        ledger.release(*allocation.key)
    return any(_fit(after, rest, _sets(cards, policy)) for after in _ways(ledger, own, Sets(there)))


class Sets:
    """The sets of cards that one container may have."""

    def __init__(self, cards: Iterable[CardUuid], node: Mapping[CardUuid, int | None] | None = None) -> None:
        """``node``: the NUMA node of each; a set must lie on as few of them as possible. None for any set."""
        self._cards, self._node = tuple(cards), node

    def of(self, count: int) -> Iterator[tuple[CardUuid, ...]]:
        """Those of so many cards."""
        node = self._node
        found = combinations(self._cards, count)
        if node is None or count < 2:
            yield from found
            return
        each = sorted(Counter(node[card] for card in self._cards).values(), reverse=True)
        width = next((n for n in range(1, len(each) + 1) if sum(each[:n]) >= count), 0)
        yield from (some for some in found if len({node[card] for card in some}) <= width)


def _sets(cards: Sequence[Card], policy: NumaPolicy) -> Sets:
    return Sets((c.uuid for c in cards), {c.uuid: c.numa for c in cards} if policy.strict else None)


def _cores(allocation: Allocation) -> int:
    return sum(share.amount.cores for share in allocation.shares)


def _ways(ledger: Ledger, group: Sequence[Allocation], cards: Sets) -> Iterator[Ledger]:
    """The books after all of these lie on the same cards of these, in every way."""
    first = group[0]
    count = len(first.shares)
    for chosen in cards.of(count):
        if first.shares[0].whole and not all(ledger.idle(card) for card in chosen):
            continue
        after = ledger.copy()
        try:
            for one in group:
                shares = tuple(replace(s, card=card) for s, card in zip(one.shares, chosen, strict=True))
                after.commit([replace(one, shares=shares)])
        except DoesNotFit:
            continue
        yield after


def _fit(ledger: Ledger, rest: Sequence[Allocation], cards: Sets) -> bool:
    """Do all the others still have room somewhere?"""
    if not rest:
        return True
    return any(_fit(after, rest[1:], cards) for after in _ways(ledger, rest[:1], cards))
