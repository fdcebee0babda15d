"""What passes between the rooms of the kubelet stand-in, and between it and those who watch it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import (
    AllocateResponse,
    ContainerAllocateResponse,
    DevicePluginOptions,
)


@dataclass(frozen=True, slots=True)
class Device:
    """One id of a resource, as ListAndWatch told it. ``nodes`` are its NUMA nodes, empty when unknown."""

    id: str
    healthy: bool
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing the kubelet does with a resource of a container; hooks see it, the record keeps it.

    ``name`` is ``resource`` (it turns to this resource of the container), ``GetPreferredAllocation``,
    ``Allocate`` or ``PreStartContainer``. ``ids`` are those sent: offered, allocated or started.
    """

    name: str
    pod: str
    container: str
    resource: str
    ids: frozenset[str] = frozenset()
    must_include: frozenset[str] = frozenset()
    size: int = 0


def _nothing(_step: Step) -> None:
    pass


@dataclass(slots=True)
class Hooks:
    """Where a test or a fault injector reaches in; set them at any time.

    ``before`` and ``after`` run on the kubelet's thread around every :class:`Step`, without a lock held,
    may call anything but what admits pods (one is being admitted), and may raise a
    :class:`~gpu_manager.domain.errors.VcudaError` to make the step fail (in ``before`` of
    ``resource`` that is what a CPU or memory manager's refusal looks like: silent to the plugin).
    ``order`` replaces the random order of a container's resources.
    """

    before: Callable[[Step], None] = _nothing
    after: Callable[[Step], None] = _nothing
    order: Callable[[Sequence[str]], Sequence[str]] | None = None


class Endpoint(Protocol):
    """A plugin, once registered. Errors are NodeUnready in the kubelet's words."""

    options: DevicePluginOptions

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> frozenset[str]:
        """GetPreferredAllocation."""

    def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        """Allocate."""

    def pre_start(self, ids: Sequence[str]) -> None:
        """PreStartContainer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A container of a pod as the kubelet reads it: ``limits`` are its extended resources."""

    name: str
    kind: ContainerKind
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """What became of a pod. ``message`` is the Event's; the status has "Pod was rejected: " before it.

    ``containers`` holds what each container receives, all resources merged; ``ids`` what it holds.
    """

    uid: str
    admitted: bool
    reason: str = ""
    message: str = ""
    containers: Mapping[str, ContainerAllocateResponse] = field(default_factory=dict)
    ids: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)


class WallClock:
    """The machine's own time."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()


def containers_of(pod: Mapping[str, Any]) -> tuple[Asked, ...]:
    """The containers in the kubelet's order: init containers, then apps.

    Raises:
        RequestInvalid: a limit is no quantity.
    """
    found = []
    spec = pod.get("spec") or {}
    for group, kind in (("initContainers", ContainerKind.INIT), ("containers", ContainerKind.APP)):
        for entry in spec.get(group) or ():
            sidecar = kind is ContainerKind.INIT and entry.get("restartPolicy") == "Always"
            limits = (entry.get("resources") or {}).get("limits") or {}
            found.append(
                Asked(
                    name=str(entry["name"]),
                    kind=ContainerKind.SIDECAR if sidecar else kind,
                    limits={k: math.ceil(parse_quantity(v)) for k, v in limits.items() if is_extended(k)},
                )
            )
    return tuple(found)


def is_extended(name: str) -> bool:
    """True for names that a device plugin may register (a domain that is not Kubernetes' own)."""
    domain, slash, rest = name.partition("/")
    if not slash or not rest or not domain or "/" in rest or name.startswith("requests."):
        return False
    return not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io")) and name.isprintable()


def effective_limits(containers: Sequence[Asked]) -> dict[str, int]:
    """What the pod counts for: the largest init step with earlier sidecars, or apps with all sidecars."""
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    apps: dict[str, int] = {}
    for container in containers:
        for resource, count in container.limits.items():
            if container.kind is ContainerKind.APP:
                apps[resource] = apps.get(resource, 0) + count
            elif container.kind is ContainerKind.SIDECAR:
                sidecars[resource] = sidecars.get(resource, 0) + count
            else:
                peak[resource] = max(peak.get(resource, 0), count + sidecars.get(resource, 0))
    names = {*peak, *sidecars, *apps}
    return {r: max(peak.get(r, 0), apps.get(r, 0) + sidecars.get(r, 0)) for r in sorted(names)}


def uid_of(pod: Mapping[str, Any]) -> str:
    """The pod's UID.

    Raises:
        RequestInvalid: it has none.
    """
    uid = (pod.get("metadata") or {}).get("uid")
    if not isinstance(uid, str) or not uid:
        raise RequestInvalid("a pod without metadata.uid cannot be admitted: the API server gives it one")
    return uid
