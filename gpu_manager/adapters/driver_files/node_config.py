"""The settings of a node's kubelet, as the running one was started, and of containerd."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import yaml

from gpu_manager.adapters.driver_files.host import HostFiles

# Containerd's configuration: the file, its imports, and the settings of its CRI plugin.
# Facts from containerd's documentation (containerd-config.toml(5), docs/cri/config.md): a file without a
# version is of version 1; versions 1 and 2 are containerd 1's (2 reads version 2 as well), version 3 is
# containerd 2's, version 4 that of 2.3, which names its socket under a plugin of its own; CDI came with
# 1.7, switched off, and is on by default in 2. Containerd 1 replaces a plugin's whole section by that of a
# later file; 2 merges them key by key. A file that is imported must not be of a later version than the
# first.


FIRST_WITH_CDI_ON: Final = 3  # version of the file, which containerd 2 alone reads
_CRI: Final = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
_SERVER: Final = "io.containerd.server.v1.grpc"  # from version 4 on, in place of the table grpc
_FIRST_WITH_SERVER: Final = 4
_MOST_FILES: Final = 64
_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class ContainerdConfig:
    """``cri`` are the CRI plugin's settings on which containerd 1 and 2 agree, ``readings`` the settings of
    each where they may differ; ``disabled``: the plugin is off; ``address`` is the socket, empty if the files
    do not name it. ``broken``: why containerd does not start with these files, empty if it does.
    """

    path: str
    version: int
    cri: Mapping[str, Any] = field(default_factory=dict)
    disabled: bool = False
    address: str = ""
    readings: tuple[Mapping[str, Any], ...] = ()
    broken: str = ""


def read_containerd(host: HostFiles, path: str) -> ContainerdConfig | None:
    """The configuration at the path, imports included; None if there is no readable file."""
    files = list(_files(host, path))
    if not files:
        return None
    version = _version(files[0][1], 1)
    sections, off, address, broken = [], False, "", ""
    for name, data in files:
        own = _version(data, version)
        if own > version:
            broken = f"{name} is of version {own}, above the {version} of {path}: containerd will not start"
        section = table(table(data, "plugins"), _CRI[own])
        sections += [section] if section else []
        disabled = data.get("disabled_plugins")
        off = off or (
            isinstance(disabled, list) and not {"cri", *_CRI.values()}.isdisjoint(_strings(disabled))
        )
        server = table(table(data, "plugins"), _SERVER) if own >= _FIRST_WITH_SERVER else table(data, "grpc")
        said = server.get("address")
        address = said if isinstance(said, str) and said else address
    if broken:
        return ContainerdConfig(path, version, {}, off, address, broken=broken)
    both: dict[str, Any] = {}
    for section in sections:
        both = merged(both, section)
    readings = [both]
    if version < FIRST_WITH_CDI_ON and sections:
        readings.append(sections[-1])
        both = _agreed(both, sections[-1])
    return ContainerdConfig(path, version, both, off, address, tuple(readings))


def parse_toml(host: HostFiles, path: str) -> dict[str, Any]:
    """The file's content; empty if it is missing or not TOML."""
    content = host.read(path)
    if content is None:
        return {}
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError):  # covers TOMLDecodeError and UnicodeDecodeError
        return {}


def table(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The table under the key; empty if there is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables, merged key by key; if both have a plain value, that of ``above`` wins."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _agreed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What both tables say alike."""
    same: dict[str, Any] = {}
    for key, value in one.items():
        second = other.get(key)
        if isinstance(value, dict) and isinstance(second, dict):
            same[key] = _agreed(value, second)
        elif key in other and second == value:
            same[key] = value
    return same


def _files(host: HostFiles, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The file and all that it imports, with their paths, each once, in the order in which they are laid upon
    each other.
    """
    waiting, seen = [path], set[str]()
    while waiting and len(seen) < _MOST_FILES:
        here = waiting.pop(0)
        real = host.resolve(here)
        if real is None or real in seen:
            continue
        seen.add(real)
        data = parse_toml(host, here)
        if not data:
            continue
        yield here, data
        imports = data.get("imports")
        for pattern in _strings(imports) if isinstance(imports, list) else ():
            base = pattern if pattern.startswith("/") else f"{here.rpartition('/')[0]}/{pattern}"
            waiting += _expanded(host, base)


def _expanded(host: HostFiles, pattern: str) -> list[str]:
    """The node's files that the pattern names; a wildcard stands for a part of any name on the way."""
    found = [""]
    for part in pattern.strip("/").split("/"):
        if _WILDCARDS.isdisjoint(part):
            found = [f"{here}/{part}" for here in found]
        else:
            found = [
                f"{here}/{name}"
                for here in found[:_MOST_FILES]
                for name in host.listing(here or "/")
                if fnmatchcase(name, part)
            ]
    return found[:_MOST_FILES]


def _version(data: Mapping[str, Any], otherwise: int) -> int:
    version = data.get("version")
    known = version if isinstance(version, int) and not isinstance(version, bool) else otherwise
    return max(1, min(known, max(_CRI)))


def _strings(values: list[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str)]


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
