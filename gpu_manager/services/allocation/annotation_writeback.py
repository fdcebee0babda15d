"""Writes the cards that a pod's containers really hold into its annotation, for the scheduler.

The annotation is written when the first container starts, and checked whenever the pod appears or changes: a
write that was pending when the agent was killed is lost, and pods of the predecessor have only its
annotation.

At its graceful end the agent serves until all pods that are bound to this node are admitted. A pod that the
kubelet admits while no plugin serves fails for good. So schedulers are told first, and then the pods that
they have bound already are awaited. Told counts only once the API server has taken it: one that is busy may
take seconds, and pods are bound here until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.pod_charges import allocation_annotations, annotations_differ
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.services.allocation.adopt import is_predecessor_pod
from gpu_manager.services.allocation.node_state import NodeState, StateView

log = structlog.get_logger(__name__)


class AnnotationWriteback:
    """Thread-safe; returns at once."""

    def __init__(self, state: NodeState, pods: Pods, clock: Clock) -> None:
        self._state = state
        self._pods = pods
        self._clock = clock

    def tell(self, pod: Pod) -> None:
        """Annotate the pod if it has started and its annotation does not name its cards."""
        view = self._state.view
        placement, node = _placement(view, pod), view.node
        if not placement or pod.terminal:
            return
        truth = allocation_annotations(
            pod,
            node.name,
            placement,
            node.cards,
            self._clock.now(),
            assigned=True,
            numa_ids=strayed_ids(view, pod.uid),
        )
        if annotations_differ(pod, truth):
            self._pods.annotate(pod, truth)


def strayed_ids(view: StateView, pod: PodUid) -> dict[str, dict[int, tuple[int, int]]]:
    """Container → NUMA node → its ids of cores and of memory there, of containers that hold ids of other NUMA
    nodes than those of their cards: the kubelet counts them there.
    """
    numa = {state.card.uuid: state.card.numa for state in view.node.cards}
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for held in view.ledger.of_pod(pod).values():
        grant = view.grants.get(held.key)
        counts: dict[int, tuple[int, int]] = {}
        for at, resource in enumerate((CORE, MEMORY)):
            for device in grant.ids.get(resource, ()) if grant is not None else ():
                node = numa.get(view.node.ids.card_of[resource].get(device, CardUuid("")))
                if node is not None:
                    cores, units = counts.get(node, (0, 0))
                    counts[node] = (cores + (at == 0), units + (at == 1))
        if not counts.keys() <= {numa.get(card) for card in held.cards}:
            found[held.container] = dict(sorted(counts.items()))
    return found


def _placement(view: StateView, pod: Pod) -> Mapping[str, Sequence[Share]]:
    """Container → shares; empty until a container's grant is confirmed, since it may be another pod's."""
    held = view.ledger.of_pod(pod.uid)
    grants = [grant for a in held.values() if (grant := view.grants.get(a.key)) is not None]
    if not any(grant.proven or is_predecessor_pod(grant.ids) for grant in grants):
        return {}
    return {name: allocation.shares for name, allocation in held.items()}


QUIET_SECONDS = 2.0  # for schedulers to see that the agent leaves, and for their last pods to appear here
LEAVE_SECONDS = 20.0  # at most: of the 45 s that the chart gives the pod to end, of 30 without the chart
_LOOK_SECONDS = 0.1


def serve_the_last(
    state: NodeState,
    pods: Pods,
    clock: Clock,
    told: Callable[[], bool],
    *,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Return once schedulers are ``told`` and no pod has been awaited for :data:`QUIET_SECONDS`.

    False if that does not happen within :data:`LEAVE_SECONDS`.
    """
    began = since = clock.monotonic()
    while (now := clock.monotonic()) - since < QUIET_SECONDS:
        coming, heard = awaited(state, pods), told()
        if now - began >= LEAVE_SECONDS and (coming or not heard):
            log.warning("left_before_pods_were_admitted", pods=coming[:5], told=heard)
            return False
        since = now if coming or not heard else since
        pause(_LOOK_SECONDS)
    return True


def awaited(state: NodeState, pods: Pods) -> list[str]:
    """Pods that are bound to this node, request cards, and are not yet admitted by the kubelet."""
    ledger = state.view.ledger
    known = (found for named in pods.local().values() for found in named if not found.tombstone)
    return sorted(
        found.pod.key for found in known if _arriving(found.pod) and not ledger.granted(found.pod.uid)
    )


def _arriving(pod: Pod) -> bool:
    return pod.asks and not (pod.started or pod.terminal or pod.deleting)
