"""Plans under a NUMA policy: the kubelet's ids move containers to other cards than were chosen for them.

A pod that is bound here keeps a plan, so that nobody who is moved takes its room. Where a pod is planned or
granted elsewhere than its annotation says, the annotation is corrected at once: the scheduler counts it
there, and sends nobody to cards that only seem free. Without a policy nobody moves, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_manager.domain.placement.allocation_annotations import allocation_annotations
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.pods import Pods
from gpu_manager.services.allocation.annotation_writeback import strayed_ids
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.planner import assignment_of


class NumaPlans:
    """Thread-safe; returns at once."""

    def __init__(self, state: NodeState, pods: Pods, clock: Clock) -> None:
        self._state, self._pods, self._clock = state, pods, clock
        self._told: dict[PodUid, dict[str, str]] = {}

    def renew(self) -> None:
        """Plan the pods that are bound here and have no plan: when they came, their cards were still held."""
        if not self._moves():
            return
        view = self._state.view
        waiting = [
            pod
            for pod in self._bound()
            if not view.ledger.of_pod(pod.uid) and not pod.deleting and not pod.started
        ]
        if waiting:
            living = {pod.uid for pod in self._bound() if not pod.deleting}
            self._state.plan_waiting(waiting, living)

    def tell(self) -> None:
        """Annotate the pods that have not started whose cards, or NUMA nodes of ids, are not those that their
        annotation names.
        """
        if not self._moves():
            return
        view = self._state.view
        there: set[PodUid] = set()
        for pod in self._bound():
            there.add(pod.uid)
            named, held = assignment_of(view.node, pod), view.ledger.of_pod(pod.uid)
            grants = (view.grants.get(one.key) for one in held.values())
            asking = {c.name for c in pod.containers if c.asks}
            if named is None or held.keys() != asking or any(grant and grant.proven for grant in grants):
                continue
            strayed = strayed_ids(view, pod.uid)
            cards = {name: {card for card, _ in shares} for name, shares in named.containers.items()}
            if cards == {name: set(one.cards) for name, one in held.items()} and named.numa_ids == strayed:
                self._told.pop(pod.uid, None)
                continue
            placement = {name: one.shares for name, one in held.items()}
            written = allocation_annotations(
                pod,
                view.node.name,
                placement,
                view.node.cards,
                self._clock.now(),
                assigned=False,
                numa_ids=strayed,
            )
            if self._told.get(pod.uid) != written:
                self._told[pod.uid] = written
                self._pods.annotate(pod, written)
        self._told = {uid: told for uid, told in self._told.items() if uid in there}

    def _moves(self) -> bool:
        return self._state.node.topology.numa_policy is not NumaPolicy.NONE

    def _bound(self) -> Iterator[Pod]:
        for found in self._pods.local().values():
            for known in found:
                if known.pod.asks and not known.tombstone and not known.pod.terminal:
                    yield known.pod
