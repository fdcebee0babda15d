"""Protocols between services and adapters. Each port has at most five methods.

Adapters implement them, tests have hand-written fakes, and ``agent`` connects services with adapters.
All methods are thread-safe and raise only errors of :mod:`gpu_manager.domain.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.enforcement.driver_overhead import Excess
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.injection import Injection, MountPoint
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.topology import Topology


@dataclass(frozen=True, slots=True)
class CardSensors:
    """Figures of a card that move slowly: °C, watts, hertz, joules since the driver was loaded; ``None`` if
    the card does not report a value.
    """

    temperature: float | None = None
    power: float | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    energy: float | None = None


NO_SENSORS = CardSensors()


@dataclass(frozen=True, slots=True)
class CardUse:
    """The usage of one card, in bytes and percent; ``None`` if the card does not report a value.

    ``lists_processes``: a process that is not told of is not there; ``samples_processes``: it uses no time.
    """

    uuid: CardUuid
    memory_used: int | None = None
    utilisation: float | None = None
    lists_processes: bool = True
    samples_processes: bool = True
    sensors: CardSensors = NO_SENSORS


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The usage of one card by a host process. ``utilisation``: SM percent of the last sample window."""

    uuid: CardUuid
    pid: int
    memory: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A change of a card's health; ``reason`` is text for operators (``XID 79: fallen off the bus``)."""

    uuid: CardUuid
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True)
class XidError:
    """An XID error of a card, as the driver reported it. ``closes``: the card takes no new work for it."""

    uuid: CardUuid
    number: int
    closes: bool


CardEvent = HealthChange | XidError


class Cards(Protocol):
    """The node's cards. A failure of one card is reported as that card's state, not as an exception."""

    def list(self) -> Sequence[CardState]:
        """Return every card, by index. Raises NodeUnready if the driver does not answer at all."""

    def topology(self) -> Topology:
        """Return the links between the cards, in the order of :meth:`list`."""

    def usage(self) -> tuple[Sequence[CardUse], Sequence[ProcessUse]]:
        """Return the current usage of the cards; values that cannot be read are left out."""

    def watch(self, told: Callable[[CardEvent], None]) -> None:
        """Call ``told`` from a separate thread, within 1 s of a change of health or an XID."""

    def close(self) -> None:
        """Stop watching and release the driver."""


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of the API, and whether it is a tombstone (deleted in the last 120 s)."""

    pod: Pod
    tombstone: bool = False


class Pods(Protocol):
    """The pods of this node as the API server (or the kubelet's own /pods) shows them."""

    def local(self) -> Mapping[str, Sequence[KnownPod]]:
        """Return the pods by ``namespace/name``, newest first, tombstones included. Never blocks.

        The same object while nothing has changed, never changed in place.
        """

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """Read the pod from the source now; None if it is gone or on another node. Raises NodeUnready if
        the source does not answer.
        """

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Write annotations to exactly this pod (by UID), in the background, with retries."""

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Emit an Event on the pod, in the background, rate-limited."""

    def evict(self, pod: Pod, reason: str) -> None:
        """Evict the pod (Eviction API), in the background."""


@dataclass(frozen=True, slots=True)
class PodResourcesEntry:
    """A container as PodResources lists it, with its ids by resource."""

    namespace: str
    pod: str
    container: str
    ids: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """An entry of the kubelet's checkpoint for our resources; ``annotation`` is our JSON in its response,
    ``nodes`` the numbers in ``/dev/nvidia<n>`` that it contains, none if cards are named by UUID.
    """

    pod: PodUid
    container: str
    resource: str
    ids: frozenset[str]
    annotation: str | None = None
    nodes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PredecessorPod:
    """A container in the predecessor's checkpoint, with its cards by the number in ``/dev/nvidia<n>``."""

    pod: PodUid
    container: str
    minors: tuple[int, ...]
    amount: Amount


class Kubelet(Protocol):
    """The kubelet's records of devices given to containers."""

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        """Call PodResources List: active pods with their app containers and sidecars, even without ids.

        Retries for 10 s on the kubelet's rate limit. Raises NodeUnready if the kubelet does not answer.
        """

    def checkpoint(self) -> Sequence[CheckpointEntry] | None:
        """Return the checkpoint's entries of our resources; None if the file is absent or unreadable."""


class Store(Protocol):
    """The ledger on disk."""

    def load(self) -> bytes | None:
        """Return the last complete state, verified; None without one. Raises NodeUnready if it is torn.

        Files of another format are kept aside before.
        """

    def set_aside(self, why: str) -> tuple[str, ...]:
        """Keep the files under other names, which end in ``why``, and return these: the store is empty."""

    def aside(self) -> tuple[str, ...]:
        """Return the names under which files of another format were kept by the last :meth:`load`."""

    def save(self, state: bytes) -> None:
        """Replace the state atomically and durably. Raises NodeUnready (disk full, read-only)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a container on one card: cores in percent, memory in bytes."""

    card: CardUuid
    memory: int
    cores: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class TenantUse:
    """The usage of one card in a container's usage page, clamped to possible values.

    ``memory`` is bytes charged. Of what is charged on all cards, ``movable`` bytes are of managed memory, and
    of ``untold`` bytes the library cannot tell whether others hold them.
    """

    card: CardUuid
    memory: int
    busy_seconds: float
    throttled_seconds: float
    refusals: int
    processes: int
    movable: int = 0
    untold: int = 0
    refused_bytes: int = 0  # size of the allocation that was refused last
    held_idle_seconds: float = 0.0  # of throttled_seconds, time with nothing of it in flight


class ControlPages(Protocol):
    """The control pages. ``name`` is the allocation's random directory name."""

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        """Create the directory and both pages if absent, and write the limits. Idempotent."""

    def reset(self, name: str) -> None:
        """Reset the usage page for a restarted container: usage is zero, slots of dead processes are free."""

    def usage(self, name: str) -> Sequence[TenantUse]:
        """Read the usage page with bounds. Raises NodeUnready if it was tampered with or is gone."""

    def names(self) -> Sequence[str]:
        """Return the names of all existing directories."""

    def remove(self, name: str) -> None:
        """Delete the directory, if it exists."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Corrections of a container's limits on one card that only the host can compute; ``None`` keeps a value.

    ``gain`` and ``co_active`` are factors; ``host_adjust``: bytes that the driver counts beyond the account;
    ``excess``: what the account holds beyond the driver's count.
    """

    gain: float | None = None
    co_active: float | None = None
    host_adjust: int | None = None
    excess: Excess | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What a container does on one card at this moment, by its own account.

    ``in_flight`` counts streams with unsettled work, ``at_work`` the processes that have any, of the
    ``processes`` alive; ``last_busy_ns`` is CLOCK_MONOTONIC, 0 for never.
    """

    card: CardUuid
    in_flight: int
    busy_ns: int
    last_busy_ns: int
    at_work: int = 0
    processes: int = 0


class ActivityPages(Protocol):
    """The control pages for the time-sharing service. ``name`` as in :class:`ControlPages`."""

    def activity(self, name: str) -> Sequence[Activity]:
        """Return the current activity. Raises NodeUnready if the page was tampered with or is gone."""

    def last_busy_ns(self, places: Sequence[tuple[str, CardUuid]]) -> Sequence[int]:
        """Return when each container last had work in flight on the card (CLOCK_MONOTONIC), 0 if unknown.

        A cheap look: it does not find out whether a page was tampered with.
        """

    def timeline(self, name: str, card: CardUuid, begin_ms: int, end_ms: int) -> Mapping[int, float]:
        """Return how many contexts had work in flight in each millisecond of CLOCK_MONOTONIC with an entry.

        Raises as :meth:`activity` does.
        """

    def publish(self, name: str, heartbeat_ns: int, corrections: Mapping[CardUuid, Correction]) -> None:
        """Write the host's heartbeat (CLOCK_MONOTONIC) and its corrections for the library, in one write.

        Raises NodeUnready if the page is gone or unreadable.
        """


@dataclass(frozen=True, slots=True)
class HeldInjection:
    """What a granted container's injection was made from; ``pod`` is None while the API does not show it."""

    shares: tuple[Share, ...]
    pod: Pod | None


class Injector(Protocol):
    """Turns shares into the injection of a container."""

    def inject(self, name: str, shares: Sequence[Share], pod: Pod | None, annotation: str) -> Injection:
        """Return everything the container needs to use its cards; host paths exist when this returns."""

    def restore(self, held: Mapping[str, HeldInjection]) -> None:
        """Make again what is lost of the injections of these names. Raises NodeUnready if some cannot be."""

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

    def look_again(self, pods: Collection[PodUid]) -> None:
        """Let :meth:`alive` return True for none of these pods by an earlier look at the processes."""


class PageEvidence(Protocol):
    """Evidence in the control pages for the evasion detector. Complements :class:`ControlPages`."""

    def registered(self, name: str) -> frozenset[int]:
        """Return the ids, inside the container, of processes with a slot. Raises as ControlPages.usage."""

    def attacks(self, name: str) -> tuple[int, str]:
        """Return how often illegal changes of the page were found, and the last one as text."""

    def tampering(self) -> Mapping[str, int]:
        """Return how often illegal changes were found, by directory; those without are left out."""

    def noted(self) -> Collection[str]:
        """Return the directories whose pages hold messages, as of the last :meth:`ControlPages.usage`."""

    def notes(self, name: str) -> Sequence[LibraryMessage]:
        """Return the library's messages, oldest first, as of the last :meth:`ControlPages.usage`."""


class HostProcesses(Protocol):
    """Host processes by number, for the evasion detector. Complements :class:`Processes`."""

    def host_pid(self) -> bool:
        """True if the processes of the whole node are visible."""

    def inner_pid(self, pid: int) -> int | None:
        """Return the process's id inside its container; None if it is ending, gone, or unknown."""


class ContainerMounts(Protocol):
    """What containers have mounted, as their processes see it. Complements :class:`Processes`."""

    def mounts(
        self, containers: Collection[tuple[PodUid, str]]
    ) -> Mapping[tuple[PodUid, str], Sequence[Sequence[MountPoint]]]:
        """Return the mounts of these containers (pod UID, container id), a list for each mount namespace of a
        container's processes; a container of which no process can be seen is left out.
        """


class DriverMemoryLimitSetter(Protocol):
    """The limit on a card's memory that driver or kernel enforce on every process of a container."""

    def hold(self, container_id: str, card: CardUuid, limit: int) -> str | None:
        """Set the limit in bytes and return what enforces it (``nvml``, ``dmem``); None if nothing can.

        Raises NodeUnready if it cannot be set yet (the container's cgroup does not exist).
        """

    def let_go(self, container_id: str, card: CardUuid) -> None:
        """Remove the limit; a deleted cgroup has none."""


class Clock(Protocol):
    """Time, so that tests own it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease: its holder (empty if none), and its duration from each renewal on.

    ``mark`` changes with each renewal, and only then. The Lease's own times come from another machine's clock
    and must not be compared with the local one.
    """

    holder: str
    seconds: float
    transitions: int
    mark: str


class InventoryPublisher(Protocol):
    """Publishes the node's inventory and labels, and reads what operators write at the Node object."""

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str | None]) -> None:
        """Patch the Node object, in the background, with retries. A label of None is removed."""

    def cordoned(self) -> frozenset[CardUuid]:
        """Return the cards that the operator has cordoned."""

    def to_forget(self) -> frozenset[CardUuid]:
        """Return the vanished cards that the operator does not expect back."""

    def forgot(self, uuids: Collection[CardUuid]) -> None:
        """Remove cards from that list, in the background."""

    def elsewhere(self, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
        """Ask which of these cards another node shows as its own. Raises NodeUnready."""


__all__ = [
    "Activity",
    "ActivityPages",
    "Card",
    "CardEvent",
    "CardSensors",
    "CardState",
    "CardUse",
    "Cards",
    "CheckpointEntry",
    "Clock",
    "ContainerMounts",
    "ControlPages",
    "Correction",
    "DriverMemoryLimitSetter",
    "HealthChange",
    "HeldInjection",
    "HostProcesses",
    "Injector",
    "InventoryPublisher",
    "KnownPod",
    "Kubelet",
    "LeaseRecord",
    "Limit",
    "PageEvidence",
    "PodResourcesEntry",
    "Pods",
    "PredecessorPod",
    "ProcessUse",
    "Processes",
    "Store",
    "TenantUse",
    "XidError",
]
