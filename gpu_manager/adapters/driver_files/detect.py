"""Chooses the injection strategy of a node from the configuration of the container runtime that its kubelet
uses.

CDI where it is known to be on; the NVIDIA runtime where it runs every container anyway; else `direct`, which
needs nothing of either and does no harm beside them. What cannot be read proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.kubelet_config import runtime_socket
from gpu_manager.adapters.driver_files.runtimes import ContainerRuntime, answers, in_use
from gpu_manager.adapters.driver_files.strategy import Strategy
from gpu_manager.domain.contract import KUBELET_DIR

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
    return choose(*in_use(host, runtime_socket(host, kubelet_dir, proc), answering))


def choose(runtimes: tuple[ContainerRuntime, ...], none: str) -> tuple[Strategy, str]:
    """The strategy for the runtime in use; where several may be that, one on which they agree."""
    if not runtimes:
        return Strategy.DIRECT, none
    found = [_judge(runtime) for runtime in runtimes]
    if len({strategy for strategy, _ in found}) == 1:
        return found[0]
    return Strategy.DIRECT, "nothing shows which runtime the kubelet uses: " + "; ".join(
        why for _, why in found
    )


def _judge(runtime: ContainerRuntime) -> tuple[Strategy, str]:
    if runtime.cdi:
        return Strategy.CDI, runtime.cdi_why
    name = runtime.default
    binary = runtime.runtimes.get(name, "").rpartition("/")[2]
    if binary in _NVIDIA or (name == "nvidia" and not binary):
        return Strategy.NVIDIA, f"{runtime.config}: the default runtime is {name}"
    return Strategy.DIRECT, runtime.cdi_why
