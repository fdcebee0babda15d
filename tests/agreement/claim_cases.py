"""Requests of ResourceClaims that the shipped policy takes, and those that it refuses with what to write instead.

Units of 256 MiB and parts from 5 cores. The same on the expressions alone and on a real API server.
"""

from __future__ import annotations

from typing import Any

from gpu_manager.domain.contract import DRA_DRIVER

Request = dict[str, Any]


def asks(cores: object = None, memory: object = None, **fields: Any) -> Request:
    """A request for a part of a card; what is None is left out."""
    named = {"cores": cores, "memory": memory}
    requests = {name: str(amount) for name, amount in named.items() if amount is not None}
    capacity = {"capacity": {"requests": requests}} if requests else {}
    return {"deviceClassName": DRA_DRIVER, **capacity, **fields}


def exactly(request: Request) -> Request:
    return {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}


def first(*alternatives: Request) -> Request:
    named = [{"name": f"alt-{n}", **one} for n, one in enumerate(alternatives)]
    return {"devices": {"requests": [{"name": "gpu", "firstAvailable": named}]}}


SHARE_PARAMETERS = {"apiVersion": f"{DRA_DRIVER}/v1", "kind": "ShareParameters"}


def opaque(driver: str, **parameters: object) -> Request:
    config = {"opaque": {"driver": driver, "parameters": parameters}}
    return {"devices": {**exactly(asks(30, "4Gi"))["devices"], "config": [config]}}


def two(*requests: Request) -> Request:
    return {"devices": {"requests": [{"name": f"r{n}", "exactly": one} for n, one in enumerate(requests)]}}


def ranked(spec: Request, *requests: str, priority: str = "protected") -> Request:
    """The claim with a priority for the named requests, or for all."""
    told = {"driver": DRA_DRIVER, "parameters": {**SHARE_PARAMETERS, "priority": priority}}
    named = {"requests": list(requests)} if requests else {}
    return {"devices": {**spec["devices"], "config": [{**named, "opaque": told}]}}


def other(capacity: dict[str, str]) -> Request:
    """A request of another driver's class."""
    return {"deviceClassName": "net.example", "capacity": {"requests": capacity}, "adminAccess": False}


LEGAL: dict[str, Request] = {
    "a part": exactly(asks(30, "4Gi")),
    "the smallest part": exactly(asks(5, "256Mi")),
    "the largest part": exactly(asks(99, "15Gi")),
    "memory in bytes": exactly(asks(30, 268435456)),
    "memory in another form": exactly(asks("3e1", "0.5Gi")),
    "a whole card": exactly(asks()),
    "two whole cards": exactly(asks(count=2)),
    "equal parts of two cards": exactly(asks(30, "4Gi", count=2)),
    "all cards": exactly(asks(allocationMode="All")),
    "alternatives": first(asks(50, "8Gi"), asks(20, "4Gi")),
    "a toleration of another taint": exactly(
        asks(30, "4Gi", tolerations=[{"key": "example.com/old", "operator": "Exists"}])
    ),
    "no admin access": exactly(asks(30, "4Gi", adminAccess=False)),
    "admin access": exactly(asks(5, "256Mi", allocationMode="All", adminAccess=True)),
    "admin access to closed cards": exactly(
        asks(5, "256Mi", adminAccess=True, tolerations=[{"operator": "Exists"}])
    ),
    "another driver's odd capacity": exactly(other({"bandwidth": "1500m", "cores": "101"})),
    "another driver's parameters": opaque("net.example", ceiling=80),
    "an elastic ceiling": opaque(DRA_DRIVER, **SHARE_PARAMETERS, coreLimit=80),
    "parameters that say nothing": opaque(DRA_DRIVER, **SHARE_PARAMETERS),
    "a priority": opaque(DRA_DRIVER, **SHARE_PARAMETERS, priority="best-effort"),
    "no preloaded library": opaque(DRA_DRIVER, **SHARE_PARAMETERS, preload=False),
    "a priority of the alternative that is a part": ranked(first(asks(), asks(20, "4Gi")), "gpu/alt-1"),
    "a priority of the part beside a whole card": ranked(two(asks(), asks(20, "4Gi")), "r1"),
    "a priority of a part beside a look at cards": ranked(two(asks(20, "4Gi"), asks(adminAccess=True))),
    "whole cards of priority normal": ranked(exactly(asks()), priority="normal"),
    "selectors": exactly(asks(30, "4Gi", selectors=[{"cel": {"expression": "true"}}])),
}

# What → the spec, and parts of the refusal: the field, and the nearest that is legal.
ILLEGAL: dict[str, tuple[Request, str]] = {
    "a capacity that no card has": (
        exactly(asks(30, "4Gi") | {"capacity": {"requests": {"bandwidth": "5"}}}),
        'request "gpu": capacity bandwidth is unknown: cards have cores and memory',
    ),
    "cores alone": (exactly(asks(30)), "capacity cores is 30 without memory.* such as 256Mi"),
    "memory alone": (exactly(asks(memory="4Gi")), "capacity memory is 4Gi without cores.* such as 5"),
    "no cores": (exactly(asks(0, "4Gi")), "capacity cores is 0.* use 5 to 99"),
    "fewer cores than the cluster gives": (exactly(asks(4, "4Gi")), "capacity cores is 4.* use 5 to 99"),
    "part of a core": (exactly(asks("500m", "4Gi")), "capacity cores is 500m.* use 5 to 99"),
    "half a core more": (exactly(asks("30500m", "4Gi")), "capacity cores is 30500m.* use 30 or 31"),
    "almost a whole card": (exactly(asks("99500m", "4Gi")), "capacity cores is 99500m.* use 99"),
    "a whole card with a capacity": (exactly(asks(100, "4Gi")), "leave the capacity out for a whole card"),
    "more than a card": (exactly(asks(101, "4Gi")), "capacity cores is 101.* set count for several"),
    "two cards in cores": (exactly(asks(200, "4Gi")), "capacity cores is 200.* set count for several"),
    "memory within a unit": (exactly(asks(30, "1500Mi")), "memory is 1500Mi.* use 1280Mi or 1536Mi"),
    "decimal memory": (exactly(asks(30, "4G")), "memory is 4G.* use 3584Mi or 3840Mi"),
    "no memory": (exactly(asks(30, 0)), "memory is 0, less than 256 MiB: use 256Mi or more"),
    "memory below a unit": (exactly(asks(30, "1Mi")), "memory is 1Mi, less than 256 MiB: use 256Mi or more"),
    "memory that Kubernetes 1.36 cannot count": (
        exactly(asks(30, "8Ei")),
        "more than any card has: leave the capacity out",
    ),
    "admin access to part of a unit": (
        exactly(asks(5, "100Mi", adminAccess=True)),
        "capacity memory is 100Mi, less than",
    ),
    "a toleration of every taint": (
        exactly(asks(30, "4Gi", tolerations=[{"operator": "Exists"}])),
        "tolerates the taints of closed cards",
    ),
    "a toleration of cordoned cards": (
        exactly(asks(30, "4Gi", tolerations=[{"key": "vcuda.tencent.com/cordoned", "operator": "Exists"}])),
        "tolerates the taints of closed cards",
    ),
    "parameters of no kind": (
        opaque(DRA_DRIVER, coreLimit=80),
        "config of driver vcuda.tencent.com: its parameters are no ShareParameters of vcuda.tencent.com/v1",
    ),
    "an unknown parameter": (
        opaque(DRA_DRIVER, **SHARE_PARAMETERS, ceiling=80),
        "are no ShareParameters .* which has coreLimit, priority and preload",
    ),
    "a ceiling above a card": (
        opaque(DRA_DRIVER, **SHARE_PARAMETERS, coreLimit=101),
        "coreLimit is 101, which is no percentage of a card: use 1 to 100",
    ),
    "a ceiling in words": (
        opaque(DRA_DRIVER, **SHARE_PARAMETERS, coreLimit="most"),
        "coreLimit is most, which is no percentage of a card: use 1 to 100",
    ),
    "a priority that nobody knows": (
        opaque(DRA_DRIVER, **SHARE_PARAMETERS, priority="high"),
        "priority is high: use protected, normal or best-effort",
    ),
    "a priority that is no text": (
        opaque(DRA_DRIVER, **SHARE_PARAMETERS, priority=5),
        "priority is no text: use protected, normal or best-effort",
    ),
    "a priority of whole cards": (
        ranked(exactly(asks())),
        "priority is protected, but .* whole cards, which have no other tenant: leave priority out",
    ),
    "a priority of an alternative that is a whole card": (
        ranked(first(asks(20, "4Gi"), asks()), "gpu", priority="best-effort"),
        "priority is best-effort, but a request or alternative .* or name the others in requests",
    ),
    "a preload in words": (
        opaque(DRA_DRIVER, **SHARE_PARAMETERS, preload="false"),
        "preload is neither true nor false: use true or false, without quotes",
    ),
    "a second alternative without memory": (
        first(asks(50, "8Gi"), asks(20)),
        'request "gpu/alt-1": capacity cores is 20 without memory',
    ),
    "a first alternative within a unit": (
        first(asks(50, "100Mi"), asks(20, "4Gi")),
        'request "gpu/alt-0": capacity memory is 100Mi, less than',
    ),
}


def claim(spec: Request, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def template(spec: Request, name: str) -> dict[str, Any]:
    return claim({"spec": spec}, name) | {"kind": "ResourceClaimTemplate"}
