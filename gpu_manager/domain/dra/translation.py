"""Converts a pod's extended resources to the requests of one ResourceClaim, for nodes that give cards by
claims only.

Each container that requests cards gets a request named after it, with the same amount, so the claim's
allocation has the limits that the container would have had. The largest come first, because the scheduler's
search goes back over every request before the one that finds no card (``allocator_worst_ms``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.contract import DRA_DRIVER, PLACEMENT
from gpu_manager.domain.dra.allocation import MOST_RESULTS
from gpu_manager.domain.dra.device import CORES, MEMORY
from gpu_manager.domain.dra.parameters import FIELDS, ShareTerms, written_parameters
from gpu_manager.domain.dra.selectors import model_selector, uuid_selector
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import ContainerKind, Pod
from gpu_manager.domain.resources import memory_quantity
from gpu_manager.domain.rules.pod_annotations import preload_of
from gpu_manager.domain.rules.request import ContainerRequest, PlacementPolicy, PodRequest, Request
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation

DEVICE_CLASS: Final = DRA_DRIVER
"""Name of the DeviceClass that the chart installs."""

MOST_UNLIKE: Final = 4
"""Unlike shares of one pod that the scheduler places, or does not, within 0.1 s a node."""

_MOST_BYTES: Final = 1 << 62  # per card, by the policies for claims


_TEMPLATE: Final = re.compile(r"vcuda-[0-9a-f]{20}")


def is_turned_template(name: str) -> bool:
    """True if a ResourceClaimTemplate of that name was made for converted pods."""
    return _TEMPLATE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class TurnedRequest:
    """A request of the claim, and the containers that use it: one, and ordinary init containers before it."""

    name: str
    asks: Request
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TurnedPod:
    """A pod's extended resources as a claim. ``spec`` is that of the ResourceClaim."""

    requests: tuple[TurnedRequest, ...]
    spec: Mapping[str, Any]

    @property
    def template(self) -> str:
        """Name of the ResourceClaimTemplate: equal for equal specs, whichever replica creates it."""
        written = json.dumps(self.spec, sort_keys=True, separators=(",", ":"))
        return f"vcuda-{hashlib.sha256(written.encode()).hexdigest()[:20]}"

    @property
    def unlike(self) -> int:
        """The number of unlike shares, on which the duration of a scheduler's search depends."""
        return len({one.asks for one in self.requests})

    def request_of(self, container: str) -> str:
        """The name of the request that a container uses; empty for none."""
        return next((one.name for one in self.requests if container in one.containers), "")


def turned_into_claim(pod: Pod, request: PodRequest) -> TurnedPod:
    """The claim that gives the containers of a pod the amounts of their extended resources.

    ``request`` is the pod's, as judged.

    Raises:
        RequestInvalid: a claim cannot express it; the text completes "is not turned into a ResourceClaim".
    """
    _check_sayable(pod, request)
    requests = tuple(sorted(_requests(request.containers), key=_size, reverse=True))
    devices = sum(one.asks.width for one in requests)
    if devices > MOST_RESULTS:
        raise RequestInvalid(
            f"it asks for {devices} cards and parts of cards, and Kubernetes gives a claim {MOST_RESULTS}"
        )
    selectors = tuple(_selectors(request))
    config = tuple(_config(pod, request, requests))
    return TurnedPod(
        requests,
        {
            "devices": {
                "requests": [_as_json(one, selectors) for one in requests],
                **({"config": list(config)} if config else {}),
            }
        },
    )


def turned_warnings(request: PodRequest, turned: TurnedPod) -> tuple[Violation, ...]:
    """Warnings for the author of a converted pod: what it requests now, what is ignored, what may be slow."""
    policy, unlike = request.placement, turned.unlike
    shares = [f"request {one.name}: {one.asks}" for one in turned.requests]
    told = "; ".join([*shares, *_parameters(turned)])
    found = [violation(Rule.TURNED_INTO_CLAIM, "", "", turned.template, shares=told)]
    if policy is not PlacementPolicy.BINPACK:
        found.append(violation(Rule.PLACEMENT_OF_CLAIM, "", PLACEMENT, policy.value))
    if unlike > MOST_UNLIKE:
        found.append(violation(Rule.UNLIKE_SHARES, "", "", str(unlike), (MOST_UNLIKE,)))
    return tuple(found)


def _parameters(turned: TurnedPod) -> Iterator[str]:
    """The claim's parameters beside its shares, as text."""
    for entry in turned.spec["devices"].get("config", ()):
        said = entry["opaque"]["parameters"]
        words = (f"{name} {json.dumps(said[name])}".replace('"', "") for name in FIELDS if name in said)
        yield f"parameters {', '.join(words)}"


def _check_sayable(pod: Pod, request: PodRequest) -> None:
    if pod.node:
        raise RequestInvalid(
            f"spec.nodeName is {quoted(pod.node)}, and only a scheduler allocates claims: "
            "use a nodeSelector instead"
        )
    if pod.graphics:
        raise RequestInvalid("it asks for the driver's graphics libraries, which do not come with a claim")
    large = next((one for one in request.containers if one.request.memory >= _MOST_BYTES), None)
    if large is not None:
        raise RequestInvalid(f"container {quoted(large.name)} asks for more memory than any card has")


def _requests(containers: Sequence[ContainerRequest]) -> Iterator[TurnedRequest]:
    """A request for each container that runs beside others; ordinary init containers use an equal one.

    A claim is held as long as the pod lives, so a further request would raise the pod's peak.
    """
    users: dict[str, list[str]] = {c.name: [c.name] for c in containers if c.kind is not ContainerKind.INIT}
    apps = [c for c in containers if c.kind is ContainerKind.APP]
    for init in (c for c in containers if c.kind is ContainerKind.INIT):
        equal = next((app for app in apps if app.request == init.request), None)
        if equal is None:
            raise RequestInvalid(
                f"init container {quoted(init.name)} asks for {init.request}, and no app container asks for "
                "just that: what a claim gives is held for the pod's whole life, so that the two would add "
                "up; ask for the same in both, or make it a sidecar (`restartPolicy: Always`)"
            )
        users[equal.name].append(init.name)
    asked = {c.name: c.request for c in containers}
    return (TurnedRequest(name, asked[name], tuple(used)) for name, used in users.items())


def _size(one: TurnedRequest) -> tuple[int, int]:
    return one.asks.cores, one.asks.memory


def _selectors(request: PodRequest) -> Iterator[str]:
    if request.uuids:
        yield uuid_selector(request.uuids)
    if request.models:
        try:
            yield model_selector(request.models)
        except RequestInvalid as error:
            raise RequestInvalid(f"no selector of a claim can name its models: {error}") from error


def _config(pod: Pod, request: PodRequest, requests: Sequence[TurnedRequest]) -> Iterator[Mapping[str, Any]]:
    """Parameters from the pod's annotations, for its parts of cards; whole cards have none."""
    parts = [one.name for one in requests if not one.asks.cards]
    parameters = written_parameters(ShareTerms(request.ceiling or 0, request.priority, preload_of(pod)))
    if parameters and parts:
        yield {"requests": parts, "opaque": {"driver": DRA_DRIVER, "parameters": parameters}}


def _as_json(one: TurnedRequest, selectors: Sequence[str]) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": DEVICE_CLASS}
    if one.asks.cards:
        exactly |= {"allocationMode": "ExactCount", "count": one.asks.cards}
    else:
        each = one.asks.amount
        exactly["capacity"] = {"requests": {CORES: str(each.cores), MEMORY: memory_quantity(each.memory)}}
        if one.asks.parts > 1:
            exactly |= {"allocationMode": "ExactCount", "count": one.asks.parts}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in selectors]
    return {"name": one.name, "exactly": exactly}
