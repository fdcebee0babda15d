"""ResourceClaims for tests: what one holds of a node's cards, the API server that has them, who publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import AllocatedClaim, parse_allocated_claim
from gpu_manager.domain.dra.device import SharedDevice
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, ZERO, Amount
from gpu_manager.services.allocation.books import Grant


def claim_grant(
    uid: str,
    *states: CardState,
    cores: int = 30,
    request: str = "gpu",
    pods: Sequence[str] = ("train-0",),
    directory: str = "",
) -> Grant:
    """What a request of the claim ``ml/<uid>`` holds: the same part of each of these cards, with no cores a look
    (admin access).
    """
    held = Amount(cores, 4 * GIB) if cores else ZERO
    shares = tuple(Share(state.card.uuid, held) for state in states)
    results = tuple((f"gpu-{state.card.index}", f"share-{uid}-{state.card.index}") for state in states)
    holder = HoldingClaim(uid, request, results, tuple((PodUid(f"uid-{name}"), name) for name in pods))
    allocation = Allocation(
        PodUid(f"claim-{uid}"),
        f"{uid}/{request}",
        ContainerKind.APP,
        0,
        shares,
        "ml",
        pods[0] if len(pods) == 1 else uid,
        claim=holder,
    )
    return Grant(allocation, directory or f"{uid}-{request}", proven=True)


def result(device: str, cores: object = 30, memory: object = 4 * GIB, **fields: Any) -> dict[str, Any]:
    """A result of the scheduler's allocation, as the API server has it."""
    consumed = {"cores": str(cores), "memory": str(memory)}
    plain = {"request": "gpu", "driver": DRA_DRIVER, "pool": "n1", "device": device, "shareID": "s-1"}
    return {**plain, "consumedCapacity": consumed, **fields}


def claim_object(
    name: str,
    *results: Mapping[str, Any],
    uid: str = "",
    namespace: str = "ml",
    pods: Sequence[str] = ("train-0",),
) -> dict[str, Any]:
    """A ResourceClaim with an allocation, reserved for pods whose UIDs are ``uid-<name>``."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": namespace, "name": name, "uid": uid or f"claim-{name}"},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods],
        },
    }


@dataclass
class FakeClaims:
    """The API server's ResourceClaims by ``namespace/name``; ``away`` does not answer."""

    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    away: bool = False
    reads: int = 0

    def add(self, claim: dict[str, Any]) -> None:
        meta = claim["metadata"]
        self.there[f"{meta['namespace']}/{meta['name']}"] = claim

    def read(self, namespace: str, name: str) -> AllocatedClaim | None:
        self.reads += 1
        if self.away:
            raise NodeUnready("the API server does not answer")
        found = self.there.get(f"{namespace}/{name}")
        return None if found is None else parse_allocated_claim(found, DEFAULT_UNIT)

    def allocated(self, pool: str) -> dict[str, str]:
        if self.away:
            raise NodeUnready("the API server does not answer")
        return {
            one["device"]: name
            for name, claim in self.there.items()
            for one in claim["status"]["allocation"]["devices"]["results"]
            if one["pool"] == pool and not one.get("adminAccess")
        }


@dataclass
class FakeSlices:
    """Keeps what was published last; ``error`` is why nothing can be."""

    told: list[tuple[SharedDevice, ...]] = field(default_factory=list)
    error: str = ""

    def publish(self, devices: Sequence[SharedDevice]) -> bool:
        if self.error:
            raise NodeUnready(self.error)
        self.told.append(tuple(devices))
        return True
