"""This node's pods (:class:`gpu_manager.ports.api_server.Pods`) through the API server and the kubelet.

The node's kubelet is asked for its pods in the first way that answers.

The cache holds running pods, recently deleted ones, and pods that the watch has not shown yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any, Protocol

import structlog

from gpu_manager.adapters.kube.connection import Connection, Unreachable, named_path
from gpu_manager.adapters.kube.objects import Obj, Unreadable, named
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.reflector import Pause, Reflector, WatchedObjects
from gpu_manager.adapters.kube.tasks import EventTeller, EvictPod, MarkPod, Thing, annotate_pod
from gpu_manager.domain.contract import EVENT_UNREADABLE, EVICT, OUR_PREFIX
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.untrusted import mapping
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

TOMBSTONE_SECONDS = (
    120.0  # longest delay until the kubelet admitted a force-deleted pod (association c4 to c7)
)
Place = tuple[PodUid, str]  # UID and ``namespace/name``
_TOMBSTONES = 4096  # a bound, not an expectation: 110 pods a node, replaced every 3 s for two minutes


@dataclass(slots=True)
class _Known:
    pod: Pod
    order: int  # in the order of their first sight
    until: float | None  # monotonic end of a tombstone or of a memory, None while the watch shows it
    tombstone: bool = False
    unread: bool = False


class PodCache:
    """Pods by UID; thread-safe. Methods that change it return the pods that changed, for listeners.

    The UID of a static pod is no secret, so several pods may claim one UID: the first seen is shown while it
    lives, so that a forged mirror pod is not.

    A change updates the pods of one name only, so that thousands of tombstones do not slow down queries.
    """

    def __init__(self, clock: Clock, keep_seconds: float = TOMBSTONE_SECONDS) -> None:
        self._clock = clock
        self._keep = keep_seconds
        self._lock = threading.Lock()
        self._known: dict[Place, _Known] = {}
        self._passing: dict[Place, float] = {}  # heap of expiry times, the soonest first
        self._next = 0
        self._named: dict[str, set[PodUid]] = {}
        self._claims: dict[
            PodUid, dict[str, None]
        ] = {}  # pods that claim the UID, in the order of first sight
        self._stale: set[str] = set()  # names whose _answer is out of date
        self._answer: Mapping[str, Sequence[KnownPod]] = {}  # handed out: replaced, never changed

    def listed(self, pod: Pod) -> KnownPod | None:
        """Apply a pod of a full list; None if nothing is new, or another pod is cached under its UID."""
        with self._lock:
            known = self._known.get(place_of(pod))
            same = known is not None and known == _Known(pod, known.order, None)
            return None if same else self._show(pod)

    def keep(self, listed: AbstractSet[Place]) -> list[KnownPod]:
        """The end of a full list; a pod that is missing from it was deleted while the watch was down."""
        with self._lock:
            gone = [k.pod for place, k in self._known.items() if k.until is None and place not in listed]
            return [change for change in map(self._bury, gone) if change is not None]

    def spoil(self, pod: Pod) -> KnownPod:
        """Take in that a pod cannot be read, of which ``pod`` is the name: it stays as it was read last."""
        with self._lock:
            known = self._last(pod)
            shown = known.pod if known else pod
            self._set(_Known(shown, known.order if known else self._order(), None, unread=True))
            return KnownPod(shown, unread=True)

    def put(self, pod: Pod) -> KnownPod | None:
        """Apply a pod from the watch; None if another pod is cached under its UID."""
        with self._lock:
            return self._show(pod)

    def remove(self, pod: Pod) -> KnownPod | None:
        """Take in a deletion from the watch: it stays as a tombstone, a mere name as it was read last."""
        with self._lock:
            known = None if pod.containers else self._last(pod)
            return self._bury(known.pod if known else pod)

    def remember(self, pods: Iterable[Pod]) -> None:
        """Take in pods that the kubelet listed; they expire unless the watch shows them."""
        with self._lock:
            until = self._clock.monotonic() + self._keep
            for pod in pods:
                known = self._known.get(place_of(pod))
                if known is None:
                    self._set(_Known(pod, self._order(), until))
                elif known.until is not None and not known.tombstone:
                    self._set(_Known(pod, known.order, until))

    def watched(self, pod: Pod) -> bool:
        """True if the watch shows the pod, or has shown its end."""
        with self._lock:
            known = self._known.get(place_of(pod))
            return known is not None and (known.until is None or known.tombstone)

    def by_name(self) -> Mapping[str, Sequence[KnownPod]]:
        """``namespace/name`` → pods of that name: running before deleted, the newest first."""
        with self._lock:
            self._expire()
            if self._stale:
                answer = dict(self._answer)
                for name in self._stale:
                    uids = (uid for uid in self._named.get(name, ()) if self._is_shown((uid, name)))
                    known = [self._known[uid, name] for uid in uids]
                    known.sort(key=lambda k: (k.tombstone, -k.order))
                    answer[name] = tuple(KnownPod(k.pod, k.tombstone, k.unread) for k in known)
                    if not known:
                        del answer[name]
                self._stale.clear()
                self._answer = answer
            return self._answer

    def _last(self, pod: Pod) -> _Known | None:
        """What is known of the pod of that name and UID, which of a static pod may be its mirror's."""
        alike = (self._known[uid, pod.key] for uid in self._named.get(pod.key, ()))
        return next((k for k in alike if pod.uid in (k.pod.uid, k.pod.twin)), None)

    def _show(self, pod: Pod) -> KnownPod | None:
        known = self._known.get(place_of(pod))
        self._set(_Known(pod, known.order if known else self._order(), None))
        return KnownPod(pod) if self._is_shown(place_of(pod)) else None

    def _bury(self, pod: Pod) -> KnownPod | None:
        known = self._known.get(place_of(pod))
        until = self._clock.monotonic() + self._keep
        self._set(_Known(pod, known.order if known else self._order(), until, tombstone=True))
        self._expire()
        return KnownPod(pod, tombstone=True) if self._is_shown(place_of(pod)) else None

    def _is_shown(self, place: Place) -> bool:
        uid, name = place
        claims = self._claims.get(uid, {})
        return len(claims) < 2 or name == min(claims, key=lambda n: self._known[uid, n].tombstone)

    def _order(self) -> int:
        self._next += 1
        return self._next

    def _set(self, known: _Known) -> None:
        uid, name = place = place_of(known.pod)
        self._known.pop(place, None)
        self._passing.pop(place, None)
        self._known[place] = known
        if known.until is not None:
            self._passing[place] = known.until
        self._named.setdefault(name, set()).add(uid)
        self._claims.setdefault(uid, {})[name] = None
        self._stale.update(self._claims[uid])

    def _drop(self, place: Place) -> None:
        uid, name = place
        self._passing.pop(place, None)
        if self._known.pop(place, None) is None:
            return
        self._stale.update(self._claims[uid])
        self._named[name].discard(uid)
        if not self._named[name]:
            del self._named[name]
        del self._claims[uid][name]
        if not self._claims[uid]:
            del self._claims[uid]

    def _expire(self) -> None:
        now = self._clock.monotonic()
        while self._passing:
            place, until = next(iter(self._passing.items()))
            if until > now and len(self._passing) <= _TOMBSTONES:
                return
            self._drop(place)


def place_of(pod: Pod) -> Place:
    """Where the cache has it."""
    return pod.uid, pod.key


_READ = (OUR_PREFIX, "kubernetes.io/config.")  # the second are a static pod's


@dataclass(eq=False, repr=False)
class KubePods(WatchedObjects):
    """The node's pods: a watch with tombstones, direct queries, background writes.

    Only :meth:`fetch` waits for the API server, for a few seconds at most.
    """

    connection: Connection
    node: str
    _: KW_ONLY
    clock: Clock
    outbox: Outbox
    kubelet: KubeletSource | None = None
    pause: InitVar[Pause | None] = None
    tombstone_seconds: InitVar[float] = TOMBSTONE_SECONDS
    lending: bool = False
    mark_evictions: bool = False

    def __post_init__(self, pause: Pause | None, tombstone_seconds: float) -> None:
        self._cache = PodCache(self.clock, tombstone_seconds)
        self._teller = EventTeller(self.connection, self.clock, self.node)
        # Of a list, until its end: of mirrors that claim one UID, which is no secret, the oldest counts.
        self._mirrors: dict[Place, Pod] = {}
        self._listeners: list[Callable[[KnownPod], None]] = []
        reflector = Reflector(
            self.connection,
            "pods",
            "/api/v1/pods",
            f"spec.nodeName={self.node}",
            replaced=self._replaced,
            changed=self._changed,
            unreadable=self._unreadable,
            pause=pause,
        )
        super().__init__(reflector)

    def close(self) -> None:
        """Stop watching (within about a second)."""
        super().close()
        if self.kubelet is not None:
            self.kubelet.close()

    def on_change(self, callback: Callable[[KnownPod], None]) -> None:
        """Register a callback for pods that appear, change or are deleted; the watch's thread calls it."""
        self._listeners.append(callback)

    def local(self) -> Mapping[str, Sequence[KnownPod]]:
        """See :meth:`gpu_manager.ports.api_server.Pods.local`."""
        return self._cache.by_name()

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """Read the pods from the kubelet if it answers (its Pods API, else ``/pods``), else from the API
        server.

        The answer is in :meth:`local` from then on: after a call that the kubelet answered, every pod that it
        is about to admit is there.
        """
        listed = self.kubelet.pods() if self.kubelet is not None else None
        if listed is not None:
            listed = [self._here(pod) for pod in listed]
            self._cache.remember(listed)
            same = [pod for pod in listed if (pod.namespace, pod.name) == (namespace, name)]
            if same:
                found = min(same, key=lambda pod: (pod.deleting, pod.terminal))
                self._look_for(found)
                return self._twinned(found)
        return self._get(namespace, name)

    def _look_for(self, pod: Pod) -> None:
        """Of a pod that the kubelet lists and the watch has never shown: it may have been deleted before
        this agent began to watch, and is a tombstone then.
        """
        watching = self.wait(0) and self.error is None
        if pod.static or not watching or self._cache.watched(pod):
            return
        try:
            found = self._get(pod.namespace, pod.name)
        except NodeUnready:
            return
        if found is None or found.uid != pod.uid:
            self._announce(self._cache.remove(pod))

    def _get(self, namespace: str, name: str) -> Pod | None:
        what = f"read the pod {namespace}/{name}"
        obj = self.connection.read(what, named_path(namespace, name))
        if obj is None:
            return None
        try:
            pod = self._here(parse_pod(obj))
        except RequestInvalid as error:
            raise Unreachable(f"cannot {what}: {error}") from error
        if pod.node != self.node:
            return None  # a namesake elsewhere: the one of this node is gone
        self._cache.remember([pod])
        return pod

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """See :meth:`gpu_manager.ports.api_server.Pods.annotate`."""
        self.outbox.put(annotate_pod(self.connection, self._in_api(pod), dict(annotations)))

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """See :meth:`gpu_manager.ports.api_server.Pods.event`."""
        self.outbox.put(self._teller.event(self._in_api(pod), reason, message, warning=warning))

    def evict(self, pod: Pod, reason: str | None) -> None:
        """See :meth:`gpu_manager.ports.api_server.Pods.evict`; retried while a disruption budget forbids it.

        Where an evictor does it, the pod is marked for that, and the mark renewed while the pod is there.
        """
        pod = self._in_api(pod)
        task = EvictPod(self.connection, pod)
        if reason is None:
            if self.outbox.cancel(task.key) and self.mark_evictions:
                self.outbox.put(annotate_pod(self.connection, pod, {EVICT: None}))
            return
        log.warning("evicting", pod=pod.key, uid=pod.uid, reason=reason)
        if self.mark_evictions:
            task = MarkPod(self.connection, pod, reason, self.clock)
        self.outbox.put(task)

    def _unmark(self, pod: Pod) -> None:
        """Take away a mark that this agent does not stand by, such as one of its run before."""
        if not self.outbox.waiting(EvictPod(self.connection, pod).key):
            self.outbox.put(annotate_pod(self.connection, pod, {EVICT: None}))

    def _twinned(self, pod: Pod) -> Pod:
        """A static pod of the kubelet's list, with the UID of its mirror pod if the watch has shown it."""
        if not pod.static or pod.twin:
            return pod
        found = self._cache.by_name().get(pod.key, ())
        return next((replace(pod, twin=f.pod.twin) for f in found if f.pod.uid == pod.uid), pod)

    def _in_api(self, pod: Pod) -> Pod:
        """The pod under the UID of its API object."""
        pod = self._twinned(pod)
        return replace(pod, uid=pod.api_uid)

    def _replaced(self, objects: Iterable[Obj], _: Callable[[Obj], None]) -> None:
        there: set[Place] = set()
        self._mirrors.clear()  # of a list that broke off
        for pod in filter(None, map(self._read, objects)):
            there.add(place_of(pod))
            if pod.twin:
                self._mirrors[place_of(pod)] = pod
            else:
                self._announce(self._cache.listed(pod))
        for one in self._reflector.spoiled_now.values():
            if one.uid:
                there.add(place_of(self._cache.spoil(self._named(one)).pod))
        for found in self._cache.keep(there):
            self._announce(found)
        for pod in sorted(self._mirrors.values(), key=lambda pod: pod.created):
            self._announce(self._cache.listed(pod))

    def _changed(self, obj: Mapping[str, Any], gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
        pod = self._read(obj, gone=gone)
        if pod is None:
            return
        if gone:
            self._mirrors.pop(place_of(pod), None)
        self._announce(self._cache.remove(pod) if gone else self._cache.put(pod))

    def _announce(self, found: KnownPod | None) -> None:
        if found is None:
            return
        if EVICT in found.pod.annotations and not found.tombstone:
            self._unmark(self._in_api(found.pod))
        for listener in self._listeners:
            try:
                listener(found)
            except Exception:  # noqa: BLE001 - a run loop: one listener's fault is not the others'
                threads.failed("listener_failed", pod=found.pod.key)

    def _read(self, obj: Mapping[str, Any], *, gone: bool = False) -> Pod | None:
        try:
            return self._here(parse_pod(obj))
        except RequestInvalid as error:
            self._reflector.spoil(named(mapping(obj.get("metadata")), str(error), deleted=gone))
            return None

    def _unreadable(self, found: Unreadable) -> None:
        if found.uid:
            self._announce(self._cache.spoil(self._named(found)))
            subject = Thing("Pod", found.uid, found.namespace, found.name)
            self.outbox.put(self._teller.event(subject, EVENT_UNREADABLE, found.event))

    def _named(self, found: Unreadable) -> Pod:
        """A pod of which no more than its name is known."""
        return Pod(PodUid(found.uid), found.namespace or "default", found.name, (), node=self.node)

    def _here(self, pod: Pod) -> Pod:
        """The pod with this node's lent cards, and of its annotations those that are read: of deleted pods
        thousands are remembered.
        """
        read = {k: v for k, v in pod.annotations.items() if k.startswith(_READ)}
        pod = replace(pod.as_on_node(), annotations=read)
        return pod.with_lent_cards() if self.lending else pod


class KubeletSource(Protocol):
    """One way to read a kubelet's pods."""

    def pods(self) -> Sequence[Pod] | None:
        """Every pod that the kubelet knows; None if it cannot be asked now."""

    def close(self) -> None:
        """Close the connection."""


class FirstSource:
    """The first of several sources that answers; later ones are used only while it does not."""

    def __init__(self, *sources: KubeletSource) -> None:
        self._sources = sources

    def pods(self) -> Sequence[Pod] | None:
        """See :meth:`KubeletSource.pods`."""
        for source in self._sources:
            if (pods := source.pods()) is not None:
                return pods
        return None

    def close(self) -> None:
        """Close every connection."""
        for source in self._sources:
            source.close()
