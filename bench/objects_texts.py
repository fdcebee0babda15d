"""The objects of the group ``objects`` as JSON text: hostile ones, large ones, and honest ones among them.

What is hostile in them is what a real API server stores (tests/agreement/api_reads.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench.api_process import other, pod
from gpu_manager.domain.contract import NAMESPACE
from tests.agreement.api_reads import FIELDS, PARAMETERS

_HOSTILE_BYTES: Final = 120 << 10  # 10,000 objects of these sizes are what an etcd of 2 GiB has room for
_LARGE_BYTES: Final = 1_200 << 10
_ENTRY: Final = {
    "manager": "m",
    "operation": "Update",
    "apiVersion": "v1",
    "fieldsType": "FieldsV1",
    "time": "2026-01-01T00:00:00Z",
    "fieldsV1": "here",
}
_CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@dataclass(frozen=True, slots=True)
class Written:
    """An object, where it is created, and what writes it out with such metadata."""

    obj: Mapping[str, Any]
    place: str
    write: Callable[[Mapping[str, Any]], bytes]


def made(kind: str, number: int) -> Written:
    """``kind``: hostile, node, claim, large, affine, waiting, replica, honest."""
    name = f"{kind}-{number}"
    fields = list(FIELDS.values())[number % len(FIELDS)]
    if kind == "hostile":
        return _pod(other(name, "n1"), fields, _HOSTILE_BYTES)
    if kind == "large":
        return _pod(other(name, "n1"), b"{}", _LARGE_BYTES)
    if kind == "node":
        obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        return Written(obj, "/api/v1/nodes", lambda meta: _text({**obj, "metadata": _marked(meta)}, fields))
    if kind == "claim":
        parameters = list(PARAMETERS.values())[number % len(PARAMETERS)]
        claim = _claim(name)
        return Written(claim, _CLAIMS, lambda meta: _text({**claim, "metadata": meta}, parameters))
    if kind == "replica":  # the pod of an admission service
        obj = other(name, "n2")
        obj["metadata"]["namespace"] = NAMESPACE
        return Written(
            obj,
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            lambda meta: json.dumps({**obj, "metadata": meta}).encode(),
        )
    plain = {"affine": _affine, "waiting": lambda name: pod(f"zz-{name}", 30, 20)}.get(
        kind, lambda name: other(name, "n1")
    )(name)
    return Written(plain, _PODS, lambda meta: json.dumps({**plain, "metadata": meta}).encode())


_PODS: Final = "/api/v1/namespaces/default/pods"


def _pod(obj: dict[str, Any], fields: bytes, size: int) -> Written:
    spec = json.dumps(obj["spec"]).encode()
    room = size - len(fields) - len(spec) - 600

    def write(meta: Mapping[str, Any]) -> bytes:
        arguments = b'"name": "main", "args": ["%b"]' % (b"x" * max(0, room))
        text = _text({**obj, "metadata": _marked(meta)}, fields)
        return text.replace(b'"name": "main"', arguments, 1)

    return Written(obj, _PODS, write)


def _marked(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {**meta, "managedFields": [_ENTRY]}


def _text(obj: Mapping[str, Any], written: bytes) -> bytes:
    return json.dumps(obj).encode().replace(b'"here"', written, 1)


def _claim(name: str) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "elsewhere.example.com"}}
    config = {"opaque": {"driver": "elsewhere.example.com", "parameters": "here"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request], "config": [config]}},
    }


def _affine(name: str) -> dict[str, Any]:
    """A pod that waits for cards and lists nodes in 0.8 MiB, made before a rule forbade that."""
    obj = pod(name, 10, 1)
    values = [f"{name}-{number:06d}" for number in range(45_000)]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    obj["spec"]["affinity"] = {"nodeAffinity": required}
    return obj
