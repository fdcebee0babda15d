"""The agent's judgements with all that they were made by: GetPreferredAllocation's and Allocate's.

:func:`decide` and :func:`book` are those of :mod:`gpu_manager.services.allocation.grant`; where decisions are
recorded, each hands over the books before it, which cost a copy of two small tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.card import Card
from gpu_manager.domain.dra.sides import Sides
from gpu_manager.domain.errors import VcudaError
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.services.allocation import grant
from gpu_manager.services.allocation.books import Books, Grant, Key, NodeCards
from gpu_manager.services.allocation.grant import Booked, Decision
from gpu_manager.services.allocation.preferred_ids import IdChoice

Shares = Mapping[str, tuple[Share, ...]]


@dataclass(frozen=True, slots=True)
class BooksState:
    """Books at one moment. ``rows``: every allocation with its grant, None for one that is planned; ``lost``:
    cards that have left the node and are held still; ``planned``: pods as they were when they were planned.
    """

    node: NodeCards
    rows: tuple[tuple[Allocation, Grant | None], ...] = ()
    lost: tuple[Card, ...] = ()
    sides: Sides | None = None
    meant: Mapping[Key, Key] = field(default_factory=dict)
    lending: frozenset[PodUid] = frozenset()
    withdrawn: Mapping[str, frozenset[str]] = field(default_factory=dict)
    planned: tuple[Pod, ...] = ()

    @staticmethod
    def of(books: Books) -> BooksState:
        """The books as they are now."""
        there = {state.card.uuid for state in books.node.cards}
        return BooksState(
            books.node,
            tuple((one, books.grants.get(one.key)) for one in books.ledger),
            tuple(card for uuid, card in books.cards.items() if uuid not in there),
            books.sides,
            dict(books.meant),
            frozenset(books.lending),
            books.withdrawn,
            tuple(books.planned.values()),
        )

    def books(self) -> Books:
        """Books in this state."""
        found = Books(self.node, sides=self.sides)
        found.cards |= {card.uuid: card for card in self.lost}
        found.ledger = Ledger(found.cards.values(), self.node.unit)
        for _, each in self.rows:
            if each is not None:
                found.state(each)
        found.ledger = Ledger(found.cards.values(), self.node.unit, (one for one, _ in self.rows))
        found.meant, found.lending, found.withdrawn = dict(self.meant), set(self.lending), self.withdrawn
        found.planned = {pod.uid: pod for pod in self.planned}
        return found


@dataclass(frozen=True, slots=True)
class Preference:
    """An answer to GetPreferredAllocation: the ids, what is then planned for the pod, and why it will be
    refused, empty if it will not. ``listed``: the ids that the kubelet lists at the container already.
    """

    state: BooksState
    choice: IdChoice
    candidate: ContainerCandidate
    listed: Mapping[str, frozenset[str]]
    ids: tuple[str, ...]
    plan: Shares
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Booking:
    """What Allocate booked for an identified container, or why it refused the container."""

    state: BooksState
    resource: str
    ids: frozenset[str]
    candidate: ContainerCandidate
    shares: tuple[Share, ...] = ()
    refusal: str = ""


Recorded = Callable[[Preference | Booking], object]


def decide(
    recorded: Recorded | None,
    books: Books,
    choice: IdChoice,
    candidate: ContainerCandidate,
    listed: Mapping[str, frozenset[str]],
) -> tuple[tuple[str, ...], Decision]:
    """See :func:`gpu_manager.services.allocation.grant.decide`."""
    if recorded is None:
        return grant.decide(books, choice, candidate, listed)
    before = BooksState.of(books)
    ids, decision = grant.decide(books, choice, candidate, listed)
    plan = {name: one.shares for name, one in books.ledger.of_pod(candidate.pod.uid).items()}
    refusal = "" if decision.refusal is None else str(decision.refusal)
    recorded(Preference(before, choice, candidate, listed, ids, plan, refusal))
    return ids, decision


def book(
    recorded: Recorded | None, books: Books, resource: str, ids: frozenset[str], decision: Decision
) -> Booked:
    """See :func:`gpu_manager.services.allocation.grant.book`."""
    candidate = decision.candidate
    if recorded is None or candidate is None or not decision.certain or decision.refusal is not None:
        return grant.book(books, resource, ids, decision)
    before = BooksState.of(books)
    try:
        booked = grant.book(books, resource, ids, decision)
    except VcudaError as error:
        recorded(Booking(before, resource, ids, candidate, refusal=str(error)))
        raise
    recorded(Booking(before, resource, ids, candidate, booked.grant.allocation.shares))
    return booked
