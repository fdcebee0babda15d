"""The kubelet's files on the machine, and its container runtime's configuration and sockets.

The injection strategy that belongs to the runtime is the agent's own judgement.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.driver import multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.kubelet_config import kubelet_config, kubelet_root, topology_policy
from gpu_manager.adapters.driver_files.runtimes import (
    ContainerRuntime,
    Strategy,
    choose,
    in_use,
    plain,
    shows_by_variable,
    sockets,
)
from gpu_manager.adapters.kubelet.checkpoint import FILE_NAME, MAX_BYTES
from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.domain.contract import (
    CORE,
    CORE_SOCKET,
    DRA_SOCKET,
    KUBELET_SOCKET,
    MEMORY,
    MEMORY_SOCKET,
    NVIDIA,
    NVIDIA_SOCKET,
)
from gpu_manager.domain.doctor.facts import KubeletFacts, RuntimeFacts, Version
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.other_plugins import may_name_cards

_STATIC: Final = "/etc/kubernetes/manifests"  # kubeadm's


def gather_kubelet(
    host: HostFiles,
    directory: str,
    *,
    policy: str = "auto",
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> KubeletFacts | None:
    """The kubelet with this directory on the node; None if there is none. ``policy`` is the NUMA policy in
    the agent's settings, or auto.
    """
    if not host.exists(directory):
        return None
    config = kubelet_config(host, directory, proc)
    root = kubelet_root(host, directory, proc)
    plugins = f"{directory}/device-plugins"
    static = _text(config.get("staticPodPath")) or _STATIC
    driver = _text(config.get("cgroupDriver"))
    fail = config.get("failCgroupV1")
    registered = _registered(host.read(f"{plugins}/{FILE_NAME}", MAX_BYTES))
    return KubeletFacts(
        socket=host.exists(f"{plugins}/{KUBELET_SOCKET}"),
        pod_resources=host.exists(f"{root}/pod-resources/{KUBELET_SOCKET}"),
        registered=None if registered is None else frozenset(registered),
        others=frozenset(
            name
            for name, ids in (registered or {}).items()
            if name not in (CORE, MEMORY) and ids and (name == NVIDIA or may_name_cards(name, ids))
        ),
        own_sockets=frozenset(
            n for n in (CORE_SOCKET, MEMORY_SOCKET, NVIDIA_SOCKET) if host.exists(f"{plugins}/{n}")
        ),
        cgroup_driver=driver if config else None,
        fail_cgroup_v1=fail if isinstance(fail, bool) else None,
        cgroups=cgroup_version(sysfs),
        static_pods=_static_pods(host, static),
        claims=host.exists(f"{root}/{DRA_SOCKET}"),
        numa_policy=topology_policy(host, directory, proc),
        told_policy="" if policy == "auto" else policy,
        root="" if root == directory else root,
    )


def _registered(text: bytes | None) -> dict[str, list[str]] | None:
    """The resources that plugins have registered with their healthy ids, as the kubelet's checkpoint lists
    them.
    """
    try:
        devices = json.loads(text or b"")["Data"]["RegisteredDevices"] or {}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(devices, dict):
        return None
    return {
        str(name): [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []
        for name, ids in devices.items()
    }


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


_TOOLKIT: Final = re.compile(r"libnvidia-container\.so\.(\d+)\.(\d+)\.(\d+)")
_PLACES: Final = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin", "usr/local/nvidia/toolkit")
_NOTHING: Final = ContainerRuntime("", "", None, "")


def gather_runtime(
    host: HostFiles,
    cri: str | None,
    *,
    injection: str = "auto",
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> RuntimeFacts:
    """The container runtime. ``cri`` is the kubelet's configured socket; ``injection`` the agent's
    setting.
    """
    found, none = in_use(host, cri, proc=proc)
    strategy, why = choose(host, found, none)
    if injection != "auto":
        why = f"--device-injection says so; auto would take {strategy.value} ({why})"
        strategy = Strategy(injection)
    known = sockets(host)
    if cri is not None and plain(cri) in known:
        cri = plain(cri)
    elif cri is not None and host.exists(cri):
        known = (*known, cri)
    one = found[0] if len(found) == 1 else _NOTHING
    return RuntimeFacts(
        strategy=strategy.value,
        why=why,
        config=one.config,
        default_runtime=one.default,
        runtimes=one.runtimes,
        missing=frozenset(name for name, binary in one.runtimes.items() if _missing(host, binary)),
        systemd_cgroup=one.systemd if one.config else None,
        cdi=one.cdi,
        sockets=known,
        cri=cri,
        toolkit=_toolkit(host),
        cgroups=cgroup_version(sysfs),
        broken=one.broken,
        by_variable=shows_by_variable(host, one),
    )


def cgroup_version(sysfs: Path) -> int | None:
    """1 (also if v2 is mounted beside it) or 2; None if no cgroup file system is mounted."""
    root = sysfs / "fs/cgroup"
    if (root / "cgroup.controllers").exists():
        return 2
    try:
        return 1 if any(root.iterdir()) else None
    except OSError:
        return None


def _missing(host: HostFiles, binary: str) -> bool:
    if not binary:
        return False
    if binary.startswith("/"):
        return not host.exists(binary)
    return not any(host.exists(f"/{place}/{binary}") for place in _PLACES)


def _toolkit(host: HostFiles) -> Version | None:
    places = (f"/usr/lib/{multiarch()}", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/toolkit")
    found = (_TOOLKIT.fullmatch(name) for place in places for name in host.listing(place))
    return max((tuple(map(int, match.groups())) for match in found if match), default=None)
