"""What resized pods go past of Kubernetes' own limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY, RESIZE
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resize.judgement import NamespaceLimits, past_limits
from gpu_manager.domain.resources import DEFAULT_UNIT
from tests.fakes.extender import pod


def quota(key: str, hard: object, used: object) -> dict[str, Any]:
    counted = f"requests.{key}"
    return {
        "metadata": {"name": "q"}, "spec": {"hard": {counted: hard}}, "status": {"used": {counted: used}}
    }  # fmt: skip


def limit_range(**most: object) -> dict[str, Any]:
    return {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": most}]}}


def resized(cores: int, memory: str = "4Gi") -> Pod:
    size = {"v": 1, "containers": {"main": {"cores": cores, "memory": memory}}}
    return parse_pod(pod("small", 20, 16, annotations={RESIZE: json.dumps(size)}, on="n1"))


@pytest.mark.parametrize(
    ("limits", "size", "told"),
    [
        (NamespaceLimits([quota(CORE, "50", "20")]), (60, "4Gi"), "grants 50 of requests.tencent.com/vcuda-core, and pods come to 60"),
        (NamespaceLimits([quota(CORE, "50", "20")]), (50, "4Gi"), ""),
        (NamespaceLimits([quota(MEMORY, "16", "16")]), (20, "8Gi"), "come to 32"),
        (NamespaceLimits([quota(MEMORY, "16", "16")]), (60, "4Gi"), ""),
        (NamespaceLimits([], [limit_range(**{CORE: "50"})]), (60, "4Gi"), 'LimitRange "l" lets a container have 50'),
        (NamespaceLimits([], [limit_range(**{CORE: 60, MEMORY: "many"})]), (60, "8Gi"), ""),
        (NamespaceLimits([{"spec": 3}], [{"spec": {"limits": [None]}}]), (60, "8Gi"), ""),
    ],
)  # fmt: skip
def test_a_resize_past_a_limit_of_kubernetes_own_is_told(
    limits: NamespaceLimits, size: tuple[int, str], told: str
) -> None:
    lines = list(past_limits(limits, [resized(*size)], DEFAULT_UNIT))
    assert len(lines) == bool(told)
    assert told in "".join(lines)
