"""The kubelet's Pods API (on from Kubernetes 1.37): exactly the pods that it has, over a socket of the node.

It needs no right at the API server and no network, so it is preferred to ``/pods`` on the kubelet's port.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.pb.corepod.v1 import pod_pb2
from gpu_manager.pb.pods.v1alpha1 import api_pb2, api_pb2_grpc
from gpu_manager.ports.clock import Clock

_SECONDS: Final = 1.0
_REST_SECONDS: Final = 10.0  # pause after it did not answer
_SIZE_LIMIT: Final = 64 << 20  # bytes; 110 pods are about 1 MiB
_TIMES: Final = {"metadata": ("creationTimestamp", "deletionTimestamp"), "status": ("startTime",)}

log = structlog.get_logger(__name__)


class PodsApi:
    """Reads pods over ``socket``; any thread. A kubelet before 1.37 has no such socket: no call is made
    then.
    """

    def __init__(self, socket: Path, clock: Clock) -> None:
        self._socket = socket
        self._clock = clock
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._rests_until = 0.0
        self.error: str | None = None

    def pods(self) -> Sequence[Pod] | None:
        """Every pod that the kubelet knows; None if it cannot be asked now (``error`` has the reason)."""
        with self._lock:
            if self._clock.monotonic() < self._rests_until or not self._socket.exists():
                return None
            try:
                answer = self._stub().ListPods(api_pb2.ListPodsRequest(), timeout=_SECONDS)
                pods = _parse(answer.pods)
            except (grpc.RpcError, DecodeError, OverflowError) as error:
                self._close()
                self._rest(_said(error))
                return None
            if self.error is not None:
                log.info("pods_api_restored")
            self.error = None
            return pods

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _stub(self) -> api_pb2_grpc.PodsStub:
        if self._channel is None:
            self._channel = grpc.insecure_channel(
                unix_target(self._socket),
                options=(
                    ("grpc.default_authority", "localhost"),
                    ("grpc.max_receive_message_length", _SIZE_LIMIT),
                    ("grpc.use_local_subchannel_pool", 1),  # no back-off of an earlier channel
                ),
            )
        return api_pb2_grpc.PodsStub(self._channel)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def _rest(self, reason: str) -> None:
        self._rests_until = self._clock.monotonic() + _REST_SECONDS
        if self.error is None:
            log.warning(
                "pods_api_away", reason=reason, instead="the kubelet's port, or the API server's watch"
            )
        self.error = reason


def _said(error: Exception) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else str(error) or type(error).__name__


def _parse(pods: Sequence[bytes]) -> list[Pod]:
    found = []
    for data in pods:
        with contextlib.suppress(RequestInvalid):
            found.append(parse_pod(_as_json(pod_pb2.Pod.FromString(data))))
    return found


def _as_json(pod: pod_pb2.Pod) -> dict[str, Any]:
    """The pod in its JSON form: there quantities are texts, and times RFC 3339."""
    obj: dict[str, Any] = MessageToDict(pod)
    for part, names in _TIMES.items():
        held = obj.get(part, {})
        for name in names:
            if time := held.pop(name, None):  # Kubernetes writes an empty message for a time that is not set
                held[name] = _rfc3339(time)
    spec = obj.get("spec", {})
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        resources = container.get("resources", {})
        for kind in ("limits", "requests"):
            resources[kind] = {name: one.get("string", "") for name, one in resources.get(kind, {}).items()}
    return obj


def _rfc3339(time: Mapping[str, str]) -> str:
    """To the second, as the API server writes times."""
    try:
        moment = datetime.fromtimestamp(int(time.get("seconds", 0)), UTC)
    except (ValueError, OSError) as error:
        raise OverflowError(f"{time} is no time") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
