"""Chooses a node's injection strategy from the configuration of the container runtime that its kubelet uses.

CDI if it is known to be on; the NVIDIA runtime if it runs every container anyway; else ``direct``, which
needs neither and does no harm beside them. Unreadable configuration proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.driver_files.containerd import parse_toml, table
from gpu_manager.adapters.driver_files.host import HostFiles, NotedFiles
from gpu_manager.adapters.driver_files.kubelet_config import runtime_socket
from gpu_manager.adapters.driver_files.runtimes import ContainerRuntime, answers, in_use
from gpu_manager.domain.contract import KUBELET_DIR

_TOOLKIT: Final = "nvidia-container-runtime/config.toml"
_NVIDIA: Final = ("nvidia-container-runtime", "nvidia-container-runtime.legacy")
_CDI_MODE: Final = ("nvidia-container-runtime.cdi",)


def detect(
    root: Path = Path("/"),
    *,
    kubelet_dir: str = KUBELET_DIR,
    proc: Path = Path("/proc"),
    answering: Callable[[Path], bool] = answers,
) -> tuple[Strategy, str]:
    """The strategy for the node whose file system is at ``root``, and the fact that decided it."""
    host = HostFiles(root)
    return choose(host, *in_use(host, runtime_socket(host, kubelet_dir, proc), answering, proc))


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
