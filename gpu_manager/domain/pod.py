"""A pod as the domain sees it: who it is, what its containers ask for, in which phases they run.

Everything here is read from an untrusted Kubernetes object by :func:`parse_pod` and never again
looked up in a dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, NewType

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import parse_quantity

PodUid = NewType("PodUid", str)


class ContainerKind(Enum):
    """When a container runs: ordinary init containers one by one, sidecars from their turn on, apps last."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Container:
    """What one container wrote, as exact numbers; :mod:`gpu_manager.domain.rules` judges it.

    ``core`` is hundredths of a card, ``memory_units`` counts units; ``None`` means not written.
    """

    name: str
    kind: ContainerKind
    core: Fraction | None = None
    memory_units: Fraction | None = None
    core_request: Fraction | None = None
    memory_units_request: Fraction | None = None
    privileged: bool = False
    running: bool = False
    runtime_id: str = ""  # the container id without its "containerd://", once the runtime made it

    @property
    def asks(self) -> bool:
        """True if it asks for any part of a card."""
        return bool(self.core or self.memory_units)

    def wants(self, resource: str) -> int:
        """The whole number of ids of ``resource`` the kubelet will ask for (0 for none)."""
        value = {CORE: self.core, MEMORY: self.memory_units}[resource]
        return int(value) if value is not None and value.denominator == 1 and value > 0 else 0


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod object. ``containers`` stand in the kubelet's order: init containers, then apps."""

    uid: PodUid
    namespace: str
    name: str
    containers: tuple[Container, ...]
    node: str = ""
    phase: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    started: bool = False  # status.startTime is set: the kubelet has admitted it once
    controlled: bool = False  # a controller makes a new one when this goes
    priority: int = 0
    scheduler: str = ""
    created: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, for people; books are keyed by ``uid``."""
        return f"{self.namespace}/{self.name}"

    @property
    def asks(self) -> bool:
        """True if any container asks for a part of a card."""
        return any(c.asks for c in self.containers)

    @property
    def terminal(self) -> bool:
        """True once all its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    def container(self, name: str) -> Container | None:
        """The container of that name, or None."""
        return next((c for c in self.containers if c.name == name), None)


def parse_pod(obj: Mapping[str, Any]) -> Pod:
    """Read a core/v1 Pod in its JSON form (wire names).

    Raises:
        RequestInvalid: a quantity of ours is none, or the object has not the shape of a pod.
    """
    try:
        meta, spec, status = obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}
        statuses = {
            str(s.get("name", "")): s
            for group in ("containerStatuses", "initContainerStatuses")
            for s in status.get(group) or ()
        }
        return Pod(
            uid=PodUid(str(meta.get("uid") or "")),
            namespace=str(meta.get("namespace") or "default"),
            name=str(meta.get("name") or meta.get("generateName") or ""),
            containers=tuple(_containers(spec, statuses)),
            node=str(spec.get("nodeName") or ""),
            phase=str(status.get("phase") or ""),
            annotations={str(k): str(v) for k, v in (meta.get("annotations") or {}).items()},
            labels={str(k): str(v) for k, v in (meta.get("labels") or {}).items()},
            deleting=bool(meta.get("deletionTimestamp")),
            started=bool(status.get("startTime")),
            controlled=any(o.get("controller") for o in meta.get("ownerReferences") or ()),
            priority=int(spec.get("priority") or 0),
            scheduler=str(spec.get("schedulerName") or ""),
            created=str(meta.get("creationTimestamp") or ""),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise RequestInvalid(f"this object is not a pod: {error}") from error


def _containers(spec: Mapping[str, Any], statuses: Mapping[str, Any]) -> Iterator[Container]:
    for group, plain in (("initContainers", ContainerKind.INIT), ("containers", ContainerKind.APP)):
        for entry in spec.get(group) or ():
            sidecar = plain is ContainerKind.INIT and entry.get("restartPolicy") == "Always"
            name = str(entry.get("name") or "")
            resources = entry.get("resources") or {}
            state = statuses.get(name) or {}
            limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
            yield Container(
                name=name,
                kind=ContainerKind.SIDECAR if sidecar else plain,
                core=_quantity(limits, CORE, name, "limits"),
                memory_units=_quantity(limits, MEMORY, name, "limits"),
                core_request=_quantity(requests, CORE, name, "requests"),
                memory_units_request=_quantity(requests, MEMORY, name, "requests"),
                privileged=bool((entry.get("securityContext") or {}).get("privileged")),
                running=bool((state.get("state") or {}).get("running")),
                runtime_id=str(state.get("containerID") or "").rpartition("://")[2],
            )


def _quantity(values: Mapping[str, Any], key: str, container: str, where: str) -> Fraction | None:
    if values.get(key) is None:
        return None
    try:
        return parse_quantity(values[key])
    except RequestInvalid as error:
        raise RequestInvalid(f'container "{container}": {where} {key}: {error}') from error
