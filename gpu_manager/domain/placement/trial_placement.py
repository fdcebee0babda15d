"""Trial placement of one pod: what remains on each card while its containers are placed one by one.

The ledger is read, never written.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_manager.domain.card import CardState
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.domain.placement.explain import CardView, closed_because
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.priority import Priority, unprotected_beside
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True)
class ContainerGroup:
    """Containers that must lie on the same cards; nearly always one. ``cards`` counts whole cards, 0 for
    parts.

    ``need`` is cores and memory of the part of one card that the group's only container requests; None
    otherwise.
    """

    members: tuple[ContainerRequest, ...]
    cards: int
    need: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        need = None
        first = self.members[0]
        if (
            self.width == 1
            and not self.cards
            and len(self.members) == 1
            and first.kind is not ContainerKind.INIT
        ):
            need = first.request.cores, first.request.memory
        object.__setattr__(self, "need", need)

    @property
    def parts(self) -> int:
        """The number of cards of which each member gets an equal part."""
        return self.members[0].request.parts

    @property
    def width(self) -> int:
        """The number of cards, whole or in part."""
        return self.cards or self.parts


def groups_of(request: PodRequest) -> tuple[ContainerGroup, ...] | None:
    """Group the pod's containers by those that must share cards, in order; None if that is impossible.

    The kubelet gives the ids of an ordinary init container to the next container that requests some, a random
    choice of them if it requests fewer. An app container or sidecar keeps what it got.
    """
    asking = sorted((c for c in request.containers if c.request.cores > 0), key=lambda c: c.order)
    first = next((i for i, c in enumerate(asking) if c.kind is ContainerKind.INIT), len(asking))
    groups = [ContainerGroup((c,), c.request.cards) for c in asking[:first]]
    bound = asking[first:]
    if any(c.request.parts > 1 for c in bound) and any(c.kind is ContainerKind.INIT for c in bound):
        return None
    counts = {c.request.cards for c in bound}
    if len(counts) == 1 and 0 not in counts:
        groups += _handed_on(bound)
    elif counts <= {0, 1}:
        groups += [ContainerGroup(tuple(bound), 0)] if bound else []
    else:
        return None
    return tuple(groups)


def _handed_on(bound: Sequence[ContainerRequest]) -> list[ContainerGroup]:
    """Group containers with whole cards: an init container passes them on, any other keeps them."""
    runs: list[list[ContainerRequest]] = [[]]
    for container in bound:
        runs[-1].append(container)
        if container.kind is not ContainerKind.INIT:
            runs.append([])
    return [ContainerGroup(tuple(run), run[0].request.cards) for run in runs if run]


class LeastNeed(NamedTuple):
    """The least that a pod takes of a node, however it is placed: whole cards, total cores, and memory of the
    parts of cards.
    """

    cards: int
    cores: int
    memory: int

    @classmethod
    def of(cls, groups: Sequence[ContainerGroup]) -> LeastNeed:
        """The sums. Of containers that must lie together, which may run one after the other, only the largest
        counts.
        """
        parts = [group.members for group in groups if not group.cards]
        cards = sum(group.cards for group in groups)
        return cls(
            cards,
            CORES_PER_CARD * cards + sum(max(c.request.cores for c in members) for members in parts),
            sum(max(c.request.memory for c in members) for members in parts),
        )


class TrialPlacement:
    """Cards by position in the node's list, as one pod finds them.

    ``positions`` has the cards of each placed container, by name. ``unprotected`` has for each card how
    little it suits the pod's priority (:func:`unprotected_beside`); None while no priority matters.
    """

    def __init__(self, request: PodRequest, cards: Sequence[CardState], ledger: Ledger) -> None:
        self._request = request
        self.cards = cards
        self.unit = ledger.unit
        self._rooms = [ledger.room(state.card.uuid) for state in cards]
        own = ledger.of_pod(request.uid).values()
        # Allocations of containers that are being placed again do not count; the pod's other ones do.
        self._before: Mapping[int, Sequence[Allocation]] = _kept(own, request, cards) if own else {}
        self._laid: dict[int, list[ContainerRequest]] = {}
        # Other pods' allocations; and cores and memory left, maintained as a sum, which without ordinary init
        # containers equals the peak; None otherwise.
        self._others = [room.booked for room in self._rooms]
        self._sums: list[tuple[int, int] | None] = [room.left for room in self._rooms]
        if own:
            for at, state in enumerate(cards):
                self._others[at] -= peak(own, state.card.uuid)
                self._sums[at] = self._left_by_sum(at)
        self._before_sums = list(self._sums)
        self.closed = [
            closed_because(state, request, listed=bool(room.capacity.cores))
            for state, room in zip(cards, self._rooms, strict=True)
        ]
        self.unprotected: list[int] | None = None
        if ledger.prioritised or request.priority is not Priority.NORMAL:
            self.unprotected = [
                unprotected_beside(
                    request.priority,
                    ledger.priorities(state.card.uuid, request.uid) if own else room.priorities,
                )
                for state, room in zip(cards, self._rooms, strict=True)
            ]
        self.open = [at for at, reason in enumerate(self.closed) if not reason]
        self.positions: dict[str, tuple[int, ...]] = {}

    @property
    def shares(self) -> dict[str, tuple[Share, ...]]:
        """The shares of each placed container, by name."""
        by_name = {c.name: c for c in self._request.containers}
        return {
            name: tuple(self.share(by_name[name], at) for at in positions)
            for name, positions in self.positions.items()
        }

    @property
    def numa(self) -> tuple[int | None, ...]:
        """The NUMA node of each card, by position."""
        return tuple(state.card.numa for state in self.cards)

    def share(self, container: ContainerRequest, at: int) -> Share:
        """Return the container's share of the card: its request, or the whole card."""
        return Share(self.cards[at].card.uuid, self._amount(container, at))

    def room(self, at: int, members: Sequence[ContainerRequest] = ()) -> tuple[int, int]:
        """Cores and memory left on the card with the members placed there too; negative if they do not
        fit.
        """
        sums = self._sums[at]
        if sums is not None and all(c.kind is not ContainerKind.INIT for c in members):
            amounts = [self._amount(c, at) for c in members]
            return sums[0] - sum(a.cores for a in amounts), sums[1] - sum(a.memory for a in amounts)
        if len(members) == 1 and not self.held(at):
            need = self._amount(members[0], at)
        else:
            laid = (*self._laid.get(at, ()), *members)
            held = (*self._before.get(at, ()), *(self._allocation(c, at) for c in laid))
            need = peak(held, self.cards[at].card.uuid)
        left = self._rooms[at].capacity - self._others[at] - need
        return left.cores, left.memory

    def with_room(self, group: ContainerGroup) -> list[tuple[int, int, int]]:
        """The open cards on which the group fits: cores and memory that would be left, and the position."""
        found: list[tuple[int, int, int]] = []
        need = group.need
        for at in self.open:
            sums = self._sums[at]
            if need is None or sums is None:
                cores, memory = self.room(at, group.members)
            else:  # executed thousands of times per question
                cores, memory = sums[0] - need[0], sums[1] - need[1]
            if cores >= 0 and memory >= 0:
                found.append((cores, memory, at))
        return found

    def suiting(self, group: ContainerGroup) -> list[tuple[int, int, int]]:
        """:meth:`with_room`, but only the cards that suit the pod's priority best."""
        found = self.with_room(group)
        if self.unprotected is None or not found:
            return found
        least = min(self.unprotected[at] for _, _, at in found)
        return [room for room in found if self.unprotected[room[2]] == least]

    def left(self, at: int, members: Sequence[ContainerRequest] = ()) -> Amount:
        """:meth:`room` as an amount."""
        return Amount(*self.room(at, members))

    def fits(self, at: int, members: Sequence[ContainerRequest]) -> bool:
        """True if the members fit on the card beside everything on it."""
        cores, memory = self.room(at, members)
        return cores >= 0 and memory >= 0

    def free_ids(self, at: int) -> tuple[int, int]:
        """The card's free device ids of cores and of memory according to the ledger; a whole card takes all
        memory, but no ids of it.
        """
        cores, memory = self.room(at)
        capacity = self._rooms[at].capacity
        if not cores and not memory:
            return 0, capacity.memory // self.unit
        return max(0, cores), max(0, memory) // self.unit

    def idle(self, at: int) -> bool:
        """True if no pod, this one included, holds any of the card."""
        others = self._others[at]
        return not (others.cores or others.memory or self.held(at))

    def held(self, at: int) -> int:
        """Return the number of this pod's containers on the card."""
        return len(self._before.get(at, ())) + len(self._laid.get(at, ()))

    def put(self, group: ContainerGroup, positions: Sequence[int]) -> None:
        """Put a group on these cards: every member on all of them."""
        where = tuple(positions)
        for container in group.members:
            self.positions[container.name] = where
            for at in where:
                if container.kind is ContainerKind.INIT:
                    self._sums[at] = None
                elif self._sums[at] is not None:
                    self._sums[at] = self.room(at, (container,))
                self._laid.setdefault(at, []).append(container)

    def put_best_fit(self, groups: Sequence[ContainerGroup]) -> ContainerGroup | None:
        """Put parts of cards, each on the open card with the least left: by cores, then memory, then index.

        Return the first group for which no card has room, None if all have one. Every group has a ``need``,
        and every open card a sum (see :attr:`summed`).
        """
        cards = sorted((*left, at) for at in self.open if (left := self._sums[at]) is not None)
        for group in groups:
            (container,), (cores, memory) = group.members, group.need or (0, 0)
            place = bisect_left(cards, (cores,))
            while place < len(cards) and cards[place][1] < memory:
                place += 1
            if place == len(cards):
                return group
            has_cores, has_memory, at = cards.pop(place)
            left = has_cores - cores, has_memory - memory
            insort(cards, (*left, at))
            self._sums[at] = left
            self.positions[container.name] = (at,)
            self._laid.setdefault(at, []).append(container)
        return None

    @property
    def summed(self) -> bool:
        """True if what each open card has left is a plain sum: no ordinary init container lies there."""
        return None not in map(self._sums.__getitem__, self.open)

    def taken(self) -> dict[int, Amount]:
        """What the placed containers need of each card at their peak, by position."""
        found: dict[int, Amount] = {}
        for at, laid in sorted(self._laid.items()):
            before, now = self._before_sums[at], self._sums[at]
            if before is None or now is None:
                found[at] = peak((self._allocation(c, at) for c in laid), self.cards[at].card.uuid)
            else:
                found[at] = Amount(before[0] - now[0], before[1] - now[1])
        return found

    def lacks(self, least: LeastNeed) -> bool:
        """True if the open cards have less in total than that; if False, only placing the pod can tell."""
        idle, cores, memory = 0, 0, 0
        for at in self.open:
            left = self._sums[at]
            if left is None:
                return False
            idle += self.idle(at)
            cores += max(0, left[0])
            memory += max(0, left[1])
        return idle < least.cards or cores < least.cores or memory < least.memory

    def views(self) -> tuple[CardView, ...]:
        """Return the current state of the cards, for messages."""
        return tuple(
            CardView(
                state.card.index,
                state.card.uuid,
                self.left(at),
                self.idle(at),
                self.closed[at],
                state.card.outside,
            )
            for at, state in enumerate(self.cards)
        )

    def _amount(self, container: ContainerRequest, at: int) -> Amount:
        request = container.request
        return self._rooms[at].capacity if request.cards else request.amount

    def _allocation(self, container: ContainerRequest, at: int) -> Allocation:
        share = self.share(container, at)
        return Allocation(self._request.uid, container.name, container.kind, container.order, (share,))

    def _left_by_sum(self, at: int) -> tuple[int, int] | None:
        held = self._before.get(at, ())
        if any(a.kind is ContainerKind.INIT for a in held):
            return None
        card = self.cards[at].card.uuid
        left = self._rooms[at].capacity - self._others[at]
        for share in (s for a in held for s in a.shares if s.card == card):
            left -= share.amount
        return left.cores, left.memory


def _kept(
    own: Iterable[Allocation], request: PodRequest, cards: Sequence[CardState]
) -> dict[int, list[Allocation]]:
    """The pod's allocations that stay, by position: all but those of containers that are being placed
    again.
    """
    asked = {c.name for c in request.containers}
    stays = [a for a in own if a.container not in asked]
    return {at: [a for a in stays if state.card.uuid in a.cards] for at, state in enumerate(cards)}
