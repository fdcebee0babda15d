"""Whose are the processes that the driver lists: a living one's by its cgroup, a dead one's as last seen.

The driver keeps what a killed process held while a forked child has its descriptors, and goes on listing the
dead process's pid. That memory is its container's as before, which neither limit nor detector may miss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.pod import PodUid
from gpu_manager.ports.cards import ProcessUse
from gpu_manager.ports.processes import Processes

_Container = tuple[PodUid, str]


class ProcessOwners:
    """Remembers each listed process's container for as long as its card lists it.

    A pid that was found gone stays the dead process's until then, even if the kernel gives the number to
    another process. Processes that were dead before the agent's first sample belong to nobody.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: dict[tuple[CardUuid, int], tuple[_Container, bool]] = {}

    def of(
        self, listed: Sequence[ProcessUse], told: Collection[CardUuid]
    ) -> Iterator[tuple[ProcessUse, _Container]]:
        """The processes of containers, each with its container: (pod UID, container id).

        ``told``: the cards that listed their processes; of the others what was known stays known.
        """
        before = self._known
        self._known = {place: owner for place, owner in before.items() if place[0] not in told}
        for process in listed:
            place = process.uuid, process.pid
            container, gone = before.get(place, (None, False))
            seen = None if gone else self._processes.container_of(process.pid)
            if seen is not None:
                self._known[place] = seen, False
                yield process, seen
            elif container is not None and process.memory is not None:
                self._known[place] = container, True
                yield process, container
