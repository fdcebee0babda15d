"""The kubelet's own settings: how the running one was started, its configuration files, and its runtime's
socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpu_manager.adapters.driver_files.host import HostFiles

# What the kubelet uses where neither flag nor file says it, and k3s and RKE2 likewise.
_DEFAULT: Final = "/run/containerd/containerd.sock"
_RANCHER: Final = "/run/k3s/containerd/containerd.sock"
_RANCHER_DOCKER: Final = "/run/k3s/cri-dockerd/cri-dockerd.sock"
_FILES: Final = ("/etc/kubernetes/kubelet/config.json", "/etc/kubernetes/kubelet/kubelet-config.json")  # EKS
# Where flags are kept for the next start: kubeadm's, then MicroK8s'.
_FLAG_FILES: Final = ("{directory}/kubeadm-flags.env", "/var/snap/microk8s/current/args/kubelet")
_SNAP: Final = ("${SNAP_COMMON}", "/var/snap/microk8s/common")
_COMMAND_BYTES: Final = 1 << 16


def kubelet_config(host: HostFiles, directory: str, proc: Path = Path("/proc")) -> Mapping[str, Any]:
    """The kubelet's configuration as it runs, drop-ins on top; else as it lies in its directory."""
    command = _command(proc, "kubelet") or ""
    told = _flag(command, "config")
    paths = [told] if told else [f"{directory}/config.yaml", *_FILES]
    config = next(filter(None, (_yaml(host, path) for path in paths)), {})
    drop_ins = _flag(command, "config-dir")
    for name in host.listing(drop_ins) if drop_ins else ():
        if name.endswith(".conf"):
            config = {**config, **_yaml(host, f"{drop_ins}/{name}")}
    return config


def runtime_socket(host: HostFiles, directory: str, proc: Path = Path("/proc")) -> str | None:
    """The socket of the container runtime that the kubelet is told to use: as it runs, else as configured;
    None if nothing says it, or it is no file.
    """
    kubelet = _command(proc, "kubelet")
    embedded = None if kubelet is not None else _command(proc, "k3s-server", "k3s-agent", "k3s")
    stored = (
        [] if kubelet is not None else [host.read(path.format(directory=directory)) for path in _FLAG_FILES]
    )
    words = [kubelet, embedded, *((text or b"").decode(errors="replace").replace(*_SNAP) for text in stored)]
    endpoint = next(filter(None, (_flag(text or "", "container-runtime-endpoint") for text in words)), "")
    if not endpoint and embedded is not None:
        return _RANCHER_DOCKER if re.search(r"\s--docker\b", embedded) else _RANCHER
    if not endpoint:
        config = kubelet_config(host, directory, proc)
        said = config.get("containerRuntimeEndpoint")
        endpoint = said if isinstance(said, str) else ""
        if not endpoint and kubelet is not None and config:
            return _DEFAULT
    path = endpoint.removeprefix("unix://")
    return path if path.startswith("/") else None


def _flag(text: str, name: str) -> str:
    """The value of a flag in a command line or a file of flags; empty if it is not there."""
    match = re.search(rf"(?<![\w-])--{name}(?:=|\s+)\"?([^\s\"]+)", text)
    return match[1] if match else ""


def _command(proc: Path, *names: str) -> str | None:
    """The command line of a running process of that name, words apart by spaces; None if none is seen."""
    try:
        pids = [entry for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return None
    for pid in pids:
        try:
            if (pid / "comm").read_text(errors="replace").strip() in names:
                return (
                    (pid / "cmdline")
                    .read_bytes()[:_COMMAND_BYTES]
                    .decode(errors="replace")
                    .replace("\0", " ")
                )
        except OSError:  # it has ended, or is hidden
            continue
    return None


def _yaml(host: HostFiles, path: str) -> dict[str, Any]:
    text = host.read(path)
    if text is None:
        return {}
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
