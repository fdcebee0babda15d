"""Chooses the injection strategy of a node from its container runtime's configuration files.

CDI where it is known to be on; the NVIDIA runtime where it runs every container anyway; else `direct`, which
needs nothing of either and does no harm beside them. What cannot be read proves nothing.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.strategy import Strategy

SPEC_DIR: Final = "/var/run/cdi"
_SPEC_DIRS: Final = (SPEC_DIR, "/run/cdi")

_CONTAINERD: Final = (
    # socket of the runtime, its configuration
    ("/run/k3s/containerd/containerd.sock", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
    ("/run/k3s/containerd/containerd.sock", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"),
    ("/run/k0s/containerd.sock", "/etc/k0s/containerd.toml"),
    ("/var/snap/microk8s/common/run/containerd.sock", "/var/snap/microk8s/current/args/containerd.toml"),
    ("/run/containerd/containerd.sock", "/etc/containerd/config.toml"),
)
_SHIMS: Final = ("/run/cri-dockerd.sock", "/var/run/dockershim.sock")
_CRI_PLUGINS: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


def detect(root: Path = Path("/")) -> tuple[Strategy, str]:
    """The strategy for the node whose file system is at ``root``, and the fact that decided it."""
    facts = evidence(HostFiles(root))
    for wanted in (Strategy.CDI, Strategy.NVIDIA):
        for strategy, why in facts:
            if strategy is wanted:
                return strategy, why
    whys = [why for _, why in facts]
    return Strategy.DIRECT, "; ".join(whys) or "no configuration of containerd, CRI-O or Docker shows CDI"


def evidence(host: HostFiles) -> list[tuple[Strategy, str]]:
    """Everything that the node's files say for one strategy or another."""
    return [fact for judge in (_crio, _containerd, _docker) for fact in judge(host)]


def containerd_config(host: HostFiles) -> tuple[str, Mapping[str, Any], Mapping[str, Any]] | None:
    """(path, whole configuration, its CRI plugin's part) of the node's containerd; None if there is none."""
    for socket, path in _CONTAINERD:
        config = _imported(host, path)
        if not config and not host.exists(socket):
            continue
        cri: dict[str, Any] = {}
        for plugin in _CRI_PLUGINS:
            cri = {**_table(_table(config, "plugins"), plugin), **cri}
        return path, config, cri
    return None


def crio_config(host: HostFiles) -> Mapping[str, Any] | None:
    """The table crio.runtime of the node's CRI-O; None if there is none."""
    paths = ["/etc/crio/crio.conf"]
    for directory in ("/usr/share/containers/crio.conf.d", "/etc/crio/crio.conf.d"):
        paths += [f"{directory}/{name}" for name in host.listing(directory)]
    runtime: dict[str, Any] = {}
    for path in paths:
        runtime |= _table(_table(_toml(host, path), "crio"), "runtime")
    return runtime if runtime or host.exists("/run/crio/crio.sock") else None


def sockets(host: HostFiles) -> tuple[str, ...]:
    """The sockets of container runtimes that are there."""
    known = (*(socket for socket, _ in _CONTAINERD), "/run/crio/crio.sock", *_SHIMS)
    return tuple(socket for socket in dict.fromkeys(known) if host.exists(socket))


def _crio(host: HostFiles) -> Iterator[tuple[Strategy, str]]:
    """CRI-O has CDI on since 1.23 unless its spec directories are set to others."""
    runtime = crio_config(host)
    if runtime is None:
        return
    directories = runtime.get("cdi_spec_dirs")
    if directories is None or _has_spec_dir(directories):
        yield Strategy.CDI, "CRI-O reads CDI specs"
    else:
        yield Strategy.DIRECT, f"CRI-O's cdi_spec_dirs has no {SPEC_DIR}"
    if runtime.get("default_runtime") == "nvidia":
        yield Strategy.NVIDIA, "CRI-O's default runtime is nvidia"


def _containerd(host: HostFiles) -> Iterator[tuple[Strategy, str]]:
    found = containerd_config(host)
    if found is None:
        return
    path, config, cri = found
    version = config.get("version")
    enabled = cri.get("enable_cdi")
    directories = cri.get("cdi_spec_dirs")
    if enabled is False:
        yield Strategy.DIRECT, f"{path}: enable_cdi is false"
    elif directories is not None and not _has_spec_dir(directories):
        yield Strategy.DIRECT, f"{path}: cdi_spec_dirs has no {SPEC_DIR}"
    elif enabled is True:
        yield Strategy.CDI, f"{path}: enable_cdi is true"
    elif isinstance(version, int) and version >= 3:
        yield Strategy.CDI, f"{path} is of version {version}: containerd 2 has CDI on"
    else:
        yield Strategy.DIRECT, f"{path} does not show whether containerd has CDI on"
    if _table(cri, "containerd").get("default_runtime_name") == "nvidia":
        yield Strategy.NVIDIA, f"{path}: the default runtime is nvidia"


def _docker(host: HostFiles) -> Iterator[tuple[Strategy, str]]:
    path = "/etc/docker/daemon.json"
    try:
        data = json.loads(host.read(path) or b"{}")
    except (ValueError, RecursionError):
        return
    # dockerd beside a kubelet's containerd is nobody's container runtime
    shim = any(host.exists(p) for p in _SHIMS)
    if shim and isinstance(data, dict) and data.get("default-runtime") == "nvidia":
        yield Strategy.NVIDIA, f"{path}: the default runtime is nvidia"


def _imported(host: HostFiles, path: str) -> dict[str, Any]:
    """The configuration with its imports on top, tables merged key by key as containerd does."""
    config = _toml(host, path)
    imports = config.get("imports")
    for pattern in imports if isinstance(imports, list) else ():
        if not isinstance(pattern, str):
            continue
        directory, _, names = pattern.rpartition("/")
        base = directory if directory.startswith("/") else f"{path.rpartition('/')[0]}/{directory}"
        for name in host.listing(base):
            if fnmatch(name, names):
                config = _merged(config, _toml(host, f"{base}/{name}"))
    return config


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _toml(host: HostFiles, path: str) -> dict[str, Any]:
    content = host.read(path)
    if content is None:
        return {}
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError):  # covers TOMLDecodeError and UnicodeDecodeError
        return {}


def _table(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _has_spec_dir(directories: object) -> bool:
    return isinstance(directories, list) and any(
        isinstance(entry, str) and entry.rstrip("/") in _SPEC_DIRS for entry in directories
    )
