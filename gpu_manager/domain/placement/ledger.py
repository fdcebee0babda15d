"""The ledger of a node: the share of each card that each container or ResourceClaim holds, and what is free.

A pod is booked per card at the *peak* over its phases (Kubernetes runs ordinary init containers one by
one, before the app containers, and sidecars from their turn on), as the scheduler sums requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount


@dataclass(frozen=True, slots=True)
class Share:
    """An amount of one card that a container holds."""

    card: CardUuid
    amount: Amount

    @property
    def whole(self) -> bool:
        """True for an exclusive card."""
        return self.amount.cores >= CORES_PER_CARD


@dataclass(frozen=True, slots=True)
class HoldingClaim:
    """The ResourceClaim (DRA) that holds an allocation, for one of its requests.

    ``results`` are, for each share, the name of the published device and Kubernetes' id of the share;
    ``pods`` are the UIDs and names of the pods for which the claim was last seen reserved. ``preload`` is
    False if it opts out of the preloaded library.
    """

    name: str
    request: str
    results: tuple[tuple[str, str], ...]
    pods: tuple[tuple[PodUid, str], ...]
    preload: bool = True


@dataclass(frozen=True, slots=True)
class Allocation:
    """The shares of one container. ``order`` is its position in the kubelet's container order.

    ``granted`` is False while the pod is only planned here (bound, or one of its containers admitted). If a
    ``claim`` holds them, ``pod`` is its UID, ``container`` is ``claim/request``, and ``pod_name`` its only
    pod, or the claim's own name if several pods share it. ``priority`` is that of the shares inside their
    cards.
    """

    pod: PodUid
    container: str
    kind: ContainerKind
    order: int
    shares: tuple[Share, ...]
    namespace: str = ""
    pod_name: str = ""
    granted: bool = True
    claim: HoldingClaim | None = None
    priority: Priority = Priority.NORMAL

    @property
    def key(self) -> tuple[PodUid, str]:
        """The ledger's key: pod UID and container name. A pod's name may be reused, its UID never."""
        return self.pod, self.container

    @property
    def pod_key(self) -> str:
        """``namespace/name`` for messages; the UID if the name is not known."""
        if self.claim is not None:
            return f"claim {self.namespace}/{self.claim.name}"
        return f"{self.namespace}/{self.pod_name}" if self.pod_name else str(self.pod)

    @property
    def cards(self) -> tuple[CardUuid, ...]:
        """The cards of the shares, in order."""
        return tuple(s.card for s in self.shares)

    @property
    def is_admin(self) -> bool:
        """True for a claim's admin access, which grants a view of its cards and holds none of them."""
        return self.claim is not None and all(s.amount == ZERO for s in self.shares)


class CardRoom(NamedTuple):
    """A card in the ledger: its capacity, what pods hold of it, and ``left``, cores and bytes, negative if
    existing grants over-commit it. ``idle`` is set while no container holds any of it. ``priorities`` are
    those of the shares on it.
    """

    capacity: Amount
    booked: Amount
    left: tuple[int, int]
    idle: bool
    priorities: frozenset[Priority]


_NONE: Final[frozenset[Priority]] = frozenset()
_NORMAL: Final = frozenset({Priority.NORMAL})


def peak(allocations: Iterable[Allocation], card: CardUuid) -> Amount:
    """Return the peak amount of a card that one pod's allocations need over its phases."""
    init_peak, sidecars, apps = ZERO, ZERO, ZERO
    for allocation in sorted(allocations, key=lambda a: a.order):
        amount = sum((s.amount for s in allocation.shares if s.card == card), ZERO)
        if allocation.kind is ContainerKind.INIT:
            init_peak = init_peak.peak(sidecars + amount)
        elif allocation.kind is ContainerKind.SIDECAR:
            sidecars = sidecars + amount
        else:
            apps = apps + amount
    return init_peak.peak(sidecars + apps)


def peaks(allocations: Iterable[Allocation]) -> dict[CardUuid, Amount]:
    """Return :func:`peak` for each card that the allocations name."""
    by_card: dict[CardUuid, list[Allocation]] = {}
    for allocation in allocations:
        for card in dict.fromkeys(allocation.cards):
            by_card.setdefault(card, []).append(allocation)
    return {card: peak(held, card) for card, held in by_card.items()}


class Ledger:
    """All allocations of one node.

    Invariant, for every card: the sum over pods of their :func:`peak` never exceeds the card's capacity.
    Existing grants can violate it (a card shrank, or the ledger was rebuilt from the kubelet's grants): then
    nothing more is placed on that card.
    """

    __slots__ = ("_booked", "_cards", "_pods", "_prioritised", "_rooms", "unit")

    def __init__(self, cards: Iterable[Card], unit: int, facts: Iterable[Allocation] = ()) -> None:
        """Create a ledger. ``facts`` are existing grants; they are recorded without a check."""
        self.unit = unit
        self._cards: dict[CardUuid, Amount] = {c.uuid: c.capacity(unit) for c in cards}
        self._pods: dict[PodUid, dict[str, Allocation]] = {}
        self._booked: dict[CardUuid, Amount] = {}
        self._rooms: dict[CardUuid, CardRoom] = {}  # of cards read since they last changed
        self._prioritised = 0  # allocations with another priority than normal
        self.record(facts)

    def record(self, facts: Iterable[Allocation]) -> None:
        """Book existing grants, without a check."""
        by_pod: dict[PodUid, dict[str, Allocation]] = {}
        for allocation in facts:
            by_pod.setdefault(allocation.pod, {})[allocation.container] = allocation
        for pod, changes in by_pod.items():
            self._rebook(pod, changes)

    def copy(self) -> Ledger:
        """Return an independent copy, for simulations."""
        twin = Ledger((), self.unit)
        twin._cards, twin._booked = dict(self._cards), dict(self._booked)
        twin._pods = {uid: dict(held) for uid, held in self._pods.items()}
        twin._prioritised = self._prioritised
        return twin

    def refit(self, cards: Iterable[Card]) -> None:
        """Set the node's cards as discovered now. Allocations on a vanished card stay booked."""
        self._cards = {c.uuid: c.capacity(self.unit) for c in cards}
        self._rooms.clear()

    def commit(self, allocations: Iterable[Allocation]) -> None:
        """Book allocations, all or none. An allocation with the same key is replaced.

        Raises:
            DoesNotFit: a card would be over-committed; the ledger is unchanged.
        """
        batch = tuple(allocations)
        before = {a.key: self.get(*a.key) for a in batch}
        was = {card: self.free(card) for a in batch for card in a.cards}
        self.record(batch)
        for card, room in was.items():
            now = self.free(card)
            if (now.cores < 0 and now.cores < room.cores) or (now.memory < 0 and now.memory < room.memory):
                for (pod, container), old in before.items():
                    self._rebook(pod, {container: old})
                raise DoesNotFit(f"card {card} has {room} free: the booking would leave {now}")

    def release(self, pod: PodUid, container: str | None = None) -> tuple[Allocation, ...]:
        """Release the shares of a container, or of all containers of a pod, and return them."""
        held = self._pods.get(pod, {})
        gone = (
            tuple(held.values())
            if container is None
            else tuple(a for a in held.values() if a.container == container)
        )
        self._rebook(pod, dict.fromkeys(allocation.container for allocation in gone))
        return gone

    def get(self, pod: PodUid, container: str) -> Allocation | None:
        """Return the allocation of that container, or None."""
        return self._pods.get(pod, {}).get(container)

    def of_pod(self, pod: PodUid) -> Mapping[str, Allocation]:
        """Return the pod's allocations by container name."""
        return self._pods.get(pod, {})

    def granted(self, pod: PodUid) -> bool:
        """True if any container of the pod has been granted its share, not only planned."""
        return any(a.granted for a in self._pods.get(pod, {}).values())

    def __iter__(self) -> Iterator[Allocation]:
        for held in self._pods.values():
            yield from held.values()

    def __len__(self) -> int:
        return sum(map(len, self._pods.values()))

    @property
    def pods(self) -> tuple[PodUid, ...]:
        """Return every pod with an allocation, granted or planned, without claims."""
        return tuple(uid for uid, held in self._pods.items() if next(iter(held.values())).claim is None)

    @property
    def claims(self) -> tuple[Allocation, ...]:
        """Return the allocations of ResourceClaims, one for each request."""
        return tuple(allocation for allocation in self if allocation.claim is not None)

    def capacity(self, card: CardUuid) -> Amount:
        """Return the card's capacity; zero for an unknown card."""
        return self._cards.get(card, ZERO)

    def booked(self, card: CardUuid) -> Amount:
        """Return the amount of the card that pods hold."""
        return self._booked.get(card, ZERO)

    def room(self, card: CardUuid) -> CardRoom:
        """Return :meth:`capacity`, :meth:`booked`, :meth:`free` and :meth:`idle` together; cached until they
        change.
        """
        known = self._rooms.get(card)
        if known is None:
            capacity, booked = self.capacity(card), self.booked(card)
            left = capacity.cores - booked.cores, capacity.memory - booked.memory
            idle = booked == ZERO
            known = self._rooms[card] = CardRoom(
                capacity, booked, left, idle, _NONE if idle else self.priorities(card)
            )
        return known

    @property
    def prioritised(self) -> bool:
        """True if any allocation has another priority than normal."""
        return self._prioritised > 0

    def priorities(self, card: CardUuid, besides: PodUid | None = None) -> frozenset[Priority]:
        """Return the priorities of the shares on the card; those of the pod ``besides`` do not count."""
        if besides is None and not self._prioritised:
            return _NONE if self.idle(card) else _NORMAL
        return frozenset(a.priority for a in self.holders(card) if a.pod != besides)

    def free(self, card: CardUuid) -> Amount:
        """Return capacity minus bookings; negative only if existing grants over-commit the card."""
        return self.capacity(card) - self.booked(card)

    def holders(self, card: CardUuid) -> tuple[Allocation, ...]:
        """Return the allocations that hold a part of the card, in the order of booking; without admin access,
        which holds nothing.
        """
        return tuple(a for a in self if card in a.cards and not a.is_admin)

    def idle(self, card: CardUuid) -> bool:
        """True if no container holds any of the card."""
        return self.booked(card) == ZERO

    def _rebook(self, pod: PodUid, changes: Mapping[str, Allocation | None]) -> None:
        """Replace allocations of a pod's containers; None removes one."""
        held = self._pods.setdefault(pod, {})
        before = peaks(held.values())
        for container, allocation in changes.items():
            for sign, each in ((-1, held.get(container)), (1, allocation)):
                if each is not None and each.priority is not Priority.NORMAL:
                    self._prioritised += sign
            if allocation is None:
                held.pop(container, None)
            else:
                held[container] = allocation
        now = peaks(held.values())
        for card in before.keys() | now.keys():
            self._booked[card] = self.booked(card) - before.get(card, ZERO) + now.get(card, ZERO)
            self._rooms.pop(card, None)
            if self._booked[card] == ZERO:
                del self._booked[card]
        if not held:
            del self._pods[pod]
