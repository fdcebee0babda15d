"""What a kubelet reports of a pod: phase, conditions, and the state of each container. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpu_manager.domain.kube.pod import ContainerKind
from sandbox.runtime import START_ERROR


@dataclass(slots=True)
class ContainerRecord:
    """One container of a pod over its restarts. ``id`` is the runtime's, empty until one was made.

    ``code`` is None until it ended; ``waiting`` is why it does not run: a reason and a sentence.
    ``due`` is the monotonic second from which it may be started again.
    """

    name: str
    kind: ContainerKind
    spec: Mapping[str, Any]
    id: str = ""
    running: bool = False
    code: int | None = None
    error: str = ""
    restarts: int = 0
    began: float = 0.0
    ended: float = 0.0
    waiting: tuple[str, str] = ("ContainerCreating", "")
    due: float = 0.0
    pause: float = 0.0
    earlier: dict[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """An app or sidecar is ready while it runs, an init container once it is done."""
        return self.code == 0 and not self.running if self.kind is ContainerKind.INIT else self.running

    def state(self) -> dict[str, Any]:
        """The ``state`` of the API's ContainerStatus."""
        if self.running:
            return {"running": {"startedAt": timestamp(self.began)}}
        if self.code is not None and not self.waiting[0]:
            return self.end()
        reason, message = self.waiting if self.waiting[0] else ("ContainerCreating", "")
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def end(self) -> dict[str, Any]:
        """The ``terminated`` state."""
        reason = "StartError" if self.error else "Completed" if self.code == 0 else "Error"
        return {
            "terminated": {
                "exitCode": START_ERROR if self.error else self.code,
                "reason": reason,
                **({"message": self.error} if self.error else {}),
                "startedAt": timestamp(self.began),
                "finishedAt": timestamp(self.ended),
                "containerID": f"sandbox://{self.id}",
            }
        }

    def status(self) -> dict[str, Any]:
        """The API's ContainerStatus."""
        row: dict[str, Any] = {
            "name": self.name,
            "image": str(self.spec.get("image") or ""),
            "imageID": "",
            "ready": self.ready,
            "started": self.running,
            "restartCount": self.restarts,
            "state": self.state(),
            "lastState": self.earlier,
        }
        if self.id:
            row["containerID"] = f"sandbox://{self.id}"
        return row


def records_of(pod: Mapping[str, Any]) -> list[ContainerRecord]:
    """A record for each container, init containers and sidecars first, as the spec has them."""
    found = []
    for group, plain in (("initContainers", ContainerKind.INIT), ("containers", ContainerKind.APP)):
        for spec in pod["spec"].get(group) or ():
            sidecar = plain is ContainerKind.INIT and spec.get("restartPolicy") == "Always"
            found.append(
                ContainerRecord(str(spec["name"]), ContainerKind.SIDECAR if sidecar else plain, spec)
            )
    return found


def pod_status(
    pod: Mapping[str, Any],
    records: Sequence[ContainerRecord],
    *,
    phase: str,
    started: float,
    initialized: bool,
) -> dict[str, Any]:
    """The status of an admitted pod. Conditions of others (PodScheduled) are kept."""
    apps = [r for r in records if r.kind is ContainerKind.APP]
    ready = phase == "Running" and all(r.ready for r in records if r.kind is not ContainerKind.INIT)
    facts = {"Initialized": initialized, "ContainersReady": ready, "Ready": ready}
    others = [c for c in (pod.get("status") or {}).get("conditions") or () if c.get("type") not in facts]
    conditions = [{"type": key, "status": str(value)} for key, value in facts.items()]
    status: dict[str, Any] = {
        "phase": phase,
        "startTime": timestamp(started),
        "hostIP": "127.0.0.1",
        "podIP": "127.0.0.1",
        "conditions": [*others, *conditions],
        "containerStatuses": [r.status() for r in apps],
    }
    init = [r for r in records if r.kind is not ContainerKind.APP]
    if init:
        status["initContainerStatuses"] = [r.status() for r in init]
    return status


def rejected_status(reason: str, message: str, started: float) -> dict[str, Any]:
    """The status of a pod that the kubelet would not admit, in its words."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": timestamp(started),
    }


def shown_reason(pod: Mapping[str, Any]) -> tuple[str, str]:
    """What explains a pod best, as ``kubectl get pods`` picks it: a short word and a sentence."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating", ""
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message") or "")
    for row in _rows(status):
        for kind in ("waiting", "terminated"):
            state = (row.get("state") or {}).get(kind) or {}
            if state.get("reason") not in (None, "ContainerCreating", "PodInitializing", "Completed"):
                code = state.get("exitCode")
                detail = str(state.get("message") or (f"exit code {code}" if code is not None else ""))
                return str(state["reason"]), f"{row['name']}: {detail}" if detail else str(row["name"])
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("type") == "PodScheduled":
            return str(condition.get("reason") or ""), str(condition.get("message") or "")
    return "", ""


def _rows(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def timestamp(seconds: float) -> str:
    """A moment as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
