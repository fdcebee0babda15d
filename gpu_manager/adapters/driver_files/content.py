"""The mounts of a container's driver files: from paths to mounts, without I/O.

Every mount is one file, so none lies inside another and their order means nothing. The runtime makes the
parents. The loader trusts ``/usr/lib/<multiarch>`` in Debian's images and ``/usr/lib64`` in Red Hat's, by
default and without ldconfig; ``LD_LIBRARY_PATH`` stays the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.delivery import CUDA_FRONT, NVML_FRONT, PRELOAD, Delivered
from gpu_manager.adapters.driver_files.driver import COMPANIONS, CUDA, GRAPHICS, NVML, Driver, multiarch
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import GATES_DIR, LIBRARY_DIR, LIMITS_PATH, PRELOAD_PATH, USAGE_PATH
from gpu_manager.domain.injection import Mount
from gpu_manager.domain.mig import file_name

REAL_DIR: Final = f"{LIBRARY_DIR}/real"
HOOK_PATH: Final = f"{LIBRARY_DIR}/ldcache"
SMI_PATH: Final = "/usr/bin/nvidia-smi"
_CUDA_DEVELOPER: Final = "libcuda.so"  # some programs open it by this name, which no SONAME answers to


def trusted_directories() -> tuple[str, str]:
    """Directories that a container's loader searches by default."""
    return f"/usr/lib/{multiarch()}", "/usr/lib64"


def driver_mounts(driver: Driver, library: Delivered | None, *, graphics: bool) -> tuple[Mount, ...]:
    """The driver's libraries and nvidia-smi; with ``library``, our fronts under the names they stand for.

    ``graphics``: also the libraries of Vulkan, OpenGL and OptiX.
    """
    wanted = {n: path for n, path in driver.libraries.items() if graphics or not GRAPHICS.fullmatch(n)}
    sources = {**wanted, _CUDA_DEVELOPER: driver.libraries[CUDA]}
    if library is not None:
        sources |= fronts(library)
    mounts = [
        Mount(f"{directory}/{name}", source)
        for directory in trusted_directories()
        for name, source in sorted(sources.items())
    ]
    if driver.smi is not None:
        mounts.append(Mount(SMI_PATH, driver.smi))
    return tuple(mounts)


def gate_mounts(pages: Path, cards: Iterable[CardUuid]) -> tuple[Mount, ...]:
    """The gates of these cards, for a best-effort container; ``pages`` is the directory of all pages."""
    names = [file_name(card) for card in cards]
    # The library looks for the 16 bytes that the page has.
    return tuple(Mount(f"{GATES_DIR}/{name[:32]}", str(pages / "gates" / name)) for name in names)


def fronts(library: Delivered) -> Mapping[str, str]:
    """Name → our file, for every name by which a program could reach the real one."""
    cuda = library.path(CUDA_FRONT)
    return {CUDA: cuda, _CUDA_DEVELOPER: cuda, NVML: library.path(NVML_FRONT)}


def enforcement_mounts(
    pages: Path, library: Delivered | None, driver: Driver | None, *, preload: bool
) -> tuple[Mount, ...]:
    """A fraction's pages and library, and the real driver at a path where only the library finds it."""
    mounts = [
        Mount(LIMITS_PATH, str(pages / "limits")),
        Mount(USAGE_PATH, str(pages / "usage"), read_only=False),
    ]
    if library is not None:
        mounts += [Mount(f"{LIBRARY_DIR}/{name}", library.path(name)) for name in (CUDA_FRONT, NVML_FRONT)]
        if preload:
            mounts.append(Mount(PRELOAD_PATH, library.path(PRELOAD)))
    if driver is not None:
        mounts += [
            Mount(f"{REAL_DIR}/{name}", source)
            for name, source in sorted(driver.libraries.items())
            if name in (CUDA, NVML) or COMPANIONS.fullmatch(name)
        ]
    return tuple(mounts)
