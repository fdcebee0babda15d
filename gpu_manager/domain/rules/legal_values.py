"""Legal requests and the nearest legal values: the checks that webhook, extender, agent and CLI share.

A container requests whole cards (a multiple of 100 cores), or a part of one card (1 to 99 cores) together
with memory, or nothing. 0 is legal, but never suggested as a remedy. Equal parts of several cards:
:mod:`gpu_manager.domain.rules.pod_annotations`. A LimitRange that gives containers a
request for cards which their authors did not write is warned of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod
from gpu_manager.domain.resources import (
    CORES_PER_CARD,
    DEFAULT_UNIT,
    GIB,
    LARGEST_COUNT,
    MIB,
    format_bytes,
    format_number,
)
from gpu_manager.domain.rules.pod_annotations import (
    ceiling_of,
    check_annotations,
    check_guarded,
    check_init_containers,
    check_parts,
    check_several,
    guarded_keys,
    models_of,
    placement_of,
    preload_of,
    priority_of,
    uuids_of,
    warn_cards,
    warn_priority,
)
from gpu_manager.domain.rules.request import Request
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.rules.unknown_names import check_visible_devices, unknown_names, warn_privileged
from gpu_manager.domain.untrusted import mapping, mappings

__all__ = [
    "MOST_AFFINITY_BYTES",
    "MOST_ASKING",
    "Rule",
    "Violation",
    "ceiling_of",
    "check_amounts",
    "check_container",
    "check_guarded",
    "check_pod",
    "guarded_keys",
    "is_legal_core",
    "is_legal_memory",
    "models_of",
    "nearest_cores",
    "nearest_memory",
    "peak_cores",
    "placement_of",
    "preload_of",
    "priority_of",
    "uuids_of",
    "warn_pod",
]

MOST_ASKING = 64  # containers of one pod that request cores
MOST_AFFINITY_BYTES = 64 << 10  # of a pod's node affinity, as JSON
_LARGEST_CORES = LARGEST_COUNT // CORES_PER_CARD * CORES_PER_CARD
_LARGEST_CARD = 1024 * GIB  # several times the largest card; a larger value was meant in another unit


def is_legal_core(value: Fraction, minimum_cores: int = 1) -> bool:
    """True for 0, ``minimum_cores``..100 and every multiple of 100 that Kubernetes can count."""
    # Called several times per pod: equals a check by nearest_cores, without computing it.
    if value.denominator != 1 or not 0 <= value.numerator <= _LARGEST_CORES:
        return False
    cores = value.numerator
    return cores == 0 or minimum_cores <= cores <= CORES_PER_CARD or cores % CORES_PER_CARD == 0


def nearest_cores(value: Fraction, minimum_cores: int = 1) -> tuple[int, ...]:
    """Return the legal cores on either side of a value, the nearer first; the value itself if it is legal."""
    if value <= minimum_cores:
        return (minimum_cores,)
    step = 1 if value <= CORES_PER_CARD else CORES_PER_CARD
    return _either_side(value, step, _LARGEST_CORES)


def is_legal_memory(value: Fraction, unit: int = DEFAULT_UNIT) -> bool:
    """True for 0 and every whole number of units whose bytes Kubernetes can count."""
    return value.denominator == 1 and 0 <= value.numerator <= LARGEST_COUNT // unit


def nearest_memory(value: Fraction, unit: int = DEFAULT_UNIT) -> tuple[int, ...]:
    """Return the legal numbers of units on either side of a value, the nearer first; itself if legal."""
    return (1,) if value <= 1 else _either_side(value, 1, LARGEST_COUNT // unit)


def _either_side(value: Fraction, step: int, largest: int) -> tuple[int, ...]:
    if value >= largest:
        return (largest,)
    sides = {floor(value / step) * step, ceil(value / step) * step}
    return tuple(sorted(sides, key=lambda side: (abs(side - value), side)))


def check_pod(pod: Pod, unit: int = DEFAULT_UNIT, minimum_cores: int = 1) -> tuple[Violation, ...]:
    """Return everything that makes the pod illegal, in container order; empty if it is legal.

    Args:
        pod: as parsed by :func:`~gpu_manager.domain.kube.pod.parse_pod`.
        unit: bytes of one unit of memory.
        minimum_cores: the smallest part of a card that the cluster gives, in hundredths.
    """
    amounts = check_amounts(pod, unit, minimum_cores)
    if not _names_ours(pod):
        return amounts  # the annotations of a pod without our resources are not checked
    return (
        *amounts,
        *check_visible_devices(pod),
        *_check_node_affinity(pod),
        *check_annotations(pod),
        *check_several(pod),
    )


def check_amounts(pod: Pod, unit: int = DEFAULT_UNIT, minimum_cores: int = 1) -> tuple[Violation, ...]:
    """Return what is illegal in the pod's choice of containers with cards and in their amounts, which are
    immutable.
    """
    found = tuple(v for c in pod.containers for v in check_container(c, unit, minimum_cores))
    if not _names_ours(pod):
        return found
    return (*found, *_check_names(pod), *_check_init_containers(pod), *_check_count(pod))


def _names_ours(pod: Pod) -> bool:
    return any(c.core is not None or c.memory_units is not None for c in pod.containers)


def warn_pod(pod: Pod, unit: int = DEFAULT_UNIT) -> tuple[Violation, ...]:
    """Return what is legal in the pod but probably a mistake."""
    return (
        *(v for c in pod.containers for v in _warn_container(c, unit)),
        *_warn_init_containers(pod),
        *warn_privileged(pod),
        *warn_limited(pod),
        *warn_priority(pod),
        *warn_cards(pod),
        *unknown_names(pod),
    )


# Each check yields its violations in the order of the manifest.


def check_container(
    container: Container, unit: int = DEFAULT_UNIT, minimum_cores: int = 1
) -> Iterator[Violation]:
    """Yield what is illegal in one container's request."""
    if container.parts > 1:
        yield from check_parts(container, unit, minimum_cores)
        yield from _check_requests(container, unit, minimum_cores)
        return
    core, memory = container.core or Fraction(0), container.memory_units or Fraction(0)
    core_fault, memory_fault = _core_fault(core, minimum_cores), _memory_fault(memory, unit)
    if core_fault:
        yield _core_violation(core_fault, container, minimum_cores)
    if memory_fault:
        yield _memory_violation(memory_fault, container, unit)
    is_part = 0 < core < CORES_PER_CARD
    if (core == 0 and memory > 0) or (is_part and memory == 0):
        figures = {"unit": format_bytes(unit), "minimum": str(minimum_cores)}
        name = container.name
        yield (
            violation(Rule.FRACTION_WITHOUT_MEMORY, name, MEMORY, format_number(core), (1,), **figures)
            if is_part
            else violation(
                Rule.MEMORY_WITHOUT_CORE, name, CORE, format_number(memory), (minimum_cores,), **figures
            )
        )
    if is_part and container.privileged:
        yield violation(
            Rule.PRIVILEGED_FRACTION, container.name, CORE, format_number(core), (CORES_PER_CARD,)
        )
    yield from _check_requests(container, unit, minimum_cores)


def _core_fault(core: Fraction, minimum_cores: int) -> Rule | None:
    if is_legal_core(core, minimum_cores):
        return None
    if core < 0:
        return Rule.CORE_NEGATIVE
    if core > _LARGEST_CORES:
        return Rule.CORE_TOO_LARGE
    if core.denominator != 1:
        return Rule.CORE_NOT_WHOLE
    return Rule.CORE_BELOW_MINIMUM if core < minimum_cores else Rule.CORE_NOT_MULTIPLE


def _core_violation(rule: Rule, container: Container, minimum_cores: int) -> Violation:
    core = container.core or Fraction(0)
    hint = ""
    if rule is Rule.CORE_NOT_WHOLE and core < CORES_PER_CARD:
        # A value such as 0.3 or 1.5 most likely counts cards.
        meant = " or ".join(map(str, nearest_cores(core * CORES_PER_CARD, minimum_cores)))
        hint = f"; if {format_number(core)} cards were meant, use {meant}"
    nearest = nearest_cores(core, minimum_cores)
    return violation(
        rule, container.name, CORE, format_number(core), nearest, hint=hint, minimum=str(minimum_cores)
    )


def _memory_fault(memory: Fraction, unit: int) -> Rule | None:
    if is_legal_memory(memory, unit):
        return None
    if memory < 0:
        return Rule.MEMORY_NEGATIVE
    return Rule.MEMORY_TOO_LARGE if memory > LARGEST_COUNT // unit else Rule.MEMORY_NOT_WHOLE


def _memory_violation(rule: Rule, container: Container, unit: int) -> Violation:
    units = container.memory_units or Fraction(0)
    return violation(
        rule,
        container.name,
        MEMORY,
        format_number(units),
        nearest_memory(units, unit),
        unit=format_bytes(unit),
        hint=_other_unit(units, unit),
    )


def _other_unit(units: Fraction, unit: int) -> str:
    """Suggest the unit in which a far too large number of units was probably meant."""
    for meant_bytes in (units, units * MIB):
        if unit <= meant_bytes <= _LARGEST_CARD:
            return f"; if {format_bytes(int(meant_bytes))} was meant, use {ceil(meant_bytes / unit)}"
    return ""


def _check_requests(container: Container, unit: int, minimum_cores: int) -> Iterator[Violation]:
    pairs: tuple[tuple[str, Fraction | None, Fraction | None, Callable[[Fraction], tuple[int, ...]]], ...] = (
        (CORE, container.core_request, container.core, lambda v: nearest_cores(v, minimum_cores)),
        (MEMORY, container.memory_units_request, container.memory_units, lambda v: nearest_memory(v, unit)),
    )
    for field, request, limit, nearest in pairs:
        if request is not None and request != limit:
            shown = "nothing" if limit is None else format_number(limit)
            yield violation(
                Rule.REQUESTS_DIFFER,
                container.name,
                field,
                format_number(request),
                nearest(request if limit is None else limit),
                limit=shown,
            )


def _check_names(pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each container that mixes ``nvidia.com/gpu`` into a pod with this project's
    resources.
    """
    if any(c.asks and not c.lent for c in pod.containers):
        for container in pod.containers:
            if container.gpus:
                yield violation(Rule.NAMES_MIXED, container.name, NVIDIA, format_number(container.gpus))


def _check_count(pod: Pod) -> Iterator[Violation]:
    asking = sum(c.core is not None and c.core > 0 for c in pod.containers)
    if asking > MOST_ASKING:
        yield violation(Rule.CONTAINERS_TOO_MANY, "", "spec.containers", str(asking), (MOST_ASKING,))


def _check_node_affinity(pod: Pod) -> Iterator[Violation]:
    if pod.affinity_bytes > MOST_AFFINITY_BYTES:
        yield violation(
            Rule.NODE_AFFINITY_TOO_LARGE,
            "",
            "spec.affinity.nodeAffinity",
            str(pod.affinity_bytes),
            (MOST_AFFINITY_BYTES,),
        )


def _check_init_containers(pod: Pod) -> Iterator[Violation]:
    """Yield a violation where an ordinary init container's ids would go to later containers at random."""
    if any(c.parts > 1 for c in pod.containers):
        yield from check_init_containers(pod)
        return
    asking = [c for c in pod.containers if c.core and c.core > 0]
    first = next((c for c in asking if c.kind is ContainerKind.INIT), None)
    if first is None or peak_cores(pod) <= CORES_PER_CARD:
        return
    amounts = {c.core for c in asking}
    if len(amounts) == 1 and first.core is not None and first.core % CORES_PER_CARD == 0:
        return
    shapes = ", ".join(f"{format_number(c.core or Fraction(0))} ({quoted(c.name)})" for c in asking[:4])
    more = f" and {len(asking) - 4} more" if len(asking) > 4 else ""
    yield violation(
        Rule.INIT_CONTAINER_CARDS,
        first.name,
        CORE,
        format_number(first.core or Fraction(0)),
        shapes=shapes + more,
    )


def _warn_init_containers(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for the first ordinary init container that requests a share, if that is legal."""
    first = next((c for c in pod.containers if c.kind is ContainerKind.INIT and c.core), None)
    if first is not None and not any(_check_init_containers(pod)):
        yield violation(Rule.INIT_CONTAINER_ASKS, first.name, CORE, format_number(first.core or Fraction(0)))


def peak_cores(pod: Pod) -> Fraction:
    """Return the most cores in use at one time: init containers run one by one, sidecars keep running."""
    highest, sidecars, apps = Fraction(0), Fraction(0), Fraction(0)
    for container in pod.containers:
        core = container.core or Fraction(0)
        if container.kind is ContainerKind.INIT:
            highest = max(highest, sidecars + core)
        elif container.kind is ContainerKind.SIDECAR:
            sidecars += core
        else:
            apps += core
    return max(highest, sidecars + apps)


def _warn_container(container: Container, unit: int) -> Iterator[Violation]:
    core, units = container.core or Fraction(0), container.memory_units or Fraction(0)
    if core >= CORES_PER_CARD and not container.is_part and units > 0 and is_legal_core(core):
        cards = str(Request(int(core), 0))
        yield violation(
            Rule.MEMORY_BESIDE_WHOLE_CARDS, container.name, MEMORY, format_number(units), cards=cards
        )
    elif units * unit > _LARGEST_CARD * container.parts and is_legal_memory(units, unit):
        yield violation(
            Rule.MEMORY_BEYOND_CARDS,
            container.name,
            MEMORY,
            format_number(units),
            unit=format_bytes(unit),
            hint=_other_unit(units, unit),
        )


_NOTE: Final = "kubernetes.io/limit-ranger"  # annotation in which the API server lists what it filled in
_FILLED: Final = re.compile(r"(.+) (?:limit|request) for (?:init )?container (\S+)")


def warn_limit_range(obj: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a warning for each card resource that a LimitRange gives to containers which request none."""
    for limit in mappings(mapping(obj.get("spec")).get("limits")):
        for field in (CORE, MEMORY) if limit.get("type") == "Container" else ():
            for kind in ("default", "defaultRequest", "max"):
                value = mapping(limit.get(kind)).get(field)
                if value is None:
                    continue
                how = "makes its default of max" if kind == "max" else f"has a {kind}"
                yield _warning("", field, f"is {quoted(value)} in a LimitRange that {how}: every container")
                break


def warn_limited(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for each container for which a LimitRange has filled in a card resource."""
    told: set[tuple[str, str]] = set()
    for part in pod.annotations.get(_NOTE, "").partition(": ")[2].split("; "):
        found = _FILLED.fullmatch(part)
        for field in found[1].split(", ") if found else ():
            name = found[2] if found else ""
            if field in (CORE, MEMORY) and (name, field) not in told:
                told.add((name, field))
                yield _warning(name, field, "was filled in by a LimitRange of the namespace: each container")


def _warning(container: str, field: str, reason: str) -> Violation:
    return violation(Rule.LIMIT_RANGE, container, field, "", reason=reason)
