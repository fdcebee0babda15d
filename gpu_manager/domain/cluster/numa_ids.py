"""The kubelet's count of device ids by NUMA node, where containers hold ids of other nodes than their cards'.

Under a strict NUMA policy the kubelet fails a pod for good if no choice of NUMA nodes that its policy admits
has the ids for it, however many cards are idle. Where all containers lie where their ids are, room on the
cards means ids; the agent annotates those of which that is not true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.accounting import Charge
from gpu_manager.domain.cluster.node_report import NodeReport
from gpu_manager.domain.placement.ledger import Share, peak
from gpu_manager.domain.placement.numa import numbered
from gpu_manager.domain.pod import ContainerKind, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest, Request
from gpu_manager.domain.topology import NumaPolicy

ByNode = Mapping[int, Amount]


@dataclass(frozen=True, slots=True)
class NumaIds:
    """Ids by NUMA node, as what they stand for: cores, and bytes of memory. ``total``: of all cards that hand
    out any; ``held`` by each pod on the node.
    """

    policy: NumaPolicy
    total: ByNode
    held: Mapping[PodUid, ByNode]

    def left(self, pods: Collection[PodUid]) -> tuple[tuple[int, Amount], ...]:
        """What each node has for others if these pods alone are there, by the nodes' numbers."""
        theirs = [self.held[uid] for uid in pods if uid in self.held]
        return tuple(
            (node, total - sum((each[node] for each in theirs if node in each), ZERO))
            for node, total in sorted(self.total.items())
        )

    def lack(self, request: PodRequest, pods: Collection[PodUid]) -> str:
        """Why the kubelet would fail the pod beside these; empty if it admits it."""
        left = dict(self.left(pods))
        for container in request.containers:
            if not container.request.cores:
                continue
            need = _ids(container.request)
            width = self._width(need.cores)
            found = next((some for some in _choices(left, width) if _has(left, some, need)), None)
            if found is None:
                most = max((_sum(left, some).cores for some in _choices(left, width)), default=0)
                where = "one NUMA node" if width == 1 else f"{width} NUMA nodes"
                cores = max(0, most)
                return (
                    f"the kubelet's NUMA policy {self.policy.value} wants ids of {need} on {where}, and"
                    f" those of {cores} cores are left there at most: containers hold ids of other NUMA nodes"
                    " than their cards'"
                )
            if container.kind is not ContainerKind.INIT:  # it hands its ids on
                for node in found:
                    part = min(need.cores, max(0, left[node].cores))
                    left[node] -= Amount(part, need.memory)
                    need = Amount(need.cores - part, 0)
        return ""

    def _width(self, cores: int) -> int:
        """The fewest NUMA nodes that have so many ids if all are free; the policy may want a single one."""
        most = sorted((total.cores for total in self.total.values()), reverse=True)
        if self.policy is NumaPolicy.SINGLE:
            return 1
        return next((n for n in range(1, len(most) + 1) if sum(most[:n]) >= cores), len(most))


def numa_ids(node: NodeReport, charges: Mapping[PodUid, Charge]) -> NumaIds | None:
    """The count of a node; None where the cards decide, which is nearly always."""
    policy = node.topology.numa_policy
    if not policy.strict or not any(charge.placed.numa_ids for charge in charges.values()):
        return None
    numbers = numbered([state.card for state in node.cards if not state.card.mig])
    if numbers is None:
        return None
    at = {state.card.uuid: state.card.numa for state in node.cards}
    total = dict.fromkeys(numbers, ZERO)
    for state in node.cards:
        if state.healthy and not state.card.mig and state.card.numa is not None:
            total[state.card.numa] += Amount(CORES_PER_CARD, state.card.capacity(node.unit).memory)
    return NumaIds(policy, total, {uid: _held(charge, at, node.unit) for uid, charge in charges.items()})


def _held(charge: Charge, at: Mapping[CardUuid, int | None], unit: int) -> ByNode:
    """Ids of a pod by NUMA node, at its worst moment."""
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
    """The ids of a container, with the number of the NUMA node in place of the card."""
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
    """As the kubelet prefers them (bitmask.IsLessThan)."""
    return sorted(combinations(sorted(left), width), key=lambda some: sum(1 << node for node in some))


def _sum(left: ByNode, some: Iterable[int]) -> Amount:
    return sum((left[node] for node in some), ZERO)


def _has(left: ByNode, some: Iterable[int], need: Amount) -> bool:
    return need.fits_in(_sum(left, some))
