"""Whether a pod is admitted: every container in order, one by one, and the kubelet's own sum last."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_manager.domain.errors import VcudaError
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.domain.topology import NumaPolicy
from sandbox.kubelet.books import DeviceBooks
from sandbox.kubelet.granting import Granter
from sandbox.kubelet.pods import AdmittedPod, PodTable
from sandbox.kubelet.topology import affinity
from sandbox.kubelet.values import AdmissionResult, Asked, effective_limits


class PodAdmission:
    """Judges one pod at a time; its caller sees to that."""

    def __init__(self, books: DeviceBooks, granter: Granter, pods: PodTable, numa: NumaPolicy) -> None:
        self._books, self._granter, self._pods, self._numa = books, granter, pods, numa

    def decide(self, pod: AdmittedPod, node: Mapping[str, int]) -> AdmissionResult:
        """Grant the pod all it asks for, or say why not. ``node`` is its allocatable as last published.

        What was granted before a refusal stays in the books, as in the kubelet's.
        """
        reusable: dict[str, frozenset[str]] = {}
        for container in pod.asked:
            nodes, fits = self._affinity(pod, container, reusable)
            if not fits:
                text = "Resources cannot be allocated with Topology locality"
                return AdmissionResult(pod.uid, admitted=False, reason="TopologyAffinityError", message=text)
            try:
                self._granter.allocate(pod.uid, container.name, container.limits, reusable, nodes)
            except VcudaError as error:
                text = f"Allocate failed due to {error}, which is unexpected"
                return AdmissionResult(
                    pod.uid, admitted=False, reason="UnexpectedAdmissionError", message=text
                )
            self._leave(pod, container, reusable)
        if (short := self._short_of(pod, node)) is not None:
            return AdmissionResult(pod.uid, admitted=False, reason=short[0], message=short[1])
        return AdmissionResult(
            pod.uid,
            admitted=True,
            containers={c.name: self._granter.merged(pod.uid, c.name) for c in pod.asked},
            ids={c.name: self._held(pod, c) for c in pod.asked},
        )

    def _held(self, pod: AdmittedPod, container: Asked) -> dict[str, frozenset[str]]:
        return {r: frozenset(grant.ids) for r, grant in self._books.held(pod.uid, container.name).items()}

    def _leave(self, pod: AdmittedPod, container: Asked, reusable: dict[str, frozenset[str]]) -> None:
        """What an ordinary init container held is free for the next; sidecars and apps keep theirs."""
        for resource, ids in self._held(pod, container).items():
            before = reusable.get(resource, frozenset())
            reusable[resource] = before | ids if container.kind is ContainerKind.INIT else before - ids

    def _affinity(
        self, pod: AdmittedPod, container: Asked, reusable: Mapping[str, frozenset[str]]
    ) -> tuple[frozenset[int] | None, bool]:
        if self._numa is NumaPolicy.NONE:
            return None, True
        proposals, nodes = self._granter.proposals(pod.uid, container.name, container.limits, reusable)
        return affinity(self._numa, nodes, proposals) if proposals else (None, True)

    def _short_of(self, pod: AdmittedPod, node: Mapping[str, int]) -> tuple[str, str] | None:
        """The sum over active pods, after all calls to plugins; what the node never had is not counted."""
        holds = any(grant.pod == pod.uid for grant in self._books.holders())
        others = [p.containers for p in self._pods.active() if p.uid != pod.uid]
        for resource, count in effective_limits(pod.asked).items():
            if resource not in node:
                continue
            capacity = node[resource]
            if holds:  # the node has at least what is given away
                capacity = max(capacity, self._books.given(resource))
            used = sum(effective_limits(asked).get(resource, 0) for asked in others)
            if used + count > capacity:
                sums = f"requested: {count}, used: {used}, capacity: {capacity}"
                return f"OutOf{resource}", f"Node didn't have enough resource: {resource}, {sums}"
        return None
