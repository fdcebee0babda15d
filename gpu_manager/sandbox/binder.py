"""The smallest scheduler: binds pods to the one node while its capacity lasts.

It counts as kube-scheduler does, by extended resource over the whole node, and knows nothing of cards:
which card, and whether any single one has the room, is judged by who runs on the node. A program that
knows more takes its place with ``gpu-manager sandbox --no-binder``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.sandbox.api import ApiError, StandInApi
from gpu_manager.sandbox.events import tell
from gpu_manager.sandbox.kubelet.values import containers_of, effective_limits

log = structlog.get_logger(__name__)

SCHEDULER: Final = "default-scheduler"
_ENDED: Final = ("Succeeded", "Failed")


class Binder:
    """One thread, started and stopped once."""

    def __init__(self, api: StandInApi, node: str) -> None:
        self._api = api
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="binder", daemon=True)

    def start(self) -> None:
        """Begin to bind."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._api.wake()
        if self._thread.is_alive():
            self._thread.join(5)

    def round(self) -> None:
        """Look once at every pod that waits for a node, the oldest first."""
        node = self._api.get("nodes", self._node)
        if node is None:
            return
        pods = self._api.list("pods")
        waiting = [p for p in pods if _waits(p)]
        waiting.sort(
            key=lambda p: (p["metadata"]["creationTimestamp"], int(p["metadata"]["resourceVersion"]))
        )
        here = [p for p in pods if p["spec"].get("nodeName") == self._node]
        free = _free(node, here)
        closed = bool((node.get("spec") or {}).get("unschedulable"))
        for pod in waiting:
            if closed:
                self._refuse(pod, "0/1 nodes are available: 1 node(s) were unschedulable.")
                continue
            try:
                wanted = effective_limits(containers_of(pod))
            except RequestInvalid as error:
                self._refuse(pod, f"0/1 nodes are available: {error}")
                continue
            short = [r for r, count in wanted.items() if count > free.get(r, 0)]
            if short:
                why = ", ".join(f"1 Insufficient {resource}" for resource in sorted(short))
                self._refuse(pod, f"0/1 nodes are available: {why}.")
            elif self._bind(pod):
                free = {r: n - wanted.get(r, 0) for r, n in free.items()}

    def _run(self) -> None:
        seen = 0
        while not self._stop.is_set():
            seen = self._api.wait("pods", seen, 0.5)
            self.round()

    def _bind(self, pod: Mapping[str, Any]) -> bool:
        meta = pod["metadata"]
        try:
            self._api.bind(meta["name"], self._node, meta["namespace"])
        except ApiError as error:
            log.info("not bound", pod=f"{meta['namespace']}/{meta['name']}", reason=str(error))
            return False
        where = f"{meta['namespace']}/{meta['name']} to {self._node}"
        tell(self._api, SCHEDULER, pod, "Scheduled", f"Successfully assigned {where}")
        return True

    def _refuse(self, pod: Mapping[str, Any], message: str) -> None:
        """Say so once, and again only when the reason has changed."""
        conditions = [
            c for c in (pod.get("status") or {}).get("conditions") or () if c["type"] != "PodScheduled"
        ]
        unschedulable = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        meta = pod["metadata"]
        if unschedulable in (pod.get("status") or {}).get("conditions", ()):
            return
        patch = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [*conditions, unschedulable]}}
        try:
            self._api.patch("pods", meta["name"], patch, meta["namespace"], subresource="status")
        except ApiError:
            return  # it has just gone, or changed: the next round looks again
        tell(self._api, SCHEDULER, pod, "FailedScheduling", message, warning=True)


def _waits(pod: Mapping[str, Any]) -> bool:
    spec, meta = pod["spec"], pod["metadata"]
    return (
        not spec.get("nodeName")
        and not meta.get("deletionTimestamp")
        and not spec.get("schedulingGates")
        and spec.get("schedulerName") == SCHEDULER
    )


def _free(node: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Extended resources that no pod on the node counts for."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    free = {name: int(value) for name, value in allocatable.items() if "/" in name}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in _ENDED:
            continue
        for resource, count in effective_limits(containers_of(pod)).items():
            free[resource] = free.get(resource, 0) - count
    return free
