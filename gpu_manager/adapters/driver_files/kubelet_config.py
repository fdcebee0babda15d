"""The kubelet's own settings: how the running one was started, its configuration files, and its runtime's
socket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
_K3S: Final = ("k3s-server", "k3s-agent", "k3s")  # the kubelet is a part of it
_K3S_FILE: Final = "/etc/rancher/k3s/config.yaml"
_K3S_DROP_INS: Final = "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d"
_SNAP: Final = ("${SNAP_COMMON}", "/var/snap/microk8s/common")
_COMMAND_BYTES: Final = 1 << 16


def kubelet_config(host: HostFiles, directory: str, proc: Path = Path("/proc")) -> Mapping[str, Any]:
    """The running kubelet's configuration, with drop-ins; else the configuration in its directory."""
    command = _command(proc, "kubelet")
    told = flag(command or "", "config")
    paths = [told] if told else [f"{directory}/config.yaml", *_FILES]
    config = next(filter(None, (_yaml(host, path) for path in paths)), {})
    drop_ins = flag(command or "", "config-dir")
    if command is None and _command(proc, *_K3S) is not None:
        drop_ins = _K3S_DROP_INS
    for name in host.listing(drop_ins) if drop_ins else ():
        if name.endswith(".conf"):
            config = {**config, **_yaml(host, f"{drop_ins}/{name}")}
    return config


def kubelet_root(host: HostFiles, directory: str, proc: Path = Path("/proc")) -> str:
    """The directory of pods, pod-resources and plugins, which ``--root-dir`` names; else ``directory``, where
    every kubelet has its device plugins.
    """
    root = _told(_words(host, directory, proc), "root-dir")
    return root.rstrip("/") or directory


def topology_policy(host: HostFiles, directory: str, proc: Path = Path("/proc")) -> str | None:
    """The kubelet's policy for NUMA nodes, by flag or file; None if neither can be read."""
    words = _words(host, directory, proc)
    config = kubelet_config(host, directory, proc)
    said = _told(words, "topology-manager-policy") or config.get("topologyManagerPolicy") or ""
    return str(said) or ("none" if config or any(words) else None)


def runtime_socket(host: HostFiles, directory: str, proc: Path = Path("/proc")) -> str | None:
    """The socket of the container runtime that the kubelet uses: by its flags, else by its configuration;
    None if neither names it, or if it is not a file.
    """
    kubelet = _command(proc, "kubelet")
    embedded = None if kubelet is not None else _command(proc, *_K3S)
    endpoint = _told(_words(host, directory, proc), "container-runtime-endpoint")
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


def _words(host: HostFiles, directory: str, proc: Path) -> list[str]:
    """Where flags of the kubelet stand: its command line; without one that of the program that it is a part
    of, that program's files, and what is kept for its next start.
    """
    kubelet = _command(proc, "kubelet")
    if kubelet is not None:
        return [kubelet]
    k3s = _command(proc, *_K3S)
    stored = (host.read(path.format(directory=directory)) or b"" for path in _FLAG_FILES)
    return [
        *([] if k3s is None else [k3s, *_k3s_arguments(host)]),
        *(text.decode(errors="replace").replace(*_SNAP) for text in stored),
    ]


def _k3s_arguments(host: HostFiles) -> list[str]:
    """The keys of k3s' own file that are flags of the kubelet."""
    config = _yaml(host, _K3S_FILE)
    given, socket = config.get("kubelet-arg"), config.get("container-runtime-endpoint")
    flags = [f"--{one}" for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]
    return flags + ([f"--container-runtime-endpoint={socket}"] if isinstance(socket, str) else [])


def _told(words: list[str], name: str) -> str:
    return next(filter(None, (flag(text, name) for text in words)), "")


def flag(text: str, name: str, short: str = "") -> str:
    """The value of a flag in a command line or a file of flags; empty if absent."""
    forms = [rf"(?<![\w-])--{name}(?:=|\s+)", rf"--kubelet-arg(?:=|\s+){name}="]
    forms += [rf"(?<![\w-])-{short}(?:=|\s+)"] if short else []
    found = [value for form in forms for value in re.findall(rf"{form}\"?([^\s\"]+)", text)]
    return str(found[-1]) if found else ""


def command_lines(proc: Path, *names: str) -> Iterator[str]:
    """The command lines of running processes of these names, words apart by spaces."""
    try:
        pids = [entry for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return
    for pid in pids:
        try:
            if (pid / "comm").read_text(errors="replace").strip() not in names:
                continue
            words = (pid / "cmdline").read_bytes()[:_COMMAND_BYTES]
        except OSError:  # it has ended, or is hidden
            continue
        yield words.decode(errors="replace").replace("\0", " ")


def _command(proc: Path, *names: str) -> str | None:
    return next(command_lines(proc, *names), None)


def _yaml(host: HostFiles, path: str) -> dict[str, Any]:
    text = host.read(path)
    if text is None:
        return {}
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
