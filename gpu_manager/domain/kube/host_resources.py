"""What a pod requests of a node beside its cards, and what the node has: CPU, memory, pod slots, ids. Pure.

Kube-scheduler decides by them. The extender only uses them in its scores, and what-if reports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import format_bytes, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings

THOUSANDTHS: Final = 1000
_OF_WHOLE_PODS: Final = ("cpu", "memory")  # which Kubernetes lets a pod request as a whole
_UNSAID: Final = 1 << 62  # a resource that a node does not report is taken as plentiful


@dataclass(frozen=True, slots=True)
class HostResources:
    """``cpu`` in thousandths of a core, ``memory`` in bytes, ``pods`` as a number.

    ``core_ids`` and ``memory_ids`` are device ids of the kubelet: where pods shrank, fewer are left than the
    cards have room for.
    """

    cpu: int = 0
    memory: int = 0
    pods: int = 0
    core_ids: int = 0
    memory_ids: int = 0

    def __add__(self, other: HostResources) -> HostResources:
        return HostResources(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.pods + other.pods,
            self.core_ids + other.core_ids,
            self.memory_ids + other.memory_ids,
        )

    def __sub__(self, other: HostResources) -> HostResources:
        return HostResources(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.pods - other.pods,
            self.core_ids - other.core_ids,
            self.memory_ids - other.memory_ids,
        )

    def lacks(self, asked: HostResources) -> str:
        """Resources that are too small for the pod, as a phrase after a node's name; empty if none is."""
        if asked.cpu and self.cpu < asked.cpu:
            return f"has less host CPU free than the {asked.cpu / THOUSANDTHS:g} that the pod asks for"
        if asked.memory and self.memory < asked.memory:
            return f"has less host memory free than the {format_bytes(asked.memory)} that the pod asks for"
        return "holds as many pods as it may" if self.pods < asked.pods else ""

    def lacks_ids(self, asked: HostResources) -> str:
        """Device ids that are too few for the pod, as a phrase after a node's name; empty if none are."""
        ids = ((CORE, self.core_ids, asked.core_ids), (MEMORY, self.memory_ids, asked.memory_ids))
        for resource, left, wanted in ids:
            if wanted and left < wanted:
                return f"has {max(0, left)} device ids of {resource} left, and the pod asks for {wanted}"
        return ""


ANY: Final = HostResources(_UNSAID, _UNSAID, _UNSAID, _UNSAID, _UNSAID)
ONE_POD: Final = HostResources(pods=1)


def host_of_pod(pod: Mapping[str, Any]) -> HostResources:
    """What a core/v1 Pod requests."""
    ids = asked(pod, CORE), asked(pod, MEMORY)
    return HostResources(asked(pod, "cpu", THOUSANDTHS), asked(pod, "memory"), 1, *ids)


def host_of_node(node: Mapping[str, Any]) -> HostResources:
    """What a core/v1 Node offers to pods; resources that it does not report are plentiful."""
    names = ("memory", "pods", CORE, MEMORY)
    parts = (allocatable(node, "cpu", THOUSANDTHS), *(allocatable(node, name) for name in names))
    return HostResources(*(_UNSAID if part is None else part for part in parts))


def asked(pod: Mapping[str, Any], resource: str, parts: int = 1) -> int:
    """The pod's effective request as kube-scheduler counts it, in ``1 / parts`` of the resource's unit.

    That is the peak over init and app containers, with sidecars and overhead; for CPU and memory the
    pod-level request, if there is one. A limit stands for a missing request, as in the API server's
    defaulting.
    """
    spec = mapping(pod.get("spec"))
    together, worst = 0, 0
    for container in mappings(spec.get("initContainers")):
        amount = _of_container(container, resource, parts)
        if container.get("restartPolicy") == "Always":
            together += amount
            worst = max(worst, together)
        else:
            worst = max(worst, together + amount)
    for container in mappings(spec.get("containers")):
        together += _of_container(container, resource, parts)
    own = max(worst, together)
    of_pod = mapping(mapping(spec.get("resources")).get("requests"))
    if resource in _OF_WHOLE_PODS and (resource in of_pod or not own):
        own = _of_container(spec, resource, parts)
    return own + _amount(mapping(spec.get("overhead")).get(resource), parts)


def allocatable(node: Mapping[str, Any], resource: str, parts: int = 1) -> int | None:
    """The allocatable amount of a core/v1 Node; None if it does not report any."""
    given = mapping(mapping(node.get("status")).get("allocatable"))
    return _amount(given[resource], parts) if resource in given else None


def _of_container(container: Mapping[str, Any], resource: str, parts: int) -> int:
    resources = mapping(container.get("resources"))
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    return _amount(requests.get(resource, limits.get(resource)), parts)


def _amount(value: object, parts: int) -> int:
    """A quantity as a number; a malformed one, which the API server would refuse, counts as 0."""
    try:
        return max(0, ceil(parse_quantity(value or 0) * parts))
    except RequestInvalid:
        return 0
