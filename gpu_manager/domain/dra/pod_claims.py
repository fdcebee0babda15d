"""Which of our requests each container of a pod uses: one at most, and how it is shared.

What a container gets of a claim is mounted at fixed paths, so a second request of ours in one container would
hide the limits of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.claim import ClaimSpec, DeviceRequest
from gpu_manager.domain.dra.demand import Classes, is_ours
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.untrusted import mapping, mappings, text

UsedRequest = tuple[str, str]
"""Entry of ``spec.resourceClaims`` and the name of a request in its claim."""


def requests_of_containers(
    pod: Mapping[str, Any], spec_of: Callable[[Mapping[str, Any]], ClaimSpec | None], classes: Classes
) -> Mapping[str, tuple[UsedRequest, ...]]:
    """Return the requests of ours that each container uses, by container, init containers first.

    ``spec_of``: the spec of the claim or template that an entry of ``spec.resourceClaims`` names; None if it
    is not known. A container that names a claim and no request uses all of them.
    """
    spec = mapping(pod.get("spec"))
    known = {
        text(entry.get("name")): _ours(found, classes)
        for entry in mappings(spec.get("resourceClaims"))
        if (found := spec_of(entry)) is not None
    }
    containers = (*mappings(spec.get("initContainers")), *mappings(spec.get("containers")))
    return {
        text(container.get("name")): tuple(dict.fromkeys(_used(container, known))) for container in containers
    }


def _ours(spec: ClaimSpec, classes: Classes) -> tuple[str, ...]:
    """Names of requests that are given a card of ours, or a look at one, by one of their alternatives."""
    return tuple(
        alternatives[0].name.partition("/")[0]
        for alternatives in spec.requests
        if any(_names_us(one, classes) for one in alternatives)
    )


def _names_us(request: DeviceRequest, classes: Classes) -> bool:
    """True if the request, or its class, asks for our driver; of one that might, nothing is said."""
    selectors = (*classes.get(request.device_class, ()), *request.selectors)
    return any(DRA_DRIVER in one for one in selectors) and is_ours(request, classes)


def _used(container: Mapping[str, Any], known: Mapping[str, tuple[str, ...]]) -> Iterator[UsedRequest]:
    for one in mappings(mapping(container.get("resources")).get("claims")):
        entry, named = text(one.get("name")), text(one.get("request"))
        yield from ((entry, request) for request in known.get(entry, ()) if named in {"", request})


def double_uses(used: Mapping[str, tuple[UsedRequest, ...]]) -> list[tuple[str, str]]:
    """Return each container that uses several requests of ours, and a text that names them."""
    return [(container, _named(requests)) for container, requests in used.items() if len(requests) > 1]


def shared_uses(used: Mapping[str, tuple[UsedRequest, ...]]) -> list[str]:
    """Return a text for each request of ours that several containers use."""
    users: dict[UsedRequest, list[str]] = {}
    for container, requests in used.items():
        for one in requests:
            users.setdefault(one, []).append(container)
    return [
        f"containers {', '.join(map(quoted, containers))} share {_named((one,))}"
        for one, containers in users.items()
        if len(containers) > 1
    ]


def _named(requests: tuple[UsedRequest, ...]) -> str:
    return ", ".join(f"request {quoted(request)} of claim {quoted(entry)}" for entry, request in requests)
