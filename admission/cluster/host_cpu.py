"""Host CPU as Kubernetes counts it, in thousandths: what a pod asks for, what a node can give.

A card on a node without CPU is a card that nobody can use, so the choice among nodes looks at it too. It
never decides whether a pod fits: that is kube-scheduler's own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_manager.domain.kube import host_resources


def asked(pod: Mapping[str, Any]) -> int:
    """What the scheduler counts for a core/v1 Pod: its worst moment, with its sidecars and its overhead."""
    return host_resources.asked(pod, "cpu", host_resources.THOUSANDTHS)


def allocatable(node: Mapping[str, Any]) -> int | None:
    """What a core/v1 Node gives to pods; None if it does not say."""
    return host_resources.allocatable(node, "cpu", host_resources.THOUSANDTHS)
