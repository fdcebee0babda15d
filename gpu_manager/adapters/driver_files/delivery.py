"""Finds the compiled files of the installed package, installs the libraries where containers can mount them,
and records which allocation uses which.

A running container maps the very file that was mounted. So nothing here is written in place: a new library is
a new directory, named by content hash, and an old one is removed once no allocation uses it.

Each allocation's injection has one small record, ``<state>/tenants/<name>/injection.json``. It is not synced
to disk, which would cost every admission a second fsync. If it is lost in a power failure,
:meth:`Records.libraries` returns "unknown", and nothing is removed; a CDI spec is created again from the
grant. A newer agent's record is treated alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.machine import put_label
from gpu_manager.domain.contract import LIBRARY_DIR
from gpu_manager.domain.errors import NodeUnready

log = structlog.get_logger(__name__)

CUDA_FRONT: Final = "libvcuda.so"
NVML_FRONT: Final = "libvcuda-ml.so"
LDCACHE: Final = "vcuda-ldcache"
PRELOAD: Final = "ld.so.preload"
_FILES: Final = (CUDA_FRONT, NVML_FRONT, LDCACHE)
_PRELOAD_TEXT: Final = "".join(f"{LIBRARY_DIR}/{name}\n" for name in (CUDA_FRONT, NVML_FRONT)).encode()
_HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Delivered:
    """An installed set: its hash, and the path of each file."""

    sha256: str
    directory: Path

    def path(self, name: str) -> str:
        """Where that file is on the node."""
        return str(self.directory / name)

    @property
    def runnable(self) -> bool:
        """True if programs of it can be run: a container runtime would end a start over one that cannot."""
        try:
            return not os.statvfs(self.directory).f_flag & os.ST_NOEXEC
        except OSError:
            return False


class Delivery:
    """Installs from ``source`` (the package's libraries) into ``store``; the caller serialises the calls."""

    def __init__(self, source: Path | None, store: Path, label: bytes | None = None) -> None:
        self._source = source
        self._store = store
        self._label = label
        self._signature: tuple[object, ...] = ()
        self._current: Delivered | None = None

    def install(self) -> Delivered:
        """Install the package's present libraries; returns them.

        Raises:
            NodeUnready: the package has none, or the disk refuses.
        """
        signature = self._signs()
        current = self._current
        if current is None or signature != self._signature or not current.directory.is_dir():
            current = self._install()
            self._current, self._signature = current, signature
        return current

    def prune(self, used: Collection[str]) -> None:
        """Remove every installed set but those ``used`` and the current one, and unfinished drafts."""
        keep = {*used, self._current.sha256 if self._current else ""}
        with contextlib.suppress(FileNotFoundError):
            for entry in list(self._store.iterdir()):
                if entry.name not in keep and entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)  # what stays is tried again in the next round
                    log.info("library_removed", sha256=entry.name)

    def _signs(self) -> tuple[object, ...]:
        if self._source is None:
            raise NodeUnready(_missing("this installation has no native libraries"))
        try:
            stats = [(self._source / name).stat() for name in _FILES]
        except OSError as error:
            raise NodeUnready(_missing(f"{error.filename}: {error.strerror}")) from error
        return tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)

    def _install(self) -> Delivered:
        assert self._source is not None  # noqa: S101  # _signs has refused that
        try:
            content = {name: (self._source / name).read_bytes() for name in _FILES}
            content[PRELOAD] = _PRELOAD_TEXT
            sha256 = _digest(content)
            target = self._store / sha256
            if target.is_dir() and not _holds(target, content):
                # A disk fault or a hand in it. Those who have it mapped keep their files; the name is freed.
                log.error("installed_library_corrupt", sha256=sha256)
                target.rename(self._store / f".broken-{secrets.token_hex(4)}")
            if not target.is_dir():
                self._put(target, content)
                log.info("library_installed", sha256=sha256)
        except OSError as error:
            raise NodeUnready(
                f"the libraries cannot be installed in {self._store}: {error.strerror or error}; "
                "fractions cannot start here until that disk is writable"
            ) from error
        return Delivered(sha256, target)

    def _put(self, target: Path, content: Mapping[str, bytes]) -> None:
        self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._store / f".draft-{secrets.token_hex(8)}"
        draft.mkdir(mode=0o700)
        try:
            for name, data in content.items():
                path = draft / name
                with path.open("wb") as file:
                    file.write(data)
                    put_label(file.fileno(), self._label)
                    os.fchmod(file.fileno(), 0o444 if name == PRELOAD else 0o555)
                    os.fsync(file.fileno())
            _sync(draft)
            with contextlib.suppress(FileExistsError):  # another agent was quicker with the same content
                draft.rename(target)
            _sync(self._store)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def is_hash(text: str) -> bool:
    """True for the name of an installed set."""
    return _HASH.fullmatch(text) is not None


def _digest(content: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, data in sorted(content.items()):
        whole.update(f"{name}\0{len(data)}\0".encode())
        whole.update(data)
    return whole.hexdigest()


def _holds(directory: Path, content: Mapping[str, bytes]) -> bool:
    try:
        return all((directory / name).read_bytes() == data for name, data in content.items())
    except OSError:
        return False


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _missing(what: str) -> str:
    return (
        f"libvcuda is not installed ({what}), so a fraction of a card cannot be limited: install the "
        "gpu-manager package that was built with a C compiler, or name the directory of its libraries; "
        "whole cards work"
    )


_NAME: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FILE: Final = "injection.json"


@dataclass(frozen=True, slots=True)
class InjectionRecord:
    """``library`` is a set's hash (None for whole cards), ``cdi`` the spec's text (None without CDI)."""

    library: str | None = None
    cdi: str | None = None


def is_name(name: str) -> bool:
    """True for a valid name of an allocation's directory: it becomes part of paths."""
    return _NAME.fullmatch(name) is not None


class Records:
    """Stores injection records under ``root``; the caller serialises the calls."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, InjectionRecord] = {}  # what the disk was seen to hold

    def put(self, name: str, record: InjectionRecord) -> None:
        """Write or replace a record, whole. Raises NodeUnready if the disk refuses."""
        if self.get(name) == record:
            return
        path = self._root / name / _FILE
        text = json.dumps({"v": 1, "library": record.library, "cdi": record.cdi})
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = path.with_name(f".{_FILE}.{secrets.token_hex(4)}")
            draft.write_text(text)
            draft.rename(path)
            self._known[name] = record
        except OSError as error:
            raise NodeUnready(
                f"{path} cannot be written: {error.strerror or error}; "
                "no container with a card can start here until it can"
            ) from error

    def get(self, name: str) -> InjectionRecord | None:
        """The record; None if there is none or it is torn."""
        try:
            data = json.loads((self._root / name / _FILE).read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(data, dict) or data.get("v") != 1:
            return None
        library, cdi = data.get("library"), data.get("cdi")
        if not (library is None or (isinstance(library, str) and is_hash(library))):
            return None
        return InjectionRecord(library, cdi if isinstance(cdi, str) else None)

    def names(self) -> frozenset[str]:
        """Every allocation that has a directory here."""
        try:
            return frozenset(entry.name for entry in self._root.iterdir() if is_name(entry.name))
        except OSError:
            return frozenset()

    def libraries(self, names: Collection[str]) -> frozenset[str] | None:
        """The libraries used by these allocations; None if one of them is unknown.

        Each record is read once, since only the agent writes them.
        """
        for name in names:
            if name not in self._known:
                record = self.get(name)
                if record is None:
                    return None
                self._known[name] = record
        found = [self._known[name].library for name in names]
        return frozenset(library for library in found if library)

    def remove(self, name: str) -> None:
        """Forget an allocation; absent is fine."""
        self._known.pop(name, None)
        with contextlib.suppress(OSError):
            shutil.rmtree(self._root / name)


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
