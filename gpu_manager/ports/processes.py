"""Host processes and the containers that they belong to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from gpu_manager.domain.injection import MountPoint
from gpu_manager.domain.kube.pod import PodUid


class Processes(Protocol):
    """Maps host processes to containers."""

    def container_of(self, pid: int) -> tuple[PodUid, str] | None:
        """Return (pod UID, container id) from the process's cgroup; None if it is in no pod or gone."""

    def alive(self, pod: PodUid) -> bool | None:
        """True while a process of the pod is alive; None if that is unknown (no hostPID).

        The answer may be a second old, unless :meth:`look_again` was called.
        """

    def look_again(self, pods: Collection[PodUid]) -> None:
        """Let :meth:`alive` return True for none of these pods by an earlier look at the processes."""

    def unstarted(self, pod: PodUid) -> bool:
        """True if the pod has processes, each waiting in a container that was made and never started.

        Such a process is the runtime's own, before the container's program. A kubelet that is killed between
        the two steps leaves it behind, and ends it only once it has forgotten the pod.
        """


class HostProcesses(Protocol):
    """Host processes by number, for the evasion detector. Complements :class:`Processes`."""

    def host_pid(self) -> bool:
        """True if the processes of the whole node are visible."""

    def inner_pid(self, pid: int) -> int | None:
        """Return the process's id inside its container; None if it is ending, gone, or unknown."""

    def container_of(self, pid: int) -> tuple[PodUid, str] | None:
        """As of :class:`Processes`."""


class OutsideProcesses(Protocol):
    """Tells processes of the node from those of pods. Complements :class:`Processes`."""

    def in_no_pod(self, pid: int) -> bool | None:
        """True if the process lives and its cgroup is no pod's; None if that cannot be seen (no hostPID)."""


class ContainerMounts(Protocol):
    """What containers have mounted, as their processes see it. Complements :class:`Processes`."""

    def mounts(
        self, containers: Collection[tuple[PodUid, str]]
    ) -> Mapping[tuple[PodUid, str], Sequence[Sequence[MountPoint]]]:
        """Return the mounts of these containers (pod UID, container id), a list for each mount namespace of a
        container's processes; a container of which no process can be seen is left out.
        """
