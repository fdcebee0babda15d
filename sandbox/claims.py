"""Allocates ResourceClaims as kube-scheduler does: the first devices that fit, in published order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import AllocatedShare, allocate
from gpu_manager.domain.dra.claim import DeviceRequest, Taint, parse_claim_spec
from gpu_manager.domain.dra.device import CapacityRange, SharedDevice, Version
from gpu_manager.domain.dra.selectors import SelectedDevice, takes
from gpu_manager.domain.resources import parse_quantity
from sandbox.api import ApiError, StandInApi
from sandbox.kubelet.dra import claim_name

Obj = Mapping[str, Any]
DEVICE_CLASSES: Final[Sequence[Obj]] = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}]},
    }
    for name in (DRA_DRIVER, "vcuda-card")
]
"""Those of the chart; of ``vcuda-card`` without the name by which kube-scheduler makes claims by itself."""
_CONFLICT: Final = 409
_MINOR: Final = 36  # of the Kubernetes whose rounding is followed


class ClaimScheduler:
    """The part of kube-scheduler that claims need; the pods of one node and its slice."""

    def __init__(self, api: StandInApi, seed: int = 0, *, classes: bool = False) -> None:
        """With ``classes`` a request needs a DeviceClass that is there; without, any name will do."""
        self._api = api
        self._needs_classes = classes
        self._rng = Random(seed)

    def allocate(self, pod: Obj, node: str, used: Mapping[str, Mapping[str, int]] | None = None) -> bool:
        """Allocate the pod's claims on the node and reserve them for it; False if they do not fit there.

        ``used`` is what the scheduler believes to be consumed, for one that lags behind.
        """
        return _until_agreed(lambda: self._allocate(pod, node, used))

    def _allocate(self, pod: Obj, node: str, used: Mapping[str, Mapping[str, int]] | None) -> bool:
        namespace = pod["metadata"]["namespace"]
        asked = pod["spec"].get("resourceClaims") or ()
        names = dict.fromkeys(claim_name(pod, one["name"]) for one in asked)
        claims = [claim for name in names if (claim := self._api.get("resourceclaims", name, namespace))]
        if len(claims) < len(names):
            return False
        waiting = [claim for claim in claims if not (claim.get("status") or {}).get("allocation")]
        specs = [parse_claim_spec(claim["spec"]) for claim in waiting]
        found = allocate(self.devices(node), used or self.used(node), specs, _MINOR, self._is_eligible)
        if found is None:
            return False
        shares_of = {claim["metadata"]["uid"]: shares for claim, shares in zip(waiting, found, strict=True)}
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for claim in claims:
            status = dict[str, Any]()
            if (shares := shares_of.pop(claim["metadata"]["uid"], None)) is not None:
                results = [self._result(node, share) for share in shares]
                chosen = {share.request for share in shares}
                config = allocated_config(claim["spec"], chosen, self._class_config)
                status["allocation"] = {"devices": {"results": results, "config": config}}
            reserved = list((claim.get("status") or {}).get("reservedFor") or ())
            if user not in reserved:
                status["reservedFor"] = [*reserved, user]
            if status:
                self._write(claim, status)
        return True

    def why_not(self, pod: Obj) -> str:
        """Why the pod's claims cannot be looked at yet; empty if they are there."""
        namespace = pod["metadata"]["namespace"]
        made = {one["name"] for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
        for one in pod["spec"].get("resourceClaims") or ():
            if one.get("resourceClaimTemplateName") and one["name"] not in made:
                return f"pod has claim {one['name']} that has not been created yet"
            name = claim_name(pod, one["name"])
            if self._api.get("resourceclaims", name, namespace) is None:
                return f'resourceclaim "{name}" not found'
        return ""

    def _is_eligible(self, request: DeviceRequest, device: SharedDevice) -> bool:
        """True if the request and its class are sure to take the device: CEL that is not read takes none."""
        made = self._api.get("deviceclasses", request.device_class)
        if made is None and self._needs_classes:
            return False
        selectors = [
            one["cel"]["expression"] for one in (made or {"spec": {}})["spec"].get("selectors") or ()
        ]
        known = {name: value for name, value in device.attributes.items() if not isinstance(value, Version)}
        return takes([*selectors, *request.selectors], SelectedDevice(known)) is True

    def devices(self, node: str) -> list[SharedDevice]:
        """The node's devices, in the order of its slice."""
        slices = self._api.list("resourceslices", fields=f"spec.nodeName={node},spec.driver={DRA_DRIVER}")
        newest = max((one["spec"]["pool"]["generation"] for one in slices), default=0)
        current = [one for one in slices if one["spec"]["pool"]["generation"] == newest]
        if len(current) != (current[0]["spec"]["pool"]["resourceSliceCount"] if current else 0):
            return []  # of a pool that is not seen whole nothing is allocated
        return [_device(device) for one in current for device in one["spec"]["devices"]]

    def used(self, node: str) -> dict[str, dict[str, int]]:
        """Device → capacity → what allocated claims consume of it."""
        sums: dict[str, dict[str, int]] = {}
        for claim in self._api.list("resourceclaims"):
            for result in _results(claim):
                if (result["pool"], result["driver"]) == (node, DRA_DRIVER) and not result.get("adminAccess"):
                    of_device = sums.setdefault(result["device"], {})
                    for name, amount in (result.get("consumedCapacity") or {}).items():
                        of_device[name] = of_device.get(name, 0) + int(parse_quantity(amount))
        return sums

    def release(self, namespace: str, name: str, pod_uid: str) -> None:
        """The pod has ended: its claim is reserved for it no more, and is free with the last."""
        _until_agreed(lambda: self._release(namespace, name, pod_uid))

    def _release(self, namespace: str, name: str, pod_uid: str) -> bool:
        claim = self._api.get("resourceclaims", name, namespace)
        if claim is not None:
            users = (claim.get("status") or {}).get("reservedFor") or ()
            left = [one for one in users if one["uid"] != pod_uid]
            self._write(claim, {"reservedFor": left} | ({} if left else {"allocation": None}))
        return claim is not None

    def _write(self, claim: Obj, status: Mapping[str, Any]) -> None:
        """Raises ApiError: the claim has changed since it was read."""
        meta = claim["metadata"]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}
        self._api.patch("resourceclaims", meta["name"], body, meta["namespace"], subresource="status")

    def _class_config(self, name: str) -> Sequence[Obj]:
        made = self._api.get("deviceclasses", name) or {"spec": {}}
        config: Sequence[Obj] = made["spec"].get("config") or ()
        return config

    def _result(self, node: str, share: AllocatedShare) -> dict[str, Any]:
        return {
            "request": share.request,
            "driver": DRA_DRIVER,
            "pool": node,
            "device": share.device,
            "shareID": str(uuid.UUID(int=self._rng.getrandbits(128))),
            "consumedCapacity": {name: str(amount) for name, amount in share.consumed.items()},
            **({"adminAccess": True} if share.is_admin else {}),
        }


def allocated_config(
    spec: Obj, chosen: Collection[str], class_config: Callable[[str], Sequence[Obj]]
) -> list[dict[str, Any]]:
    """Return ``config`` of an allocation: what the classes of the chosen requests and alternatives say, then
    what the claim says of them; as kube-scheduler 1.36 writes it (``allocator_stable.go`` of
    k8s.io/dynamic-resource-allocation).
    """
    asked = spec["devices"]
    of_class: dict[str, list[str]] = {}
    for request in asked["requests"]:
        named = {request["name"]: request.get("exactly")}
        named |= {f"{request['name']}/{one['name']}": one for one in request.get("firstAvailable") or ()}
        for name in sorted(named.keys() & set(chosen)):
            of_class.setdefault((named[name] or {})["deviceClassName"], []).append(name)
    found = [
        {**one, "source": "FromClass", "requests": requests}
        for name, requests in of_class.items()
        for one in class_config(name)
    ]
    bases = {name.partition("/")[0] for name in chosen}
    for one in asked.get("config") or ():
        about = one.get("requests") or ()
        if not about or {*chosen, *bases}.intersection(about):
            found.append({**one, "source": "FromClaim"})
    return found


def _until_agreed(change: Callable[[], bool]) -> bool:
    """What a change answers that reads anew where somebody else wrote in between."""
    while True:
        try:
            return change()
        except ApiError as error:
            if error.code != _CONFLICT:
                raise


def _results(claim: Obj) -> Sequence[Obj]:
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    results: Sequence[Obj] = devices.get("results") or ()
    return results


def _device(shown: Obj) -> SharedDevice:
    capacities = {}
    for name, one in shown["capacity"].items():
        span = one["requestPolicy"]["validRange"]
        least, step = (int(parse_quantity(span[key])) for key in ("min", "step"))
        capacities[name] = CapacityRange(least, step, int(parse_quantity(one["value"])))
    taints = tuple(Taint(t["key"], t["effect"], t.get("value", "")) for t in shown.get("taints") or ())
    attributes = {
        name: value["int"] if "int" in value else value["string"]
        for name, value in (shown.get("attributes") or {}).items()
        if "int" in value or "string" in value
    }
    return SharedDevice(shown["name"], capacities, attributes, taints)
