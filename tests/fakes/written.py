"""Pods as users write them, and what the rules say of them."""

from __future__ import annotations

from typing import Any

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.rules.legal_values import check_pod


def container(name: str, core: object = None, memory: object = None, **more: Any) -> dict[str, Any]:
    limits = {k: v for k, v in ((CORE, core), (MEMORY, memory)) if v is not None}
    return {"name": name, "resources": {"limits": limits, **more.pop("resources", {})}, **more}


def pod_of(*apps: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **annotations: str) -> Pod:
    meta = {
        "name": "p",
        "annotations": {f"tencent.com/{k.replace('_', '-')}": v for k, v in annotations.items()},
    }
    return parse_pod({"metadata": meta, "spec": {"initContainers": list(init), "containers": list(apps)}})


def broken(pod: Pod, **config: int) -> list[str]:
    return [v.rule.id for v in check_pod(pod, **config)]
