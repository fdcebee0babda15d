"""Why a pod with ``nvidia.com/gpu`` waits, on nodes that offer whole cards under that name too.

kube-scheduler counts those cards by itself. A node offers a card under that name only while no pod holds any
part of it, so such a pod waits for a card to become empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.contract import NVIDIA
from gpu_manager.domain.errors import printable
from gpu_manager.domain.kube.pod import ContainerKind, Pod
from gpu_manager.domain.placement.ledger import Ledger

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
    return sum(state.open and ledger.idle(state.card.uuid) for state in node.cards)


def _told(empty: int, node: NodeReport) -> str:
    lent = sum(state.held == NVIDIA for state in node.cards)
    closed = sum(not state.open and state.held != NVIDIA for state in node.cards)
    parts = len(node.cards) - empty - lent - closed
    others = ((lent, f"are given away as {NVIDIA}"), (parts, "are held in part"), (closed, "are closed"))
    rest = ", ".join(f"{count} {what}" for count, what in others if count)
    return (
        f"{printable(node.name)}: {empty} of {len(node.cards)} cards are empty{f', {rest}' if rest else ''}"
    )
