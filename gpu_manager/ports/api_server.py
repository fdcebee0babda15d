"""Access to the API server: pods, Leases, inventory, marked pods, ResourceClaims and ResourceSlices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.dra.allocation import AllocatedClaim
from gpu_manager.domain.dra.device import SharedDevice
from gpu_manager.domain.kube.pod import Pod


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of the API, and whether it is a tombstone (deleted in the last 120 s).

    ``unread``: it exists, but its present state cannot be read. ``pod`` is then its last state, or only its
    name.
    """

    pod: Pod
    tombstone: bool = False
    unread: bool = False


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

    def evict(self, pod: Pod, reason: str | None) -> None:
        """Evict the pod (Eviction API), in the background; None: cancel, if that has not happened yet."""


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
    """Publishes the node's inventory and labels, and reads operators' annotations of the Node object."""

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str | None]) -> None:
        """Patch the Node object, in the background, with retries. A label of None is removed."""

    def shown(self) -> bool:
        """Return True if the Node object, as last seen, has every annotation that was published."""

    def cordoned(self) -> frozenset[CardUuid]:
        """Return the cards that the operator has cordoned."""

    def to_forget(self) -> frozenset[CardUuid]:
        """Return the vanished cards that the operator does not expect back."""

    def forgot(self, uuids: Collection[CardUuid]) -> None:
        """Remove cards from that list, in the background."""

    def elsewhere(self, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
        """Those of these cards that another node lists as its own. Raises NodeUnready."""


class Evictions(Protocol):
    """Reads the marked pods, and evicts one at a time."""

    def marked(self) -> Collection[Pod]:
        """Return the pods that have a mark, as the API server last showed them. Never blocks."""

    def evict(self, pod: Pod) -> float | None:
        """Evict exactly this pod (by UID). Return None if that is done, else the seconds after which the API
        server may be asked again (0: it did not say). Raises NodeUnready: no answer.
        """

    def event(self, pod: Pod, reason: str, message: str) -> None:
        """Emit a warning Event on the pod, in the background."""


class Claims(Protocol):
    """ResourceClaims, as the API server has them."""

    def read(self, namespace: str, name: str) -> AllocatedClaim | None:
        """Read the claim now. Returns None if no claim has that name.

        Raises:
            NodeUnready: the API server does not answer.
            RequestInvalid: it is not allocated, none of it is ours, or an amount cannot be given.
        """

    def allocated(self, pool: str) -> Mapping[str, str]:
        """The devices of the pool that any claim of the cluster holds, each with the ``namespace/name`` of
        such a claim; admin access holds none. Raises NodeUnready.
        """


class Slices(Protocol):
    """The node's cards as Kubernetes' scheduler sees them."""

    def publish(self, devices: Sequence[SharedDevice]) -> bool:
        """Publish exactly these devices, in this order, for the node's pool; False if they were published
        already.

        Raises NodeUnready: the API server refuses, does not answer, or does not store the fields that let
        claims share a device.
        """
