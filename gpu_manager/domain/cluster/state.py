"""A cluster seen from outside: each node's books, rebuilt from what nodes and pods say of themselves. Pure.

For people's commands, which look once and decide nothing. Where a pod's annotation says its cards it is
charged there; where none does (bound by hand, not yet written) where the node's own policy would put it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_manager.domain.cluster.terminating import terminating_allocations, with_terminating
from gpu_manager.domain.contract import ALLOCATION, CORDON, Inventory, decode_assignment, decode_uuids
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import Placement, find, judge
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says of itself: its inventory, and cards that an operator closed since."""

    name: str
    inventory: Inventory
    labels: Mapping[str, str]

    @classmethod
    def of(
        cls, name: str, inventory: Inventory, annotations: Mapping[str, str], labels: Mapping[str, str]
    ) -> NodeReport:
        """The same with the closed cards marked."""
        closed = decode_uuids(annotations.get(CORDON))
        cards = tuple(replace(s, cordoned=s.cordoned or s.card.uuid in closed) for s in inventory.cards)
        return cls(name, replace(inventory, cards=cards), labels)


@dataclass(frozen=True, slots=True, eq=False)
class NodeBooks:
    """A node and who holds what of it. ``guessed``: pods whose card nobody says; ``homeless``: pods for which
    there is no room by the books, so that they are charged nowhere; ``gone``: pods that the API no longer has
    and whose processes still run.
    """

    said: NodeReport
    ledger: Ledger
    guessed: frozenset[PodUid] = frozenset()
    homeless: tuple[Pod, ...] = ()
    gone: frozenset[PodUid] = frozenset()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.said.name

    def verdict(self, pod: Pod) -> Placement | Refusal:
        """Where the pod would go here now, or why nowhere. Raises RequestInvalid: it is not legal."""
        inventory = self.said.inventory
        request = judged_request(pod, inventory.unit)
        found = judge(request, inventory.cards, inventory.topology, self.ledger)
        if not isinstance(found, Refusal):
            return found
        left = tuple(one for one in inventory.lingering if PodUid(one.pod) in self.gone)
        return with_terminating(found, left)


def survey(nodes: Iterable[NodeReport], pods: Iterable[Pod]) -> tuple[NodeBooks, ...]:
    """The books of every node, by name."""
    at: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.asks and pod.node and not pod.terminal:
            at.setdefault(pod.node, []).append(pod)
    return tuple(_books(said, at.get(said.name, ())) for said in sorted(nodes, key=lambda n: n.name))


def _books(said: NodeReport, pods: Sequence[Pod]) -> NodeBooks:
    inventory = said.inventory
    known: list[Allocation] = []
    unsaid: list[tuple[Pod, PodRequest]] = []
    for pod in sorted(pods, key=lambda p: (p.created, p.uid)):
        try:
            request = judged_request(pod, inventory.unit)
        except RequestInvalid:  # no node grants any of it
            continue
        mine = tuple(_said(pod, request, said))
        known += mine
        if len(mine) < len(request.containers):
            done = {a.container for a in mine}
            rest = tuple(c for c in request.containers if c.name not in done)
            unsaid.append((pod, replace(request, containers=rest)))
    left = terminating_allocations(inventory.lingering, {pod.uid for pod in pods})
    ledger = Ledger((s.card for s in inventory.cards), inventory.unit, (*known, *left))
    guessed: set[PodUid] = set()
    homeless: list[Pod] = []
    for pod, request in unsaid:
        placement = find(request, inventory.cards, inventory.topology, ledger)
        if placement is None:
            homeless.append(pod)
            continue
        guessed.add(pod.uid)
        ledger.commit(_allocation(pod, c, placement[c.name]) for c in request.containers)
    gone = frozenset(a.pod for a in left)
    return NodeBooks(said, ledger, frozenset(guessed), tuple(homeless), gone)


def _said(pod: Pod, request: PodRequest, node: NodeReport) -> Iterator[Allocation]:
    """The containers whose cards the annotation says, if it is about this very pod on this very node."""
    said = decode_assignment(pod.annotations.get(ALLOCATION))
    if said is None or said.pod != pod.uid or said.node != node.name:
        return
    cards = {s.card.uuid: s.card.capacity(node.inventory.unit) for s in node.inventory.cards}
    for container in request.containers:
        named = said.containers.get(container.name, ())
        wanted = container.request.cards or 1
        if len(named) != wanted or len({uuid for uuid, _ in named} & cards.keys()) != wanted:
            continue
        asked = container.request.amount
        yield _allocation(
            pod,
            container,
            tuple(
                Share(uuid, cards[uuid] if container.request.cards else _bounded(asked, amount, cards[uuid]))
                for uuid, amount in named
            ),
        )


def _bounded(asked: Amount, said: Amount, card: Amount) -> Amount:
    """The larger of what the spec asks and what the annotation says, up to the card."""
    return asked.peak(Amount(min(said.cores, card.cores), min(said.memory, card.memory)))


def _allocation(pod: Pod, container: ContainerRequest, shares: tuple[Share, ...]) -> Allocation:
    return Allocation(
        pod.uid, container.name, container.kind, container.order, shares, pod.namespace, pod.name
    )
