"""Tells the scheduler which cards the predecessor's containers hold: our annotation, with the truth.

Our own containers get it when they start. Those of the predecessor started long ago, and until their pods
carry it the scheduler knows what they hold, but not of which card.
"""

from __future__ import annotations

from gpu_manager.domain.pod import Pod
from gpu_manager.domain.stamp import differs, stamps
from gpu_manager.ports import Clock, Pods
from gpu_manager.services.allocator import Allocator
from gpu_manager.services.inheritance import is_inherited


class Heirs:
    """``seen`` for each pod of this node whenever it is there or changes; returns at once."""

    def __init__(self, allocator: Allocator, pods: Pods, clock: Clock) -> None:
        self._allocator = allocator
        self._pods = pods
        self._clock = clock

    def seen(self, pod: Pod) -> None:
        """Annotate the pod if a container of it was inherited and the annotation does not say so yet."""
        placement, node = self._allocator.read(
            lambda books, node: (
                {
                    grant.allocation.container: grant.allocation.shares
                    for grant in books.grants.values()
                    if grant.allocation.pod == pod.uid and is_inherited(grant.ids)
                },
                node,
            )
        )
        if not placement or pod.terminal:
            return
        truth = stamps(pod, node.name, placement, node.cards, self._clock.now(), assigned=True)
        if differs(pod, truth):
            self._pods.annotate(pod, truth)
