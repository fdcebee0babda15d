"""The requests of ResourceClaims as text."""

from __future__ import annotations

from typing import Final

from gpu_manager.domain.dra.claim import DeviceRequest
from gpu_manager.domain.dra.device import CORES, MEMORY, CapacityRange
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import format_bytes, format_number

MINOR: Final = 36
"""Of the Kubernetes 1 whose rounding is followed."""


def nodes_words(count: int) -> str:
    """Return a number of nodes."""
    return "1 node" if count == 1 else f"{count} nodes"


def asked_words(request: DeviceRequest, priority: Priority = Priority.NORMAL) -> str:
    """A phrase for a request's amounts, and its priority unless that is normal."""
    return _amounts(request) + ("" if priority is Priority.NORMAL else f", {priority.value}")


def _amounts(request: DeviceRequest) -> str:
    if not request.is_admin:
        return _part(request)
    return f"admin access, for which Kubernetes wants as much free, and takes nothing: {_part(request)}"


def _part(request: DeviceRequest) -> str:
    cores, memory = request.capacities.get(CORES), request.capacities.get(MEMORY)
    parts = []
    if cores is not None:
        parts.append(f"{format_number(cores)} cores")
    if memory is not None:
        parts.append(format_bytes(int(memory)))
    if cores is not None and memory is None:
        parts.append("all the memory")
    if memory is not None and cores is None:
        parts.append("all the cores")
    what = ", ".join(parts)
    if request.count is None:
        return f"{what or 'all'} of every card" if what else "every card of a node, whole"
    cards = "one card" if request.count == 1 else f"each of {request.count} cards"
    return (
        f"{what} of {cards}"
        if what
        else ("one whole card" if request.count == 1 else f"{request.count} whole cards")
    )


def rounding_words(request: DeviceRequest, unit: int) -> str:
    """A phrase for what Kubernetes rounds an odd amount to; empty if it does not round."""
    steps = {CORES: CapacityRange(1, 1, 100), MEMORY: CapacityRange(unit, unit, unit << 40)}
    words = []
    for name, span in steps.items():
        asked = request.capacities.get(name)
        if asked is None:
            continue
        try:
            taken = span.consumed(asked, MINOR)
        except RequestInvalid as error:
            return str(error)
        if taken is not None and taken != asked:
            shown = format_bytes(taken) if name == MEMORY else f"{taken}"
            words.append(
                f"Kubernetes rounds {name} {format_number(asked)} of request {request.name} to {shown}"
            )
    return "; ".join(words)
