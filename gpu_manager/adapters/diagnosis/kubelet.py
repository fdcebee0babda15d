"""The kubelet's files on the machine: sockets, checkpoint, configuration, static pods."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpu_manager.adapters.diagnosis.runtime import cgroup_version
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.kubelet.checkpoint import FILE_NAME, MAX_BYTES
from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.domain.contract import CORE_SOCKET, KUBELET_SOCKET, MEMORY_SOCKET, NVIDIA_SOCKET
from gpu_manager.domain.doctor.facts import KubeletFacts
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.pod import parse_pod

_ENDPOINT: Final = re.compile(r"--container-runtime-endpoint[= \x00]\"?([^\s\"\x00]+)")
_STATIC: Final = "/etc/kubernetes/manifests"  # kubeadm's


def gather_kubelet(host: HostFiles, directory: str, *, sysfs: Path = Path("/sys")) -> KubeletFacts | None:
    """The kubelet whose directory that is on the node; None if there is none."""
    if not host.exists(directory):
        return None
    config = _config(host, directory)
    plugins = f"{directory}/device-plugins"
    static = _text(config.get("staticPodPath")) or _STATIC
    driver = _text(config.get("cgroupDriver"))
    fail = config.get("failCgroupV1")
    return KubeletFacts(
        socket=host.exists(f"{plugins}/{KUBELET_SOCKET}"),
        pod_resources=host.exists(f"{directory}/pod-resources/{KUBELET_SOCKET}"),
        registered=_registered(host.read(f"{plugins}/{FILE_NAME}", MAX_BYTES)),
        own_sockets=frozenset(
            n for n in (CORE_SOCKET, MEMORY_SOCKET, NVIDIA_SOCKET) if host.exists(f"{plugins}/{n}")
        ),
        cgroup_driver=driver if config else None,
        fail_cgroup_v1=fail if isinstance(fail, bool) else None,
        cgroups=cgroup_version(sysfs),
        static_pods=_static_pods(host, static),
    )


def runtime_socket(host: HostFiles, directory: str, proc: Path = Path("/proc")) -> str | None:
    """The socket of the container runtime that the kubelet is told to use: as it runs, else as configured."""
    for text in (_command_line(proc), host.read(f"{directory}/kubeadm-flags.env") or b""):
        if match := _ENDPOINT.search(text.decode(errors="replace")):
            return _path(match[1])
    endpoint = _text(_config(host, directory).get("containerRuntimeEndpoint"))
    return _path(endpoint) if endpoint else None


def _path(endpoint: str) -> str | None:
    path = endpoint.removeprefix("unix://")
    return path if path.startswith("/") else None


def _command_line(proc: Path) -> bytes:
    """How the running kubelet was started; empty if none is seen."""
    try:
        pids = [entry for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return b""
    for pid in pids:
        try:
            if (pid / "comm").read_bytes().strip() == b"kubelet":
                return (pid / "cmdline").read_bytes()[: 1 << 16]
        except OSError:  # it has ended, or is hidden
            continue
    return b""


def _config(host: HostFiles, directory: str) -> Mapping[str, Any]:
    for path in (f"{directory}/config.yaml", "/etc/kubernetes/kubelet/kubelet-config.json"):
        text = host.read(path)
        if text is None:
            continue
        try:
            data = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
        if isinstance(data, Mapping):
            return data
    return {}


def _registered(text: bytes | None) -> frozenset[str] | None:
    """The resources that plugins have registered, as the kubelet's checkpoint lists them."""
    try:
        devices = json.loads(text or b"")["Data"]["RegisteredDevices"] or {}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return frozenset(str(name) for name in devices) if isinstance(devices, dict) else None


def _static_pods(host: HostFiles, directory: str) -> tuple[str, ...]:
    found = []
    for name in host.listing(directory):
        try:
            manifests = read_manifests(host.read(f"{directory}/{name}") or b"")
            pods = [parse_pod(m.pod) for m in manifests if m.pod is not None]
        except RequestInvalid:  # not a manifest: the kubelet passes it over as well
            continue
        found += [f"{pod.key} ({directory}/{name})" for pod in pods if pod.asks]
    return tuple(found)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
