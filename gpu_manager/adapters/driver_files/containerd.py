"""Containerd's configuration: the file, its imports, and the settings of its CRI plugin.

Facts from containerd's documentation (containerd-config.toml(5), docs/cri/config.md): a file without a
version is of version 1; versions 1 and 2 are containerd 1's (2 reads version 2 as well), version 3 is
containerd 2's, version 4 that of 2.3, which names its socket under a plugin of its own; CDI came with 1.7,
switched off, and is on by default in 2. Containerd 1 replaces a plugin's whole section by that of a later
file; 2 merges them key by key. A file that is imported must not be of a later version than the first.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from gpu_manager.adapters.driver_files.host import HostFiles

FIRST_WITH_CDI_ON: Final = 3  # version of the file, which containerd 2 alone reads
_CRI: Final = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
_SERVER: Final = "io.containerd.server.v1.grpc"  # from version 4 on, in place of the table grpc
_FIRST_WITH_SERVER: Final = 4
_MOST_FILES: Final = 64
_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class ContainerdConfig:
    """``cri`` are the CRI plugin's settings on which containerd 1 and 2 agree, ``readings`` the settings of
    each where they may differ; ``disabled``: the plugin is off; ``address`` is the socket, empty if the files
    do not name it. ``broken``: why containerd does not start with these files, empty if it does.
    """

    path: str
    version: int
    cri: Mapping[str, Any] = field(default_factory=dict)
    disabled: bool = False
    address: str = ""
    readings: tuple[Mapping[str, Any], ...] = ()
    broken: str = ""


def read_containerd(host: HostFiles, path: str) -> ContainerdConfig | None:
    """The configuration at the path, imports included; None if there is no readable file."""
    files = list(_files(host, path))
    if not files:
        return None
    version = _version(files[0][1], 1)
    sections, off, address, broken = [], False, "", ""
    for name, data in files:
        own = _version(data, version)
        if own > version:
            broken = f"{name} is of version {own}, above the {version} of {path}: containerd will not start"
        section = table(table(data, "plugins"), _CRI[own])
        sections += [section] if section else []
        disabled = data.get("disabled_plugins")
        off = off or (
            isinstance(disabled, list) and not {"cri", *_CRI.values()}.isdisjoint(_strings(disabled))
        )
        server = table(table(data, "plugins"), _SERVER) if own >= _FIRST_WITH_SERVER else table(data, "grpc")
        said = server.get("address")
        address = said if isinstance(said, str) and said else address
    if broken:
        return ContainerdConfig(path, version, {}, off, address, broken=broken)
    both: dict[str, Any] = {}
    for section in sections:
        both = merged(both, section)
    readings = [both]
    if version < FIRST_WITH_CDI_ON and sections:
        readings.append(sections[-1])
        both = _agreed(both, sections[-1])
    return ContainerdConfig(path, version, both, off, address, tuple(readings))


def parse_toml(host: HostFiles, path: str) -> dict[str, Any]:
    """The file's content; empty if it is missing or not TOML."""
    content = host.read(path)
    if content is None:
        return {}
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError):  # covers TOMLDecodeError and UnicodeDecodeError
        return {}


def table(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The table under the key; empty if there is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables, merged key by key; if both have a plain value, that of ``above`` wins."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _agreed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What both tables say alike."""
    same: dict[str, Any] = {}
    for key, value in one.items():
        second = other.get(key)
        if isinstance(value, dict) and isinstance(second, dict):
            same[key] = _agreed(value, second)
        elif key in other and second == value:
            same[key] = value
    return same


def _files(host: HostFiles, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The file and all that it imports, with their paths, each once, in the order in which they are laid upon
    each other.
    """
    waiting, seen = [path], set[str]()
    while waiting and len(seen) < _MOST_FILES:
        here = waiting.pop(0)
        real = host.resolve(here)
        if real is None or real in seen:
            continue
        seen.add(real)
        data = parse_toml(host, here)
        if not data:
            continue
        yield here, data
        imports = data.get("imports")
        for pattern in _strings(imports) if isinstance(imports, list) else ():
            base = pattern if pattern.startswith("/") else f"{here.rpartition('/')[0]}/{pattern}"
            waiting += _expanded(host, base)


def _expanded(host: HostFiles, pattern: str) -> list[str]:
    """The node's files that the pattern names; a wildcard stands for a part of any name on the way."""
    found = [""]
    for part in pattern.strip("/").split("/"):
        if _WILDCARDS.isdisjoint(part):
            found = [f"{here}/{part}" for here in found]
        else:
            found = [
                f"{here}/{name}"
                for here in found[:_MOST_FILES]
                for name in host.listing(here or "/")
                if fnmatchcase(name, part)
            ]
    return found[:_MOST_FILES]


def _version(data: Mapping[str, Any], otherwise: int) -> int:
    version = data.get("version")
    known = version if isinstance(version, int) and not isinstance(version, bool) else otherwise
    return max(1, min(known, max(_CRI)))


def _strings(values: list[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str)]
