"""Writes about pods of the whole cluster: bindings, annotations, labels, Events; reads of one pod's
Events; and the placeholder pods that ask an autoscaler for cards.

Serves ``admission.extender.binding.BindingApi``; :meth:`bind` and :meth:`fetch` wait for the API server,
all else is written in the background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from gpu_manager.adapters.kube.connection import (
    CONFLICT,
    Connection,
    Refused,
    Unreachable,
    events_path,
    named_path,
    pod_path,
    pods_path,
)
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.tasks import EventTeller, Thing, annotate_pod, merge_by_name
from gpu_manager.domain.cluster.pod_events import PodEvent, read_pod_event
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.untrusted import mapping, mappings, text
from gpu_manager.ports.clock import Clock

_ROOM: Final = 4096  # writes that wait: a quota change marks every pod that waits for it


class Named(Protocol):
    """The object that an Event is about."""

    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class ClusterPods:
    """Thread-safe. ``component`` and ``host`` are the source of its Events."""

    def __init__(self, connection: Connection, clock: Clock, *, component: str, host: str) -> None:
        self._connection = connection
        self._outbox = Outbox(clock, room=_ROOM)
        self._teller = EventTeller(connection, clock, host, component)

    def start(self) -> None:
        """Start the writer thread."""
        self._outbox.start()

    def close(self) -> None:
        """Stop the writer thread, within about a second."""
        self._outbox.close()

    @property
    def writes_dropped(self) -> int:
        """Number of writes dropped because the queue was full."""
        return self._outbox.dropped

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], seconds: float) -> str:
        """POST a Binding with the pod's UID as precondition; after ``seconds`` the API server drops it.

        Returns why it was refused for good (400 to 499), empty if it is bound.

        Raises:
            NodeUnready: no answer, or one that leaves open whether it had an effect.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "uid": pod.uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        return self._once(f"bind the pod {pod.key}", "POST", f"{pod_path(pod)}/binding", body, seconds)

    def annotate_now(self, pod: Pod, annotations: Mapping[str, str], seconds: float) -> str:
        """PATCH annotations of exactly this pod; after ``seconds`` the API server drops it.

        Returns why it was refused for good (400 to 499), empty if they are written. Raises as :meth:`bind`.
        """
        return self._once(
            f"annotate the pod {pod.key}",
            "PATCH",
            pod_path(pod),
            {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}},
            seconds,
        )

    def _once(self, what: str, method: str, path: str, body: Mapping[str, Any], seconds: float) -> str:
        try:
            self._connection.request(what, method, path, query={"timeout": f"{seconds:g}s"}, body=body)
        except Refused as refusal:
            if 400 <= refusal.code < 500:
                return str(refusal)
            raise
        return ""

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """The pod's present object at the API server; None if it does not exist. Raises NodeUnready: no
        answer.
        """
        obj = self.fetch_object(namespace, name)
        try:
            return None if obj is None else parse_pod(obj)
        except RequestInvalid as error:
            raise Unreachable(f"cannot read the pod {namespace}/{name}: {error}") from error

    def fetch_object(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """As :meth:`fetch`, but the object itself."""
        return self._connection.read(f"read the pod {namespace}/{name}", named_path(namespace, name))

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Merge annotations into exactly this pod, in the background."""
        self._outbox.put(annotate_pod(self._connection, pod, dict(annotations)))

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        """Record an Event about the pod; a repetition increments its count."""
        self._outbox.put(self._teller.event(pod, reason, message, warning=warning))

    def event_about(self, involved: Named, reason: str, message: str) -> None:
        """Record a warning Event about an object; one without a namespace has it in the default one."""
        namespace = involved.namespace or "default"
        subject = Thing(involved.kind, involved.uid, namespace, involved.name)
        self._outbox.put(self._teller.event(subject, reason, message))

    def label(self, namespace: str, name: str, key: str, value: str | None) -> None:
        """Set a label of a pod, or remove it (None), in the background."""
        self._outbox.put(merge_by_name(self._connection, namespace, name, labels={key: value}))

    def annotate_named(self, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Merge annotations into the pod of that name, in the background."""
        self._outbox.put(merge_by_name(self._connection, namespace, name, annotations=dict(annotations)))


_MOST: Final = 200  # of one pod: Kubernetes keeps an hour's, and counts equal ones together


class KubePodEvents:
    """Reads Events from the API server at each call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self, namespace: str, uid: PodUid) -> tuple[Sequence[PodEvent], bool]:
        """The pod's Events in no order, and whether there are more than were read. Raises NodeUnready."""
        page = self._connection.request(
            f"list the events of a pod in {namespace}",
            "GET",
            events_path(namespace),
            query={"fieldSelector": f"involvedObject.uid={uid}", "limit": str(_MOST)},
        )
        found = [read_pod_event(obj) for obj in mappings(page.get("items"))]
        return found, bool(text(mapping(page.get("metadata")).get("continue")))


class KubePlaceholders:
    """``admission.placeholders.keeper.PlaceholderApi``."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace

    def create(self, body: Mapping[str, Any]) -> None:
        """See ``PlaceholderApi.create``."""
        what = f"create a placeholder in namespace {self._namespace}"
        self._connection.write(what, "POST", pods_path(self._namespace), body, missed=(CONFLICT,))

    def delete(self, name: str, uid: str) -> None:
        """See ``PlaceholderApi.delete``."""
        what = f"delete the placeholder {self._namespace}/{name}"
        self._connection.delete(what, named_path(self._namespace, name), {"uid": uid}, at_once=True)
