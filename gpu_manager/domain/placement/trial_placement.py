"""The desk on which one pod is placed: what each card has left for it, while its containers are laid out.

Nothing here promises anything: the books are read, never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.placement.explain import CardView, closed_because
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.pod import ContainerKind
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True)
class Unit:
    """Containers that must lie on the same cards; nearly always one. ``cards`` is 0 for part of one card."""

    members: tuple[ContainerRequest, ...]
    cards: int


def units_of(request: PodRequest) -> tuple[Unit, ...] | None:
    """The pod's asking containers by what must lie together, in order; None if no cards can satisfy that.

    The kubelet gives the ids of an ordinary init container to whichever container asks next, a random choice
    of them if it asks for less. An app container or sidecar keeps what it got.
    """
    asking = sorted((c for c in request.containers if c.request.cores > 0), key=lambda c: c.order)
    first = next((i for i, c in enumerate(asking) if c.kind is ContainerKind.INIT), len(asking))
    units = [Unit((c,), c.request.cards) for c in asking[:first]]
    bound = asking[first:]
    counts = {c.request.cards for c in bound}
    if len(counts) == 1 and 0 not in counts:
        units += _handed_on(bound)
    elif counts <= {0, 1}:
        units += [Unit(tuple(bound), 0)] if bound else []
    else:
        return None
    return tuple(units)


def _handed_on(bound: Sequence[ContainerRequest]) -> list[Unit]:
    """Whole cards: an init container leaves its cards to the next; an app container or sidecar keeps them."""
    runs: list[list[ContainerRequest]] = [[]]
    for container in bound:
        runs[-1].append(container)
        if container.kind is not ContainerKind.INIT:
            runs.append([])
    return [Unit(tuple(run), run[0].request.cards) for run in runs if run]


class TrialPlacement:
    """Cards by position in the node's list, as one pod meets them."""

    def __init__(self, request: PodRequest, cards: Sequence[CardState], ledger: Ledger) -> None:
        self._request = request
        self.cards = cards
        self.unit = ledger.unit
        self._capacity = [ledger.capacity(state.card.uuid) for state in cards]
        asked = {c.name for c in request.containers}
        own = ledger.of_pod(request.uid).values()
        # What the pod is being placed for again does not stand in its own way; the rest of it stays.
        self._own: list[list[Allocation]] = [
            [a for a in own if a.container not in asked and state.card.uuid in a.cards] for state in cards
        ]
        # Its sum, for without ordinary init containers that is the peak; None where there are such.
        self._sums: list[Amount | None] = [
            _sum(held, state) for held, state in zip(self._own, cards, strict=True)
        ]
        self._others = [
            ledger.booked(state.card.uuid) - (peak(own, state.card.uuid) if own else ZERO) for state in cards
        ]
        self.closed = [
            closed_because(state, request, listed=bool(self._capacity[at].cores))
            for at, state in enumerate(cards)
        ]
        self.open = [at for at, reason in enumerate(self.closed) if not reason]
        self.shares: dict[str, tuple[Share, ...]] = {}

    def share(self, container: ContainerRequest, at: int) -> Share:
        """What the container would hold of the card: what it asks, or all of it."""
        amount = self._capacity[at] if container.request.cards else container.request.amount
        return Share(self.cards[at].card.uuid, amount)

    def left(self, at: int, members: Sequence[ContainerRequest] = ()) -> Amount:
        """What the card has left once the members lie there too; negative if they do not fit."""
        held = self._sums[at]
        if held is not None and all(c.kind is not ContainerKind.INIT for c in members):
            need = sum((self.share(c, at).amount for c in members), held)
        elif len(members) == 1 and not self._own[at]:
            need = self.share(members[0], at).amount
        else:
            uuid: CardUuid = self.cards[at].card.uuid
            need = peak((*self._own[at], *(self._allocation(c, at) for c in members)), uuid)
        return self._capacity[at] - self._others[at] - need

    def fits(self, at: int, members: Sequence[ContainerRequest]) -> bool:
        """True if the members fit on the card beside everything that lies there."""
        left = self.left(at, members)
        return left.cores >= 0 and left.memory >= 0

    def idle(self, at: int) -> bool:
        """True if nobody, this pod included, holds any of the card."""
        return not self._own[at] and self._others[at] == ZERO

    def held(self, at: int) -> int:
        """How many containers of this pod lie on the card."""
        return len(self._own[at])

    def put(self, unit: Unit, positions: Sequence[int]) -> None:
        """Lay a unit out: every member on all of those cards."""
        for container in unit.members:
            self.shares[container.name] = tuple(self.share(container, at) for at in positions)
            for at in positions:
                allocation, held = self._allocation(container, at), self._sums[at]
                self._own[at].append(allocation)
                if container.kind is ContainerKind.INIT:
                    self._sums[at] = None
                elif held is not None:
                    self._sums[at] = held + allocation.shares[0].amount

    def views(self) -> tuple[CardView, ...]:
        """The cards as they stand, for people."""
        return tuple(
            CardView(state.card.index, state.card.uuid, self.left(at), self.idle(at), self.closed[at])
            for at, state in enumerate(self.cards)
        )

    def _allocation(self, container: ContainerRequest, at: int) -> Allocation:
        share = self.share(container, at)
        return Allocation(self._request.uid, container.name, container.kind, container.order, (share,))


def _sum(held: Sequence[Allocation], state: CardState) -> Amount | None:
    if any(a.kind is ContainerKind.INIT for a in held):
        return None
    return sum((s.amount for a in held for s in a.shares if s.card == state.card.uuid), ZERO)
