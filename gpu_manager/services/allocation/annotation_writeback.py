"""Writes the cards that a pod's containers really hold into its annotation, for the scheduler.

The annotation is written when the first container starts, and checked whenever the pod appears or changes: a
write that was pending when the agent was killed is lost, and pods of the predecessor have only its
annotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_manager.domain.placement.allocation_annotations import allocation_annotations, annotations_differ
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.pod import Pod
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.pods import Pods
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
            pod, node.name, placement, node.cards, self._clock.now(), assigned=True
        )
        if annotations_differ(pod, truth):
            self._pods.annotate(pod, truth)


def _placement(view: StateView, pod: Pod) -> Mapping[str, Sequence[Share]]:
    """Container → shares; empty until a container's grant is confirmed, since it may be another pod's."""
    held = view.ledger.of_pod(pod.uid)
    grants = [grant for a in held.values() if (grant := view.grants.get(a.key)) is not None]
    if not any(grant.proven or is_predecessor_pod(grant.ids) for grant in grants):
        return {}
    return {name: allocation.shares for name, allocation in held.items()}
