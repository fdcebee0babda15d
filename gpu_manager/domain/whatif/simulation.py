"""What if: would these pods fit, how many nodes would it take, what if a node goes. Pure.

Nothing here guesses: every answer is made by placing pods with :func:`placement.find`, the judgement of the
scheduler and the node, on copies of the books, on nodes whose
:class:`~gpu_manager.domain.whatif.scheduling_constraints.NodeConstraints` lets the pod on and whose host
has CPU and memory for it. What else Kubernetes counts (spread, quotas) is not seen here; whoever shows an
answer says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import Placement, find, judge
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.topology import Topology
from gpu_manager.domain.whatif.host_resources import ANY, ONE_POD, HostResources
from gpu_manager.domain.whatif.scheduling_constraints import ANYWHERE, NodeConstraints, PodConstraints

_NOBODY: Final = PodUid("(what if)")  # whom no books name, so that nothing counts as the pod's own
Shape = tuple[PodRequest, PodConstraints, HostResources]
"""What tells pods apart for whoever places them: all but who they are."""


@dataclass(frozen=True, slots=True)
class SimPod:
    """A pod that lies on a node, or that is to come.

    ``name`` is ``namespace/name``; higher ``priority`` is more important, as in Kubernetes. ``stays`` says
    why nobody may move it, empty if one may. ``tied``: it ends with its node, and that is no loss.
    """

    uid: PodUid
    name: str
    request: PodRequest
    stays: str = ""
    priority: int = 0
    constraints: PodConstraints = ANYWHERE
    tied: bool = False
    host: HostResources = ONE_POD

    @property
    def weight(self) -> int:
        """The cores of all its containers."""
        return sum(c.request.cores for c in self.request.containers)

    @property
    def shape(self) -> Shape:
        """What it shares with pods that are placed as it is."""
        return replace(self.request, uid=_NOBODY), self.constraints, self.host


@dataclass(frozen=True, slots=True)
class SimNode:
    """A node with its books and whose they are; the books are never changed, only copied.

    ``host`` is what is left of its CPU and memory by everybody's requests.
    """

    name: str
    cards: tuple[CardState, ...]
    topology: Topology
    ledger: Ledger
    pods: Mapping[PodUid, SimPod] = field(default_factory=dict)
    constraints: NodeConstraints = field(default_factory=NodeConstraints)
    host: HostResources = ANY

    def find(self, request: PodRequest) -> Placement | None:
        """Where the pod would lie here, None if it would not fit."""
        return find(request, self.cards, self.topology, self.ledger)

    def takes(self, pod: SimPod) -> Placement | None:
        """The same, None too where the pod may not come here."""
        return None if self.bars(pod) else self.find(pod.request)

    def bars(self, pod: SimPod) -> str:
        """What but cards keeps the pod off now, to stand behind the node's name; empty if nothing does."""
        return self.constraints.bars(pod.constraints) or self.host.lacks(pod.host)

    def with_pod(self, pod: SimPod, placement: Placement) -> SimNode:
        """The node with the pod on these shares."""
        ledger = self.ledger.copy()
        ledger.commit(_allocations(pod, placement))
        pods = {**self.pods, pod.uid: pod}
        return replace(self, ledger=ledger, pods=pods, host=self.host - pod.host)

    def without(self, pods: Iterable[PodUid]) -> SimNode:
        """The node as if these pods were gone."""
        gone = frozenset(pods)
        ledger = self.ledger.copy()
        for uid in gone:
            ledger.release(uid)
        left = {u: r for u, r in self.pods.items() if u not in gone}
        given = (r.host for u, r in self.pods.items() if u in gone)
        return replace(self, ledger=ledger, pods=left, host=sum(given, self.host))

    def indices(self, placement: Placement) -> tuple[int, ...]:
        """The cards that a placement here takes."""
        return self._indices({share.card for shares in placement.values() for share in shares})

    def held(self, pod: PodUid) -> tuple[int, ...]:
        """The cards that a pod has here."""
        return self._indices({card for a in self.ledger.of_pod(pod).values() for card in a.cards})

    def _indices(self, cards: Collection[CardUuid]) -> tuple[int, ...]:
        return tuple(s.card.index for s in self.cards if s.card.uuid in cards)

    @property
    def free(self) -> Amount:
        """What is free on cards that may take more."""
        return sum((self.ledger.free(s.card.uuid) for s in self.cards if s.open), ZERO)


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """A pod and where it would lie; ``cards`` are indices on the node."""

    pod: str
    node: str
    cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would become of pods. ``refused`` maps a pod's name to why it fits nowhere.

    ``nodes`` is the cluster afterwards; ``added`` counts nodes that had to be added. ``ended`` are pods that
    nobody places again, and why that is no loss.
    """

    placements: tuple[PodPlacement, ...]
    refused: Mapping[str, str]
    nodes: tuple[SimNode, ...]
    added: int = 0
    ended: Mapping[str, str] = field(default_factory=dict)


Rank = tuple[int, int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class NodeOption:
    """Where a node would put a pod; the lowest ``rank`` is chosen, and no two nodes have the same."""

    rank: Rank
    node: SimNode
    placement: Placement

    @classmethod
    def of(cls, node: SimNode, pod: SimPod) -> NodeOption | None:
        """None where the pod may not lie, or finds no room."""
        placement = node.takes(replace(pod, request=pod.shape[0]))
        return None if placement is None else cls(_left(node, placement), node, placement)

    def taken(self, pod: SimPod) -> tuple[SimNode, PodPlacement]:
        """The node with the pod, and where it lies."""
        placed = PodPlacement(pod.name, self.node.name, self.node.indices(self.placement))
        return self.node.with_pod(pod, self.placement), placed


def _left(node: SimNode, placement: Placement) -> Rank:
    """Least left in pieces: no idle card is broken while a broken one has room; of those, the fullest."""
    taken: dict[CardUuid, Amount] = {}
    for share in (share for shares in placement.values() for share in shares):
        taken[share.card] = taken.get(share.card, ZERO) + share.amount
    books = {s.card.uuid: node.ledger.free(s.card.uuid) for s in node.cards if s.open}
    idle = [card for card in books if node.ledger.idle(card)]
    broken = sum(taken[card].cores < CORES_PER_CARD for card in idle if card in taken)
    left = sum((books[card] - amount for card, amount in taken.items() if card in books), ZERO)
    free = sum(amount.cores for amount in books.values())
    return broken, left.cores, left.memory, sum(card not in taken for card in idle), free, node.name


class SimCluster:
    """Nodes while pods are placed on copies of them. What a node does with a shape is worked out once."""

    def __init__(self, nodes: Iterable[SimNode]) -> None:
        self.now = {node.name: node for node in nodes}
        self._offers: dict[Shape, dict[str, NodeOption]] = {}
        self._stale: dict[Shape, set[str]] = {}
        self._reasons: dict[Shape, str] = {}

    def offers(self, pod: SimPod) -> Mapping[str, NodeOption]:
        """By name, of the nodes that would take the pod."""
        shape = pod.shape
        found = self._offers.setdefault(shape, {})
        stale = self._stale.setdefault(shape, set(self.now))
        for name in stale:
            offer = NodeOption.of(self.now[name], pod)
            if offer is None:
                found.pop(name, None)
            else:
                found[name] = offer
        stale.clear()
        return found

    def settle(self, pod: SimPod) -> PodPlacement | None:
        """Place the pod on the node that suits best; None if it fits on none."""
        offers = self.offers(pod).values()
        if not offers:
            return None
        node, placed = min(offers, key=lambda offer: offer.rank).taken(pod)
        self.put(node)
        return placed

    def put(self, node: SimNode) -> None:
        """A new node, or one that has changed."""
        self.now[node.name] = node
        self._reasons.clear()
        for stale in self._stale.values():
            stale.add(node.name)

    def why_not(self, pod: SimPod) -> str:
        """Why the pod fits nowhere: the reason of the node that has most free, and what the others say."""
        shape = pod.shape
        if shape not in self._reasons:
            self._reasons[shape] = why_not(tuple(self.now.values()), pod)
        return self._reasons[shape]


def simulate(nodes: Sequence[SimNode], pods: Sequence[SimPod]) -> Forecast:
    """Place the pods one after the other, as they would arrive."""
    cluster = SimCluster(nodes)
    placements: list[PodPlacement] = []
    refused: dict[str, str] = {}
    for pod in pods:
        placed = cluster.settle(pod)
        if placed is None:
            refused[pod.name] = cluster.why_not(pod)
        else:
            placements.append(placed)
    return Forecast(tuple(placements), refused, tuple(cluster.now.values()))


def nodes_needed(
    nodes: Sequence[SimNode], pods: Sequence[SimPod], kind: SimNode, most: int = 10_000
) -> Forecast:
    """The same, adding a node like ``kind`` whenever a pod finds no room, ``most`` of them at the outside.

    One after the other in the order given, so the count is what arrivals in that order take. A pod that does
    not fit an empty node of the kind stays refused and adds none.
    """
    cluster = SimCluster(nodes)
    kind = replace(kind, constraints=kind.constraints.fresh(f"new-{most}"))  # no pod asks for it by that name
    never: dict[Shape, str] = {}
    placements: list[PodPlacement] = []
    refused: dict[str, str] = {}
    added = 0
    for pod in pods:
        placed = cluster.settle(pod)
        if placed is None and pod.shape not in never:
            never[pod.shape] = _never(kind, pod)
        if placed is None and not never[pod.shape] and added < most:
            added += 1
            name = f"new-{added}"
            cluster.put(replace(kind, name=name, constraints=kind.constraints.fresh(name)))
            placed = cluster.settle(pod)
        if placed is None:
            refused[pod.name] = never[pod.shape] or f"{most} nodes were added, and there is still no room"
        else:
            placements.append(placed)
    return Forecast(tuple(placements), refused, tuple(cluster.now.values()), added)


def drain(nodes: Sequence[SimNode], name: str) -> Forecast:
    """What if the node goes: its pods, the most important first, placed on the others."""
    leaving = next(node for node in nodes if node.name == name)
    pods = sorted(leaving.pods.values(), key=lambda r: (-r.priority, -r.weight, r.name))
    others = [node for node in nodes if node.name != name]
    moving = [pod for pod in pods if not pod.stays]
    found = simulate(others, moving)
    if not others:
        found = replace(found, refused={pod.name: "no other node publishes cards" for pod in moving})
    lost = {pod.name: f"{pod.stays}: it would be gone for good" for pod in pods if pod.stays and not pod.tied}
    ended = {pod.name: pod.stays for pod in pods if pod.tied}
    return replace(found, refused={**found.refused, **lost}, ended=ended)


def _never(kind: SimNode, pod: SimPod) -> str:
    """Why not even an empty node of the kind holds the pod; empty if it does."""
    barred = kind.bars(pod)
    if barred:
        return f"a node like {quoted(kind.name)} would not take it: it {barred}"
    reason = refusal(kind, pod.request)
    return f"not even an empty node like {quoted(kind.name)} holds it: {reason}" if reason else ""


def why_not(nodes: Sequence[SimNode], pod: SimPod) -> str:
    """Why the pod fits nowhere: the reason of the node that has most free, and how many there are."""
    if not nodes:
        return "no node publishes cards"
    barred = {node.name: reason for node in nodes if (reason := node.bars(pod))}
    able = [node for node in nodes if node.name not in barred]
    closed = _closed(barred)
    if not able:
        return f"no node takes it: {closed}"
    best = max(able, key=lambda node: _free_for(node, pod.request))
    reason = refusal(best, pod.request)
    where = "the only node" if len(able) == 1 else f"any of {len(able)} nodes"
    that = " that it may go to" if barred else ""
    said = f"no room on {where}{that}; {quoted(best.name)} has most free: {reason}"
    return f"{said}; not asked: {closed}" if closed else said


def refusal(node: SimNode, request: PodRequest) -> str:
    """What the node says to the pod, card by card; empty if it takes it."""
    verdict = judge(request, node.cards, node.topology, node.ledger)
    return verdict.line() if isinstance(verdict, Refusal) else ""


def _free_for(node: SimNode, request: PodRequest) -> tuple[int, int, int, str]:
    """How much of the node the pod might use: a card of another model is none for it."""
    cards = [s.card for s in node.cards if s.open and request.allows(s.card)]
    free = sum((node.ledger.free(card.uuid) for card in cards), ZERO)
    return free.cores, free.memory, len(cards), node.name


def _closed(barred: Mapping[str, str]) -> str:
    """The commonest reasons, each with one of the nodes."""
    counts = Counter(barred.values())
    first: dict[str, str] = {}
    for name, reason in barred.items():
        first.setdefault(reason, name)
    more_nodes = {1: "", 2: " (and 1 more node)"}
    said = [
        f"{quoted(first[reason])} {reason}" + more_nodes.get(count, f" (and {count - 1} more nodes)")
        for reason, count in counts.most_common(3)
    ]
    more = f"; {len(counts) - 3} more reasons" if len(counts) > 3 else ""
    return "; ".join(said) + more


def _allocations(pod: SimPod, placement: Mapping[str, tuple[Share, ...]]) -> Iterator[Allocation]:
    for container in pod.request.containers:
        yield Allocation(pod.uid, container.name, container.kind, container.order, placement[container.name])
