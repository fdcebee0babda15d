"""The Events of one pod, read from the API server when somebody looks at the pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.pod_paths import events_path
from gpu_manager.domain.cluster.pod_events import PodEvent, read_pod_event
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import mapping, mappings, text

_MOST: Final = 200  # of one pod: Kubernetes keeps an hour's, and counts equal ones together


class KubePodEvents:
    """Asks the API server each time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self, namespace: str, uid: PodUid) -> tuple[Sequence[PodEvent], bool]:
        """The pod's Events in no order, and whether there are more than were read. Raises NodeUnready."""
        page = self._connection.request(
            f"list the events of a pod in {namespace}",
            "GET",
            events_path(namespace),
            query={"fieldSelector": f"involvedObject.uid={uid}", "limit": str(_MOST)},
        )
        found = [read_pod_event(obj) for obj in mappings(page.get("items"))]
        return found, bool(text(mapping(page.get("metadata")).get("continue")))
