"""The pods that the stand-in knows, what the runtime runs of them, and how /pods shows them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_manager.domain.errors import Bug, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind
from sandbox.kubelet.podresources import ActivePod
from sandbox.kubelet.values import Asked, containers_of, uid_of


@dataclass(slots=True)
class PodContainer:
    """A container in the runtime. ``id`` is empty until it was made, ``exit_code`` None until it ended."""

    id: str = ""
    running: bool = False
    exit_code: int | None = None
    restarts: int = 0


@dataclass(slots=True)
class AdmittedPod:
    """A pod between its ADD and its end. ``removed``: the API forgot it by force, it may still run."""

    uid: str
    obj: dict[str, Any]
    asked: tuple[Asked, ...]
    containers: dict[str, PodContainer]
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    started_at: str = ""
    added: bool = False  # handed to this kubelet process
    deleting: str = ""  # deletionTimestamp
    removed: bool = False

    @property
    def active(self) -> bool:
        """What the kubelet calls active: its devices are its own, PodResources lists it."""
        return self.added and not self.removed and self.phase not in ("Succeeded", "Failed")


class PodTable:
    """All pods, by UID. Thread-safe; its lock is held over nothing else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, AdmittedPod] = {}
        self._admitting = ""

    def learn(self, obj: Mapping[str, Any]) -> AdmittedPod:
        """A pod bound to this node, not yet handed to the kubelet.

        Raises:
            RequestInvalid: it is no pod that the API server would have let through.
            Bug: it is known already.
        """
        uid, asked = uid_of(obj), containers_of(obj)
        pod = AdmittedPod(
            uid=uid,
            obj=copy.deepcopy(dict(obj)),
            asked=asked,
            containers={container.name: PodContainer() for container in asked},
        )
        with self._lock:
            if uid in self._pods:
                raise Bug(f"the pod with UID {uid} was added twice")
            self._pods[uid] = pod
        return pod

    def get(self, uid: str) -> AdmittedPod:
        """Raises RequestInvalid if there is no such pod."""
        with self._lock:
            if uid not in self._pods:
                raise RequestInvalid(f"the kubelet knows no pod with UID {uid}")
            return self._pods[uid]

    def forget(self, uid: str) -> None:
        """The pod is gone, with all its containers."""
        with self._lock:
            self._pods.pop(uid, None)

    def all(self) -> list[AdmittedPod]:
        """Every pod, in the order learnt."""
        with self._lock:
            return list(self._pods.values())

    def begin(self, pod: AdmittedPod) -> None:
        """The kubelet turns to this pod: it is active from here on."""
        with self._lock:
            pod.added, self._admitting = True, pod.uid

    def end(self) -> None:
        """Its admission is over."""
        with self._lock:
            self._admitting = ""

    def forget_added(self) -> None:
        """A new kubelet process: no pod has been handed to it yet."""
        with self._lock:
            self._admitting = ""
            for pod in self._pods.values():
                pod.added = False

    def active(self) -> list[ActivePod]:
        """The active pods."""
        with self._lock:
            return [_listed(p) for p in self._pods.values() if p.active]

    def handed(self) -> list[ActivePod]:
        """The active pods, and those that have ended and that the API still has."""
        with self._lock:
            return [_listed(p) for p in self._pods.values() if p.added and not p.removed]

    def holding(self) -> set[str]:
        """UIDs whose devices must not be collected: the active pods, and the one being admitted."""
        with self._lock:
            return {p.uid for p in self._pods.values() if p.active} | ({self._admitting} - {""})

    def running(self, uid: str, container: str) -> bool:
        """What the runtime says."""
        with self._lock:
            pod = self._pods.get(uid)
            return pod is not None and container in pod.containers and pod.containers[container].running

    def view(self) -> list[dict[str, Any]]:
        """Pod objects as the kubelet's /pods shows them: everything handed to it that was not removed."""
        with self._lock:
            return [_shown(p) for p in self._pods.values() if p.added and not p.removed]

    def shown(self, uid: str) -> dict[str, Any]:
        """One pod object with its status, whether added or not."""
        pod = self.get(uid)
        with self._lock:
            return _shown(pod)

    def stopped(self, uids: Collection[str]) -> None:
        """The runtime lost all containers of these pods (a reboot, the end of a pod)."""
        with self._lock:
            for uid in uids:
                for container in self._pods[uid].containers.values() if uid in self._pods else ():
                    container.running = False


def timestamp(seconds: float) -> str:
    """A time as the API writes it, in whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _listed(pod: AdmittedPod) -> ActivePod:
    return ActivePod(pod.uid, _meta(pod, "namespace") or "default", _meta(pod, "name"), pod.asked)


def _meta(pod: AdmittedPod, key: str) -> str:
    return str((pod.obj.get("metadata") or {}).get(key) or "")


def _shown(pod: AdmittedPod) -> dict[str, Any]:
    obj = copy.deepcopy(pod.obj)
    if pod.deleting:
        obj["metadata"]["deletionTimestamp"] = pod.deleting
    texts = {"reason": pod.reason, "message": pod.message, "startTime": pod.started_at}
    status: dict[str, Any] = {"phase": pod.phase, **{key: text for key, text in texts.items() if text}}
    for key, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        rows = [
            _container_status(c.name, pod.containers[c.name])
            for c in pod.asked
            if (c.kind is not ContainerKind.APP) is init and pod.started_at
        ]
        if rows:
            status[key] = rows
    obj["status"] = status
    return obj


def _container_status(name: str, container: PodContainer) -> dict[str, Any]:
    state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
    if container.running:
        state = {"running": {}}
    elif container.exit_code is not None:
        state = {"terminated": {"exitCode": container.exit_code}}
    row: dict[str, Any] = {"name": name, "state": state, "restartCount": container.restarts}
    if container.id:
        row["containerID"] = f"containerd://{container.id}"
    return row
