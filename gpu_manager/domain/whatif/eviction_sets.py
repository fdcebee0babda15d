"""Sets of pods of a node whose eviction makes room for another pod, listed by size. Pure.

A set that makes room contains a *core*: for a fraction, pods of one card that free what is missing there; for
whole cards, all pods on as many cards. All cores of a size are listed first, then smaller cores with further
pods, whose eviction may free CPU or memory of the host, or a place for a moved pod. Of interchangeable pods
only the first by name is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import peak
from gpu_manager.domain.placement.trial_placement import ContainerGroup, TrialPlacement, groups_of
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.whatif.simulation import Shape, SimNode, SimPod

Pods = tuple[SimPod, ...]
Kind = tuple[Shape, tuple[tuple[str, CardUuid], ...], int, tuple[str, ...]]
"""Pods of one kind may stand for one another: shape, cards of each container, priority, budgets."""


@dataclass(frozen=True, slots=True)
class EvictionSet:
    """Pods of a node that would move."""

    node: SimNode
    pods: Pods

    @property
    def cost(self) -> tuple[int, int, int, tuple[str, ...], str]:
        """The order of sets: number of pods, amounts, priorities, names; the least is best."""
        names = tuple(sorted(r.name for r in self.pods))
        pods = self.pods
        return len(pods), sum(r.weight for r in pods), sum(r.priority for r in pods), names, self.node.name


@dataclass(slots=True)
class SearchBudget:
    """How many more sets may be examined, over all nodes, since a hundred pods on a card have too many."""

    left: int


class NodeEvictions:
    """A node on which to make room, and its movable pods. ``alike``: the budgets of each pod."""

    def __init__(
        self,
        node: SimNode,
        request: PodRequest,
        may: Sequence[SimPod],
        alike: Mapping[PodUid, tuple[str, ...]],
        looks: SearchBudget,
    ) -> None:
        self.node = node
        self._looks = looks
        self._may = sorted(may, key=lambda r: (r.weight, r.name))
        self._groups = groups_of(request) or ()
        self._any = len(self._groups) != 1 or node.find(request) is not None
        trial = TrialPlacement(request, node.cards, node.ledger)
        # Card that may take the request → movable pods that hold a part of it.
        self._on: dict[CardUuid, list[SimPod]] = {node.cards[at].card.uuid: [] for at in trial.open}
        self._kind: dict[PodUid, Kind] = {}
        for running in self._may:
            lies = tuple(
                (a.container, card) for a in node.ledger.of_pod(running.uid).values() for card in a.cards
            )
            self._kind[running.uid] = (
                running.shape,
                tuple(sorted(lies)),
                running.priority,
                alike[running.uid],
            )
            for card in {card for _, card in lies} & self._on.keys():
                self._on[card].append(running)
        ours = {r.uid for r in self._may}
        self._held = {
            card for card in self._on if any(a.pod not in ours for a in node.ledger.holders(card))
        }  # by a pod that stays
        members = self._groups[0].members if self._groups else ()
        self._short = {
            node.cards[at].card.uuid: ZERO - trial.left(at, members) for at in trial.open
        }  # positive: missing

    def cores(self, size: int) -> Iterator[EvictionSet]:
        """Sets of ``size`` pods that make room on the cards by themselves.

        All sets of that size for a pod of several containers, or if only the host lacks something.
        """
        if self._any:
            found = self._choices(self._may, size)
        elif self._groups[0].cards:
            found = self._emptied(self._groups[0], size)
        else:
            found = (pods for card in self._on for pods in self._freed(card, size))
        return (EvictionSet(self.node, pods) for pods in found)

    def more(self, size: int) -> Iterator[EvictionSet]:
        """Sets of ``size`` pods: smaller cores with further pods."""
        if self._any:
            return
        for less in range(1, size):
            for core in self.cores(less):
                inside = {r.uid for r in core.pods}
                others = [r for r in self._may if r.uid not in inside]
                for further in self._choices(others, size - less):
                    yield EvictionSet(self.node, core.pods + further)

    def _emptied(self, group: ContainerGroup, size: int) -> Iterator[Pods]:
        """All pods on as many cards as the group requests."""
        cards = [card for card in self._on if card not in self._held and len(self._on[card]) <= size]
        cards.sort(key=lambda card: len(self._on[card]))

        def chosen(at: int, left: int, pods: dict[PodUid, SimPod]) -> Iterator[Pods]:
            if left == 0:
                if len(pods) == size:
                    yield tuple(pods.values())
                return
            for i in range(at, len(cards) - left + 1):
                union = pods | {r.uid: r for r in self._on[cards[i]]}
                if len(union) <= size:
                    yield from chosen(i + 1, left - 1, union)

        return chosen(0, group.cards, {})

    def _freed(self, card: CardUuid, size: int) -> Iterator[Pods]:
        """Pods of a card that free what is missing there, none of them superfluous."""
        short = self._short[card]
        gives = {r.uid: peak(self.node.ledger.of_pod(r.uid).values(), card) for r in self._on[card]}

        def enough(amounts: Sequence[Amount]) -> bool:
            given = sum(amounts, ZERO)
            return given.cores >= short.cores and given.memory >= short.memory

        most = sorted((a.cores for a in gives.values()), reverse=True)[:size]
        room = sorted((a.memory for a in gives.values()), reverse=True)[:size]
        if sum(most) < short.cores or sum(room) < short.memory:
            return
        for pods in self._choices(self._on[card], size):
            if self._looks.left == 0:
                return
            self._looks.left -= 1
            amounts = [gives[r.uid] for r in pods]
            if enough(amounts) and not any(enough(amounts[:i] + amounts[i + 1 :]) for i in range(size)):
                yield pods

    def _choices(self, pods: Sequence[SimPod], size: int) -> Iterator[Pods]:
        """Combinations of ``size`` pods; of interchangeable pods always the first."""
        kinds: dict[Kind, list[SimPod]] = {}
        for running in pods:
            kinds.setdefault(self._kind[running.uid], []).append(running)
        if len(kinds) == len(pods):
            return combinations(pods, size)
        return _counted(list(kinds.values()), size)


def _counted(kinds: Sequence[Sequence[SimPod]], size: int) -> Iterator[Pods]:
    if size == 0:
        yield ()
        return
    if not kinds or sum(map(len, kinds)) < size:
        return
    for count in range(min(size, len(kinds[0])), -1, -1):
        for rest in _counted(kinds[1:], size - count):
            yield (*kinds[0][:count], *rest)
