"""The mounts, devices, environment and hooks that a container receives besides its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of one host path."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node; ``permissions`` is a subset of ``rwm``."""

    path: str
    host_path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True)
class RuntimeHook:
    """A program that the container runtime runs at ``stage`` (the OCI name, such as ``startContainer``)."""

    stage: str
    path: str


@dataclass(frozen=True, slots=True)
class Injection:
    """Environment, mounts, device nodes, CRI annotations, CDI names, and hooks (only with CDI)."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
    hooks: tuple[RuntimeHook, ...] = ()
