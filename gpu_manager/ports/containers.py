"""Injection of cards into containers, and the host processes of containers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.injection import Injection, MountPoint
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.priority import Priority


@dataclass(frozen=True, slots=True)
class HeldInjection:
    """The inputs of a granted container's injection; ``pod`` is None while the API does not show it.

    ``by_claim``: a ResourceClaim holds the shares, and :meth:`Injector.inject_claim` was called with that
    ``priority`` and ``preload``, which otherwise come from the pod's annotations.
    """

    shares: tuple[Share, ...]
    pod: Pod | None
    by_claim: bool = False
    priority: Priority = Priority.NORMAL
    preload: bool = True


@dataclass(frozen=True, slots=True)
class Injectable:
    """Whether a container can be given cards now: ``why`` not, empty if it can; ``cards``: why not these."""

    why: str = ""
    cards: Mapping[CardUuid, str] = field(default_factory=dict)


class InjectionProbe(Protocol):
    """Checks what :meth:`Injector.inject` would need, before any pod is admitted."""

    def probe(self, cards: Sequence[CardState]) -> Injectable:
        """Check the node's present state; missing parts that may be created are created."""


class Injector(Protocol):
    """Turns shares into the injection of a container."""

    def inject(self, name: str, shares: Sequence[Share], pod: Pod | None, annotation: str) -> Injection:
        """Return everything the container needs to use its cards. Host paths exist when this returns, but for
        a driver's that has been there and is away for a moment.
        """

    def inject_claim(
        self,
        name: str,
        shares: Sequence[Share],
        priority: Priority = Priority.NORMAL,
        *,
        preload: bool = True,
    ) -> tuple[str, ...]:
        """Create everything on the node that containers need to use the shares of a ResourceClaim's request.

        ``priority`` is that of the shares inside their cards, ``preload`` whether the library is preloaded.
        Returns the CDI devices that the kubelet passes to them: the first has everything that the shares have
        in common, each further one the card of that share. Idempotent.
        """

    def restore(self, held: Mapping[str, HeldInjection]) -> None:
        """Create again the lost parts of these names' injections. Raises NodeUnready if some cannot be."""

    def detached(self) -> bool:
        """True if the node has removed a directory that is mounted here: a restart alone mounts it again."""

    def prune(self, alive: Collection[str]) -> None:
        """Remove the files (CDI specs, old libraries) of names that are no longer ``alive``.

        Names are directory names, which an allocation keeps when it is assigned to another container.
        """


class Processes(Protocol):
    """Maps host processes to containers."""

    def container_of(self, pid: int) -> tuple[PodUid, str] | None:
        """Return (pod UID, container id) from the process's cgroup; None if it is in no pod or gone."""

    def alive(self, pod: PodUid) -> bool | None:
        """True while a process of the pod is alive; None if that is unknown (no hostPID).

        The answer may be a second old, unless :meth:`look_again` was called.
        """

    def look_again(self, pods: Collection[PodUid], *, answer: bool = True) -> None:
        """Discard earlier answers of :meth:`alive` for these pods."""

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
    """Distinguishes processes of the node from those of pods. Complements :class:`Processes`."""

    def in_no_pod(self, pid: int) -> bool | None:
        """True if the process lives and its cgroup is no pod's; None if that cannot be seen (no hostPID)."""


class ContainerMounts(Protocol):
    """The mounts of containers, as their processes see them. Complements :class:`Processes`."""

    def mounts(
        self, containers: Collection[tuple[PodUid, str]]
    ) -> Mapping[tuple[PodUid, str], Sequence[Sequence[MountPoint]]]:
        """Return the mounts of these containers (pod UID, container id), a list for each mount namespace of a
        container's processes; a container of which no process can be seen is left out.
        """
