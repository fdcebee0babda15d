"""The API server's rules for pods: defaults, extended resources, what may change, binding, grace, budgets.

Pure functions over JSON values; wording and codes follow Kubernetes 1.36 (pkg/apis/core/validation,
pkg/registry/core/pod).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import parse_quantity
from sandbox.api.selectors import selector_object
from sandbox.api.status import ApiError, bad_request, conflict, invalid

Obj = dict[str, Any]

_POD_DEFAULTS: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "enableServiceLinks": True,
}
_CONTAINER_DEFAULTS: Mapping[str, Any] = {
    "imagePullPolicy": "IfNotPresent",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}


def set_defaults(obj: Obj) -> None:
    """Fill in, in place, what the API server fills in before any webhook sees the pod.

    Raises:
        ApiError: 400, a quantity is none or the spec has not the shape of one.
    """
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        raise invalid("Pod", str(obj["metadata"]["name"]), "spec", "Required value")
    for key, value in _POD_DEFAULTS.items():
        spec.setdefault(key, value)
    for path, container in _containers(spec):
        if not isinstance(container, dict):
            raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {path} is no object')
        for key, value in _CONTAINER_DEFAULTS.items():
            container.setdefault(key, value)
        resources = container.setdefault("resources", {})
        limits = _numbers(path, resources.get("limits"))
        if limits:  # requests default to limits, for every resource
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        _numbers(path, resources.get("requests"))
    status: Obj = {"phase": "Pending", "qosClass": "BestEffort"}
    if spec.get("schedulingGates"):
        why = {
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        status["conditions"] = [{"type": "PodScheduled", "status": "False", **why}]
    obj["status"] = status


def _numbers(path: str, quantities: Any) -> Obj:
    """Quantities always leave the API server as text."""
    for name, value in (quantities or {}).items():
        try:
            parse_quantity(value)
        except RequestInvalid as error:
            raise bad_request(
                f'Pod in version "v1" cannot be handled as a Pod: {path}.{name}: {error}'
            ) from None
        quantities[name] = str(value)
    return quantities or {}


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield f"spec.{group}[{index}]", container


def validate(obj: Mapping[str, Any]) -> None:
    """Judge a pod with its defaults. Raises 422 for what the API server's validation refuses."""
    name, spec = str(obj["metadata"]["name"]), obj["spec"]
    if not spec.get("containers"):
        raise invalid("Pod", name, "spec.containers", "Required value")
    seen: set[str] = set()
    for path, container in _containers(spec):
        if not container.get("name"):
            raise invalid("Pod", name, f"{path}.name", "Required value")
        if container["name"] in seen:
            raise invalid("Pod", name, f"{path}.name", f'Duplicate value: "{container["name"]}"')
        seen.add(container["name"])
        _validate_resources(name, f"{path}.resources", container["resources"])
    if spec.get("schedulingGates") and spec.get("nodeName"):
        raise invalid(
            "Pod", name, "spec.nodeName", "cannot be set until all schedulingGates have been cleared"
        )


def _validate_resources(pod: str, path: str, resources: Mapping[str, Any]) -> None:
    limits, requests = (
        {name: parse_quantity(value) for name, value in (resources.get(where) or {}).items()}
        for where in ("limits", "requests")
    )
    for where, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            _validate_quantity(pod, f"{path}.{where}[{name}]", name, value)
    for name, value in requests.items():
        extended, limit = is_extended(name), limits.get(name)
        if limit is None and extended:
            raise invalid(
                "Pod",
                pod,
                f"{path}.limits",
                "Required value: Limit must be set for non overcommitable resources",
            )
        if limit is not None and extended and value != limit:
            why = f'Invalid value: "{value}": must be equal to {name} limit of {limit}'
            raise invalid("Pod", pod, f"{path}.requests", why)
        if limit is not None and value > limit:
            why = f'Invalid value: "{value}": must be less than or equal to {name} limit of {limit}'
            raise invalid("Pod", pod, f"{path}.requests", why)


def is_extended(name: str) -> bool:
    """True for resources outside Kubernetes' own names: whole numbers, never over-committed."""
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


def _validate_quantity(pod: str, field: str, name: str, value: Fraction) -> None:
    if value < 0:
        raise invalid("Pod", pod, field, f'Invalid value: "{value}": must be greater than or equal to 0')
    if is_extended(name) and value.denominator != 1:
        raise invalid("Pod", pod, field, f'Invalid value: "{_canonical(value)}": must be an integer')


def _canonical(value: Fraction) -> str:
    """A fraction as Kubernetes writes it: in thousandths, or smaller where it must be."""
    for scale, suffix in ((10**3, "m"), (10**6, "u")):
        if (value * scale).denominator == 1:
            return f"{value * scale}{suffix}"
    return f"{math.ceil(value * 10**9)}n"


_CHANGEABLE = "activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates"


def judge_update(old: Mapping[str, Any], new: Obj) -> None:
    """Refuse a changed spec, except for the few fields that a pod may change."""
    name = str(old["metadata"]["name"])
    was, now = old["spec"], new.get("spec") or {}
    for path, container in _containers(now):
        for numbers in (container.get("resources") or {}).values() if isinstance(container, dict) else ():
            _numbers(path, numbers if isinstance(numbers, dict) else None)
    left = [gate["name"] for gate in now.get("schedulingGates") or ()]
    if not set(left) <= {gate["name"] for gate in was.get("schedulingGates") or ()}:
        raise invalid("Pod", name, "spec.schedulingGates", "Forbidden: only deletion is allowed")
    if _fixed_part(was) != _fixed_part(now):
        allowed = "`spec.containers[*].image`, `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, "
        allowed += "`spec.tolerations` (only additions), `spec.terminationGracePeriodSeconds`"
        raise invalid(
            "Pod", name, "spec", f"Forbidden: pod updates may not change fields other than {allowed}"
        )


def _fixed_part(spec: Mapping[str, Any]) -> Obj:
    fixed = {key: value for key, value in spec.items() if key not in _CHANGEABLE}
    for group in ("initContainers", "containers"):
        if spec.get(group):
            fixed[group] = [{k: v for k, v in c.items() if k != "image"} for c in spec[group]]
    return fixed


def bound(pod: Mapping[str, Any], binding: Mapping[str, Any], now: str) -> Obj:
    """The pod as a Binding leaves it: annotations and nodeName in one write.

    Raises:
        ApiError: 409 if the UID or version is another, the pod is bound, gated or going; 422 for no target.
    """
    meta, wanted = pod["metadata"], binding.get("metadata") or {}
    name, node = str(meta["name"]), str((binding.get("target") or {}).get("name") or "")
    kind = (binding.get("target") or {}).get("kind", "Node")
    if kind not in ("", "Node"):
        words = f'target.kind: Unsupported value: "{kind}": supported values: "Node", "<empty>"'
        raise ApiError(500, "", words)  # the API server's validation of Bindings is no Status of its own
    if not node:
        raise ApiError(500, "", "target.name: Required value")
    check_preconditions("pods", name, meta, wanted)
    if meta.get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        why = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        raise conflict("pods/binding", name, why)
    if pod["spec"].get("schedulingGates"):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    metadata = dict(meta)
    if wanted.get("annotations"):
        metadata["annotations"] = {**(meta.get("annotations") or {}), **wanted["annotations"]}
    status = dict(pod.get("status") or {})
    conditions = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    status["conditions"] = [
        *conditions,
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
    ]
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": node}, "status": status}


def check_preconditions(plural: str, name: str, meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Hold ``uid`` and ``resourceVersion`` of ``wanted``, where given, against the object's."""
    _check_uid(plural, name, meta, wanted)
    if wanted.get("resourceVersion") and str(wanted["resourceVersion"]) != meta["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(plural, name, why)


def check_deletion(kind: str, name: str, meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """The same for a deletion, which is refused in other words."""
    for key, title in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(key) and str(wanted[key]) != meta[key]:
            pair = f"the {title} in the precondition ({wanted[key]}) does not match the {title} in record"
            why = f"{pair} ({meta[key]}). The object might have been deleted and then recreated"
            raise conflict(kind, name, why)


def _check_uid(plural: str, name: str, meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """A conflict in the words of the API server's storage."""
    if wanted.get("uid") and wanted["uid"] != meta["uid"]:
        place = "/".join(filter(None, ("/registry", plural, meta.get("namespace"), name)))
        why = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {meta['uid']}"
        where = f"StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0"
        raise conflict(plural, name, f"{where}, AdditionalErrorMsg: {why}")


def grace_seconds(pod: Mapping[str, Any], asked: int | None) -> int:
    """How long a deleted pod stays: 0 if no kubelet has to be waited for."""
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    default = pod["spec"].get("terminationGracePeriodSeconds")
    return max(0, asked if asked is not None else 30 if default is None else int(default))


def refuse_eviction(
    pod: Mapping[str, Any], budgets: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
) -> None:
    """Raise 429 if a disruption budget of the pod's namespace allows no more; 500 if several select it."""
    if (pod.get("status") or {}).get("phase") != "Running" or pod["metadata"].get("deletionTimestamp"):
        return
    mine = [b for b in budgets if selector_object((b.get("spec") or {}).get("selector"))(pod)]
    if len(mine) > 1:
        message = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise ApiError(500, "InternalError", message)
    if not mine:
        return
    healthy, needed = _budget(mine[0], pods)
    if healthy - needed < 1:
        name = mine[0]["metadata"]["name"]
        words = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        cause = {"reason": "DisruptionBudget", "message": words}
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        raise ApiError(429, "TooManyRequests", message, causes=[cause])


def _budget(budget: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many of its pods are healthy, and how many must stay so."""
    spec = budget.get("spec") or {}
    matches = selector_object(spec.get("selector"))
    chosen = [
        p for p in pods if matches(p) and (p.get("status") or {}).get("phase") in ("Pending", "Running")
    ]
    healthy = sum(
        1 for p in chosen if p["status"]["phase"] == "Running" and not p["metadata"].get("deletionTimestamp")
    )
    if spec.get("maxUnavailable") is not None:
        return healthy, len(chosen) - _count(spec["maxUnavailable"], len(chosen))
    return healthy, _count(spec.get("minAvailable", 1), len(chosen))


def _count(value: Any, total: int) -> int:
    text = str(value)
    return math.ceil(total * int(text[:-1]) / 100) if text.endswith("%") else int(text)
