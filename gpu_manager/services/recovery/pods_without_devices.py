"""Pods that were admitted before this node offered our resources, and so have no devices.

The kubelet drops a resource that the node never had before it checks whether a pod fits. Such a pod holds no
ids, and once the resource exists none of its containers can start again: the kubelet looks for devices that
it never gave, and asks no plugin. Only a new pod helps: the pod is reported, and evicted if it has a
controller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import structlog

from gpu_manager.domain.contract import EVENT_WITHOUT_DEVICES, RESOURCES
from gpu_manager.domain.pod import MIRROR, ContainerKind, Pod, PodUid
from gpu_manager.ports.kubelet import CheckpointEntry
from gpu_manager.ports.pods import Pods
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

SEEN_ROUNDS = 2  # in a row: the checkpoint and the pods that are known are not of one moment


class PodsWithoutDevices:
    """Reports each such pod once. Not thread-safe."""

    def __init__(self, state: NodeState, pods: Pods, metrics: ServiceMetrics, *, evict: bool) -> None:
        self._state = state
        self._pods = pods
        self._metrics = metrics
        self._evict = evict
        self._seen: Mapping[PodUid, int] = {}
        self._named: frozenset[PodUid] = frozenset()

    def look(
        self, entries: Sequence[CheckpointEntry] | None, active: Collection[tuple[str, str]] | None
    ) -> None:
        """Compare the pods' requests with the kubelet's checkpoint.

        ``active`` are the pods that the kubelet lists. A missing source proves nothing.
        """
        if entries is None or active is None:
            return
        holders = {(e.pod, e.container, e.resource) for e in entries if e.ids}
        booked = frozenset(pod for pod, _ in self._state.view.grants)
        found = {
            f.pod.uid: (f.pod, lacking)
            for named in self._pods.local().values()
            for f in named
            if not f.tombstone and f.pod.uid not in booked and (f.pod.namespace, f.pod.name) in active
            if (lacking := _lacking(f.pod, holders)) is not None
        }
        self._seen = {uid: self._seen.get(uid, 0) + 1 for uid in found}
        self._named &= frozenset(found)
        for uid, (pod, lacking) in found.items():
            if self._seen[uid] >= SEEN_ROUNDS and uid not in self._named:
                self._named |= {uid}
                self._name(pod, *lacking)

    def _name(self, pod: Pod, container: str, resource: str) -> None:
        evicted = self._evict and pod.controlled
        cure = "the pod is evicted" if evicted else "delete the pod"
        if pod.static:
            cure = "move the pod's manifest out of the kubelet's directory and back"
        text = (
            f'container "{container}" was admitted before this node offered {resource}: it holds no card and '
            f"cannot be started again; {cure}, so that a new one is admitted in its place"
        )
        self._metrics.pods_without_devices.inc()
        log.warning("stranded", pod=pod.key, container=container, resource=resource, evicted=evicted)
        self._pods.event(pod, EVENT_WITHOUT_DEVICES, text, warning=True)
        if evicted:
            self._pods.evict(pod, text)


def _lacking(pod: Pod, holders: Collection[tuple[PodUid, str, str]]) -> tuple[str, str] | None:
    """A container of an admitted pod that asks for devices and has none; None if there is none, or it is
    unknown.

    Ordinary init containers do not decide: all containers of a pod are granted at its admission.
    """
    unknown = MIRROR in pod.annotations and not pod.static  # its resource is unknown
    if not pod.started or pod.deleting or pod.terminal or unknown:
        return None
    return next(
        (
            (c.name, resource)
            for c in pod.containers
            if c.kind is not ContainerKind.INIT
            for resource in RESOURCES
            if c.wants(resource) and (pod.uid, c.name, resource) not in holders
        ),
        None,
    )
