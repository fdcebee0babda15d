"""The kubelet's count of device ids, where it differs from the room on the cards.

**Pods that shrank.** A container keeps the ids with which it was admitted. The amount returned by a shrink
below the spec can serve growth on the node; a new pod needs ids, and is refused without them, however much
room the cards have.

**NUMA nodes**, if containers hold ids of other NUMA nodes than their cards'. Under a strict NUMA policy the
kubelet fails a pod for good if no choice of NUMA nodes that its policy admits has the ids for it, however
many cards are idle. If all containers hold ids of their cards' own NUMA nodes, room on the cards implies ids;
the agent annotates the others. The kubelet puts an init container on the first NUMA node that has the ids for
it, whether or not that leaves room for the container that runs after it.

**Pods with ``nvidia.com/gpu``**, on nodes that offer whole cards under that name too: kube-scheduler counts
those cards by itself. A node offers a card under that name only while no pod holds any part of it, so such a
pod waits for a card to become empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.cluster.pod_charges import Charge
from gpu_manager.domain.contract import NVIDIA, RESIZED
from gpu_manager.domain.errors import printable
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.card_sets import numbered
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.pod_request import booked_request
from gpu_manager.domain.rules.request import PodRequest, Request
from gpu_manager.domain.topology import NumaPolicy

_ANY_CARD = CardUuid("")


@dataclass(frozen=True, slots=True)
class KubeletIds:
    """Ids, converted to cores and bytes of memory. ``total``: of all cards that offer ids; ``held`` by each
    pod on the node, ``booked`` these pods' amounts on the cards.
    """

    total: Amount
    held: Mapping[PodUid, Amount]
    booked: Amount

    @property
    def stranded(self) -> Amount:
        """Amounts that pods returned on the cards but not as ids: no new pod can get them."""
        return (sum(self.held.values(), ZERO) - self.booked).peak(ZERO)

    def left(self, pods: Collection[PodUid]) -> Amount:
        """What is left for others if only these pods are on the node."""
        return self.total - sum((self.held[uid] for uid in pods if uid in self.held), ZERO)

    def lack(self, request: PodRequest, pods: Collection[PodUid]) -> str:
        """Why the kubelet cannot give a pod with this request ids beside these pods; empty if it can."""
        asked, left = ids_asked(request), self.left(pods)
        if asked.fits_in(left):
            return ""
        held = sum(self.held.values(), ZERO)
        return (
            f"no device ids for it: {asked} asked, {left.peak(ZERO)} left. Pods that shrank keep theirs: "
            f"{held} of ids for {self.booked} booked. Make their templates smaller, or grow others"
        )


def ids_asked(request: PodRequest) -> Amount:
    """The ids that the kubelet gives to a pod, at its peak."""
    held = [
        Allocation(request.uid, c.name, c.kind, c.order, (Share(_ANY_CARD, c.request.total),))
        for c in request.containers
    ]
    return peak(held, _ANY_CARD)


def kubelet_ids(node: NodeReport, charges: Mapping[PodUid, Charge]) -> KubeletIds | None:
    """The count of a node; None unless a pod there has less than its spec, for otherwise the cards decide."""
    if not any(RESIZED in charge.pod.annotations for charge in charges.values()):
        return None  # nearly always
    ours = [charge for charge in charges.values() if not charge.pod.lent]
    requests = {charge.pod.uid: booked_request(charge.pod, node.unit) for charge in ours}
    held = {uid: ids_asked(request) for uid, request in requests.items() if request is not None}
    booked = {c.pod.uid: _booked(c.allocations) for c in ours if c.pod.uid in held}
    if all(held[uid].fits_in(booked[uid]) for uid in held):
        return None
    lent = {card for c in charges.values() if c.pod.lent for a in c.allocations for card in a.cards}
    open_cards = (s.card for s in node.cards if s.healthy and s.card.uuid not in lent)
    total = sum((card.capacity(node.unit) for card in open_cards), ZERO)
    return KubeletIds(total, held, sum(booked.values(), ZERO))


def _booked(allocations: Iterable[Allocation]) -> Amount:
    mine = tuple(allocations)
    return sum((peak(mine, card) for card in {card for a in mine for card in a.cards}), ZERO)


ByNode = Mapping[int, Amount]


@dataclass(frozen=True, slots=True)
class NumaIds:
    """Ids by NUMA node, converted to cores and bytes of memory. ``total``: of all cards that offer ids;
    ``held`` by each pod on the node. ``strayed``: some container holds ids of another NUMA node than its
    cards'.
    """

    policy: NumaPolicy
    total: ByNode
    held: Mapping[PodUid, ByNode]
    strayed: bool

    def left(self, pods: Collection[PodUid]) -> tuple[tuple[int, Amount], ...]:
        """What each NUMA node has for others if only these pods are there, by the nodes' numbers."""
        theirs = [self.held[uid] for uid in pods if uid in self.held]
        return tuple(
            (node, total - sum((each[node] for each in theirs if node in each), ZERO))
            for node, total in sorted(self.total.items())
        )

    def lack(self, request: PodRequest, pods: Collection[PodUid]) -> str:
        """Why the kubelet would fail the pod beside these; empty if it admits it.

        The kubelet aligns containers one by one. Ids of an ordinary init container pass to later containers,
        which must then lie on the same NUMA nodes.
        """
        if not self.strayed and all(c.kind is not ContainerKind.INIT for c in request.containers):
            return ""  # room on a card implies ids
        left, passed = dict(self.left(pods)), dict[int, Amount]()
        for container in request.containers:
            if not container.request.cores:
                continue
            need = _ids(container.request)
            width = self._width(need.cores)
            there = {node: amount + passed.get(node, ZERO) for node, amount in left.items()}
            choices = [some for some in _choices(left, width) if passed.keys() <= {*some}]
            found = next((some for some in choices if need.fits_in(_sum(there, some))), None)
            if found is None:
                most = max((_sum(there, some).cores for some in choices), default=0)
                return self._refusal(need, width, most, passed)
            held = _taken(need, {node: there[node] for node in found})
            for node, amount in held.items():
                again = _least(amount, passed.get(node, ZERO))
                left[node] -= amount - again
                passed[node] = passed.get(node, ZERO) - again
            if container.kind is ContainerKind.INIT:
                passed = {node: passed.get(node, ZERO) + held.get(node, ZERO) for node in {*passed, *held}}
            passed = {node: amount for node, amount in passed.items() if amount != ZERO}
        return ""

    def _refusal(self, need: Amount, width: int, most: int, passed: ByNode) -> str:
        where = "one NUMA node" if width == 1 else f"{width} NUMA nodes"
        if passed:
            nodes = ", ".join(map(str, sorted(passed)))
            where += f", with node {nodes}, where it places an init container before"
        why = (
            "containers hold ids of other NUMA nodes than their cards'"
            if self.strayed
            else "others hold them"
        )
        return (
            f"the kubelet's NUMA policy {self.policy.value} wants ids of {need} on {where}, and those of"
            f" {max(0, most)} cores are left there at most: {why}"
        )

    def _width(self, cores: int) -> int:
        """The fewest NUMA nodes that have this many ids if all are free; the policy may require a single
        one.
        """
        most = sorted((total.cores for total in self.total.values()), reverse=True)
        if self.policy is NumaPolicy.SINGLE:
            return 1
        return next((n for n in range(1, len(most) + 1) if sum(most[:n]) >= cores), len(most))


def numa_ids(node: NodeReport, charges: Mapping[PodUid, Charge]) -> NumaIds | None:
    """The count of a node; None without a strict policy, or if the kubelet aligns nothing."""
    policy = node.topology.numa_policy
    if not policy.strict:
        return None  # nearly always
    numbers = numbered([state.card for state in node.cards if not state.card.mig])
    if numbers is None:
        return None
    at = {state.card.uuid: state.card.numa for state in node.cards}
    total = dict.fromkeys(numbers, ZERO)
    for state in node.cards:
        if state.healthy and not state.card.mig and state.card.numa is not None:
            total[state.card.numa] += Amount(CORES_PER_CARD, state.card.capacity(node.unit).memory)
    held = {uid: _held(charge, at, node.unit) for uid, charge in charges.items()}
    return NumaIds(policy, total, held, any(charge.placed.numa_ids for charge in charges.values()))


def _held(charge: Charge, at: Mapping[CardUuid, int | None], unit: int) -> ByNode:
    """Ids of a pod by NUMA node, at its peak."""
    strayed = charge.placed.numa_ids
    by_node = [
        replace(a, shares=tuple(_shares(a.shares, strayed.get(a.container), at, unit)))
        for a in charge.allocations
    ]
    nodes = {share.card for a in by_node for share in a.shares}
    return {int(node): peak(by_node, node) for node in nodes}


def _shares(
    shares: Sequence[Share],
    strayed: Mapping[int, tuple[int, int]] | None,
    at: Mapping[CardUuid, int | None],
    unit: int,
) -> Iterable[Share]:
    """The ids of a container as shares, with the number of the NUMA node in place of the card."""
    if strayed is not None:
        for node, (cores, units) in strayed.items():
            yield Share(CardUuid(str(node)), Amount(cores, units * unit))
        return
    for share in shares:
        there = at.get(share.card)
        if there is not None:
            memory = 0 if share.whole else share.amount.memory
            yield Share(CardUuid(str(there)), Amount(share.amount.cores, memory))


def _ids(request: Request) -> Amount:
    return Amount(request.cores, 0 if request.cards else request.memory)


def _choices(left: ByNode, width: int) -> Iterable[tuple[int, ...]]:
    """Choices of NUMA nodes, in the order of the kubelet's preference (bitmask.IsLessThan)."""
    return sorted(combinations(sorted(left), width), key=lambda some: sum(1 << node for node in some))


def _sum(left: ByNode, some: Iterable[int]) -> Amount:
    return sum((left[node] for node in some), ZERO)


def _taken(need: Amount, there: ByNode) -> ByNode:
    """What is taken of each of these NUMA nodes, the lowest number first."""
    taken: dict[int, Amount] = {}
    for node, amount in there.items():
        taken[node] = _least(need, amount.peak(ZERO))
        need -= taken[node]
    return taken


def _least(one: Amount, other: Amount) -> Amount:
    return Amount(min(one.cores, other.cores), min(one.memory, other.memory))


_SHOWN = 3  # number of nodes named


def gpus_of(pod: Pod) -> Fraction:
    """The peak number of ``nvidia.com/gpu`` of a pod that requests no part of a card; 0 if none."""
    if pod.asks:
        return Fraction(0)
    none = Fraction(0)
    apps = sum((c.gpus or none for c in pod.containers if c.kind is not ContainerKind.INIT), none)
    return max([apps, *(c.gpus or none for c in pod.containers if c.kind is ContainerKind.INIT)])


def explain_gpus(asked: Fraction, nodes: Iterable[tuple[NodeReport, Ledger]]) -> tuple[str, int]:
    """One line on why the pod waits, and the number of nodes that have room for it now."""
    who = f"asks for {float(asked):g} {NVIDIA}, which the scheduler counts by itself"
    lending = sorted(
        ((_empty(node, ledger), node) for node, ledger in nodes if node.lends and node.cards),
        key=lambda one: (-one[0], one[1].name),
    )
    if not lending:
        return f"{who}: no node with our cards offers any under that name (--nvidia-resource)", 0
    room = sum(empty >= asked for empty, _ in lending)
    told = "; ".join(_told(*one) for one in lending[:_SHOWN])
    more = f"; and {len(lending) - _SHOWN} more nodes" if len(lending) > _SHOWN else ""
    if room:
        return f"{who}: room now on {room} of {len(lending)} nodes: {told}{more}", room
    return f"waits: {who}: a card counts while no pod holds any part of it; {told}{more}", 0


def _empty(node: NodeReport, ledger: Ledger) -> int:
    return sum(s.open and s.card.undivided and ledger.idle(s.card.uuid) for s in node.cards)


def _told(empty: int, node: NodeReport) -> str:
    lent = sum(state.held == NVIDIA for state in node.cards)
    closed = sum(not state.open and state.held != NVIDIA for state in node.cards)
    parts = len(node.cards) - empty - lent - closed
    others = ((lent, f"are given away as {NVIDIA}"), (parts, "are held in part"), (closed, "are closed"))
    rest = ", ".join(f"{count} {what}" for count, what in others if count)
    return (
        f"{printable(node.name)}: {empty} of {len(node.cards)} cards are empty{f', {rest}' if rest else ''}"
    )
