"""Kubernetes' own limits that a resize exceeds: ResourceQuotas and LimitRanges count what specs request, and
a resize changes no spec. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from gpu_manager.domain.contract import CORE, MEMORY, RESIZE
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.resize.judgement import held_size, legal_sizes
from gpu_manager.domain.resize.sizes import Sizes, answer_of, digest, spec_sizes
from gpu_manager.domain.resources import Amount, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, text

_COUNTED: Final = {f"requests.{CORE}": CORE, f"requests.{MEMORY}": MEMORY}


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """The ResourceQuotas and LimitRanges of one namespace, as stored by the API server."""

    quotas: Sequence[Mapping[str, Any]] = ()
    ranges: Sequence[Mapping[str, Any]] = ()


def resized_to(pod: Pod, unit: int) -> Sizes:
    """The size of each resizable container of the pod: as requested, else as reserved, else as held, else as
    in its spec.
    """
    spec, answer = spec_sizes(pod, unit), answer_of(pod)
    is_open = RESIZE in pod.annotations and (answer is None or answer.asked != digest(pod))
    if is_open and (asked := legal_sizes(pod, unit)):
        return asked
    given = answer.sizes if answer is not None else {}
    return {name: given.get(name) or held_size(pod, name) or size for name, size in spec.items()}


def past_limits(limits: NamespaceLimits, pods: Iterable[Pod], unit: int) -> Iterator[str]:
    """Yield each limit that resized pods of the namespace exceed, as a sentence.

    ``unit``: bytes of one unit of memory.
    """
    sizes = [
        (pod, name, size, spec_sizes(pod, unit)[name])
        for pod in pods
        if not pod.terminal and not pod.deleting
        for name, size in resized_to(pod, unit).items()
    ]
    grown = [one for one in sizes if not one[2].fits_in(one[3])]
    more = {
        resource: sum(_of(resource, size, unit) - _of(resource, spec, unit) for *_, size, spec in sizes)
        for resource in (CORE, MEMORY)
    }
    for quota in limits.quotas if grown else ():
        hard, used = mapping(mapping(quota.get("spec")).get("hard")), mapping(quota.get("status")).get("used")
        for key, resource in _COUNTED.items():
            most, total = _units(hard.get(key)), (_units(mapping(used).get(key)) or 0) + more[resource]
            if most is not None and total > most:
                yield (
                    f"ResourceQuota {quoted(_name(quota))} grants {most} of {key}, and pods come to {total} "
                    "by resizes: Kubernetes counts what specs ask for"
                )
    for limit in limits.ranges if grown else ():
        bounds = [
            b for b in mappings(mapping(limit.get("spec")).get("limits")) if b.get("type") == "Container"
        ]
        for bound, resource in product(bounds, (CORE, MEMORY)):
            most = _units(mapping(bound.get("max")).get(resource))
            for pod, name, size, _ in grown if most is not None else ():
                if (has := _of(resource, size, unit)) > (most or 0):
                    yield (
                        f"LimitRange {quoted(_name(limit))} lets a container have {most} of {resource}, and "
                        f"{quoted(name)} of {pod.key} comes to {has} by its resize"
                    )


def _of(resource: str, size: Amount, unit: int) -> int:
    return size.cores if resource == CORE else size.memory // unit


def _units(value: object) -> int | None:
    try:
        return None if value is None else int(parse_quantity(value))
    except RequestInvalid:
        return None


def _name(obj: Mapping[str, Any]) -> str:
    return text(mapping(obj.get("metadata")).get("name"))
