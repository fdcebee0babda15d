"""The compiled files of the installed package: the library, its sandbox fronts, the stand-in driver."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


@dataclass(frozen=True, slots=True)
class NativeLibraries:
    """Each None where the package was built without it.

    ``libraries`` holds libvcuda as containers receive it; ``fronts`` the same under the driver's names, built
    to look below ``$VCUDA_ROOT``; ``driver`` the newest stand-in driver; ``client`` is a C program that
    allocates and launches on request.
    """

    libraries: Path | None = None
    fronts: Path | None = None
    driver: Path | None = None
    client: Path | None = None

    @property
    def complete(self) -> bool:
        """True if a container's process can use a modelled card through libvcuda."""
        return None not in (self.libraries, self.fronts, self.driver)


def find_native_libraries() -> NativeLibraries:
    """Find the libraries in the installed package."""
    spec = find_spec("vcuda")
    places = [Path(p) / "native" for p in (spec.submodule_search_locations or ())] if spec else []
    for place in places:
        if place.is_dir():
            return native_in(place)
    return NativeLibraries()


def native_in(place: Path) -> NativeLibraries:
    """The libraries in a directory with the layout of ``vcuda/native``."""
    fronts, standin = place / "sandbox", place / "standin"
    versions = sorted((d for d in standin.iterdir() if d.is_dir()), key=_version) if standin.is_dir() else []
    drivers = [d for d in (standin, *versions) if _whole(d)]
    clients = [f for f in (standin / "vcuda-client", place / "vcuda-client") if f.is_file()]
    return NativeLibraries(
        place if (place / "libvcuda.so").is_file() else None,
        fronts if _whole(fronts) else None,
        drivers[-1] if drivers else None,
        clients[0] if clients else None,
    )


def _whole(directory: Path) -> bool:
    return all((directory / name).is_file() for name in _DRIVER)


def _version(directory: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in directory.name.split(".") if part.isdecimal())
