"""The kubelet's part in ResourceClaims on a sandbox's node: drivers, preparing, CDI devices, unpreparing.

It stands around the stand-in of the device manager, as the two managers share one kubelet.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse, Mount
from sandbox import cdi
from sandbox.api import StandInApi
from sandbox.kubelet import StandInKubelet
from sandbox.kubelet.dra import ClaimRecord, DraManager, DriverCalls

log = structlog.get_logger(__name__)


class ClaimKubelet:
    """What a pod's worker asks of the kubelet, where containers may have devices by CDI. Thread-safe."""

    def __init__(self, directory: Path, cdi_specs: Path, api: StandInApi, kubelet: StandInKubelet) -> None:
        """``directory`` is the kubelet's; ``cdi_specs`` is where the runtime looks for CDI specs."""
        self._directory, self._cdi, self._api, self._kubelet = directory, cdi_specs, api, kubelet
        self._lock = threading.Lock()
        self._manager = self._new_manager()
        self._sockets: frozenset[tuple[str, int]] = frozenset()
        self._looked: frozenset[tuple[str, int]] = frozenset()

    def _new_manager(self) -> DraManager:
        return DraManager(
            self._directory, lambda namespace, name: self._api.get("resourceclaims", name, namespace)
        )

    def start_container(self, uid: str, name: str, container_id: str = "") -> ContainerAllocateResponse:
        """Prepare the pod's claims, then as :meth:`StandInKubelet.start_container`; CDI devices are resolved.

        Raises:
            NodeUnready: a claim is not prepared, a CDI device is not there, or the kubelet refuses.
        """
        meta = self._kubelet.pod(uid)["metadata"]
        pod = self._api.get("pods", meta["name"], meta["namespace"])
        if pod is None or pod["metadata"]["uid"] != uid:
            raise NodeUnready(f"pod {meta['name']} is gone")
        manager = self._current()
        devices: list[str] = []
        if pod["spec"].get("resourceClaims"):
            manager.prepare(pod)
            devices += manager.cdi_devices(pod, name)
        granted = self._kubelet.start_container(uid, name, container_id)
        response = ContainerAllocateResponse()
        response.CopyFrom(granted)
        edits = cdi.resolve(cdi.read_specs(self._cdi), [*(one.name for one in granted.cdi_devices), *devices])
        for key, value in edits.env.items():
            response.envs[key] = value
        response.mounts.extend(
            Mount(container_path=inside, host_path=outside) for inside, outside in edits.mounts.items()
        )
        return response

    def stop_container(self, uid: str, name: str, exit_code: int = 0) -> None:
        """See :meth:`StandInKubelet.stop_container`."""
        self._kubelet.stop_container(uid, name, exit_code)

    def finish(self, uid: str, phase: str = "Succeeded") -> None:
        """See :meth:`StandInKubelet.finish`."""
        self._kubelet.finish(uid, phase)

    def restart(self) -> None:
        """The kubelet's process begins anew: it finds its records, and drivers by their sockets."""
        with self._lock:
            self._manager.close()
            self._manager = self._new_manager()
            self._sockets = frozenset()

    def find_drivers(self) -> None:
        """Register drivers whose sockets are new since the last look but one: by then they listen."""
        with self._lock:
            seen = frozenset(
                (path.name, path.stat().st_ino)
                for path in (self._directory / "plugins_registry").glob("*.sock")
            )
            if seen and seen == self._looked and seen != self._sockets and self._manager.find_drivers():
                self._sockets = seen
            self._looked = seen

    def connect(self, name: str, driver: DriverCalls) -> None:
        """Call this driver without a socket."""
        self._current().connect(name, driver)

    def records(self) -> Sequence[ClaimRecord]:
        """What is prepared or about to be."""
        return self._current().claims()

    def prepared(self) -> frozenset[str]:
        """The pods for which claims are prepared or about to be."""
        return frozenset(uid for record in self.records() for uid in record.pods)

    def unprepare(self, ended: Collection[str]) -> None:
        """Unprepare claims of pods that have ended; what is refused is to be asked again."""
        manager = self._current()
        for uid in ended:
            try:
                manager.unprepare(uid)
            except NodeUnready as error:
                log.info("claims_not_unprepared", pod=uid, reason=str(error))

    def pods_of(self, claim: str) -> frozenset[str]:
        """The pods for which a claim, by its UID, is prepared or about to be."""
        return frozenset(uid for record in self.records() if record.uid == claim for uid in record.pods)

    def _current(self) -> DraManager:
        with self._lock:
            return self._manager

    def close(self) -> None:
        """End the connections."""
        with self._lock:
            self._manager.close()
