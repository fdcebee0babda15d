"""Simulation: would these pods fit, how many nodes would they need, what if a node is drained. Pure.

Every answer comes from placing pods on copies of the nodes' ledgers with :func:`placement.find`, which the
scheduler extender and the agent use too, on nodes that
:class:`~gpu_manager.domain.kube.constraints.NodeConstraints` allows and whose host has the CPU and memory.
Topology spread and resource quotas are not considered; commands that show an answer mention that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import MULTI_CARD, RELEASE_FEATURES
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.kube.constraints import (
    ANY,
    ANYWHERE,
    ONE_POD,
    HostResources,
    NodeConstraints,
    PodConstraints,
    shown_bars,
)
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import Placement, find, judge
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.topology import Topology

MOST_ASKED: Final = 1000  # pods in one request to the admission service, which takes milliseconds for each
_NOBODY: Final = PodUid(
    "(what if)"
)  # a UID that no ledger has, so that nothing counts as held by the pod itself
Shape = tuple[PodRequest, PodConstraints, HostResources]
"""What tells pods apart for whoever places them: all but who they are."""


@dataclass(frozen=True, slots=True)
class SimPod:
    """A pod that runs on a node, or that must be placed.

    ``name`` is ``namespace/name``; higher ``priority`` is more important, as in Kubernetes. ``stays`` is why
    it cannot be moved, empty if it can. ``tied``: it ends with its node, and needs no other place.
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
        """The cores of all its containers, hundredths of a card."""
        return sum(c.request.cores for c in self.request.containers)

    @property
    def shape(self) -> Shape:
        """The properties that decide its placement; pods of equal shape are placed alike."""
        return replace(self.request, uid=_NOBODY), self.constraints, self.host


@dataclass(frozen=True, slots=True)
class SimNode:
    """A node with its ledger and its pods; the ledger is copied, never changed.

    ``host`` is what all requests leave of its CPU and memory, ``features`` what its agent can do.
    """

    name: str
    cards: tuple[CardState, ...]
    topology: Topology
    ledger: Ledger
    pods: Mapping[PodUid, SimPod] = field(default_factory=dict)
    constraints: NodeConstraints = field(default_factory=NodeConstraints)
    host: HostResources = ANY
    features: frozenset[str] = RELEASE_FEATURES

    def find(self, request: PodRequest) -> Placement | None:
        """The pod's placement on the node's cards; None if it does not fit."""
        return find(request, self.cards, self.topology, self.ledger)

    def takes(self, pod: SimPod) -> Placement | None:
        """The pod's placement on the node; None if it does not fit or is not allowed."""
        barred = self.bars(pod) or self.host.lacks_ids(pod.host)
        return None if barred else self.find(pod.request)

    def bars(self, pod: SimPod) -> str:
        """What besides cards keeps the pod off, as a phrase after the node's name; empty if nothing does."""
        if pod.request.has_parts and MULTI_CARD not in self.features:
            return "its agent gives no parts of several cards"
        return self.constraints.bars(pod.constraints) or self.host.lacks(pod.host)

    def with_pod(self, pod: SimPod, placement: Placement) -> SimNode:
        """A copy of the node with the pod at this placement."""
        ledger = self.ledger.copy()
        ledger.commit(_allocations(pod, placement))
        pods = {**self.pods, pod.uid: pod}
        return replace(self, ledger=ledger, pods=pods, host=self.host - pod.host)

    def without(self, pods: Iterable[PodUid]) -> SimNode:
        """A copy of the node without these pods."""
        gone = frozenset(pods)
        ledger = self.ledger.copy()
        for uid in gone:
            ledger.release(uid)
        left = {u: r for u, r in self.pods.items() if u not in gone}
        given = (r.host for u, r in self.pods.items() if u in gone)
        return replace(self, ledger=ledger, pods=left, host=sum(given, self.host))

    def indices(self, placement: Placement) -> tuple[int, ...]:
        """Indices of the cards that a placement here takes."""
        return self._indices({share.card for shares in placement.values() for share in shares})

    def held(self, pod: PodUid) -> tuple[int, ...]:
        """Indices of the cards that a pod holds here."""
        return self._indices({card for a in self.ledger.of_pod(pod).values() for card in a.cards})

    def _indices(self, cards: Collection[CardUuid]) -> tuple[int, ...]:
        return tuple(s.card.index for s in self.cards if s.card.uuid in cards)

    @property
    def free(self) -> Amount:
        """The free amount on open cards."""
        return sum((self.ledger.free(s.card.uuid) for s in self.cards if s.open), ZERO)


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """A pod with its node; ``cards`` are indices on the node."""

    pod: str
    node: str
    cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The outcome of a simulation. ``refused`` maps a pod's name to why it fits nowhere.

    ``nodes`` is the cluster afterwards; ``added`` counts nodes that had to be added. ``ended`` maps pods that
    end with their node, such as a DaemonSet's, to the reason.
    """

    placements: tuple[PodPlacement, ...]
    refused: Mapping[str, str]
    nodes: tuple[SimNode, ...]
    added: int = 0
    ended: Mapping[str, str] = field(default_factory=dict)


Rank = tuple[int, int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class NodeOption:
    """A node's placement for a pod; the lowest ``rank`` is chosen, and ranks are unique."""

    rank: Rank
    node: SimNode
    placement: Placement

    @classmethod
    def of(cls, node: SimNode, pod: SimPod) -> NodeOption | None:
        """The node's option; None if the pod is not allowed or does not fit."""
        placement = node.takes(replace(pod, request=pod.shape[0]))
        return None if placement is None else cls(_left(node, placement), node, placement)

    def taken(self, pod: SimPod) -> tuple[SimNode, PodPlacement]:
        """A copy of the node with the pod, and the pod's place."""
        placed = PodPlacement(pod.name, self.node.name, self.node.indices(self.placement))
        return self.node.with_pod(pod, self.placement), placed


def _left(node: SimNode, placement: Placement) -> Rank:
    """Order of nodes: those where no idle card is split come first; of these, the fullest."""
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
    """Nodes on whose copies pods are placed. A node's option for a shape is computed once."""

    def __init__(self, nodes: Iterable[SimNode]) -> None:
        self.now = {node.name: node for node in nodes}
        self._offers: dict[Shape, dict[str, NodeOption]] = {}
        self._stale: dict[Shape, set[str]] = {}
        self._reasons: dict[Shape, str] = {}

    def offers(self, pod: SimPod) -> Mapping[str, NodeOption]:
        """Node name → option, of the nodes that would take the pod."""
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
        """Place the pod on the node of the lowest rank; None if it fits on no node."""
        offers = self.offers(pod).values()
        if not offers:
            return None
        node, placed = min(offers, key=lambda offer: offer.rank).taken(pod)
        self.put(node)
        return placed

    def put(self, node: SimNode) -> None:
        """Add a node, or replace the node of that name."""
        self.now[node.name] = node
        self._reasons.clear()
        for stale in self._stale.values():
            stale.add(node.name)

    def why_not(self, pod: SimPod) -> str:
        """Why the pod fits on no node: the reason of the node with the most free, and the other nodes'
        reasons.
        """
        shape = pod.shape
        if shape not in self._reasons:
            self._reasons[shape] = why_not(tuple(self.now.values()), pod)
        return self._reasons[shape]


def simulate(nodes: Sequence[SimNode], pods: Sequence[SimPod]) -> Forecast:
    """Place the pods one after the other, in the order of their arrival."""
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
    """Place the pods in the order given, and add a node like ``kind`` whenever one finds no room.

    At most ``most`` nodes are added. A pod that does not fit an empty node of the kind is refused.
    """
    cluster = SimCluster(nodes)
    kind = replace(kind, constraints=kind.constraints.fresh(f"new-{most}"))  # no pod selects it by name
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
    """Drain the node: place its pods on the others, those of the highest priority first."""
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
    """Why even an empty node of the kind cannot hold the pod; empty if it can."""
    barred = kind.bars(pod)
    if barred:
        return f"a node like {quoted(kind.name)} would not take it: it {barred}"
    reason = refusal(kind, pod.request)
    return f"not even an empty node like {quoted(kind.name)} holds it: {reason}" if reason else ""


def why_not(nodes: Sequence[SimNode], pod: SimPod) -> str:
    """Why the pod fits on no node: the reason of the node with the most free, and the number of nodes."""
    if not nodes:
        return "no node publishes cards"
    barred = {node.name: reason for node in nodes if (reason := node.bars(pod))}
    able = [node for node in nodes if node.name not in barred]
    closed = shown_bars(barred)
    if not able:
        return f"no node takes it: {closed}"
    best = max(able, key=lambda node: _free_for(node, pod.request))
    reason = refusal(best, pod.request) or f"it {best.host.lacks_ids(pod.host)}"
    where = "the only node" if len(able) == 1 else f"any of {len(able)} nodes"
    that = " that it may go to" if barred else ""
    said = f"no room on {where}{that}; {quoted(best.name)} has most free: {reason}"
    return f"{said}; not asked: {closed}" if closed else said


def refusal(node: SimNode, request: PodRequest) -> str:
    """Why the node refuses the pod, card by card; empty if it takes it."""
    verdict = judge(request, node.cards, node.topology, node.ledger)
    return verdict.line() if isinstance(verdict, Refusal) else ""


def _free_for(node: SimNode, request: PodRequest) -> tuple[int, int, int, str]:
    """Free cores of the node on cards of the pod's model."""
    cards = [s.card for s in node.cards if s.open and request.allows(s.card)]
    free = sum((node.ledger.free(card.uuid) for card in cards), ZERO)
    return free.cores, free.memory, len(cards), node.name


def _allocations(pod: SimPod, placement: Mapping[str, tuple[Share, ...]]) -> Iterator[Allocation]:
    for container in pod.request.containers:
        yield Allocation(
            pod.uid,
            container.name,
            container.kind,
            container.order,
            placement[container.name],
            priority=pod.request.priority,
        )
