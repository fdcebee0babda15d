"""Deployments, StatefulSets and Jobs: made, waited for and taken away, and how many of their pods failed."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from tests.cluster.cluster import Cluster
from tests.cluster.pods import PATH

KINDS: Final[Mapping[str, str]] = {
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
}
LABEL: Final = "cluster-test/workload"


class Workload:
    """One object and the pods of its label; both gone at the end of ``with``. ``labels`` are the object's own."""

    def __init__(
        self,
        cluster: Cluster,
        kind: str,
        name: str,
        container: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._path = KINDS[kind]
        own = {LABEL: name}
        once = {"restartPolicy": "Never"} if kind == "Job" else {}
        template = {
            "metadata": {"labels": own, "annotations": dict(annotations or {})},
            "spec": {
                "containers": [container],
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                **once,
            },
        }
        selector = {} if kind == "Job" else {"selector": {"matchLabels": own}}
        group = "batch/v1" if kind == "Job" else "apps/v1"
        self._object = {
            "apiVersion": group,
            "kind": kind,
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {"template": template, **selector, **spec},
        }

    def __enter__(self) -> Self:
        self._cluster.api.post(self._path, self._object)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.api.delete(f"{self._path}/{self.name}")
        self._cluster.wait(lambda: not self.pods(), 90, f"pods of {self.name} stay")

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Change the object's spec."""
        self._cluster.api.patch(f"{self._path}/{self.name}", {"spec": spec})

    def status(self) -> Mapping[str, Any]:
        """The object's status; empty until its controller has seen the newest spec."""
        found = self._cluster.api.get(f"{self._path}/{self.name}")
        seen = found["status"].get("observedGeneration", found["metadata"]["generation"])
        return dict(found["status"]) if seen == found["metadata"]["generation"] else {}

    def wait_ready(self, count: int, seconds: float = 120) -> None:
        """Until exactly so many pods, all of the newest template, are ready."""

        def ready() -> bool:
            status = self.status()
            counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
            return counts == [count] * 3

        self._cluster.wait(ready, seconds, f"{self.name} has not {count} ready pods")

    def pods(self) -> list[dict[str, Any]]:
        """Its pods, failed and terminating ones too."""
        return list(self._cluster.api.get(PATH, labelSelector=f"{LABEL}={self.name}")["items"])

    def failed(self) -> list[str]:
        """Its pods that the node refused or that ended badly, with the reasons."""
        return [
            f"{pod['metadata']['name']}: {pod['status'].get('reason')}: {pod['status'].get('message')}"
            for pod in self.pods()
            if pod["status"].get("phase") == "Failed"
        ]
