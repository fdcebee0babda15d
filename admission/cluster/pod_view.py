"""A pod as the cluster's accounting sees it, parsed once from an untrusted Kubernetes object.

What a tenant can write into its own pod does not lower its charge: the amounts are those of its spec, which
Kubernetes makes immutable; its annotation only tells *which card*, and only if it names this pod and its
node. A charge above the spec comes from what only the scheduler and the agent may write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

from gpu_manager.domain.cluster.pod_charges import PlacedPod, assigned_cards, ids_elsewhere
from gpu_manager.domain.cluster.pod_holder import gates_of
from gpu_manager.domain.contract import RESIZE, RESIZED, TEMPLATE_SIZE
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube import constraints
from gpu_manager.domain.kube.constraints import ANYWHERE, HostResources, PodConstraints, pod_constraints
from gpu_manager.domain.kube.pod import POD_SCHEDULED, UNSCHEDULABLE, Pod, parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.rules.pod_request import booked_request, judged_request
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.untrusted import at, mappings, text

_SAID: Final = 512  # characters of a scheduler's words


@dataclass(frozen=True, slots=True)
class PodView(PlacedPod):
    """A pod that requests cards.

    ``nominated`` is the node where preemption is making room for it, ``reserved`` marks a pod whose Binding
    is in progress. ``cpu`` is the requested host CPU in thousandths. ``constraints`` are its requirements on
    nodes while it has none; ``unschedulable``: its scheduler has found no node. ``verdict`` numbers its
    scheduler's last message about that, 0 if there is none: another number is another message; ``said`` is
    its beginning. ``gates``: its scheduling gates.
    """

    nominated: str = ""
    reserved: bool = False
    cpu: int = 0
    constraints: PodConstraints = ANYWHERE
    unschedulable: bool = False
    verdict: int = 0
    said: str = ""
    gates: tuple[str, ...] = ()

    @property
    def host(self) -> HostResources:
        """What it requests of a node's host; only the CPU is kept."""
        return HostResources(cpu=self.cpu, pods=1)

    @property
    def lent(self) -> bool:
        """True if it requests whole cards under NVIDIA's name, which counts only on nodes that offer them
        so.
        """
        return self.pod.lent

    @property
    def occupies(self) -> bool:
        """True from the binding until its containers have ended for good, or it is gone."""
        return bool(self.pod.node) and not self.pod.terminal

    @property
    def waits(self) -> bool:
        """True if it still waits for a node."""
        return not self.pod.node and not self.pod.terminal and not self.pod.deleting

    @property
    def places(self) -> tuple[str, ...]:
        """The node on which it counts: its own, or that on which preemption makes room for it."""
        if self.occupies:
            return (self.pod.node,)
        return (self.nominated,) if self.waits and self.nominated else ()

    @property
    def resizes(self) -> bool:
        """True if it has a request for another size, or an answer to one."""
        return not self.pod.annotations.keys().isdisjoint((RESIZE, RESIZED, TEMPLATE_SIZE))

    def request(self, unit: int) -> PodRequest | None:
        """The pod's request, or on a node the booked one; None if that is illegal."""
        if self.pod.node:
            return booked_request(self.pod, unit)
        try:
            return judged_request(self.pod, unit)
        except RequestInvalid:
            return None

    def on(self, node: str, placement: Mapping[str, tuple[Share, ...]]) -> PodView:
        """The pod as it will be once bound there."""
        assigned = {name: tuple((s.card, s.amount) for s in shares) for name, shares in placement.items()}
        return replace(self, pod=replace(self.pod, node=node), assigned=assigned, nominated="", reserved=True)


def answered(occupant: PodView, text: str) -> PodView:
    """The pod as it will be once this answer to its resize request is written."""
    pod = replace(occupant.pod, annotations={**occupant.pod.annotations, RESIZED: text})
    return replace(occupant, pod=pod, assigned=assigned_cards(pod))


def pod_view(pod: Pod, obj: Mapping[str, Any] | None = None) -> PodView:
    """The pod with the further fields for the accounting; ``obj`` is the object from which it was parsed."""
    status = at(obj, "status")
    unplaced = [] if pod.node else [c for c in mappings(status.get("conditions")) if _is_unplaced(c)]
    return PodView(
        pod=pod,
        assigned=assigned_cards(pod),
        numa_ids=ids_elsewhere(pod),
        nominated=text(status.get("nominatedNodeName")),
        cpu=asked(obj or {}),
        constraints=ANYWHERE if obj is None or pod.node else pod_constraints(obj.get("spec")),
        unschedulable=any(condition.get("reason") == UNSCHEDULABLE for condition in unplaced),
        verdict=crc32(
            repr([(c.get("reason"), c.get("message")) for c in unplaced]).encode("utf-8", "replace")
        )
        if unplaced
        else 0,
        said=next((text(c.get("message"))[:_SAID] for c in unplaced), ""),
        gates=() if pod.node else gates_of((obj or {}).get("spec")),
    )


def asked(pod: Mapping[str, Any]) -> int:
    """A core/v1 Pod's request of host CPU in thousandths, as kube-scheduler counts it: its peak, with
    sidecars and overhead. The choice among nodes considers it, for cards beside no free CPU are of no use;
    whether the pod fits is kube-scheduler's part.
    """
    return constraints.asked(pod, "cpu", constraints.THOUSANDTHS)


def allocatable(node: Mapping[str, Any]) -> int | None:
    """A core/v1 Node's allocatable CPU in thousandths; None if it does not report it."""
    return constraints.allocatable(node, "cpu", constraints.THOUSANDTHS)


def _is_unplaced(condition: Mapping[str, Any]) -> bool:
    return (condition.get("type"), condition.get("status")) == (POD_SCHEDULED, "False")


def read_pod_view(obj: Mapping[str, Any]) -> PodView | None:
    """Read a core/v1 Pod; None if it requests no card resource, or cannot be read.

    A pod with ``nvidia.com/gpu`` counts once it is on a node, which may offer its cards under that name.
    """
    try:
        pod = parse_pod(obj)
    except RequestInvalid:
        return None
    pod = pod.with_lent_cards() if pod.node else pod
    return pod_view(pod, obj) if pod.uid and pod.asks else None


def named(pods: Iterable[Pod], namespace: str | None) -> tuple[str, ...]:
    """Names of pods for readers of ``namespace`` (None: of all); pods of other namespaces are only
    counted.
    """
    known = tuple(pods)
    mine = [printable(pod.key) for pod in known if namespace in (None, pod.namespace)]
    others = len(known) - len(mine)
    if others:
        mine.append("1 pod of another namespace" if others == 1 else f"{others} pods of other namespaces")
    return tuple(mine)
