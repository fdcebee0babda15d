"""Tells the scheduler which cards a pod's containers hold: our annotation, with the truth.

A pod gets it when its first container starts. It is looked at again whenever the pod is there or changes:
what was to be written when the agent was killed is lost otherwise, and pods that the predecessor started long
ago have only the predecessor's word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_manager.domain.placement.allocation_annotations import allocation_annotations, annotations_differ
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.pod import Pod
from gpu_manager.ports import Clock, Pods
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.recovery.predecessor_pods import is_predecessor_pod


class AnnotationWriteback:
    """Thread-safe; returns at once."""

    def __init__(self, state: NodeState, pods: Pods, clock: Clock) -> None:
        self._state = state
        self._pods = pods
        self._clock = clock

    def tell(self, pod: Pod) -> None:
        """Annotate the pod if it has started and the annotation does not say where it lies."""
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
    """Container → shares; nothing before a container has been proven: it may be another's yet."""
    held = view.ledger.of_pod(pod.uid)
    grants = [grant for a in held.values() if (grant := view.grants.get(a.key)) is not None]
    if not any(grant.proven or is_predecessor_pod(grant.ids) for grant in grants):
        return {}
    return {name: allocation.shares for name, allocation in held.items()}
