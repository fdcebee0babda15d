"""Finds the node's NVML library, for an agent whose image and runtime provide none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.driver import NVML
from gpu_manager.adapters.driver_files.elf import multiarch, native_machine, read_elf
from gpu_manager.adapters.driver_files.host import HostFiles

_OWN_ROOT: Final = Path("/")


def find_nvml(host: HostFiles, driver_root: str = "/") -> Path | None:
    """The library as the agent sees it; None if the node has none, or is the agent's own file system.

    There the loader's own search is better. A library of another machine is passed over.
    """
    if host.root == _OWN_ROOT:
        return None
    for directory in (f"usr/lib/{multiarch()}", "usr/lib64", "usr/lib", f"lib/{multiarch()}", "lib64"):
        for within, above in ((driver_root, ""), ("/", driver_root.rstrip("/"))):
            real = host.resolve(f"{above}/{directory}/{NVML}", within)
            elf = read_elf(host.seen(real)) if real is not None else None
            if real is not None and elf is not None and elf.machine == native_machine():
                return host.seen(real)
    return None
