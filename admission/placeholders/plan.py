"""How many cards are missing that an autoscaler does not see, since it counts the sums of nodes. Pure.

An autoscaler takes a pod for placed where the sum of a node's free cores and memory has room, and brings
nodes for the others. So the pods that wait are gone through as it does: those that fit in sum are *believed*
placed, the others are *seen*. All of them need so many cards of new nodes; what the seen ones bring by their
sums is taken off, and the rest is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_manager.domain.card import CardState
from gpu_manager.domain.kube.constraints import PodConstraints
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.whatif.simulation import SimNode, SimPod, nodes_needed

_MOST_KINDS: Final = 64
MOST: Final = 128  # placeholders of equal constraints; the next are asked for once these have brought nodes


@dataclass(slots=True)
class _Group:
    """The waiting pods of equal constraints, and the nodes that take them."""

    nodes: Sequence[SimNode]
    believed: list[SimPod] = field(default_factory=list)
    seen: list[SimPod] = field(default_factory=list)


def missing_cards(
    nodes: Sequence[SimNode], pods: Sequence[SimPod]
) -> Mapping[PodConstraints, tuple[int, ...]]:
    """For pods that fit on no node, in the order in which they are to be placed: by their constraints, the
    cards that an autoscaler must be asked for, each number on one node.
    """
    left = {node.name: room_in_sum(node) for node in nodes}
    groups: dict[PodConstraints, _Group] = {}
    for pod in pods:
        group = groups.get(pod.constraints)
        if group is None:
            able = [node for node in nodes if not node.constraints.bars(pod.constraints)]
            group = groups[pod.constraints] = _Group(able)
        asked = _sum(pod)
        at = next(
            (n for n in group.nodes if asked.fits_in(left[n.name]) and not n.host.lacks(pod.host)), None
        )
        if at is None:
            group.seen.append(pod)
        else:
            left[at.name] -= asked
            group.believed.append(pod)
    kinds = list(_kinds(nodes))
    found = {constraints: _missing(group, kinds) for constraints, group in groups.items() if group.believed}
    return {constraints: sizes for constraints, sizes in found.items() if sizes}


def room_in_sum(node: SimNode) -> Amount:
    """Return the free cores and memory of the node's open cards as Kubernetes counts them.

    That is more than the ledger has: a pod with whole cards requests none of their memory.
    """
    whole = {s.card for a in node.ledger for s in a.shares if s.amount.cores >= CORES_PER_CARD}
    cards = [state.card for state in node.cards if state.open]
    memory = sum(card.capacity(node.ledger.unit).memory for card in cards if card.uuid in whole)
    return sum((node.ledger.free(card.uuid) for card in cards), Amount(0, memory))


def _sum(pod: SimPod) -> Amount:
    return sum((c.request.total for c in pod.request.containers), ZERO)


def _together(pod: SimPod) -> int:
    """The cards that the pod needs on one node: its whole ones, and those of its parts of several."""
    asked = [c.request for c in pod.request.containers]
    return sum(one.cards for one in asked) + max((one.parts for one in asked if one.parts > 1), default=0)


def _kinds(nodes: Sequence[SimNode]) -> Iterator[SimNode]:
    """A new node of each kind that there is, the most frequent first."""
    fresh = {node.name: node.constraints.fresh("") for node in nodes}
    kinds = {
        node.name: (
            tuple((s.card.model, s.card.memory) for s in node.cards),
            frozenset(fresh[node.name].labels.items()),
            fresh[node.name].taints,
        )
        for node in nodes
    }
    first = {kinds[node.name]: node for node in reversed(nodes)}
    for kind, _ in Counter(kinds.values()).most_common(_MOST_KINDS):
        node = first[kind]
        cards = tuple(CardState(state.card) for state in node.cards)
        ledger = Ledger((state.card for state in cards), node.ledger.unit)
        yield SimNode(node.name, cards, node.topology, ledger, constraints=fresh[node.name])


def _missing(group: _Group, kinds: Sequence[SimNode]) -> tuple[int, ...]:
    first = group.believed[0]
    kind = next((kind for kind in kinds if kind.takes(first) is not None), None)
    if kind is None:
        return ()  # no new node would have room for it
    pods = sorted((*group.believed, *group.seen), key=lambda pod: (-pod.weight, pod.name))
    places = {one.pod: one for one in nodes_needed((), pods, kind).placements}
    cards = {(one.node, index) for one in places.values() for index in one.cards}
    brought = sum((_sum(pod) for pod in group.seen if pod.name in places), ZERO)
    memory = max(s.card.capacity(kind.ledger.unit).memory for s in kind.cards) or 1
    missing = len(cards) - max(-(-brought.cores // CORES_PER_CARD), -(-brought.memory // memory))
    on_one_node = (_together(pod) for pod in group.believed if pod.name in places)
    sizes: list[int] = []
    for together in sorted(on_one_node, reverse=True):
        if together > 1 and sum(sizes) + together <= missing:
            sizes.append(together)
    return tuple([*sizes, *[1] * (missing - sum(sizes))][:MOST])
