"""What a container runtime makes of CDI devices: it finds each in the specs of its directory and merges them.

The specification is CNCF's CDI 0.5.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_manager.domain.errors import NodeUnready


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What the devices add to a container. ``mounts``: path in the container → path on the node."""

    env: Mapping[str, str]
    mounts: Mapping[str, str]
    nodes: tuple[str, ...]


KnownDevices = Mapping[str, list[Mapping[str, Any]]]
"""Qualified name of a device → its edits, in each spec that has it."""


def resolve(known: KnownDevices, devices: Iterable[str]) -> ContainerEdits:
    """Merge these devices, by their qualified names.

    Raises:
        NodeUnready: a device is in no spec or in two, or two of them mount the same path.
    """
    env: dict[str, str] = {}
    mounts: dict[str, str] = {}
    nodes: list[str] = []
    for device in devices:
        found = known.get(device, [])
        if len(found) != 1:
            raise NodeUnready(f"unresolvable CDI devices {device}: in {len(found)} specs")
        edits = found[0]
        env |= dict(one.split("=", 1) for one in edits.get("env") or ())
        for mount in edits.get("mounts") or ():
            if mounts.setdefault(mount["containerPath"], mount["hostPath"]) != mount["hostPath"]:
                raise NodeUnready(f"two CDI devices mount {mount['containerPath']}")
        nodes += [node["path"] for node in edits.get("deviceNodes") or ()]
    return ContainerEdits(env, mounts, tuple(dict.fromkeys(nodes)))


def read_specs(directory: Path) -> KnownDevices:
    """All devices of the specs in a directory.

    Raises:
        NodeUnready: a device has no edits, which a runtime takes for a broken spec.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted(directory.glob("*.json")):
        spec = json.loads(path.read_text("utf-8"))
        for device in spec["devices"]:
            if not any(device["containerEdits"].values()):
                raise NodeUnready(f"{path}: device {device['name']} has no edits")
            found.setdefault(f"{spec['kind']}={device['name']}", []).append(device["containerEdits"])
    return found
