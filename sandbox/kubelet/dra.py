"""The kubelet's DRA manager: finds drivers by their sockets, has claims prepared and unprepared.

It follows Kubernetes 1.36: a claim is prepared once in the life of a kubelet, however many pods share it, and
again after a restart; its record is on disk before the driver is called; a pod is not started until all its
claims are prepared; a claim is unprepared with the last of its pods.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.dra.v1 import api_pb2, api_pb2_grpc
from gpu_manager.pb.drahealth.v1alpha1 import api_pb2 as health_pb2
from gpu_manager.pb.drahealth.v1alpha1 import api_pb2_grpc as health_grpc
from gpu_manager.pb.pluginregistration.v1 import api_pb2 as registration_pb2
from gpu_manager.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from gpu_manager.runtime import threads

CALL_SECONDS: Final = 45.0  # for NodePrepareResources and NodeUnprepareResources
_ASK_SECONDS: Final = 10.0  # for a plugin's registration
_SERVICE: Final = "v1.DRAPlugin"

ReadClaim = Callable[[str, str], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class HandedDevice:
    """A device of a prepared claim, and the CDI devices that stand for it."""

    requests: tuple[str, ...]
    device: str
    share_id: str
    cdi: tuple[str, ...]


@dataclass(slots=True)
class ClaimRecord:
    """What the kubelet keeps of a claim. ``is_prepared`` is not kept over a restart."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[HandedDevice, ...]] = field(default_factory=dict)
    is_prepared: bool = False


class DriverCalls(Protocol):
    """What the kubelet calls at a driver: gRPC's stub of it, or the driver itself."""

    def NodePrepareResources(self, request: Any, *, timeout: float) -> Any:  # noqa: N802  # the API's name
        """Raises grpc.RpcError."""

    def NodeUnprepareResources(self, request: Any, *, timeout: float) -> Any:  # noqa: N802
        """Raises grpc.RpcError."""


@dataclass(slots=True)
class _Driver:
    stub: DriverCalls
    close: Callable[[], object]
    health: dict[str, int] = field(default_factory=dict)  # device → the last that it said


class DraManager:
    """One kubelet's; ``directory`` is as ``/var/lib/kubelet``, ``read_claim`` asks the API server."""

    def __init__(self, directory: Path, read_claim: ReadClaim) -> None:
        self._registry = directory / "plugins_registry"
        self._checkpoint = directory / "dra_manager_state"
        self._read_claim = read_claim
        self._lock = threading.RLock()
        self._closed = False
        self._drivers: dict[str, _Driver] = {}
        self._claims: dict[str, ClaimRecord] = self._load()
        self._registry.mkdir(parents=True, exist_ok=True)

    # Drivers.

    def find_drivers(self) -> tuple[str, ...]:
        """Register every driver that listens in the registry; returns their names. Sockets of the dead are
        passed over.
        """
        for path in sorted(self._registry.glob("*.sock")):
            self._register(path)
        return tuple(sorted(self._drivers))

    def _register(self, path: Path) -> None:
        with grpc.insecure_channel(f"unix://{path.absolute()}") as channel:
            stub = registration_grpc.RegistrationStub(channel)
            try:
                info = stub.GetInfo(registration_pb2.InfoRequest(), timeout=_ASK_SECONDS)
            except grpc.RpcError:
                return
            wrong = "" if info.type == "DRAPlugin" else f"type {info.type}"
            wrong = wrong or ("" if _SERVICE in info.supported_versions else f"no {_SERVICE}")
            if not wrong:
                self._connect(info)
            status = registration_pb2.RegistrationStatus(plugin_registered=not wrong, error=wrong)
            stub.NotifyRegistrationStatus(status, timeout=_ASK_SECONDS)

    def _connect(self, info: registration_pb2.PluginInfo) -> None:
        with self._lock:
            channel = grpc.insecure_channel(f"unix://{info.endpoint}")
            driver = self.connect(info.name, api_pb2_grpc.DRAPluginStub(channel), channel.close)
        if "v1alpha1.DRAResourceHealth" in info.supported_versions:
            stream = health_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
                health_pb2.NodeWatchResourcesRequest()
            )
            threads.once("dra-health", partial(_follow, driver, stream)).start()

    def connect(self, name: str, stub: DriverCalls, close: Callable[[], object] = lambda: None) -> _Driver:
        """Call this driver from now on."""
        with self._lock:
            before = self._drivers.pop(name, None)
            if before is not None:
                before.close()
            self._drivers[name] = driver = _Driver(stub, close)
            return driver

    def health(self, driver: str) -> dict[str, int]:
        """Device → 0 unknown, 1 healthy, 2 unhealthy, as the driver said last."""
        return dict(self._drivers[driver].health)

    # Pods.

    def prepare(self, pod: Mapping[str, Any]) -> None:
        """Have the pod's claims prepared, before its containers start.

        Raises:
            NodeUnready: one is not; the kubelet tries again later. What was prepared stays so.
        """
        uid = pod["metadata"]["uid"]
        with self._lock:
            records = [self._record(pod, obj) for obj in self._claims_of(pod)]
            for record in records:
                record.pods.add(uid)
            self._save()  # before any driver is called
            for driver in sorted(
                {driver for one in records if not one.is_prepared for driver in one.drivers}
            ):
                self._prepare_by(driver, [one for one in records if driver in one.drivers])
            for record in records:
                record.is_prepared = True
            self._save()

    def _record(self, pod: Mapping[str, Any], claim: Mapping[str, Any]) -> ClaimRecord:
        meta, status = claim["metadata"], claim.get("status") or {}
        reserved = {one.get("uid") for one in status.get("reservedFor") or ()}
        if pod["metadata"]["uid"] not in reserved:
            raise NodeUnready(f"pod {pod['metadata']['name']} is not allowed to use claim {meta['name']}")
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        drivers = tuple(sorted({one["driver"] for one in results}))
        made = ClaimRecord(meta["namespace"], meta["name"], meta["uid"], drivers)
        return self._claims.setdefault(meta["uid"], made)

    def _prepare_by(self, driver: str, records: list[ClaimRecord]) -> None:
        """One call for all claims of a pod; a missing entry is an error as much as one that says so."""
        known = self._drivers.get(driver)
        if known is None:
            raise NodeUnready(f"DRA driver {driver} is not registered")
        request = api_pb2.NodePrepareResourcesRequest(claims=[_claim(one) for one in records])
        try:
            answer = known.stub.NodePrepareResources(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise NodeUnready(f"NodePrepareResources failed: {_text(error)}") from error
        for record in records:
            if record.uid not in answer.claims:
                raise NodeUnready(f"NodePrepareResources said nothing of claim {record.name}")
            one = answer.claims[record.uid]
            if one.error:
                raise NodeUnready(f"NodePrepareResources failed for claim {record.name}: {one.error}")
            record.devices[driver] = tuple(
                HandedDevice(tuple(d.request_names), d.device_name, d.share_id, tuple(d.cdi_device_ids))
                for d in one.devices
            )

    def cdi_devices(self, pod: Mapping[str, Any], container: str) -> tuple[str, ...]:
        """The CDI devices that a container of a prepared pod is started with.

        Raises:
            NodeUnready: a claim is not prepared any more.
        """
        names = {one["name"]: claim_name(pod, one["name"]) for one in pod["spec"].get("resourceClaims") or ()}
        entry = next(
            one
            for group in ("initContainers", "containers")
            for one in pod["spec"].get(group) or ()
            if one["name"] == container
        )
        found: dict[str, None] = {}
        with self._lock:
            for asked in (entry.get("resources") or {}).get("claims") or ():
                record = self._by_name(pod["metadata"]["namespace"], names[asked["name"]])
                for device in (d for devices in record.devices.values() for d in devices):
                    # A device without requests is for all; names are compared exactly.
                    if not asked.get("request") or not device.requests or asked["request"] in device.requests:
                        found |= dict.fromkeys(device.cdi)
        return tuple(found)

    def unprepare(self, uid: str) -> None:
        """All containers of the pod have ended: claims that no other pod uses are unprepared.

        Raises:
            NodeUnready: a driver refused; the kubelet calls again.
        """
        with self._lock:
            for record in [one for one in self._claims.values() if uid in one.pods]:
                if len(record.pods) > 1:
                    record.pods.discard(uid)
                    self._save()
                    continue
                for driver in record.drivers:
                    self._unprepare_by(driver, record)
                del self._claims[record.uid]
                self._save()

    def _unprepare_by(self, driver: str, record: ClaimRecord) -> None:
        known = self._drivers.get(driver)
        if known is None:
            raise NodeUnready(f"DRA driver {driver} is not registered")
        request = api_pb2.NodeUnprepareResourcesRequest(claims=[_claim(record)])
        try:
            answer = known.stub.NodeUnprepareResources(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise NodeUnready(f"NodeUnprepareResources failed: {_text(error)}") from error
        if record.uid not in answer.claims or answer.claims[record.uid].error:
            said = answer.claims[record.uid].error if record.uid in answer.claims else "nothing"
            raise NodeUnready(f"NodeUnprepareResources of claim {record.name}: {said}")

    def claims(self) -> tuple[ClaimRecord, ...]:
        """The records."""
        with self._lock:
            return tuple(self._claims.values())

    def close(self) -> None:
        """End: connections close; a new manager finds the records, which this one changes no more."""
        with self._lock:
            self._closed = True
            for driver in self._drivers.values():
                driver.close()
            self._drivers.clear()

    # Inside.

    def _claims_of(self, pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        namespace = pod["metadata"]["namespace"]
        for one in pod["spec"].get("resourceClaims") or ():
            name = claim_name(pod, one["name"])
            found = self._read_claim(namespace, name)
            if found is None:
                raise NodeUnready(f"claim {namespace}/{name} is not there")
            yield found

    def _by_name(self, namespace: str, name: str) -> ClaimRecord:
        for one in self._claims.values():
            if (one.namespace, one.name) == (namespace, name):
                return one
        raise NodeUnready(f"claim {namespace}/{name} is not prepared any more")

    def _load(self) -> dict[str, ClaimRecord]:
        try:
            rows = json.loads(self._checkpoint.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return {
            row["uid"]: ClaimRecord(
                row["namespace"], row["name"], row["uid"], tuple(row["drivers"]), set(row["pods"])
            )
            for row in rows
        }

    def _save(self) -> None:
        """Raises NodeUnready: this manager has ended."""
        if self._closed:
            raise NodeUnready("the kubelet is not running: it has begun anew")
        rows = [
            {
                "namespace": one.namespace,
                "name": one.name,
                "uid": one.uid,
                "drivers": one.drivers,
                "pods": sorted(one.pods),
            }
            for one in self._claims.values()
        ]
        draft = self._checkpoint.with_suffix(".new")
        draft.write_text(json.dumps(rows), "utf-8")
        draft.rename(self._checkpoint)


def claim_name(pod: Mapping[str, Any], entry: str) -> str:
    """The name of the ResourceClaim that an entry of a pod's ``resourceClaims`` stands for."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    for one in pod["spec"].get("resourceClaims") or ():
        if one["name"] == entry and one.get("resourceClaimName"):
            return str(one["resourceClaimName"])
    return next((str(one["resourceClaimName"]) for one in made if one["name"] == entry), entry)


def _claim(record: ClaimRecord) -> api_pb2.Claim:
    return api_pb2.Claim(namespace=record.namespace, uid=record.uid, name=record.name)


def _follow(driver: _Driver, stream: Any) -> None:
    try:
        for answer in stream:
            driver.health = {one.device.device_name: int(one.health) for one in answer.devices}
    except grpc.RpcError:
        pass  # the connection is closed, or the driver has ended


def _text(error: Any) -> str:
    """What the driver said: errors of a gRPC call are calls, too."""
    return str(error.details())
