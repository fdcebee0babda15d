"""Host CPU as Kubernetes counts it, in thousandths: a pod's request, and a node's allocatable amount.

A card on a node without free CPU cannot be used, so the choice among nodes considers it too. It never decides
whether a pod fits: that is kube-scheduler's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_manager.domain.kube import host_resources


def asked(pod: Mapping[str, Any]) -> int:
    """A core/v1 Pod's request as the scheduler counts it: its peak, with sidecars and overhead."""
    return host_resources.asked(pod, "cpu", host_resources.THOUSANDTHS)


def allocatable(node: Mapping[str, Any]) -> int | None:
    """A core/v1 Node's allocatable CPU; None if it does not report it."""
    return host_resources.allocatable(node, "cpu", host_resources.THOUSANDTHS)
