"""Marked pods and their evictions (implements :class:`gpu_manager.ports.api_server.Evictions`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from gpu_manager.adapters.kube.connection import Connection, Refused
from gpu_manager.adapters.kube.objects import Obj, named
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.reflector import Pause, Reflector, WatchedObjects
from gpu_manager.adapters.kube.tasks import EventTeller, EvictPod
from gpu_manager.domain.contract import EVICT, EVICTOR_NAME
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)


class KubeEvictions(WatchedObjects):
    """Watches every pod of the cluster, and keeps the marked ones."""

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
