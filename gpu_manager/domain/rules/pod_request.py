"""The request of a pod: strict before it is bound (:func:`judged_request`), lenient afterwards.

A pod without a node must satisfy every rule. A bound pod requests the amounts of its spec, which is
immutable; its annotations may be changed at any time, so they count only while all of them are legal. The
agent grants a bound pod :func:`bound_request`; programs that count it from outside use
:func:`booked_request`, which is equal, or None if the agent grants nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Container, Pod
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.legal_values import check_amounts, check_container, check_pod
from gpu_manager.domain.rules.pod_annotations import (
    ceiling_of,
    check_annotations,
    check_lent,
    models_of,
    placement_of,
    priority_of,
    uuids_of,
)
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.rules.rulebook import Violation


def judged_request(pod: Pod, unit: int = DEFAULT_UNIT, minimum_cores: int = 1) -> PodRequest:
    """Return the request of a legal pod; its ``containers`` are empty if it requests no card.

    ``unit`` is bytes of one unit of memory, ``minimum_cores`` the smallest legal part of a card.

    Raises:
        RequestInvalid: the pod is illegal; the message has every reason.
    """
    _raise_if_any(check_pod(pod, unit, minimum_cores))
    return _request(pod, unit)


def bound_request(pod: Pod, unit: int = DEFAULT_UNIT) -> PodRequest:
    """Return the request of a pod that is bound to a node; ``unit`` is bytes of one unit of memory.

    Without constraints and ceiling, but with its priority, if any annotation is illegal.

    Raises:
        RequestInvalid: the amounts are illegal, so that no node grants them; the message has every reason.
    """
    _raise_if_any((*check_amounts(pod, unit), *check_lent(pod)))
    if any(check_annotations(pod)):
        # The priority, which cannot be changed, stays.
        return replace(_request(replace(pod, annotations={}), unit), priority=priority_of(pod))
    return _request(pod, unit)


def booked_request(pod: Pod, unit: int = DEFAULT_UNIT) -> PodRequest | None:
    """Return the :func:`bound_request` of a pod; None if no node grants its amounts."""
    try:
        return bound_request(pod, unit)
    except RequestInvalid:
        return None


def container_request(container: Container, unit: int = DEFAULT_UNIT) -> Request | None:
    """Return the request of one container (memory in bytes); None if it requests nothing.

    Raises:
        RequestInvalid: its values are illegal; the message has every reason.
    """
    _raise_if_any(check_container(container, unit))
    return _asked(container, unit)


def _request(pod: Pod, unit: int) -> PodRequest:
    requests = ((order, c, _asked(c, unit)) for order, c in enumerate(pod.containers))
    return PodRequest(
        uid=pod.uid,
        containers=tuple(
            ContainerRequest(c.name, c.kind, order, r) for order, c, r in requests if r is not None
        ),
        placement=placement_of(pod),
        models=models_of(pod),
        uuids=uuids_of(pod),
        ceiling=ceiling_of(pod),
        priority=priority_of(pod),
    )


def _asked(container: Container, unit: int) -> Request | None:
    cores = int(container.core or 0)
    if cores == 0:
        return None
    memory = int(container.memory_units or 0) * unit if container.is_part else 0
    return Request(cores, memory, container.parts)


def _raise_if_any(violations: Iterable[Violation]) -> None:
    if text := "; ".join(v.refusal for v in violations):
        raise RequestInvalid(text)
