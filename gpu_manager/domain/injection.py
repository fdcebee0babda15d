"""The mounts, devices, environment and hooks that a container receives besides its image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_manager.domain.contract import LIBRARY_DIR, LIMITS_PATH, USAGE_PATH


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


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A mount as the kernel lists it: ``path`` in the container, ``root`` in the file system it is from."""

    path: str
    root: str


def injection_faults(
    mounts: Iterable[MountPoint], directory: str, *, fraction: bool, driver: bool
) -> tuple[str, ...]:
    """What a container's mounts lack of its grant, as phrases; none if they match the grant.

    ``directory`` is that of the grant's control pages, which a ``fraction`` mounts; ``driver``: the node has
    a driver, whose libraries each container mounts.
    """
    sources = {mount.path: mount.root for mount in mounts}  # the last mount at a path is the visible one
    faults = []
    for path in (LIMITS_PATH, USAGE_PATH) if fraction else ():
        page = path.rpartition("/")[2]
        if path not in sources:
            faults.append(f"nothing is mounted at {path}")
        elif not sources[path].endswith(f"/{directory}/{page}"):
            faults.append(f"{path} is not its own page")
    if driver and not any(map(_is_driver, sources)):
        faults.append("no libcuda.so is mounted")
    return tuple(faults)


def _is_driver(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    return name.startswith("libcuda.so") and not f"{directory}/".startswith(f"{LIBRARY_DIR}/")
