"""Where distributions put the driver's libraries and programs: below its root, and where some keep them.

The roots of :data:`_KNOWN` are tried where the administrator names none and the usual directories hold no
driver. Facts from the distributions' own documentation and packages: NixOS (hardware.graphics), Talos (the
extension nvidia-container-toolkit), Bottlerocket (its packages of the driver), GKE (cos-gpu-installer),
NVIDIA's GPU operator (its driver container), Windows Subsystem for Linux.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpu_manager.adapters.driver_files.elf import multiarch

OPERATOR_ROOT: Final = "/run/nvidia/driver"
_PROGRAMS: Final = ("usr/bin", "bin", "usr/local/bin")
# Root, directories of libraries in it, directories of programs on the node.
_KNOWN: Final = (
    ("/home/kubernetes/bin/nvidia", ("lib64",), ("/home/kubernetes/bin/nvidia/bin",)),  # GKE
    ("/run/opengl-driver", ("lib",), ("/run/current-system/sw/bin",)),  # NixOS
    ("/usr/local/glibc", ("usr/lib", "lib", "lib64"), ("/usr/local/bin",)),  # Talos to 1.9
    ("/usr/lib/glibc", ("lib64", "lib"), ("/usr/local/bin",)),  # Talos
    ("/usr/local/nvidia", ("lib64", "lib"), ("/usr/local/nvidia/bin",)),  # AKS and COS, by hand
    ("/usr/lib/nvidia/tesla", ("",), ("/usr/libexec/nvidia/tesla/bin",)),  # Bottlerocket
    ("/opt/nvidia/current", ("usr/lib64", "lib64", "lib"), ("/opt/nvidia/current/bin",)),  # Flatcar
    ("/usr/lib/wsl", ("lib",), ("/usr/lib/wsl/lib",)),
)

_KNOWN_IN_WORDS: Final = (
    "or where GKE, NixOS, Talos, Bottlerocket, Flatcar, WSL or a driver container have it"
)


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """A directory of the node that may hold the driver's ``libraries``; ``programs`` may hold nvidia-smi.

    Links of the driver's own installation are absolute within ``root``. ``usual``: every loader looks there.
    """

    root: str
    libraries: str
    programs: tuple[str, ...]
    usual: bool = False


def driver_places(driver_root: str) -> tuple[DriverPlace, ...]:
    """The places below the root, in the order in which they are tried; below ``/`` the known roots, too."""
    root = "/" + driver_root.strip("/")
    return tuple(_below(root)) if root != "/" else (*_below(root), *_known(), *_below(OPERATOR_ROOT))


def places_in_words(places: Sequence[DriverPlace]) -> str:
    """The places for a message, which the known roots would make too long."""
    own = [place.libraries for place in places if place.usual or len({p.root for p in places}) == 1]
    known = [] if len(own) == len(places) else [_KNOWN_IN_WORDS]
    return ", ".join([*own, *known])


def _below(root: str) -> Iterator[DriverPlace]:
    base, arch = root.rstrip("/"), multiarch()
    programs = tuple(f"{base}/{directory}" for directory in _PROGRAMS)
    for directory in (f"usr/lib/{arch}", "usr/lib64", f"lib/{arch}", "lib64", "usr/lib", "lib"):
        yield DriverPlace(root, f"{base}/{directory}", programs, usual=root == "/")


def _known() -> Iterator[DriverPlace]:
    for root, directories, programs in _KNOWN:
        for directory in directories:
            yield DriverPlace(root, f"{root}/{directory}".rstrip("/"), programs)
