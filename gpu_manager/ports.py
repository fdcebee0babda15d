"""What services need of the world, in the project's words. Each port has at most five methods.

Adapters implement them, tests fake them by hand, ``agent`` introduces one to the other.
All methods are thread-safe and raise only errors of :mod:`gpu_manager.domain.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.topology import Topology


@dataclass(frozen=True, slots=True)
class CardUse:
    """One card's own figures; ``None`` where the card cannot tell. Bytes, percent."""

    uuid: CardUuid
    memory_used: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one host process does on one card. ``utilisation`` is the SM percent of the last sample window."""

    uuid: CardUuid
    pid: int
    memory: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A card changed: ``reason`` is the sentence operators read (``XID 79: fallen off the bus``)."""

    uuid: CardUuid
    healthy: bool
    reason: str


class Cards(Protocol):
    """The node's cards. One card's failure is that card's state, never an exception for all."""

    def list(self) -> Sequence[CardState]:
        """Every card, by index. Raises NodeUnready if the driver cannot be asked at all."""

    def topology(self) -> Topology:
        """How they are joined, in the order of :meth:`list`."""

    def usage(self) -> tuple[Sequence[CardUse], Sequence[ProcessUse]]:
        """Figures now; what cannot be read is left out."""

    def watch(self, changed: Callable[[HealthChange], None]) -> None:
        """Call ``changed`` from a thread of its own within 1 s of a health change, until :meth:`close`."""

    def close(self) -> None:
        """Stop watching and let go of the driver."""


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod as the API knows it, and whether it is only remembered (deleted in the last 120 s)."""

    pod: Pod
    tombstone: bool = False


class Pods(Protocol):
    """The pods of this node as the API server (or the kubelet's own /pods) shows them."""

    def local(self) -> Mapping[str, Sequence[KnownPod]]:
        """``namespace/name`` → pods of that name, newest first, tombstones included. Never blocks."""

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """Ask the source itself, now; None if it is gone, or on another node. Raises NodeUnready when it
        cannot be asked.
        """

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Write annotations to exactly this pod (by UID), in the background, retried."""

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """An Event on the pod, in the background, rate-limited."""

    def evict(self, pod: Pod, reason: str) -> None:
        """Ask for its removal (Eviction API), in the background."""


@dataclass(frozen=True, slots=True)
class PodResourcesEntry:
    """A container as PodResources lists it: which ids of which resource it holds."""

    namespace: str
    pod: str
    container: str
    ids: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One entry of the kubelet's checkpoint, ours only; ``annotation`` is our JSON in its response, ``nodes``
    the numbers in ``/dev/nvidia<n>`` that it gives, none where cards go by their UUID.
    """

    pod: PodUid
    container: str
    resource: str
    ids: frozenset[str]
    annotation: str | None = None
    nodes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PredecessorPod:
    """What the predecessor's checkpoint says of one container: cards by the number in ``/dev/nvidia<n>``."""

    pod: PodUid
    container: str
    minors: tuple[int, ...]
    amount: Amount


class Kubelet(Protocol):
    """What the kubelet says it has given to whom."""

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        """PodResources List: active pods → their app containers and sidecars (also those without ids).

        Retries the limiter for 10 s. Raises NodeUnready when the kubelet does not answer.
        """

    def checkpoint(self) -> Sequence[CheckpointEntry] | None:
        """The checkpoint file, filtered by our resource names; None if it is absent or cannot be read."""


class Store(Protocol):
    """The books on disk."""

    def load(self) -> bytes | None:
        """The last complete state, verified; None if there is none. Raises NodeUnready if it is torn."""

    def save(self, state: bytes) -> None:
        """Replace the state atomically and durably. Raises NodeUnready (disk full, read-only)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the library in the container enforces on one card. Cores in percent, memory in bytes."""

    card: CardUuid
    memory: int
    cores: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What a container's usage page says of one card, clamped to what is possible."""

    card: CardUuid
    memory: int
    busy_seconds: float
    throttled_seconds: float
    refusals: int
    processes: int


class ControlPages(Protocol):
    """The control pages. ``name`` is the allocation's random directory name."""

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        """Make the directory and both pages if absent, and write the limits. Idempotent."""

    def reset(self, name: str) -> None:
        """Begin a new life of the container: usage back to zero, slots of dead processes freed."""

    def usage(self, name: str) -> Sequence[TenantUse]:
        """Read the usage page with bounds. Raises NodeUnready if it was tampered with or is gone."""

    def names(self) -> Sequence[str]:
        """Every directory that exists."""

    def remove(self, name: str) -> None:
        """Delete the directory; absent is fine."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What the host knows of a container on one card and the library cannot; ``None`` leaves it as it is.

    ``gain`` and ``co_active`` are factors; ``host_adjust``: bytes that the driver counts beyond the account.
    """

    gain: float | None = None
    co_active: float | None = None
    host_adjust: int | None = None


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
    """The control pages as the co-activity service sees them. ``name`` as in :class:`Tenants`."""

    def activity(self, name: str) -> Sequence[Activity]:
        """Who is at work now. Raises NodeUnready if the page was tampered with or is gone."""

    def publish(self, name: str, heartbeat_ns: int, corrections: Mapping[CardUuid, Correction]) -> None:
        """Tell the library that the host is there (CLOCK_MONOTONIC) and what it corrects, in one write.

        Raises NodeUnready if the page is gone or unreadable.
        """


class Injector(Protocol):
    """Turns shares into what a container receives."""

    def inject(self, name: str, shares: Sequence[Share], pod: Pod | None, annotation: str) -> Injection:
        """Everything the container needs to use its cards; host paths exist when this returns."""

    def prune(self, alive: Collection[str]) -> None:
        """Remove what was made for names that are not ``alive`` any more (CDI specs, old libraries).

        By directory name, which an allocation keeps when its association is corrected.
        """


class Processes(Protocol):
    """Which container a host process belongs to."""

    def container_of(self, pid: int) -> tuple[PodUid, str] | None:
        """(pod UID, container id) from the process's cgroup; None if it is in no pod or gone."""

    def alive(self, pod: PodUid) -> bool | None:
        """True while a process of the pod lives; None when that cannot be seen (no hostPID)."""


class PageEvidence(Protocol):
    """What control pages tell of those who use them. Beside :class:`Tenants`."""

    def registered(self, name: str) -> frozenset[int]:
        """The processes that hold a slot, by the ids they know themselves by. Raises as Tenants.usage."""

    def attacks(self, name: str) -> tuple[int, str]:
        """How often the page was found changed as the library never does it, and what was found last."""

    def notes(self, name: str) -> Sequence[LibraryMessage]:
        """What the library told the host, oldest first, as of the last :meth:`Tenants.usage`."""


class HostProcesses(Protocol):
    """Host processes by number, for the watchdog. Beside :class:`Processes`."""

    def host_pid(self) -> bool:
        """True if the processes of the whole node are visible here."""

    def inner_pid(self, pid: int) -> int | None:
        """The id that a process knows itself by; None if it is ending, gone, or not told."""


class DriverMemoryLimitSetter(Protocol):
    """A limit on a card's memory that driver or kernel hold against every process of a container."""

    def hold(self, container_id: str, card: CardUuid, limit: int) -> str | None:
        """Set it (bytes), and say who holds it now (``nvml``, ``dmem``); None if nobody here can.

        Raises NodeUnready while it cannot be set yet (the container's cgroup is not there).
        """

    def let_go(self, container_id: str, card: CardUuid) -> None:
        """Lift it; a cgroup that is gone has taken its limit with it."""


class Clock(Protocol):
    """Time, so that tests own it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as it stands: who holds it (empty: nobody), for how long from each renewal on.

    ``mark`` is another after each renewal, and after nothing else. Its times are another machine's clock:
    nobody may compare them with his own.
    """

    holder: str
    seconds: float
    transitions: int
    mark: str


class InventoryPublisher(Protocol):
    """Where the node's inventory and labels are published."""

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Patch the node, in the background, retried."""

    def cordoned(self) -> frozenset[CardUuid]:
        """Cards the operator has closed."""


__all__ = [
    "Activity",
    "ActivityPages",
    "Card",
    "CardState",
    "CardUse",
    "Cards",
    "CheckpointEntry",
    "Clock",
    "ControlPages",
    "Correction",
    "DriverMemoryLimitSetter",
    "HealthChange",
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
]
