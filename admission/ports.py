"""The cluster as :mod:`admission.controller` reaches it, behind Protocols that :mod:`admission.app` fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from admission.cluster.claim_templates import TemplateApi
from admission.explain.pending_events import EventSender
from admission.extender.leader_election import LeaseSource
from admission.extender.resizing import NamespaceQuestion, ResizeApi
from admission.placeholders.keeper import PlaceholderApi
from admission.quota.claims_quota import SharedText
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.score.fragmentation import RollOutRoutine
from gpu_manager.ports.records import RecordSink

Obj = Mapping[str, Any]


class ClusterWatch(Protocol):
    """One resource, listed and watched from :meth:`start` to :meth:`close`."""

    listed: float | None
    heard: float | None
    error: str | None
    unreadable: int

    @property
    def spoiled(self) -> Mapping[str, object]:
        """The resources that cannot be read at present, by name."""

    def start(self) -> None:
        """Begin."""

    def relist(self) -> None:
        """Request a full list now and apply it."""

    def catch_up(self, version: str, since: float) -> None:
        """Count as listed at ``since`` (monotonic) once the change of this version has been shown, which was
        made after that.
        """

    def close(self) -> None:
        """End."""


@dataclass(frozen=True, slots=True)
class Involved:
    """The object that an Event is about."""

    kind: str
    namespace: str
    name: str
    uid: str


class Writer(EventSender, Protocol):
    """Writes in the background."""

    def start(self) -> None:
        """Begin."""

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Merge annotations into exactly this pod."""

    def event_about(self, involved: Involved, reason: str, message: str) -> None:
        """A warning about an object."""

    def label(self, namespace: str, name: str, key: str, value: str | None) -> None:
        """Give a pod a label, or take it away."""

    def annotate_named(self, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Merge annotations into the pod of that name."""

    def close(self) -> None:
        """End."""


def _unheard(_object: Involved, _text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """The callbacks of a watch: ``replaced`` with each full list and the function that applies one object of
    it, ``changed`` with an object and whether it is gone, ``unreadable`` with an object that cannot be read
    and a text about it.
    """

    resource: str
    replaced: Callable[[Iterator[Obj], Callable[[Obj], None]], None]
    changed: Callable[[Obj, bool], None]
    unreadable: Callable[[Involved, str], None] = _unheard


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """All of it."""

    api: ResizeApi
    writer: Writer
    lease: LeaseSource
    claim_record: SharedText
    watch: Callable[[WatchRequest], ClusterWatch]
    mark: Callable[[str], str]  # changes this replica's own pod; its version then. Raises NodeUnready
    templates: TemplateApi | None = None  # None where no pod is turned into a claim
    roll_out: RollOutRoutine | None = None  # None where the package was built without it
    limits: NamespaceQuestion | None = None  # None where no resize is held to Kubernetes' own quotas
    placeholders: PlaceholderApi | None = None  # None where no autoscaler is asked for cards
    records: RecordSink | None = None  # None where no decision is recorded
