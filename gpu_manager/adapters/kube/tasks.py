"""The tasks of the outbox: annotate a pod, record an Event, evict a pod or mark it, publish the node.
Marked pods and their evictions, which a program of its own carries out.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol, Self, TypeVar

import structlog

from gpu_manager.adapters.kube.connection import ABSENT, CONFLICT, Connection, Refused, named_path, pod_path
from gpu_manager.adapters.kube.objects import Obj, named
from gpu_manager.adapters.kube.outbox import FINAL, Outbox, Task
from gpu_manager.adapters.kube.reflector import Pause, Reflector, WatchedObjects
from gpu_manager.domain.contract import (
    AGENT_NAME,
    EVENT_EVADER,
    EVENT_NOT_INJECTED,
    EVENT_WITHOUT_DEVICES,
    EVICT,
    EVICTOR_NAME,
    EvictionMark,
    encode_eviction_mark,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.evictions import RENEW_SECONDS
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.ports.clock import Clock

_Value = TypeVar("_Value")

_MESSAGE_LIMIT = 1024  # bytes, the API server's limit of an event's note
_REASON_LIMIT = 128
_PROMISED = frozenset({EVENT_EVADER, EVENT_NOT_INJECTED, EVENT_WITHOUT_DEVICES})  # within 5 or 10 s


class _Write:
    """What another component waits for. The newer one of a key takes the older one's place."""

    __slots__ = ()
    expendable = patient = False

    def over(self, older: Task) -> Self:
        """One is enough: the newer."""
        return self

    def final(self, refusal: Refused) -> bool:
        """Gone, changed, or another object of that name."""
        return refusal.code in FINAL


@dataclass(frozen=True, slots=True)
class MergeMetadata(_Write):
    """Merge annotations and labels into an object; a value of None removes one.

    ``what`` completes "refused to …". With a ``uid`` another object of that name is a conflict. ``awaited``:
    answers after which it is tried again, although they are final for others.
    """

    connection: Connection
    key: Hashable
    what: str
    path: str
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    uid: str = ""
    awaited: frozenset[int] = frozenset()

    def over(self, older: Task) -> Self:
        """The last value of each annotation and label wins."""
        assert isinstance(older, MergeMetadata)  # noqa: S101 - same key, same type
        annotations = {**older.annotations, **self.annotations}
        return replace(self, annotations=annotations, labels={**older.labels, **self.labels})

    def run(self) -> None:
        """PATCH."""
        parts = {"annotations": dict(self.annotations), "labels": dict(self.labels), "uid": self.uid}
        body = {"metadata": {name: part for name, part in parts.items() if part}}
        self.connection.write(self.what, "PATCH", self.path, body, missed=())

    def final(self, refusal: Refused) -> bool:
        """As of others, but for what is awaited."""
        return refusal.code in FINAL - self.awaited


def annotate_pod(connection: Connection, pod: Pod, annotations: Mapping[str, str | None]) -> MergeMetadata:
    """Annotate exactly this pod, not another of its name."""
    key = ("annotate", pod.key, pod.uid)
    return MergeMetadata(
        connection, key, f"annotate the pod {pod.key}", pod_path(pod), annotations, uid=pod.uid
    )


def merge_by_name(
    connection: Connection,
    namespace: str,
    name: str,
    *,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
) -> MergeMetadata:
    """Annotate or label a pod by name: a restarted pod of that name is the same to those who select it.

    One of both: a policy may take labels and refuse annotations.
    """
    field = "labels" if labels else "annotations"
    key, what = ("by name", field, namespace, name), f"write {field} of the pod {namespace}/{name}"
    return MergeMetadata(connection, key, what, named_path(namespace, name), annotations or {}, labels or {})


def publish_node(
    connection: Connection,
    node: str,
    annotations: Mapping[str, str | None],
    labels: Mapping[str, str | None] | None = None,
) -> MergeMetadata:
    """Publish values on the node. An absent one is awaited: the kubelet will register it."""
    key, what, path = ("publish", node), f"publish the node {node}", f"/api/v1/nodes/{node}"
    awaited = frozenset((ABSENT, CONFLICT))
    return MergeMetadata(connection, key, what, path, annotations, labels or {}, awaited=awaited)


@dataclass(frozen=True, slots=True)
class EvictPod(_Write):
    """Evict the pod; a disruption budget may defer that (429) without limit."""

    connection: Connection
    pod: Pod

    @property
    def key(self) -> Hashable:
        """One per pod."""
        return ("evict", self.pod.key, self.pod.uid)

    def run(self) -> float | None:
        """POST an Eviction with the UID as precondition."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": self.pod.name, "namespace": self.pod.namespace},
            "deleteOptions": {"preconditions": {"uid": self.pod.uid}},
        }
        self.connection.request(
            f"evict the pod {self.pod.key}", "POST", f"{pod_path(self.pod)}/eviction", body=body
        )
        return None


@dataclass(frozen=True, slots=True)
class MarkPod(EvictPod):
    """Mark the pod for the evictor, repeatedly until it is gone: an old mark does not count."""

    reason: str
    clock: Clock

    def run(self) -> float | None:
        """PATCH; return the seconds after which the mark is renewed."""
        mark = EvictionMark(self.pod.uid, self.reason, self.clock.now())
        annotate_pod(self.connection, self.pod, {EVICT: encode_eviction_mark(mark)}).run()
        return RENEW_SECONDS


@dataclass(frozen=True, slots=True)
class LeaveTaints(_Write):
    """Leave the node these taints alone, if it is still at ``version``; after a change its watch tells."""

    connection: Connection
    node: str
    version: str
    taints: Sequence[Mapping[str, Any]]

    @property
    def key(self) -> Hashable:
        """One for the node."""
        return ("taints", self.node)

    def run(self) -> None:
        """PATCH."""
        body = {"metadata": {"resourceVersion": self.version}, "spec": {"taints": list(self.taints)}}
        path = f"/api/v1/nodes/{self.node}"
        self.connection.write(f"remove the startup taint of the node {self.node}", "PATCH", path, body)


class Subject(Protocol):
    """The involved object of an Event: a pod, or another named object."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Thing:
    """A core/v1 object of another ``kind`` than Pod, as the subject of an Event."""

    kind: str
    uid: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """Name for messages."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Record an Event; a repetition increments its count. ``first`` and ``last`` are seconds since 1970."""

    teller: EventTeller
    pod: Subject
    reason: str
    message: str
    warning: bool
    first: float
    last: float
    count: int = 1

    expendable = True

    @property
    def patient(self) -> bool:
        """False for tasks that are promised within seconds, however many others wait."""
        return self.reason not in _PROMISED

    @property
    def key(self) -> Hashable:
        """Equal for Events that are repetitions of one another."""
        return ("event", self.pod.key, self.pod.uid, self.reason, self.message)

    def over(self, older: Task) -> Task:
        """The newer Event with both counts."""
        assert isinstance(older, PostEvent)  # noqa: S101 - same key, same type
        return replace(self, first=older.first, count=older.count + self.count)

    def run(self) -> float | None:
        """POST or PATCH, within the pod's rate limit."""
        return self.teller.tell(self)

    def final(self, refusal: Refused) -> bool:
        """True also for 403, which a terminating namespace answers."""
        return refusal.code in FINAL or refusal.code == 403


class EventTeller:
    """Writes Events, for each pod a burst of ten, then one per half a minute; repetitions increment a count.

    Used from the outbox's thread alone.
    """

    BURST = 10.0
    REFILL_SECONDS = 30.0
    SERIES_SECONDS = 600.0  # the same text after a longer pause is a new Event
    _REMEMBERED = 1024

    def __init__(self, connection: Connection, clock: Clock, node: str, component: str = AGENT_NAME) -> None:
        self._component = component
        self._connection = connection
        self._clock = clock
        self._node = node
        self._allowance: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._series: OrderedDict[Hashable, tuple[str, int, float]] = OrderedDict()

    def event(self, subject: Subject, reason: str, message: str, *, warning: bool = True) -> PostEvent:
        """The task that records an Event of this moment about the subject."""
        now = self._clock.now()
        return PostEvent(self, subject, reason, message, warning, now, now)

    def tell(self, event: PostEvent) -> float | None:
        """Write the Event, or return the seconds until its pod's rate limit permits it."""
        now = self._clock.monotonic()
        tokens, when = self._allowance.get(event.pod.uid, (self.BURST, now))
        tokens = min(self.BURST, tokens + (now - when) / self.REFILL_SECONDS)
        if tokens < 1:
            return (1 - tokens) * self.REFILL_SECONDS
        if not self._count_up(event, now):
            self._post(event, now)
        _remember(self._allowance, event.pod.uid, (tokens - 1, now), self._REMEMBERED)
        return None

    def _count_up(self, event: PostEvent, now: float) -> bool:
        name, count, when = self._series.get(event.key, ("", 0, 0.0))
        if not name or now - when > self.SERIES_SECONDS:
            return False
        count += event.count
        body = {"count": count, "lastTimestamp": _timestamp(event.last)}
        path = f"/api/v1/namespaces/{event.pod.namespace}/events/{name}"
        if self._connection.write("count an event", "PATCH", path, body, missed=(ABSENT,)) is None:
            return False  # the API server deletes Events after an hour
        _remember(self._series, event.key, (name, count, now), self._REMEMBERED)
        return True

    def _post(self, event: PostEvent, now: float) -> None:
        pod = event.pod
        name = f"{pod.name[:230].rstrip('.-')}.{secrets.token_hex(8)}"
        about = {
            "apiVersion": "v1",
            "kind": pod.kind if isinstance(pod, Thing) else "Pod",
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
        }
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": about,
            "reason": event.reason[:_REASON_LIMIT],
            "message": _cut(event.message),
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
            "firstTimestamp": _timestamp(event.first),
            "lastTimestamp": _timestamp(event.last),
            "count": event.count,
        }
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        self._connection.request(f"tell an event of {pod.key}", "POST", path, body=body)
        _remember(self._series, event.key, (name, event.count, now), self._REMEMBERED)


def _remember(table: OrderedDict[Hashable, _Value], key: Hashable, value: _Value, room: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > room:
        table.popitem(last=False)


def _cut(text: str) -> str:
    data = text.encode()
    if len(data) <= _MESSAGE_LIMIT:
        return text
    return data[: _MESSAGE_LIMIT - 3].decode(errors="ignore") + "…"


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


log = structlog.get_logger(__name__)


class KubeEvictions(WatchedObjects):
    """Watches every pod of the cluster, and keeps the marked ones. Implements
    :class:`gpu_manager.ports.api_server.Evictions`.
    """

    def __init__(self, connection: Connection, clock: Clock, host: str, pause: Pause | None = None) -> None:
        """``host`` is the source of its Events, beside the evictor's name."""
        self._connection = connection
        self._outbox = Outbox(clock, pause)
        self._teller = EventTeller(connection, clock, host, EVICTOR_NAME)
        self._marked: Mapping[PodUid, Pod] = {}
        super().__init__(
            Reflector(
                connection,
                "pods",
                "/api/v1/pods",
                "",
                replaced=self._replaced,
                changed=self._changed,
                pause=pause,
            )
        )

    def start(self) -> None:
        """Start the watch and the thread that writes Events."""
        self._outbox.start()
        super().start()

    def close(self) -> None:
        """Stop both, within about a second each."""
        super().close()
        self._outbox.close()

    def marked(self) -> Collection[Pod]:
        """See :meth:`gpu_manager.ports.api_server.Evictions.marked`."""
        return self._marked.values()

    def evict(self, pod: Pod) -> float | None:
        """See :meth:`gpu_manager.ports.api_server.Evictions.evict`."""
        try:
            EvictPod(self._connection, pod).run()
        except Refused as refusal:
            log.info("eviction_put_off", pod=pod.key, node=pod.node, reason=str(refusal))
            return refusal.retry_after
        return None

    def event(self, pod: Pod, reason: str, message: str) -> None:
        """See :meth:`gpu_manager.ports.api_server.Evictions.event`."""
        self._outbox.put(self._teller.event(pod, reason, message))

    def _replaced(self, objects: Iterable[Obj], take: Callable[[Obj], None]) -> None:
        there = set[str]()
        for obj in objects:
            there.add(text(mapping(obj.get("metadata")).get("uid")))
            take(obj)
        self._marked = {uid: pod for uid, pod in self._marked.items() if uid in there}

    def _changed(self, obj: Obj, gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
        uid, pod = mapping(obj.get("metadata")).get("uid"), self._read(obj)
        if pod is not None and not gone:
            self._marked = {**self._marked, pod.uid: pod}
        elif uid in self._marked:
            self._marked = {key: one for key, one in self._marked.items() if key != uid}

    def _read(self, obj: Obj) -> Pod | None:
        """The pod if it has a mark."""
        meta = mapping(obj.get("metadata"))
        if EVICT not in mapping(meta.get("annotations")):
            return None
        try:
            return parse_pod(obj)
        except RequestInvalid as error:
            self._reflector.spoil(named(meta, str(error)))
            return None
