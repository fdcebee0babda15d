"""Host CPU as Kubernetes counts it, in thousandths: what a pod asks for, what a node can give.

A card on a node without CPU is a card that nobody can use, so the choice among nodes looks at it too. It
never decides whether a pod fits: that is kube-scheduler's own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.lenient import mapping
from gpu_manager.domain.resources import parse_quantity


def asked(pod: Mapping[str, Any]) -> int:
    """What the scheduler counts for a core/v1 Pod: its worst moment, with its sidecars and its overhead."""
    spec = mapping(pod.get("spec"))
    together, worst = 0, 0
    for container in _maps(spec.get("initContainers")):
        cpu = _cpu(mapping(mapping(container.get("resources")).get("requests")))
        if container.get("restartPolicy") == "Always":
            together += cpu
            worst = max(worst, together)
        else:
            worst = max(worst, together + cpu)
    for container in _maps(spec.get("containers")):
        together += _cpu(mapping(mapping(container.get("resources")).get("requests")))
    return max(worst, together) + _cpu(mapping(spec.get("overhead")))


def allocatable(node: Mapping[str, Any]) -> int | None:
    """What a core/v1 Node gives to pods; None if it does not say."""
    given = mapping(mapping(node.get("status")).get("allocatable"))
    return _cpu(given) if "cpu" in given else None


def _cpu(amounts: Mapping[str, Any]) -> int:
    """An amount that cannot be read counts as none: the API server lets none such pass."""
    try:
        return max(0, ceil(parse_quantity(amounts.get("cpu") or 0) * 1000))
    except RequestInvalid:
        return 0


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [mapping(entry) for entry in value] if isinstance(value, list | tuple) else []
