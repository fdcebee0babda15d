"""A change of a replica's own pod, after which a watch of pods has shown all that came before."""

from __future__ import annotations

from datetime import UTC, datetime

from gpu_manager.adapters.kube.connection import MERGE_PATCH, Connection
from gpu_manager.adapters.kube.pod_paths import named_path
from gpu_manager.domain.contract import LEADER_SINCE
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.clock import Clock


class PodMark:
    """Writes the annotation :data:`LEADER_SINCE` of the pod of that name."""

    def __init__(self, connection: Connection, clock: Clock, namespace: str, name: str) -> None:
        self._connection = connection
        self._clock = clock
        self._namespace = namespace
        self._name = name

    def set(self) -> str:
        """Write the present time; returns the resourceVersion that the pod has then.

        Raises:
            NodeUnready: there is no such pod, the API server refuses, or no answer comes.
        """
        if not self._name:
            raise NodeUnready("this replica does not know its pod: no --pod-name")
        written = datetime.fromtimestamp(self._clock.now(), UTC).isoformat()
        made = self._connection.request(
            f"annotate the pod {self._namespace}/{self._name}",
            "PATCH",
            named_path(self._namespace, self._name),
            body={"metadata": {"annotations": {LEADER_SINCE: written}}},
            content_type=MERGE_PATCH,
        )
        return str(made["metadata"]["resourceVersion"])
