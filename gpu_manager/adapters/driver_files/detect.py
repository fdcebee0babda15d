"""Chooses a node's injection strategy from the configuration of the container runtime that its kubelet uses.

CDI where it is known to be on; the NVIDIA runtime where it runs every container anyway; else ``direct``,
which needs nothing of either and does no harm beside them. What cannot be read proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.containerd import parse_toml, table
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.kubelet_config import runtime_socket
from gpu_manager.adapters.driver_files.runtimes import ContainerRuntime, answers, in_use
from gpu_manager.domain.contract import KUBELET_DIR

_TOOLKIT: Final = "nvidia-container-runtime/config.toml"
_NVIDIA: Final = ("nvidia-container-runtime", "nvidia-container-runtime.legacy")


def detect(
    root: Path = Path("/"),
    *,
    kubelet_dir: str = KUBELET_DIR,
    proc: Path = Path("/proc"),
    answering: Callable[[Path], bool] = answers,
) -> tuple[Strategy, str]:
    """The strategy for the node whose file system is at ``root``, and the fact that decided it."""
    host = HostFiles(root)
    return choose(host, *in_use(host, runtime_socket(host, kubelet_dir, proc), answering))


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
    name = runtime.default
    path = runtime.runtimes.get(name, "")
    binary = path.rpartition("/")[2]
    if binary not in _NVIDIA and not (name == "nvidia" and not binary):
        return Strategy.DIRECT, runtime.cdi_why
    if deaf := _deaf(host, path.rpartition("/")[0]):
        return Strategy.DIRECT, f"{runtime.config}: the default runtime is {name}, but {deaf}"
    return Strategy.NVIDIA, f"{runtime.config}: the default runtime is {name}"


def _deaf(host: HostFiles, directory: str) -> str:
    """Why NVIDIA's runtime, whose binary is in the directory, gives a pod no card for NVIDIA_VISIBLE_DEVICES;
    empty if it does. The operator's toolkit has its settings beside its binary.
    """
    for path in (f"{directory}/.config/{_TOOLKIT}", f"/etc/{_TOOLKIT}"):
        if not host.exists(path):
            continue
        settings = parse_toml(host, path)
        if settings.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is False:
            return f"{path} has it ignore NVIDIA_VISIBLE_DEVICES of unprivileged pods"
        if table(settings, "nvidia-container-runtime").get("mode") == "cdi":
            return f"{path} has it read CDI specs alone (mode cdi)"
        return ""
    return ""


class Strategy(Enum):
    """``direct``: mounts and nodes by the kubelet. ``cdi``: a CDI spec of our own. ``nvidia``: the NVIDIA
    runtime brings the driver, our preload the limits. ``simulated``: stand-in libraries and no node at all.
    """

    DIRECT = "direct"
    CDI = "cdi"
    NVIDIA = "nvidia"
    SIMULATED = "simulated"
