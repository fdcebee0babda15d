"""Writes the cards that a pod's containers really hold into its annotation, for the scheduler.

The annotation is written when the first container starts, and checked whenever the pod appears or changes: a
write that was pending when the agent was killed is lost, and pods of the predecessor have only its
annotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.allocation_annotations import allocation_annotations, annotations_differ
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.recovery.predecessor_pods import is_predecessor_pod


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
