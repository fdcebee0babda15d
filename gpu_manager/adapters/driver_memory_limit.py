"""The limit on a card's memory in a container's cgroup, for programs that bypass our library.

The driver itself enforces it (:mod:`gpu_manager.adapters.nvml.usage`) or, where it cannot, the kernel's dmem
controller (cgroup v2, Linux 6.14 or newer) for cards that registered a region with it.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.mig import is_instance

log = structlog.get_logger(__name__)

NVML: Final = "nvml"
DMEM: Final = "dmem"

_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
# A container's own cgroup, as runtimes name it: <id>, crio-<id>.scope, <slice>:cri-containerd:<id>. What lies
# below is made by the tenant and never read. CRI-O keeps its monitor in a cgroup beside it.
_CONTAINER = re.compile(r"(?!crio-conmon-)(?:.*[:-])?(?P<id>[0-9a-f]{64})(?:\.scope)?", re.ASCII)
# A pod's cgroup, wherever it lies: the kubelet's own root may be below any other (--cgroup-root), and the
# node itself may be a container (kind, k3d) in a cgroup that is named as a container's is.
_POD = re.compile(
    r"(?:.*-)?pod[0-9a-f]{8}([-_]?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}(?:\.slice(?::.*)?)?",
    re.ASCII,
)
_DEEPEST = 16
_MOST = 1 << 14  # most cgroups read in one search


class DriverLimits(Protocol):
    """Memory limits of the driver for a cgroup."""

    def hold(self, cgroup: Path, card: CardUuid, limit: int | None) -> bool:
        """Set the limit; True if the driver enforces it."""


class CgroupMemoryLimit:
    """:class:`gpu_manager.ports.cards.DriverMemoryLimitSetter` on the host's cgroup v2 tree."""

    def __init__(
        self, cgroups: Path, cards: Callable[[], Sequence[CardState]], driver: DriverLimits | None
    ) -> None:
        """``cgroups``: path of the host's ``/sys/fs/cgroup``; ``driver``: None without real cards."""
        self._place, self._cards, self._driver = cgroups, cards, driver
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}

    @property
    def _cgroups(self) -> Path:
        """Where cgroup v2 is mounted: beside the v1 controllers in a hybrid hierarchy."""
        beside = self._place / "unified"
        return beside if (beside / "cgroup.controllers").exists() else self._place

    def hold(self, container_id: str, card: CardUuid, limit: int) -> str | None:
        """Set the limit in bytes, and return what enforces it; None if neither driver nor kernel can.

        Raises:
            NodeUnready: the container's cgroup does not exist (yet), or the kernel refused.
        """
        if is_instance(card) or not (self._cgroups / "cgroup.controllers").exists():
            return None  # in MIG mode neither limits anything; else cgroup v1, or not visible
        cgroup = self._cgroup(container_id)
        if cgroup is None:
            raise NodeUnready(f"the cgroup of container {container_id[:16]} is not below {self._cgroups}")
        if self._driver is not None and self._driver.hold(cgroup, card, limit):
            return NVML
        region = self._region(card)
        if region is None or not (cgroup / "dmem.max").exists():
            return None
        self._write(cgroup / "dmem.max", region, str(limit))
        return DMEM

    def let_go(self, container_id: str, card: CardUuid) -> None:
        """Remove the limit; if the cgroup is deleted the limit is gone already."""
        with self._lock:
            cgroup = self._found.pop(container_id, None)
        if cgroup is None or not cgroup.exists():
            return
        if self._driver is not None and self._driver.hold(cgroup, card, None):
            return
        region = self._region(card)
        if region is not None and (cgroup / "dmem.max").exists():
            self._write(cgroup / "dmem.max", region, "max")

    def _cgroup(self, container_id: str) -> Path | None:
        if _ID.fullmatch(container_id) is None:
            raise NodeUnready(f"{container_id[:64]!r} is not the id of a container (64 hex digits)")
        with self._lock:
            known = self._found.get(container_id)
        if known is None or not known.exists():
            known = next((path for name, path in self._containers() if name == container_id), None)
            if known is not None:
                with self._lock:
                    self._found[container_id] = known
        return known

    def _containers(self) -> Iterator[tuple[str, Path]]:
        """(id, cgroup) of every container of a pod, in whatever cgroup the pods are.

        Nothing below a container is entered. Cgroups named for Kubernetes come first, so that a node full of
        others is searched in time.
        """
        waiting, seen = deque([(self._cgroups, 0, False)]), 0
        while waiting:
            here, depth, in_pod = waiting.popleft()
            try:
                names = [entry.name for entry in os.scandir(here) if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # it ended meanwhile
            for name in names:
                seen += 1
                container, pod = _CONTAINER.fullmatch(name), _POD.fullmatch(name) is not None
                if container is not None and (in_pod or pod):
                    yield container["id"], here / name
                elif not in_pod and depth < _DEEPEST and seen < _MOST:
                    (waiting.appendleft if pod or "kube" in name else waiting.append)(
                        (here / name, depth + 1, pod)
                    )

    def _region(self, card: CardUuid) -> str | None:
        """The card's region in the kernel's list, by its PCI address (``drm/0000:3b:00.0/vram0 <bytes>``)."""
        state = next((s for s in self._cards() if s.card.uuid == card), None)
        if state is None or not state.card.pci_bus_id:
            return None
        try:
            lines = (self._cgroups / "dmem.capacity").read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            return None
        names = [line.rpartition(" ")[0] for line in lines]
        address = state.card.pci_bus_id.lower()
        return next((name for name in names if address in re.split("[/ ]", name.lower())), None)

    @staticmethod
    def _write(path: Path, region: str, value: str) -> None:
        try:
            path.write_text(f"{region} {value}\n", "ascii")
        except OSError as error:
            raise NodeUnready(
                f"the kernel did not take {value} for {region} in {path}: {error.strerror or error}"
            ) from error
