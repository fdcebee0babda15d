"""The requests of a ResourceClaim (``spec.devices`` of resource.k8s.io/v1), parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gpu_manager.domain.dra.parameters import Configured, read_config
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, text

CLAIM_KIND: Final = "ResourceClaim"
CLAIM_TEMPLATE_KIND: Final = "ResourceClaimTemplate"
_MOST_REQUESTS = 32  # per claim; the API server also bounds alternatives times requests
_EFFECTS_THAT_PREVENT = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a device. Only the effects NoSchedule and NoExecute keep claims away."""

    key: str
    effect: str
    value: str = ""

    @property
    def prevents(self) -> bool:
        """True if a claim has to tolerate the taint."""
        return self.effect in _EFFECTS_THAT_PREVENT


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of device taints. An empty key or effect stands for all of them."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """True if a request with this toleration may take a device with the taint."""
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        return self.operator == "Exists" or (self.operator in {"", "Equal"} and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One way to satisfy a request: a number of devices of a class, each with the same capacities.

    ``count`` is None for every eligible device (allocation mode All). ``capacities`` are the quantities that
    the claim names; a capacity that it omits is taken whole. ``name`` is ``request/subrequest`` for an
    alternative of ``firstAvailable``.
    """

    name: str
    device_class: str
    count: int | None
    capacities: Mapping[str, Fraction]
    selectors: tuple[str, ...]
    tolerations: tuple[Toleration, ...]
    is_admin: bool


@dataclass(frozen=True, slots=True)
class Constraint:
    """Devices of the named requests (of all, if none is named) must have equal, or distinct, attributes."""

    attribute: str
    is_distinct: bool
    requests: frozenset[str]

    def concerns(self, request: str) -> bool:
        """True if a device of the request, or of the subrequest ``request/alternative``, is constrained."""
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The content of a claim: its requests in order, each with its alternatives in order of preference.

    ``config`` are its parameters for this driver; ``odd_config`` is why they cannot be read, empty if they
    can.
    """

    requests: tuple[tuple[DeviceRequest, ...], ...]
    constraints: tuple[Constraint, ...]
    config: tuple[Configured, ...] = ()
    odd_config: str = ""


def is_claim(obj: Mapping[str, Any]) -> bool:
    """Return whether the object is a ResourceClaim or a ResourceClaimTemplate."""
    return obj.get("kind") in (CLAIM_KIND, CLAIM_TEMPLATE_KIND)


def parse_claim_spec(spec: object) -> ClaimSpec:
    """Read the ``spec`` of a ResourceClaim.

    Raises:
        RequestInvalid: a quantity, a count or a form that no API server would store.
    """
    devices = mapping(mapping(spec).get("devices"))
    requests = mappings(devices.get("requests"))
    if len(requests) > _MOST_REQUESTS:
        raise RequestInvalid(f"the claim has {len(requests)} requests: Kubernetes takes {_MOST_REQUESTS}")
    config: tuple[Configured, ...] = ()
    odd = ""
    try:
        config = read_config(devices.get("config"))
    except RequestInvalid as error:  # its requests count all the same
        odd = str(error)
    return ClaimSpec(
        tuple(_alternatives(request) for request in requests),
        tuple(_constraint(one) for one in mappings(devices.get("constraints"))),
        config,
        odd,
    )


def _alternatives(request: Mapping[str, Any]) -> tuple[DeviceRequest, ...]:
    name = text(request.get("name"))
    if "exactly" in request:
        return (_device_request(name, mapping(request["exactly"])),)
    found = mappings(request.get("firstAvailable"))
    if not found:
        raise RequestInvalid(f"request {quoted(name)} has neither `exactly` nor `firstAvailable`")
    return tuple(_device_request(f"{name}/{text(one.get('name'))}", one) for one in found)


def _device_request(name: str, exact: Mapping[str, Any]) -> DeviceRequest:
    mode = exact.get("allocationMode") or "ExactCount"
    count = exact.get("count", 1)
    if (
        mode not in ("ExactCount", "All")
        or not isinstance(count, int)
        or isinstance(count, bool)
        or count < 1
    ):
        raise RequestInvalid(
            f"request {quoted(name)}: allocationMode {quoted(mode)} with count {quoted(count)} is not "
            "`ExactCount` with a count from 1, nor `All`"
        )
    asked = mapping(mapping(exact.get("capacity")).get("requests"))
    return DeviceRequest(
        name=name,
        device_class=text(exact.get("deviceClassName")),
        count=None if mode == "All" else count,
        capacities={str(key): parse_quantity(value) for key, value in asked.items()},
        selectors=tuple(
            text(mapping(one.get("cel")).get("expression")) for one in mappings(exact.get("selectors"))
        ),
        tolerations=tuple(_toleration(one) for one in mappings(exact.get("tolerations"))),
        is_admin=exact.get("adminAccess") is True,
    )


def _toleration(one: Mapping[str, Any]) -> Toleration:
    operator = text(one.get("operator")) or "Equal"
    return Toleration(text(one.get("key")), operator, text(one.get("value")), text(one.get("effect")))


def _constraint(one: Mapping[str, Any]) -> Constraint:
    distinct, same = text(one.get("distinctAttribute")), text(one.get("matchAttribute"))
    if bool(distinct) == bool(same):
        raise RequestInvalid("a constraint has one of `matchAttribute` and `distinctAttribute`")
    names = one.get("requests")
    requests = frozenset(text(name) for name in names) if isinstance(names, list) else frozenset()
    return Constraint(distinct or same, bool(distinct), requests)
