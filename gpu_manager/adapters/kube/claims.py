"""ResourceClaims, their templates and the node's ResourceSlice at the API server (resource.k8s.io/v1).

Templates are written for pods that are turned into claims.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from gpu_manager.adapters.kube.connection import ABSENT, CONFLICT, Connection, segment
from gpu_manager.adapters.kube.reading import list_all
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import AllocatedClaim, parse_allocated_claim
from gpu_manager.domain.dra.device import SharedDevice
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, text

_API: Final = "/apis/resource.k8s.io/v1"
_SLICES: Final = f"{_API}/resourceslices"
_LONGEST_NODE: Final = 200  # of a node's name, in the name of its slice


class KubeClaims:
    """:class:`gpu_manager.ports.api_server.Claims`. ``unit`` is bytes of one unit of memory."""

    def __init__(self, connection: Connection, unit: int) -> None:
        self._connection = connection
        self._unit = unit

    def read(self, namespace: str, name: str) -> AllocatedClaim | None:
        """See :meth:`gpu_manager.ports.api_server.Claims.read`."""
        path = f"{_API}/namespaces/{segment(namespace)}/resourceclaims/{segment(name)}"
        found = self._connection.read(f"read the claim {namespace}/{name}", path)
        return None if found is None else parse_allocated_claim(found, self._unit)

    def allocated(self, pool: str) -> Mapping[str, str]:
        """See :meth:`gpu_manager.ports.api_server.Claims.allocated`."""
        found: dict[str, str] = {}
        for claim in list_all(self._connection, "list resourceclaims", f"{_API}/resourceclaims"):
            meta = mapping(claim.get("metadata"))
            allocation = mapping(mapping(claim.get("status")).get("allocation"))
            for one in mappings(mapping(allocation.get("devices")).get("results")):
                ours = (one.get("driver"), one.get("pool")) == (DRA_DRIVER, pool)
                if ours and one.get("adminAccess") is not True:
                    name = f"{text(meta.get('namespace'))}/{text(meta.get('name'))}"
                    found.setdefault(text(one.get("device")), name)
        return found


class KubeSlices:
    """:class:`gpu_manager.ports.api_server.Slices`: one ResourceSlice, in a pool of the node's name.

    One object, so that an update is never seen in part: the scheduler allocates nothing of a pool of which
    it does not see all slices of the newest generation.
    """

    def __init__(self, connection: Connection, node: str) -> None:
        self._connection = connection
        self._node = node
        self._name = f"{node[:_LONGEST_NODE].rstrip('-.')}-{DRA_DRIVER}"
        self._uid = ""

    def publish(self, devices: Sequence[SharedDevice]) -> bool:
        """See :meth:`gpu_manager.ports.api_server.Slices.publish`."""
        wanted = [device.as_json() for device in devices]
        found = {text(mapping(one.get("metadata")).get("name")): one for one in self._ours()}
        there = found.pop(self._name, None)
        if there is not None and not found and _same(wanted, _devices(there)) and _is_complete(there):
            return False
        generation = max((_generation(one) for one in (there, *found.values())), default=0) + 1
        written = self._write(there, wanted, generation)
        for name in found:  # a second slice of the pool would make it incomplete
            self._delete(name)
        _check_kept(wanted, _devices(written))
        return True

    def _ours(self) -> list[Mapping[str, Any]]:
        query = {"fieldSelector": f"spec.driver={DRA_DRIVER},spec.nodeName={self._node}"}
        return list(list_all(self._connection, "list resourceslices", _SLICES, query))

    def _write(
        self, there: Mapping[str, Any] | None, devices: list[dict[str, Any]], generation: int
    ) -> Mapping[str, Any]:
        spec = {
            "driver": DRA_DRIVER,
            "nodeName": self._node,
            "pool": {"name": self._node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        }
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}
        what = f"publish the devices of node {self._node}"
        if there is None:
            meta = {"name": self._name, "ownerReferences": [self._owner()]}
            return self._connection.request(what, "POST", _SLICES, body={**body, "metadata": meta})
        path = f"{_SLICES}/{segment(self._name)}"
        return self._connection.request(
            what, "PUT", path, body={**body, "metadata": dict(mapping(there.get("metadata")))}
        )

    def _owner(self) -> Mapping[str, Any]:
        """The Node: its slice goes with it."""
        if not self._uid:
            path = f"/api/v1/nodes/{segment(self._node)}"
            node = self._connection.request(f"read the node {self._node}", "GET", path)
            self._uid = text(mapping(node.get("metadata")).get("uid"))
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._uid, "controller": True}

    def _delete(self, name: str) -> None:
        path = f"{_SLICES}/{segment(name)}"
        self._connection.write(f"delete the resourceslice {name}", "DELETE", path, missed=(ABSENT,))


def _same(wanted: object, stored: object) -> bool:
    """True if the API server would store the one as the other: it writes quantities in its own form, and adds
    the time to a taint.
    """
    if isinstance(wanted, Mapping) and isinstance(stored, Mapping):
        kept = {key: value for key, value in stored.items() if key != "timeAdded"}
        return wanted.keys() == kept.keys() and all(_same(value, kept[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(stored, list):
        return len(wanted) == len(stored) and all(map(_same, wanted, stored))
    if isinstance(wanted, str) and isinstance(stored, str) and wanted != stored:
        try:
            return parse_quantity(wanted) == parse_quantity(stored)
        except RequestInvalid:
            return False
    return wanted == stored and type(wanted) is type(stored)


def _devices(slice_: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return mappings(mapping(slice_.get("spec")).get("devices"))


def _is_complete(slice_: Mapping[str, Any]) -> bool:
    pool = mapping(mapping(slice_.get("spec")).get("pool"))
    return pool.get("resourceSliceCount") == 1


def _generation(slice_: Mapping[str, Any] | None) -> int:
    pool = mapping(mapping(mapping(slice_ or {}).get("spec")).get("pool"))
    value = pool.get("generation")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _check_kept(wanted: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> None:
    """An API server drops the fields of features that are off, without a word."""
    for asked, stored in zip(wanted, kept, strict=False):
        policies = [mapping(one).get("requestPolicy") for one in mapping(stored.get("capacity")).values()]
        if stored.get("allowMultipleAllocations") is not True or not all(policies):
            raise NodeUnready(
                "the API server dropped what lets claims share a card: gate DRAConsumableCapacity is off: "
                "switch it on (it is from Kubernetes 1.36 on), or use --front plugin"
            )
        if asked.get("taints") and not stored.get("taints"):
            raise NodeUnready(
                "the API server dropped the taints of closed cards: its gate DRADeviceTaints is off; "
                "switch it on (it is from Kubernetes 1.36 on), or use --front plugin"
            )
    if len(kept) != len(wanted):
        raise NodeUnready(f"the API server kept {len(kept)} of {len(wanted)} devices")


_LIVING: Final = "status.phase!=Succeeded,status.phase!=Failed"


class KubeClaimTemplates:
    """``admission.cluster.claim_templates.TemplateApi``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, namespace: str, body: Mapping[str, Any]) -> bool:
        """See ``TemplateApi.create``."""
        template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", **body}
        what = f"create a ResourceClaimTemplate in namespace {namespace}"
        made = self._connection.write(what, "POST", _templates(namespace), template, missed=(CONFLICT,))
        return made is not None

    def annotate(self, namespace: str, name: str, annotations: Mapping[str, str]) -> bool:
        """See ``TemplateApi.annotate``."""
        what = f"annotate the ResourceClaimTemplate {namespace}/{name}"
        body = {"metadata": {"annotations": dict(annotations)}}
        path = _template(namespace, name)
        return self._connection.write(what, "PATCH", path, body, missed=(ABSENT,)) is not None

    def delete(self, namespace: str, name: str, uid: str, version: str) -> bool:
        """See ``TemplateApi.delete``."""
        what = f"delete the ResourceClaimTemplate {namespace}/{name}"
        same = {"uid": uid, "resourceVersion": version}
        return self._connection.delete(what, _template(namespace, name), same)

    def named_by_pods(self, namespace: str) -> Collection[str]:
        """See ``TemplateApi.named_by_pods``."""
        path = f"/api/v1/namespaces/{segment(namespace)}/pods"
        pods = list_all(self._connection, f"list the pods of {namespace}", path, {"fieldSelector": _LIVING})
        return {
            text(one.get("resourceClaimTemplateName"))
            for pod in pods
            for one in mappings(mapping(pod.get("spec")).get("resourceClaims"))
        }


def _templates(namespace: str) -> str:
    return f"{_API}/namespaces/{segment(namespace)}/resourceclaimtemplates"


def _template(namespace: str, name: str) -> str:
    return f"{_templates(namespace)}/{segment(name)}"
