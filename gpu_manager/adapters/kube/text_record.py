"""A text in an annotation of a Lease of its own, shared by the replicas of a service
(serves ``admission.quota.admitted_claims.SharedText``).
"""

from __future__ import annotations

from typing import Any

from gpu_manager.adapters.kube.connection import Connection, Refused
from gpu_manager.domain.untrusted import mapping, text

_ABSENT, _CONFLICT = 404, 409


class KubeTextRecord:
    """Reads the text, and writes it on condition of the version that was read or written last."""

    def __init__(self, connection: Connection, namespace: str, name: str, annotation: str) -> None:
        self._connection = connection
        self._name = name
        self._annotation = annotation
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._meta = {"name": name, "namespace": namespace}
        self._last: dict[str, Any] | None = None

    def read(self) -> str | None:
        """The text by a quorum read; None if there is none. Raises NodeUnready: no answer."""
        self._last = None
        try:
            found = self._connection.request(
                f"read the Lease {self._name}", "GET", f"{self._all}/{self._name}"
            )
        except Refused as refusal:
            if refusal.code != _ABSENT:
                raise
            return None
        self._last = found
        told = mapping(mapping(found.get("metadata")).get("annotations")).get(self._annotation)
        return None if told is None else text(told)

    def write(self, value: str) -> bool:
        """Replace the text; False if another has changed it since. Raises NodeUnready: no answer."""
        old = self._last or {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        before = mapping(old.get("metadata"))
        annotations = {**mapping(before.get("annotations")), self._annotation: value}
        body = {**old, "metadata": {**before, **self._meta, "annotations": annotations}}
        method, path = ("PUT", f"{self._all}/{self._name}") if self._last else ("POST", self._all)
        try:
            self._last = self._connection.request(f"write the Lease {self._name}", method, path, body=body)
        except Refused as refusal:
            if refusal.code in (_CONFLICT, _ABSENT):
                return False
            raise
        return True
