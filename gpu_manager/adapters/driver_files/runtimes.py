"""The container runtimes of a node, by their configuration files and sockets, and the one that the kubelet
uses, by which the strategy of injection is chosen.

That is CDI if it is known to be on; the NVIDIA runtime if it runs every container anyway; else ``direct``,
which needs neither and does no harm beside them. Unreadable configuration proves nothing.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.driver_files.host import HostFiles, NotedFiles
from gpu_manager.adapters.driver_files.node_config import (
    FIRST_WITH_CDI_ON,
    ContainerdConfig,
    command_lines,
    flag,
    merged,
    parse_toml,
    read_containerd,
    runtime_socket,
    table,
)
from gpu_manager.domain.contract import CDI_DIR

SPEC_DIR: Final = CDI_DIR
_SPEC_DIRS: Final = (SPEC_DIR, "/run/cdi")
_CONTAINERD: Final = (
    # a configuration file, and the socket where it names none
    ("/etc/containerd/config.toml", "/run/containerd/containerd.sock"),
    ("/etc/cri/containerd.toml", "/run/containerd/containerd.sock"),  # Talos
    ("/etc/containerd/config-kops.toml", "/run/containerd/containerd.sock"),
    ("/usr/share/containerd/config.toml", "/run/containerd/containerd.sock"),  # Flatcar
    ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
    ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
    ("/etc/k0s/containerd.toml", "/run/k0s/containerd.sock"),
    ("/var/snap/microk8s/current/args/containerd.toml", "/var/snap/microk8s/common/run/containerd.sock"),
)
_CRIO: Final = "/run/crio/crio.sock"
_CRIO_DROP_INS: Final = ("/usr/share/containers/crio.conf.d", "/etc/crio/crio.conf.d")
_DOCKER: Final = "/etc/docker/daemon.json"
_SHIMS: Final = ("/run/cri-dockerd.sock", "/run/dockershim.sock", "/run/k3s/cri-dockerd/cri-dockerd.sock")
_PATIENCE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """A container runtime. ``config`` is its file, empty if there is none; ``cdi`` says whether it reads
    our CDI specs (None: its files leave that open), ``cdi_why`` by what; ``default`` names its default
    runtime, ``runtimes`` maps each runtime to its binary; ``systemd`` is whether it keeps cgroups through
    systemd, None if versions of it read its files differently; ``serves`` is False where its CRI is switched
    off. ``broken``: why it does not start with its files, empty if it does.
    """

    socket: str
    config: str
    cdi: bool | None
    cdi_why: str
    default: str = ""
    runtimes: Mapping[str, str] = field(default_factory=dict)
    systemd: bool | None = None
    serves: bool = True
    broken: str = ""


def answers(path: Path) -> bool:
    """True if a process accepts connections at the socket."""
    try:
        # A socket's path has at most 107 bytes: the directory is named by its descriptor.
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_PATIENCE_SECONDS)
            line.connect(f"/proc/self/fd/{directory}/{path.name}")
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(directory)


def in_use(
    host: HostFiles,
    endpoint: str | None,
    answering: Callable[[Path], bool] = answers,
    proc: Path = Path("/proc"),
) -> tuple[tuple[ContainerRuntime, ...], str]:
    """The runtime at the kubelet's ``endpoint`` (a socket's path); without that, the runtimes whose socket
    answers, or all that have files if none does. With a reason if there is none.
    """
    found = tuple(runtimes(host, proc))
    if endpoint is not None:
        ours = tuple(one for one in found if plain(one.socket) == plain(endpoint))
        return ours, "" if ours else f"the kubelet uses {endpoint}, whose configuration is not known"
    serving = tuple(one for one in found if one.serves)
    alive = tuple(one for one in serving if any(map(answering, _places(host, one.socket))))
    return alive or serving, "no configuration or socket of containerd, CRI-O or Docker is there"


def runtimes(host: HostFiles, proc: Path = Path("/proc")) -> Iterator[ContainerRuntime]:
    """Every runtime of which there is a configuration or a socket."""
    containerds = tuple(_containerd(host, proc))
    yield from containerds
    if (crio := _crio(host)) is not None:
        yield crio
    for shim in _SHIMS:
        if _there(host, shim) and shim not in {one.socket for one in containerds}:
            yield _docker(host, shim)


def sockets(host: HostFiles) -> tuple[str, ...]:
    """The sockets of container runtimes that are there."""
    known = (*(where for _, where in _CONTAINERD), _CRIO, *_SHIMS)
    return tuple(one for one in dict.fromkeys(known) if _there(host, one))


def plain(path: str) -> str:
    """The path as the runtimes' own documentation writes it: /var/run is /run."""
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _containerd(host: HostFiles, proc: Path) -> Iterator[ContainerRuntime]:
    """One for each socket. Of several files for one socket the newest counts: k3s and RKE2 share a socket,
    and each writes its file at every start. A file that a running one was started with comes before them.
    """
    configs: dict[str, ContainerdConfig] = {}
    for command in command_lines(proc, "containerd"):
        config = read_containerd(host, flag(command, "config", "c"))
        if config is not None:
            where = flag(command, "address", "a") or config.address or _CONTAINERD[0][1]
            configs[plain(where)] = config
    started = frozenset(configs)
    for path, default in _CONTAINERD:
        config = read_containerd(host, path)
        if config is None:
            continue
        where = plain(config.address) or default
        before = configs.get(where)
        if where in started:
            continue
        if before is None or host.modified(before.path) < host.modified(path):
            configs[where] = config
    for where in dict.fromkeys((*configs, *(where for _, where in _CONTAINERD))):
        if where in configs:
            yield _configured(configs[where], where)
        elif _there(host, where):
            yield ContainerRuntime(
                where, "", None, f"{where} has no configuration that shows whether CDI is on"
            )


def _configured(config: ContainerdConfig, where: str) -> ContainerRuntime:
    cri, path = config.cri, config.path
    enabled, directories = cri.get("enable_cdi"), cri.get("cdi_spec_dirs")
    cdi: bool | None = False
    if config.broken:
        cdi, why = None, config.broken
    elif config.disabled:
        why = f"{path}: the CRI plugin is disabled"
    elif enabled is False:
        why = f"{path}: enable_cdi is false"
    elif directories is not None and not _has_spec_dir(directories):
        why = f"{path}: cdi_spec_dirs has no {SPEC_DIR}"
    elif enabled is True:
        cdi, why = True, f"{path}: enable_cdi is true"
    elif config.version >= FIRST_WITH_CDI_ON:
        cdi, why = True, f"{path} is of version {config.version}: containerd 2 has CDI on"
    else:
        cdi, why = None, f"{path} does not show whether containerd has CDI on"
    part = table(cri, "containerd")
    tables = table(part, "runtimes")
    options = {name: table(table(tables, name), "options") for name in tables}
    systemd = {_by_systemd(reading) for reading in config.readings}
    return ContainerRuntime(
        where,
        path,
        cdi,
        why,
        default=_string(part.get("default_runtime_name")),
        runtimes={name: _string(values.get("BinaryName")) for name, values in options.items()},
        systemd=systemd.pop() if len(systemd) == 1 else None,
        serves=not config.disabled,
        broken=config.broken,
    )


def _by_systemd(cri: Mapping[str, Any]) -> bool:
    """The switch of the default runtime, else runc's; an absent one is containerd's default, which is off."""
    part = table(cri, "containerd")
    tables = table(part, "runtimes")
    names = (_string(part.get("default_runtime_name")), "runc")
    said = (table(table(tables, name), "options").get("SystemdCgroup") for name in names)
    return next((switch for switch in said if switch is not None), False) is True


def _crio(host: HostFiles) -> ContainerRuntime | None:
    """CRI-O has CDI on since 1.23, unless its spec directories are set to others."""
    paths = ["/etc/crio/crio.conf"]
    for directory in _CRIO_DROP_INS:
        paths += [f"{directory}/{name}" for name in host.listing(directory)]
    config: dict[str, Any] = {}
    for path in paths:
        config = merged(config, table(parse_toml(host, path), "crio"))
    runtime = table(config, "runtime")
    if not config and not _there(host, _CRIO):
        return None
    directories = runtime.get("cdi_spec_dirs")
    reads = directories is None or _has_spec_dir(directories)
    tables = table(runtime, "runtimes")
    return ContainerRuntime(
        plain(_string(table(config, "api").get("listen"))) or _CRIO,
        "/etc/crio" if config else "",
        reads,
        "CRI-O reads CDI specs" if reads else f"CRI-O's cdi_spec_dirs has no {SPEC_DIR}",
        default=_string(runtime.get("default_runtime")),
        runtimes={name: _string(table(tables, name).get("runtime_path")) for name in tables},
        systemd=_string(runtime.get("cgroup_manager")) in ("", "systemd"),  # CRI-O's default
    )


def _docker(host: HostFiles, shim: str) -> ContainerRuntime:
    """Docker behind cri-dockerd, which passes no CDI device on."""
    try:
        data = json.loads(host.read(_DOCKER) or b"{}")
    except (ValueError, RecursionError):
        data = {}
    config = data if isinstance(data, dict) else {}
    tables = table(config, "runtimes")
    return ContainerRuntime(
        shim,
        _DOCKER if config else "",
        cdi=False,
        cdi_why="cri-dockerd passes no CDI device to Docker",
        default=_string(config.get("default-runtime")),
        runtimes={name: _string(table(tables, name).get("path")) for name in tables},
    )


def _has_spec_dir(directories: object) -> bool:
    return isinstance(directories, list) and any(
        isinstance(entry, str) and entry.rstrip("/") in _SPEC_DIRS for entry in directories
    )


def _places(host: HostFiles, path: str) -> list[Path]:
    """Where the agent sees the socket; none if it is not there."""
    found = (host.resolve(one) for one in (path, f"/var{path}"))
    return [host.seen(one) for one in found if one is not None]


def _there(host: HostFiles, path: str) -> bool:
    return bool(_places(host, path))


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


_TOOLKIT: Final = "nvidia-container-runtime/config.toml"
_NVIDIA: Final = ("nvidia-container-runtime", "nvidia-container-runtime.legacy")
_CDI_MODE: Final = ("nvidia-container-runtime.cdi",)


class Detected:
    """The strategy that was detected, and whether it still is."""

    def __init__(self, root: Path, kubelet_dir: str, proc: Path) -> None:
        self._root, self._kubelet_dir, self._proc = root, kubelet_dir, proc
        self.strategy, self.why = self._look()

    def outdated(self) -> str:
        """Why containers are no longer given their cards by this strategy; empty if they are, or may be.

        The files are read again only once one of them has changed. ``direct`` needs nothing of them.
        """
        if self.strategy is Strategy.DIRECT or self._host.times() == self._times:
            return ""
        now, why = self._look()
        return why if now is Strategy.DIRECT else ""

    def _look(self) -> tuple[Strategy, str]:
        self._host = NotedFiles(self._root)
        socket = runtime_socket(self._host, self._kubelet_dir, self._proc)
        found = choose(self._host, *in_use(self._host, socket, proc=self._proc))
        self._times = self._host.times()
        return found


def choose(host: HostFiles, runtimes: tuple[ContainerRuntime, ...], none: str) -> tuple[Strategy, str]:
    """The strategy for the runtime in use; where several may be that, one on which they agree."""
    if not runtimes:
        return Strategy.DIRECT, none
    found = [_judge(host, runtime) for runtime in runtimes]
    if len({strategy for strategy, _ in found}) == 1:
        return found[0]
    return Strategy.DIRECT, "nothing shows which runtime the kubelet uses: " + "; ".join(
        why for _, why in found
    )


def _judge(host: HostFiles, runtime: ContainerRuntime) -> tuple[Strategy, str]:
    if runtime.cdi:
        return Strategy.CDI, runtime.cdi_why
    if not _is_nvidias(runtime):
        return Strategy.DIRECT, runtime.cdi_why
    path, settings = _toolkit(host, runtime)
    deaf = ""
    if _ignores_variable(settings):
        deaf = f", but {path} has it ignore NVIDIA_VISIBLE_DEVICES of unprivileged pods"
    elif (mode := table(settings, "nvidia-container-runtime").get("mode")) in ("cdi", "csv"):
        deaf = f", but {path} has it ignore NVIDIA_VISIBLE_DEVICES (mode {mode})"
    strategy = Strategy.DIRECT if deaf else Strategy.NVIDIA
    return strategy, f"{runtime.config}: the default runtime is {runtime.default}{deaf}"


def shows_by_variable(host: HostFiles, runtime: ContainerRuntime) -> bool:
    """True if any container, even of a pod without cards, gets the cards that a variable of it names."""
    return _is_nvidias(runtime, *_CDI_MODE) and not _ignores_variable(_toolkit(host, runtime)[1])


def _is_nvidias(runtime: ContainerRuntime, *more: str) -> bool:
    """True if the default runtime is NVIDIA's, by its binary, or by its name where none is set."""
    binary = runtime.runtimes.get(runtime.default, "").rpartition("/")[2]
    return binary in (*_NVIDIA, *more) or (runtime.default == "nvidia" and not binary)


def _toolkit(host: HostFiles, runtime: ContainerRuntime) -> tuple[str, Mapping[str, Any]]:
    """The settings of NVIDIA's toolkit, with their path; the operator's has them beside its binary."""
    directory = runtime.runtimes.get(runtime.default, "").rpartition("/")[0]
    for path in (f"{directory}/.config/{_TOOLKIT}", f"/etc/{_TOOLKIT}"):
        if host.exists(path):
            return path, parse_toml(host, path)
    return "", {}


def _ignores_variable(settings: Mapping[str, Any]) -> bool:
    return settings.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is False


class Strategy(Enum):
    """``direct``: mounts and nodes by the kubelet. ``cdi``: a CDI spec of our own. ``nvidia``: the NVIDIA
    runtime brings the driver, our preload the limits. ``simulated``: stand-in libraries and no node at all.
    """

    DIRECT = "direct"
    CDI = "cdi"
    NVIDIA = "nvidia"
    SIMULATED = "simulated"
