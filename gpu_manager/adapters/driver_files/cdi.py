"""What a container gets of the driver: its mounts, and the CDI spec that container runtimes read.

The specification is CNCF's CDI 0.5.0, the first with device nodes of another host path.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.delivery import CUDA_FRONT, NVML_FRONT, PRELOAD, Delivered
from gpu_manager.adapters.driver_files.driver import COMPANIONS, CUDA, GRAPHICS, NVML, Driver, multiarch
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import (
    CDI_KIND,
    GATES_DIR,
    LIBRARY_DIR,
    LIMITS_PATH,
    PRELOAD_PATH,
    USAGE_PATH,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.injection import DeviceNode, Injection, Mount
from gpu_manager.domain.mig import file_name

# The mounts of a container's driver files: from paths to mounts, without I/O.
# Every mount is one file, so none lies inside another and their order means nothing. The runtime makes the
# parents. The loader trusts `/usr/lib/<multiarch>` in Debian's images and `/usr/lib64` in Red Hat's, by
# default and without ldconfig; `LD_LIBRARY_PATH` stays the user's own.


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


VERSION: Final = "0.5.0"
# The way to name CDI devices to runtimes under a kubelet older than 1.29, which drops the field for them;
# a runtime that reads both takes a device once.
ANNOTATION: Final = "cdi.k8s.io/vcuda"
_PREFIX: Final = CDI_KIND.replace("/", "-") + "_"
_FILE: Final = re.compile(re.escape(_PREFIX) + r"(?P<name>[0-9a-f]{32})\.json", re.ASCII)


def device_name(name: str) -> str:
    """The fully qualified device of an allocation."""
    return f"{CDI_KIND}=a-{name}"


def claim_device_names(name: str, injection: Injection, shares: int) -> tuple[str, ...]:
    """The fully qualified devices of a claim, one for each of its ``shares`` of cards.

    Simulated cards have no device nodes, and a device without edits is invalid: the first stands for all.
    """
    further = range(1, shares if injection.devices else 1)
    return device_name(name), *(f"{device_name(name)}-{n}" for n in further)


def encode_claim(name: str, injection: Injection, shares: int) -> str:
    """The spec for a claim: the first device has everything, environment included, but the device nodes of
    the other cards, each of which is a device of its own.

    ``injection.devices`` begin with one node for each of the ``shares``. DRA's answer has no environment, and
    runtimes merge the devices that a container gets: a mount in two of them would collide.
    """
    names = [one.partition("=")[2] for one in claim_device_names(name, injection, shares)]
    others = injection.devices[1 : len(names)]
    first = replace(injection, devices=(*injection.devices[:1], *injection.devices[len(names) :]))
    edits = [_edits(first, env=True), *({"deviceNodes": [_node(node)]} for node in others)]
    return _spec([{"name": device, "containerEdits": one} for device, one in zip(names, edits, strict=True)])


def encode(name: str, injection: Injection) -> str:
    """The spec: mounts, device nodes and hooks of ``injection``. The kubelet passes its environment."""
    return _spec([{"name": f"a-{name}", "containerEdits": _edits(injection)}])


def _spec(devices: Sequence[Mapping[str, object]]) -> str:
    return json.dumps({"cdiVersion": VERSION, "kind": CDI_KIND, "devices": devices}, separators=(",", ":"))


def _edits(injection: Injection, *, env: bool = False) -> dict[str, object]:
    edits: dict[str, object] = {
        "deviceNodes": [_node(node) for node in injection.devices],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in injection.mounts
        ],
    }
    if injection.hooks:
        edits["hooks"] = [
            {"hookName": hook.stage, "path": hook.path, "args": [hook.path]} for hook in injection.hooks
        ]
    if env:
        edits["env"] = [f"{variable}={value}" for variable, value in injection.env.items()]
    return edits


def _node(node: DeviceNode) -> dict[str, str]:
    return {"path": node.path, "hostPath": node.host_path, "permissions": node.permissions}


class Specs:
    """The agent's spec files in the runtime's directory; other programs' files there are never touched."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, name: str, spec: str) -> None:
        """Publish a spec at once and whole. Raises NodeUnready if the directory cannot be written."""
        path = self.directory / f"{_PREFIX}{name}.json"
        draft = self.directory / f".{path.name}.{secrets.token_hex(4)}"  # a runtime reads *.json and *.yaml
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            draft.touch(mode=0o600)
            draft.write_text(spec)
            draft.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise NodeUnready(
                f"the CDI spec {path} cannot be written: {error.strerror or error}; mount the node's "
                "/var/run/cdi into the agent, or choose another injection strategy"
            ) from error

    def detached(self) -> bool:
        """True if the directory was removed while it is mounted here: no file can be created in it any
        more.
        """
        try:
            return self.directory.stat().st_nlink == 0
        except OSError:
            return False

    def names(self) -> frozenset[str]:
        """Which allocations have a spec here."""
        try:
            found = [_FILE.fullmatch(entry.name) for entry in self.directory.iterdir()]
        except OSError:
            return frozenset()
        return frozenset(match["name"] for match in found if match)

    def keep(self, names: Collection[str]) -> None:
        """Remove all specs but these."""
        for name in self.names() - frozenset(names):
            with contextlib.suppress(OSError):
                (self.directory / f"{_PREFIX}{name}.json").unlink(missing_ok=True)
