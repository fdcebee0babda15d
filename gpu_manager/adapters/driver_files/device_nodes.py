"""The driver's device nodes, as containers get them; those that are missing are made where the agent may.

The driver makes ``/dev/nvidia-uvm`` only once a CUDA program has run since the boot, and on machines without
udev rules of the driver the others only once some program of it did. Without them no container starts. The
predecessor's extra-config.json names further nodes, which every container with a card receives.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.driver_files.driver import OPERATOR_ROOT
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.injection import DeviceNode
from gpu_manager.domain.mig import MigInstance

log = structlog.get_logger(__name__)

CONTROL: Final = ("nvidiactl", "nvidia-uvm")
_OPTIONAL: Final = ("nvidia-uvm-tools", "nvidia-modeset")
_PERMISSIONS: Final = "rw"  # "m" would let the container make more nodes
_MODE: Final = 0o666  # the driver's own default
_CARD: Final = re.compile(r"nvidia([0-9]{1,3})", re.ASCII)
_CAPABILITY: Final = re.compile(r"nvidia-caps/nvidia-cap([0-9]{1,6})", re.ASCII)
_DRM: Final = re.compile(r"(card|render[D])[0-9]{1,4}", re.ASCII)
_CAPS: Final = "nvidia-caps"  # the driver's word in /proc, in /proc/devices and in /dev
_READABLE: Final = 0o444  # as the driver has nodes of capabilities made
# The names under which /proc/devices has the driver's numbers: newer drivers first.
_FRONTEND: Final = ("nvidia", "nvidia-frontend", "nvidiactl")
_UVM: Final = ("nvidia-uvm",)

Mknod = Callable[[Path, int, int], None]


class DeviceNodes:
    """Not thread-safe."""

    def __init__(
        self,
        host: HostFiles,
        driver_root: str,
        extra: Sequence[str] = (),
        *,
        proc: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        mknod: Mknod | None = None,
    ) -> None:
        """``extra`` are the operator's own nodes. ``mknod`` makes a character device of these numbers."""
        self._host = host
        self._driver_root = driver_root
        self._extra = tuple(extra)
        self._proc, self._sysfs = proc, sysfs
        self._mknod = mknod or _mknod
        self._seen: dict[str, str] = {}  # name → the directory in which it was last
        self._absent: frozenset[str] = frozenset()
        self._refused: frozenset[str] = frozenset()

    def capabilities(self, minor: int, place: MigInstance) -> tuple[str, str]:
        """Return the names of the two nodes that give access to a MIG instance of the card of this number.

        Raises:
            NodeUnready: the driver lists none for the place.
        """
        listed = self._mig_minors()
        names = f"gpu{minor}/gi{place.gi}/access", f"gpu{minor}/gi{place.gi}/ci{place.ci}/access"
        for name in names:
            if name not in listed:
                raise NodeUnready(
                    f"the driver lists no capability {name} in {self._proc}/driver/{_CAPS}/mig-minors, by "
                    "which a container could be given the MIG instance"
                )
        return listed[names[0]], listed[names[1]]

    def _mig_minors(self) -> dict[str, str]:
        """Capability → the name of its node, as NVIDIA's toolkit reads it."""
        try:
            text = (self._proc / "driver" / _CAPS / "mig-minors").read_text("ascii", errors="replace")
        except OSError:
            return {}
        rows = (line.split() for line in text.splitlines())
        return {row[0]: f"{_CAPS}/nvidia-cap{row[1]}" for row in rows if len(row) == 2 and row[1].isdecimal()}

    def drawing(self, pci_bus_id: str) -> Iterator[DeviceNode]:
        """Yield the nodes of the kernel's Direct Rendering Manager for a card, by its PCI address as sysfs
        writes it: ``/dev/dri/card0`` and ``/dev/dri/renderD128``. None where there are none.
        """
        try:
            known = sorted(
                one.name for one in (self._sysfs / "bus/pci/devices" / pci_bus_id / "drm").iterdir()
            )
        except OSError:
            return
        for path in (f"/dev/dri/{name}" for name in known if _DRM.fullmatch(name)):
            if self._host.exists(path):
                yield DeviceNode(path, path, _PERMISSIONS)

    def of(
        self, minors: Sequence[int], capabilities: Sequence[str] = (), *, now: bool = True
    ) -> Iterator[DeviceNode]:
        """Nodes of the cards of these numbers, of their capabilities by name, and the nodes that every
        container needs beside them.

        Raises:
            NodeUnready: one is missing and cannot be created; the text has the cure. Without ``now`` a
                node that existed before may be missing.
        """
        root = self._root()
        for name in (*(f"nvidia{minor}" for minor in minors), *capabilities, *CONTROL):
            at = root
            if not now and name in self._seen and not self._host.exists(f"{root}/{name}"):
                at = self._seen[name]
            else:
                self._require(root, name)
            yield DeviceNode(f"/dev/{name}", f"{at}/{name}", _PERMISSIONS)
        for name in _OPTIONAL:
            if self._host.exists(f"{root}/{name}"):
                yield DeviceNode(f"/dev/{name}", f"{root}/{name}", _PERMISSIONS)
        yield from self._extra_nodes()

    def require(self, *names: str) -> None:
        """Raise NodeUnready if one of these nodes is missing and cannot be made."""
        root = self._root()
        for name in names:
            self._require(root, name)

    def wsl(self) -> bool:
        """True on Windows Subsystem for Linux, where no card has a node of its own."""
        return self._host.exists("/dev/dxg")

    def _root(self) -> str:
        """Where the nodes are: a driver container has its own, where the node has none."""
        root = self._driver_root.rstrip("/") or OPERATOR_ROOT
        theirs = f"{root}/dev"
        there = self._host.exists(f"{theirs}/nvidiactl")
        return theirs if there and not self._host.exists("/dev/nvidiactl") else "/dev"

    def _require(self, root: str, name: str) -> None:
        if self._host.exists(f"{root}/{name}") or self._make(root, name):
            self._seen[name] = root
            return
        how = "-f" if _CAPABILITY.fullmatch(name) else "-u -c=0"
        raise NodeUnready(
            f"the node has no {root}/{name}: load the driver with nvidia-modprobe {how}, "
            "and see dmesg if that fails"
        )

    def _make(self, root: str, name: str) -> bool:
        """Make the node, if the driver that is loaded has a number for it; False if that is refused."""
        number = self._number(name)
        directory = self._host.resolve(root)
        if number is None or directory is None:
            return False
        path = self._host.seen(f"{directory}/{name}")
        try:
            if name.startswith(_CAPS):
                path.parent.mkdir(mode=0o755, exist_ok=True)
            self._mknod(path, *number)
        except OSError as error:
            if name not in self._refused:
                log.info("device_node_not_made", node=f"{root}/{name}", reason=error.strerror)
            self._refused |= {name}
            return False
        log.info("device_node_made", node=f"{root}/{name}", major=number[0], minor=number[1])
        self._refused -= {name}
        return True

    def _number(self, name: str) -> tuple[int, int] | None:
        majors = self._majors()
        if capability := _CAPABILITY.fullmatch(name):
            return (majors[_CAPS], int(capability[1])) if _CAPS in majors else None
        card = _CARD.fullmatch(name)
        minor = {"nvidiactl": 255, "nvidia-uvm": 0}.get(name, int(card[1]) if card else None)
        found = (majors[one] for one in (_UVM if name == "nvidia-uvm" else _FRONTEND) if one in majors)
        major = next(found, None)
        return None if major is None or minor is None else (major, minor)

    def _majors(self) -> dict[str, int]:
        """Driver → number of its character devices, as the kernel lists them."""
        try:
            text = (self._proc / "devices").read_text(encoding="ascii", errors="replace")
        except OSError:
            return {}
        rows = (line.split() for line in text.partition("Block devices:")[0].splitlines())
        return {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdecimal()}

    def _extra_nodes(self) -> Iterator[DeviceNode]:
        """The operator's own nodes. A missing one would keep every container from starting: it is said."""
        absent = frozenset(path for path in self._extra if not self._host.exists(path))
        if absent - self._absent:
            log.warning("extra_devices_absent", devices=sorted(absent))
        self._absent = absent
        for path in self._extra:
            if path not in absent and not path.startswith("/dev/nvidia"):
                yield DeviceNode(path, path, "rwm")  # as the predecessor gave them


def _mknod(path: Path, major: int, minor: int) -> None:
    mode = _READABLE if path.parent.name == _CAPS else _MODE
    with contextlib.suppress(FileExistsError):
        os.mknod(path, mode | stat.S_IFCHR, os.makedev(major, minor))
        path.chmod(mode)  # whatever the umask


def extra_devices(path: Path) -> tuple[str, ...]:
    """The nodes under ``default.devices``, in order; none if there is no file. Other keys are ignored.

    Raises:
        NodeUnready: the file has another form. A node that is omitted silently is missed for days.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise NodeUnready(f"{path} cannot be read: {error}") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NodeUnready(f"{path} is not JSON: {error}") from error
    default = data.get("default", {}) if isinstance(data, dict) else None
    devices = default.get("devices") or [] if isinstance(default, dict) else None
    if not isinstance(devices, list):
        raise NodeUnready(f'{path}: write {{"default": {{"devices": ["/dev/…"]}}}}')
    for device in devices:
        if not isinstance(device, str) or not device.startswith("/dev/") or ".." in device.split("/"):
            raise NodeUnready(f"{path}: {device!r} is not the path of a device node (/dev/…)")
    return tuple(dict.fromkeys(devices))
