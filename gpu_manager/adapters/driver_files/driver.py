"""Finds the driver's own libraries on the node, each under the SONAME in its ELF header, and NVML for an
agent without one.

A container gets them by a path that stays right when the driver is upgraded under it, because the kubelet
replays an old response for as long as the pod lives: the SONAME's link where the installer made one, else a
link of ours, renewed at every check. A versioned file name is never handed out: once that file is gone, a
container runtime would make an empty *directory* of that name on the node.

The roots of :data:`_KNOWN` are tried where the administrator names none and the usual directories hold no
driver. Facts from the distributions' own documentation and packages: NixOS (hardware.graphics), Talos (the
extension nvidia-container-toolkit), Bottlerocket (its packages of the driver), GKE (cos-gpu-installer),
NVIDIA's GPU operator (its driver container), Windows Subsystem for Linux.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.domain.errors import NodeUnready

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

    Links of the driver's own installation are absolute within ``root``. ``usual``: every loader searches it.
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


log = structlog.get_logger(__name__)

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"

_JETSON: Final = ("/etc/nv_tegra_release", "/dev/nvhost-ctrl")
NO_JETSON: Final = (
    "this is a Jetson whose driver has no cards that a container could be given one by one: nothing is "
    "offered here"
)

# By file name, as the driver's installer ships them. The container toolkit's own library, the settings
# panel's and the frame grabber's bridge to Wayland bear the prefix too, and are none of the driver.
_OURS: Final = re.compile(
    r"(libcuda|libcudadebugger|libnvcuvid|libnvoptix|lib(GLX|EGL|GLESv1_CM|GLESv2)_nvidia"
    r"|libnvidia-(?!container|gtk|wayland)[A-Za-z0-9_+-]+)\.so(\.[0-9.]+)?"
)
_SONAME: Final = re.compile(r"lib[A-Za-z0-9_+-]+\.so(\.[0-9]+)*")
_VERSION: Final = re.compile(
    r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$"
)  # 535.183.01; nvvm's .so.4 is no driver version
# What the driver opens by itself once a program compiles or loads code. A front that opened these first, by
# absolute path, works in images whose loader looks nowhere near the trusted directories.
COMPANIONS: Final = re.compile(
    r"libnvidia-(ptxjitcompiler|nvvm\w*|gpucomp|fatbinaryloader|compiler|pkcs11\S*)\.so\S*"
)

# Vulkan, OpenGL, OptiX and their parts. They reach the card past libcuda: only who asks gets them.
GRAPHICS: Final = re.compile(
    r"(libnvoptix|lib(GLX|EGL|GLESv1_CM|GLESv2)_nvidia"
    r"|libnvidia-(eglcore|glcore|glsi|tls|rtcore|glvkspirv|fbc|ifr|cbl|ngx|present|vulkan-producer|vksc-core"
    r"|egl-[a-z0-9]+))\.so\S*"
)


@dataclass(frozen=True, slots=True)
class Driver:
    """SONAME → path on the node to bind, the version, and ``nvidia-smi`` if there is one."""

    libraries: Mapping[str, str]
    version: str
    smi: str | None = None


class DriverFinder:
    """Finds the driver. Thread-safe. Searches again only when a directory that it read has changed."""

    def __init__(
        self, host: HostFiles, driver_root: str, links: Path, directories: Sequence[str] | None = None
    ) -> None:
        """``links`` is where our own links go; ``directories`` replaces the places under ``driver_root``."""
        self._host = host
        self._links = links
        self._places = (
            driver_places(driver_root)
            if directories is None
            else tuple(DriverPlace("/", directory, ()) for directory in directories)
        )
        self._lock = threading.Lock()
        self._found: Driver | None = None
        self._last: Driver | None = None
        self._at = len(self._places)
        self._signature: tuple[object, ...] = ()

    def find(self) -> Driver:
        """The driver's present files. Raises NodeUnready if there are none, with the searched places."""
        with self._lock:
            signature = tuple(self._signs())
            if self._found is None or signature != self._signature:
                self._found = None
                self._found = self._last = self._look()
                self._signature = tuple(self._signs())  # anew: our links may lie in a directory that we watch
                log.info("driver_found", version=self._found.version, libraries=len(self._found.libraries))
            return self._found

    def find_last(self) -> Driver:
        """The driver's present files, or the last known ones while they are away. Raises NodeUnready if there
        never were any.
        """
        try:
            return self.find()
        except NodeUnready:
            if self._last is None:
                raise
            return self._last

    def _signs(self) -> Iterator[object]:
        before = self._places[: self._at + 1]  # what comes after the place that counts changes nothing
        for directory in (*(place.libraries for place in before), str(self._links)):
            try:
                status = self._host.seen(self._host.resolve(directory) or directory).stat()
            except OSError:
                yield None
            else:
                yield status.st_ino, status.st_mtime_ns

    def _look(self) -> Driver:
        self._at = len(self._places)
        for at, place in enumerate(self._places):
            real = self._real(place, CUDA)
            if real is None or self._soname(real) != CUDA:
                continue
            self._at = at
            match = _VERSION.search(real)
            version = match[1] if match else ""
            libraries = dict(self._in(place, version))
            if NVML in libraries:
                return Driver(libraries, version, self._smi(place))
            raise NodeUnready(
                f"{place.libraries} has {CUDA} but no {NVML}: the driver's installation is incomplete"
            )
        if any(map(self._host.exists, _JETSON)):
            raise NodeUnready(NO_JETSON)
        raise NodeUnready(
            f"no {CUDA} of this machine in {places_in_words(self._places)}: "
            "install the NVIDIA driver, or name its root with --driver-root"
        )

    def _in(self, place: DriverPlace, version: str) -> Iterator[tuple[str, str]]:
        """The place's driver libraries; another version's are leftovers, and mixing crashes."""
        seen: set[str] = set()
        for name in self._host.listing(place.libraries):
            if not _OURS.fullmatch(name):
                continue
            real = self._real(place, name)
            soname = self._soname(real) if real else None
            if real is None or not soname or soname in seen:
                continue
            other = _VERSION.search(real)
            if version and other and other[1] != version:
                log.warning("library_of_other_driver_skipped", path=real, driver=version)
                continue
            seen.add(soname)
            yield soname, self._source(place.libraries, soname, real)

    def _real(self, place: DriverPlace, name: str) -> str | None:
        """The file behind a name; a driver root's absolute links mean that root, as in its own container."""
        path = f"{place.libraries}/{name}"
        found = self._host.resolve(path)
        if found is None and place.root != "/":
            found = self._host.resolve(path.removeprefix(place.root), within=place.root)
        return found

    def _soname(self, path: str) -> str | None:
        """The SONAME, if the file is a shared object of this machine and its name is one."""
        elf = read_elf(self._host.seen(path))
        if elf is None or elf.machine != native_machine() or not _SONAME.fullmatch(elf.soname):
            return None
        return elf.soname

    def _source(self, directory: str, soname: str, real: str) -> str:
        """The installer's SONAME link if the node can follow it and it is no versioned name, else our own."""
        named = f"{directory}/{soname}"
        if not _VERSION.search(soname) and self._host.resolve(named) == real:
            return named
        link = self._links / (soname if not _VERSION.search(soname) else soname[: soname.index(".so") + 3])
        _point(link, real)
        return str(link)

    def _smi(self, place: DriverPlace) -> str | None:
        found = (f"{directory}/nvidia-smi" for directory in place.programs)
        return next((path for path in found if self._host.exists(path)), None)


def _point(link: Path, target: str) -> None:
    """Make ``link`` lead to ``target``, at once and for every reader. Raises NodeUnready if it cannot be."""
    try:
        if link.is_symlink() and str(link.readlink()) == target:
            return
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
        draft.symlink_to(target)
        try:
            draft.rename(link)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        raise NodeUnready(f"{link} cannot be made a link to {target}: {error.strerror or error}") from error


_OWN_ROOT: Final = Path("/")


def find_nvml(host: HostFiles, driver_root: str = "/") -> Path | None:
    """NVML's library as the agent sees it; None if the node has none, or the loader finds it by itself.

    A library for another machine type is ignored.
    """
    if host.root == _OWN_ROOT and driver_root == "/" and _in_loader_reach(host):
        return None
    for place in driver_places(driver_root):
        path = f"{place.libraries}/{NVML}"
        for within, named in ((place.root, path.removeprefix(place.root.rstrip("/"))), ("/", path)):
            real = host.resolve(named, within)
            elf = read_elf(host.seen(real)) if real is not None else None
            if real is not None and elf is not None and elf.machine == native_machine():
                return host.seen(real)
    return None


def _in_loader_reach(host: HostFiles) -> bool:
    """True unless NVML lies only where a loader does not look without being told."""
    usual = (place for place in driver_places("/") if place.usual)
    other = (place for place in driver_places("/") if not place.usual)
    return any(host.exists(f"{place.libraries}/{NVML}") for place in usual) or not any(
        host.exists(f"{place.libraries}/{NVML}") for place in other
    )


_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MAX_SEGMENTS: Final = 128
_MAX_DYNAMIC: Final = 1 << 16
_MAX_NAME: Final = 256

MACHINES: Final = {"x86_64": 62, "aarch64": 183}
MULTIARCH: Final = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


@dataclass(frozen=True, slots=True)
class Elf:
    """A 64-bit shared object. ``machine`` is ELF's e_machine; ``soname`` is empty if it has none."""

    machine: int
    soname: str


def native_machine() -> int:
    """This machine's e_machine; 0 on one that has no driver."""
    return MACHINES.get(platform.machine(), 0)


def multiarch() -> str:
    """The directory under /usr/lib that Debian's loader trusts on this machine."""
    return MULTIARCH.get(platform.machine(), "x86_64-linux-gnu")


def read_elf(path: Path) -> Elf | None:
    """The file's ELF facts; None if it is not a 64-bit shared object or cannot be read."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, ValueError, OverflowError):
        return None


def _read(file: BinaryIO) -> Elf | None:
    head = file.read(_HEADER.size)
    ident, kind, machine, _, _, table, _, _, _, entry_size, entries, _, _, _ = _HEADER.unpack(head)
    is_shared_object = ident[:6] == b"\x7fELF\x02\x01" and kind == 3
    if not is_shared_object or entry_size != _SEGMENT.size or entries > _MAX_SEGMENTS:
        return None
    file.seek(table)
    segments = list(_SEGMENT.iter_unpack(file.read(entries * _SEGMENT.size)))
    loads = [
        (address, offset, size) for kind, _, offset, address, _, size, _, _ in segments if kind == _PT_LOAD
    ]
    for kind, _, offset, _, _, size, _, _ in segments:
        if kind == _PT_DYNAMIC:
            return Elf(machine, _soname(file, offset, min(size, _MAX_DYNAMIC), loads))
    return None


def _soname(file: BinaryIO, offset: int, size: int, loads: list[tuple[int, int, int]]) -> str:
    file.seek(offset)
    content = file.read(size - size % _DYNAMIC.size)
    tags: dict[int, int] = {}
    for tag, value in _DYNAMIC.iter_unpack(content):
        if tag == _DT_NULL:
            break
        tags.setdefault(tag, value)
    if _DT_SONAME not in tags or _DT_STRTAB not in tags:
        return ""
    strings = tags[_DT_STRTAB]
    for address, start, length in loads:
        if address <= strings < address + length:
            file.seek(start + strings - address + tags[_DT_SONAME], os.SEEK_SET)
            return file.read(_MAX_NAME).split(b"\0", 1)[0].decode("ascii")
    return ""
