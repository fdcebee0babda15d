"""The node's main loop: what a kubelet does around its device manager, on the two stand-ins.

Pods bound to the node are admitted one at a time, each admitted pod gets a worker, statuses go back to the
API server, deletions are honoured. Watches are not needed: the API stand-in lives in this process.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from gpu_manager.adapters.kube.agents import is_agent
from gpu_manager.domain.errors import NodeUnready, VcudaError
from gpu_manager.runtime import threads
from sandbox.api import ApiError, StandInApi
from sandbox.claim_kubelet import ClaimKubelet
from sandbox.events import tell
from sandbox.kubelet import AdmissionResult, StandInKubelet
from sandbox.pod_worker import FIRST_PAUSE, PodWorker, WorkerPorts
from sandbox.runtime import Runtime
from sandbox.statuses import rejected_status, timestamp

log = structlog.get_logger(__name__)

COMPONENT: Final = "kubelet"
MOST_PODS: Final = 250
HOST: Final = {
    "cpu": "128",
    "memory": "1Ti",
    "pods": str(MOST_PODS),
}  # of a machine with such cards, not of this one
ROUND_SECONDS: Final = 0.25
Obj = Mapping[str, Any]


class NodeLoop:
    """One node. ``restart_pause`` is the first pause before a container that failed starts again."""

    def __init__(
        self,
        name: str,
        api: StandInApi,
        kubelet: StandInKubelet,
        runtime: Runtime,
        *,
        restart_pause: float = FIRST_PAUSE,
        claims: ClaimKubelet | None = None,
    ) -> None:
        """``claims``: the kubelet also prepares ResourceClaims, and hands out CDI devices."""
        self._claims = claims
        self.name = name
        self._api = api
        self._kubelet = kubelet
        self._runtime = runtime
        self._pause = restart_pause
        self._workers: dict[str, PodWorker] = {}
        self._rejected: set[str] = set()
        self._graces: dict[str, float] = {}
        self._sync = threading.Lock()  # one admission, or one restart of the kubelet, at a time
        self._stop = threading.Event()
        self._capacity: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})
        self._thread = threads.forever("kubelet-sync", self._run)

    def start(self) -> None:
        """Create the node object and begin."""
        now = timestamp(time.time())
        self._api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": self.name,
                    "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"},
                },
            }
        )
        status = {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "the sandbox's kubelet stand-in posts ready status",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0-standin", "operatingSystem": "linux"},
        }
        self._api.patch("nodes", self.name, {"status": status}, subresource="status")
        self._publish_capacity()
        self._thread.start()

    def stop(self) -> None:
        """End the loop. Containers end with the runtime's processes."""
        self._stop.set()
        self._api.wake()
        if self._thread.is_alive():
            self._thread.join(5)

    def restart_kubelet(self) -> None:
        """The kubelet's process ends and begins anew; containers run on."""
        with self._sync:
            self._kubelet.restart()
            if self._claims is not None:
                self._claims.restart()
            results = self._kubelet.resume()
        for result in results:
            self._settled(result)

    def pods(self) -> Sequence[Obj]:
        """The pods bound to this node, but for the agent's own."""
        found = self._api.list("pods", fields=f"spec.nodeName={self.name}")
        return [pod for pod in found if not is_agent(pod)]

    # The loop.

    def _run(self) -> None:
        seen = 0
        while not self._stop.is_set():
            seen = self._api.wait("pods", seen, ROUND_SECONDS)
            try:
                self._publish_capacity()
                self._round(self.pods())
            except (VcudaError, ApiError) as error:
                log.warning("round_failed", reason=str(error))

    def _round(self, pods: Sequence[Obj]) -> None:
        there = {str(pod["metadata"]["uid"]) for pod in pods}
        for uid in [u for u in (*self._workers, *self._rejected) if u not in there]:
            self._vanished(uid)
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp"):
                self._leaving(pod)
        for pod in self._new(pods):
            self._admit(pod)

    def _new(self, pods: Sequence[Obj]) -> list[Obj]:
        """By age in whole seconds, within one in no order, as the kubelet's."""
        fresh = [
            p
            for p in pods
            if p["metadata"]["uid"] not in self._workers
            and p["metadata"]["uid"] not in self._rejected
            and not p["metadata"].get("deletionTimestamp")
            and (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]
        random.shuffle(fresh)
        return sorted(fresh, key=lambda p: str(p["metadata"]["creationTimestamp"]))

    def _admit(self, pod: Obj) -> None:
        try:
            with self._sync:
                result = self._kubelet.admit(pod)
        except NodeUnready as error:
            log.info("pod_waits_for_kubelet", pod=pod["metadata"]["name"], reason=str(error))
            return
        self._settled(result)

    def _settled(self, result: AdmissionResult) -> None:
        """An admission is over: run the pod, or say why not."""
        pod = self._kubelet.pod(result.uid)
        worker = self._workers.get(result.uid)
        if result.admitted:
            if worker is None:
                self._work(pod)
            return
        log.info("pod_rejected", pod=pod["metadata"]["name"], reason=result.reason, message=result.message)
        tell(self._api, COMPONENT, pod, result.reason, result.message, warning=True)
        if worker is not None:
            worker.fail(result.reason, f"Pod was rejected: {result.message}")
            return
        self._rejected.add(result.uid)
        self._publish(pod, rejected_status(result.reason, result.message, time.time()))

    def _work(self, pod: Obj) -> None:
        uid = str(pod["metadata"]["uid"])
        stored = self._api.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        worker = PodWorker(
            stored if stored is not None and stored["metadata"]["uid"] == uid else pod,
            WorkerPorts(
                self._claims or self._kubelet,
                self._runtime,
                publish=lambda status: self._publish(pod, status),
                tell=lambda reason, message: tell(self._api, COMPONENT, pod, reason, message),
                warn=lambda reason, message: tell(self._api, COMPONENT, pod, reason, message, warning=True),
                pause=self._pause,
            ),
        )
        self._workers[uid] = worker
        worker.start()

    # Deletion.

    def _leaving(self, pod: Obj) -> None:
        """Graceful: stop the containers, then the object goes, then the kubelet forgets."""
        meta = pod["metadata"]
        uid, grace = str(meta["uid"]), float(meta.get("deletionGracePeriodSeconds") or 0)
        if self._graces.get(uid) == grace:
            return
        first = uid not in self._graces
        self._graces[uid] = grace
        worker = self._workers.get(uid)
        if worker is None:
            self._delete(pod)
            return
        if first:
            self._kubelet.begin_delete(uid)
            tell(self._api, COMPONENT, pod, "Killing", f"Stopping its containers within {grace:g} s")
        worker.end(grace, lambda: self._delete(pod))

    def _vanished(self, uid: str) -> None:
        """The object is gone: by our own hand at the end of a deletion, or by force while it runs."""
        self._graces.pop(uid, None)
        if uid in self._rejected:
            self._rejected.discard(uid)
            self._kubelet.delete(uid)
            return
        worker = self._workers.pop(uid)
        if worker.over:
            self._kubelet.delete(uid)
            return
        self._kubelet.delete(uid, force=True)
        worker.end(0.0, lambda: self._kubelet.reap(uid))

    def _delete(self, pod: Obj) -> None:
        meta = pod["metadata"]
        now = self._api.get("pods", meta["name"], meta["namespace"])
        if now is None or now["metadata"]["uid"] != meta["uid"]:
            return
        try:
            self._api.delete("pods", meta["name"], meta["namespace"], grace=0)
        except ApiError as error:
            log.info("pod_not_deleted", pod=meta["name"], reason=str(error))

    # What the API server is told.

    def _publish(self, pod: Obj, status: Obj) -> bool:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"]}, "status": status}
        try:
            self._api.patch("pods", meta["name"], patch, meta["namespace"], subresource="status")
        except ApiError as error:
            return error.code in (404, 409, 422)  # gone, or a namesake: there is nobody left to tell
        return True

    def _publish_capacity(self) -> None:
        try:
            found = (self._kubelet.capacity(), self._kubelet.allocatable())
        except NodeUnready:
            return
        if found == self._capacity and self._capacity[0]:
            return
        self._kubelet.publish_node()
        capacity, allocatable = ({**HOST, **{r: str(n) for r, n in counts.items()}} for counts in found)
        gone = {r: None for r in self._capacity[0] if r not in found[0]}
        status = {"capacity": {**capacity, **gone}, "allocatable": {**allocatable, **gone}}
        self._api.patch("nodes", self.name, {"status": status}, subresource="status")
        self._capacity = found
