"""Who holds which devices: the kubelet's records, the agent's own ledger on disk; and recorded decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import Amount

# The ledger on disk.


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
class PodResourcesEntry:
    """A container as PodResources lists it, with its ids by resource."""

    namespace: str
    pod: str
    container: str
    ids: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """An entry of the kubelet's checkpoint for this project's resources; ``annotation`` is the agent's JSON
    in its response, ``nodes`` the numbers of ``/dev/nvidia<n>`` in it, none if cards are named by UUID.
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


class RecordSink(Protocol):
    """Where lines go: a ring of segments. Every method that writes raises NodeUnready."""

    @property
    def full(self) -> bool:
        """True if a segment is to begin before the next line."""

    def begin(self, lines: Iterable[bytes]) -> None:
        """Begin a segment with these lines."""

    def append(self, lines: Iterable[bytes]) -> None:
        """Add lines to the segment."""
