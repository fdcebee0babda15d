"""Reduces pods and nodes to the fields that the snapshot needs, so that a large cluster's list stays
small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpu_manager.domain.contract import CORE, FEATURES, MEMORY, NVIDIA, OUR_PREFIX
from gpu_manager.domain.kube.pod import MIRROR, POD_SCHEDULED, affinity_bytes, stuck_reason
from gpu_manager.domain.rules.legal_values import MOST_AFFINITY_BYTES
from gpu_manager.domain.untrusted import mapping, mappings

_GROUPS: Final = ("initContainers", "containers")
_NAMED: Final = ("name", "namespace", "uid", "resourceVersion")
_TIMED: Final = (*_NAMED, "creationTimestamp", "deletionTimestamp")
_META: Final = (*_TIMED, "labels")
_SPEC: Final = ("nodeName", "priority", "schedulerName", "overhead", "resources")
_WISHES: Final = ("nodeSelector", "tolerations", "schedulingGates")  # of a pod that waits
_STATUS: Final = ("phase", "startTime", "nominatedNodeName")
_OTHERS: Final = ("name", "resources", "restartPolicy")
COMPONENT: Final = "app.kubernetes.io/component"
AGENT: Final = "agent"  # its value on the agents' pods
ADMISSION: Final = "admission"  # and on those of this service
_NODE_SPEC: Final = ("unschedulable", "taints")
_NODE_STATUS: Final = ("capacity", "allocatable")
_CONTAINER: Final = ("name", "resources", "securityContext", "restartPolicy")

Obj = Mapping[str, Any]


def slim_pod(obj: Obj) -> Obj | None:
    """A core/v1 Pod reduced to the fields read here; None if it is on no node and names neither a card
    resource nor a ResourceClaim.

    Of a pod on a node that requests no card, its CPU request is kept, of an agent and of a replica of this
    service also the states of its containers and its features; a pod that requests ``nvidia.com/gpu`` may
    have a card there.
    """
    meta, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    groups = {group: mappings(spec.get(group)) for group in _GROUPS}
    named = frozenset(key for group in groups.values() for container in group for key in _named(container))
    on_node = bool(spec.get("nodeName"))
    if not (named & {CORE, MEMORY} or (on_node and NVIDIA in named)):
        if not on_node:
            return _claiming(meta, spec, mapping(obj.get("status"))) if spec.get("resourceClaims") else None
        small = {name: [_picked(c, _OTHERS) for c in group] for name, group in groups.items() if group}
        component = mapping(meta.get("labels")).get(COMPONENT)
        ours = component in (AGENT, ADMISSION)
        features = _picked(mapping(meta.get("annotations")), (FEATURES,)) if ours else {}
        return {
            "metadata": {
                **_picked(meta, _NAMED),
                **({"labels": {COMPONENT: component}, "annotations": features} if ours else {}),
            },
            "spec": {**_picked(spec, ("nodeName", "overhead", "resources")), **small},
            "status": _picked(
                mapping(obj.get("status")), ("phase", "containerStatuses") if ours else ("phase",)
            ),
        }
    containers = {name: [_picked(c, _CONTAINER) for c in group] for name, group in groups.items()}
    return {
        "metadata": {
            **_picked(meta, _META),
            "ownerReferences": list(_controllers(meta)),
            "annotations": _annotations(meta),
        },
        "spec": {**_picked(spec, _SPEC), **({} if on_node else _constraints(spec)), **containers},
        "status": {
            **_picked(mapping(obj.get("status")), _STATUS),
            **({} if on_node else _unscheduled(mapping(obj.get("status")))),
            "containerStatuses": list(_stuck(mapping(obj.get("status")).get("containerStatuses"))),
            "initContainerStatuses": list(_ended(mapping(obj.get("status")).get("initContainerStatuses"))),
        },
    }


def _stuck(statuses: object) -> Iterator[Obj]:
    """The containers that do not run, each with its reason alone: the others' states change too often."""
    for one in mappings(statuses):
        state = mapping(one.get("state"))
        if reason := stuck_reason(state):
            yield {"name": one.get("name"), "state": {"waiting": {"reason": reason}}}


def _claiming(meta: Obj, spec: Obj, status: Obj) -> Obj:
    """One that waits, and uses ResourceClaims: whose they are, they say themselves."""
    return {
        "metadata": {**_picked(meta, _TIMED), "annotations": _annotations(meta)},
        "spec": _picked(spec, ("resourceClaims", "schedulerName")),
        "status": {**_picked(status, ("phase", "resourceClaimStatuses")), **_unscheduled(status)},
    }


def slim_node(obj: Obj) -> Obj:
    """A core/v1 Node reduced to the fields read here."""
    meta = mapping(obj.get("metadata"))
    return {
        "metadata": {
            **_picked(meta, ("name", "resourceVersion", "creationTimestamp")),
            "labels": mapping(meta.get("labels")),
            "annotations": _annotations(meta),
        },
        "spec": _picked(mapping(obj.get("spec")), _NODE_SPEC),
        "status": _picked(mapping(obj.get("status")), _NODE_STATUS),
    }


def _constraints(spec: Obj) -> Obj:
    """What the pod requires of nodes."""
    found = _picked(spec, _WISHES)
    node = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    if not node or affinity_bytes(spec) > MOST_AFFINITY_BYTES:  # it came past the rule
        return found
    return {**found, "affinity": {"nodeAffinity": node}}


def _unscheduled(status: Obj) -> Obj:
    """What its scheduler said of a pod that waits."""
    said = [c for c in mappings(status.get("conditions")) if c.get("type") == POD_SCHEDULED]
    return {"conditions": [_picked(c, ("type", "status", "reason", "message")) for c in said]} if said else {}


def _named(container: Obj) -> Iterator[str]:
    """The resources that it names."""
    resources = mapping(container.get("resources"))
    return (key for part in ("limits", "requests") for key in mapping(resources.get(part)))


def _ended(statuses: object) -> Iterator[Obj]:
    """Of the init containers' statuses those that say an end, and of them the exit code."""
    for one in mappings(statuses):
        state = mapping(one.get("state"))
        if "terminated" in state:
            yield {
                "name": one.get("name"),
                "state": {"terminated": _picked(mapping(state["terminated"]), ("exitCode",))},
            }


def _annotations(meta: Obj) -> Obj:
    found = mapping(meta.get("annotations"))
    return {key: value for key, value in found.items() if key.startswith(OUR_PREFIX) or key == MIRROR}


def _controllers(meta: Obj) -> Iterator[Obj]:
    for one in mappings(meta.get("ownerReferences")):
        if one.get("controller") is True and one.get("kind") != "Node":
            yield _picked(one, ("kind", "name", "controller"))


def _picked(obj: Obj, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: obj[key] for key in keys if key in obj}
