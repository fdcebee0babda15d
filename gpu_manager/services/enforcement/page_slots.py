"""Which of the driver's processes have a slot in their container's page, and so are accounted there."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_manager.domain.enforcement.evasion import ContainerProcess
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.cards import ProcessUse
from gpu_manager.ports.control_pages import PageEvidence
from gpu_manager.ports.processes import HostProcesses


class PageSlots:
    """Maps slots of pages, which have PIDs of the container, to processes of the host."""

    def __init__(self, pages: PageEvidence, host: HostProcesses) -> None:
        self._pages = pages
        self._host = host

    def sees_host(self) -> bool:
        """True if the processes of the whole node are visible."""
        return self._host.host_pid()

    def of(self, directory: str, seen: Sequence[ProcessUse]) -> tuple[ContainerProcess, ...]:
        """The container's processes. ``registered`` is None for one that is ending, and for all where the
        page cannot be read. Without processes nothing is read.
        """
        if not seen:
            return ()
        inner = {p.pid: self._host.inner_pid(p.pid) for p in seen}
        try:
            holders = self._pages.registered(directory)
        except NodeUnready:
            return without_slots(seen)
        return tuple(
            ContainerProcess(p.pid, p.memory, p.utilisation, None if own is None else own in holders)
            for p in seen
            for own in (inner[p.pid],)
        )


def without_slots(seen: Sequence[ProcessUse]) -> tuple[ContainerProcess, ...]:
    """Processes whose slots are unknown."""
    return tuple(ContainerProcess(p.pid, p.memory, p.utilisation) for p in seen)
