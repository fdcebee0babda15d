"""What of a node's host a pod asks for, and what the node gives: CPU, memory, places for pods. Pure.

Kube-scheduler decides by it, not we: the extender weighs it, what-if reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import format_bytes, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings

THOUSANDTHS: Final = 1000
_UNSAID: Final = 1 << 62  # of what a node does not say it has enough


@dataclass(frozen=True, slots=True)
class HostResources:
    """``cpu`` in thousandths, ``memory`` in bytes, ``pods`` counted."""

    cpu: int = 0
    memory: int = 0
    pods: int = 0

    def __add__(self, other: HostResources) -> HostResources:
        return HostResources(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)

    def __sub__(self, other: HostResources) -> HostResources:
        return HostResources(self.cpu - other.cpu, self.memory - other.memory, self.pods - other.pods)

    def lacks(self, asked: HostResources) -> str:
        """What of this is too little for the pod, to stand behind a node's name; empty if nothing is."""
        if asked.cpu and self.cpu < asked.cpu:
            return f"has less host CPU free than the {asked.cpu / THOUSANDTHS:g} that the pod asks for"
        if asked.memory and self.memory < asked.memory:
            return f"has less host memory free than the {format_bytes(asked.memory)} that the pod asks for"
        return "holds as many pods as it may" if self.pods < asked.pods else ""


ANY: Final = HostResources(_UNSAID, _UNSAID, _UNSAID)
ONE_POD: Final = HostResources(pods=1)


def host_of_pod(pod: Mapping[str, Any]) -> HostResources:
    """What a core/v1 Pod asks for."""
    return HostResources(asked(pod, "cpu", THOUSANDTHS), asked(pod, "memory"), 1)


def host_of_node(node: Mapping[str, Any]) -> HostResources:
    """What a core/v1 Node gives to pods; more than enough of what it does not say."""
    parts = (allocatable(node, "cpu", THOUSANDTHS), allocatable(node, "memory"), allocatable(node, "pods"))
    return HostResources(*(_UNSAID if part is None else part for part in parts))


def asked(pod: Mapping[str, Any], resource: str, parts: int = 1) -> int:
    """What the scheduler counts for the pod, in so many parts of one: its worst moment, with its sidecars and
    its overhead. A limit stands for a request that is not written, as the API server writes it.
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
    return max(worst, together) + _amount(mapping(spec.get("overhead")).get(resource), parts)


def allocatable(node: Mapping[str, Any], resource: str, parts: int = 1) -> int | None:
    """What a core/v1 Node gives to pods; None if it does not say."""
    given = mapping(mapping(node.get("status")).get("allocatable"))
    return _amount(given[resource], parts) if resource in given else None


def _of_container(container: Mapping[str, Any], resource: str, parts: int) -> int:
    resources = mapping(container.get("resources"))
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    return _amount(requests.get(resource, limits.get(resource)), parts)


def _amount(value: object, parts: int) -> int:
    """An amount that cannot be read counts as none: the API server lets none such pass."""
    try:
        return max(0, ceil(parse_quantity(value or 0) * parts))
    except RequestInvalid:
        return 0
