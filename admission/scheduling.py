"""The scheduler's side of the service as one part: watches, books, extender, leader, events; begun and ended.

Everything of the outside comes in as :class:`Outside`; nothing here knows an API server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from zlib import crc32

import structlog

from admission.bypass import Bypasses, Finding
from admission.config import LeaderMode, Settings
from admission.explaining import Explanation, explain
from admission.extender import Extender
from admission.figures import Figures, Seen
from admission.judging import Judge
from admission.leading import Claim, Leader, Pods
from admission.least_waste import LeastWaste
from admission.listener import Listener
from admission.memory import spare_pauses
from admission.occupant import Occupant
from admission.quota import ANY, QuotaBook
from admission.reservations import BIND_SECONDS, TRAVEL_SECONDS, Api, Binder, Rules
from admission.slim import slim_node, slim_pod
from admission.snapshot import BUDGETS, NODES, PODS, Cluster
from admission.telling import Teller, Voice
from admission.waking import Waker
from gpu_manager.domain.contract import LEADER_LABEL, QUOTA_SEEN
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.ports import Clock

log = structlog.get_logger(__name__)

Obj = Mapping[str, Any]
QUOTA: Final = "quota"
BYPASSED: Final = "GPUBypassed"
BAD_QUOTA: Final = "GPUQuotaUnusable"
_TICK_SECONDS: Final = 1.0
_SPARE_SECONDS: Final = 10.0


class Watch(Protocol):
    """One resource, listed and watched from :meth:`start` to :meth:`close`."""

    listed: float | None
    heard: float | None

    def start(self) -> None:
        """Begin."""

    def relist(self) -> None:
        """Take in a full list that is asked for from now on."""

    def close(self) -> None:
        """End."""


class Writer(Voice, Protocol):
    """Writes in the background."""

    def start(self) -> None:
        """Begin."""

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Merge annotations into exactly this pod."""

    def event_of_map(self, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        """A warning about a ConfigMap."""

    def label(self, namespace: str, name: str, key: str, value: str | None) -> None:
        """Give a pod a label, or take it away."""

    def close(self) -> None:
        """End."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a watch is to bring: ``keep`` says what of each object, None for nothing of it."""

    resource: str
    replaced: Callable[[Sequence[Obj]], None]
    changed: Callable[[Obj, bool], None]
    keep: Callable[[Obj], Obj | None]


@dataclass(frozen=True, slots=True)
class Outside:
    """The cluster, behind the Protocols above."""

    api: Api
    writer: Writer
    claim: Claim
    watch: Callable[[Wanted], Watch]


class Scheduling:
    """A :class:`admission.app.Part`. ``listener`` serves :attr:`extender` once it is given."""

    def __init__(self, settings: Settings, outside: Outside, figures: Figures, clock: Clock) -> None:
        terms = settings.terms
        self._settings = settings
        self._outside = outside
        self._figures = figures
        self._clock = clock
        self.cluster = Cluster(terms.unit)
        self.quota = QuotaBook(settings.quota_map)
        self.judge = Judge()
        self._map_uid = ""
        self._told_quota = ""
        self._inherited: bool | None = None  # whether the first list had a pod that waits
        self._changed: frozenset[str] = frozenset()  # namespaces whose quota changed while this ran
        watches = {
            NODES: Wanted(NODES, lambda o: self.cluster.replace(NODES, o), self._node, slim_node),
            PODS: Wanted(PODS, self._pods, self._pod, slim_pod),
            BUDGETS: Wanted(BUDGETS, lambda o: self.cluster.replace(BUDGETS, o), self._budget, lambda o: o),
            QUOTA: Wanted(
                QUOTA,
                lambda objects: self._limits(objects[0] if objects else None),
                lambda obj, gone: self._limits(None if gone else obj),
                lambda o: o,
            ),
        }
        self._watches = {name: outside.watch(wanted) for name, wanted in watches.items()}
        pods = self._watches[PODS]
        self.leader = Leader(
            outside.claim,
            Pods(lambda: pods.listed, pods.relist, lambda: self._inherited is not False),
            clock,
            BIND_SECONDS + TRAVEL_SECONDS,
            self._led,
        )
        rules = Rules(self.leader.leads, settings.binds_for, terms.minimum_cores)
        self.binder = Binder(self.cluster, self.quota, self.judge, outside.api, clock, rules, figures.count)
        self._teller = Teller(self.cluster.pod, self._explain, outside.writer, clock)
        self.extender = Extender(
            self.cluster,
            self.quota,
            self.judge,
            LeastWaste(self.cluster),
            self.binder,
            clock=clock,
            minimum_cores=terms.minimum_cores,
            count=figures.count,
            refused=self._refused,
        )
        self._waker = Waker(self.cluster.pod, self.extender.has_room, self._wake, clock)
        self._bypasses = Bypasses(terms.unit, terms.minimum_cores, settings.unseen_namespaces, self._bypassed)
        figures.show(Seen(self.cluster, self.quota, self.leader.leads, self._ages, self._bypasses.counts))
        self._ended = threading.Event()
        self.listener: Listener | None = None
        self.checks: list[Callable[[], None]] = []  # done each second beside everything else
        self._threads = [
            threading.Thread(target=self._loop, args=(self.leader.tick,), name="leader", daemon=True),
            threading.Thread(target=self._loop, args=(self._chores,), name="chores", daemon=True),
            threading.Thread(target=self._teller.run, args=(self._ended,), name="teller", daemon=True),
        ]
        self._spared = clock.monotonic()

    # Life.

    def start(self) -> None:
        """Begin; does not wait for the API server."""
        self._outside.writer.start()
        if self._settings.leadership.mode is LeaderMode.LEASE:
            self._label(None)  # one that was killed while it led has left it on
        for watch in self._watches.values():
            watch.start()
        if self.listener is not None:
            self.listener.start()
        for thread in self._threads:
            thread.start()

    def elsewhere(self) -> bool:
        """True if a scheduler should ask another replica: connections end with their answer.

        The Service selects by the leader's label, for new connections alone.
        """
        return self._settings.leadership.mode is LeaderMode.LEASE and not self.leader.leads()

    def ready(self) -> Mapping[str, bool]:
        """Once nodes and pods are known."""
        return {"snapshot": self.cluster.synced}

    def stop(self) -> None:
        """Bind no more; once nothing is under way, let another begin; then end everything."""
        self.leader.resign()
        if self.listener is not None:
            self.listener.stop()
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2 * BIND_SECONDS)
        self.leader.release()
        for watch in self._watches.values():
            watch.close()
        self._outside.writer.close()

    def _loop(self, work: Callable[[], None]) -> None:
        while not self._ended.is_set():
            try:
                work()
            except Exception:  # a run loop: the next second tries again
                log.exception("a chore failed")
            self._ended.wait(_TICK_SECONDS)

    def _chores(self) -> None:
        for check in self.checks:
            check()
        self.binder.settle()
        now = self._clock.monotonic()
        self.cluster.expire(now)
        self.wake()
        if self.cluster.synced and now - self._spared >= _SPARE_SECONDS:
            self._spared = now
            spare_pauses()
        complaint = self.quota.complaint
        if not complaint:
            self._told_quota = ""
        elif complaint != self._told_quota and self.leader.leads():
            self._told_quota = complaint
            held = "The last good quota stays in force" if self.quota.current else "No GPU pod is placed"
            namespace, name = self._settings.quota_map
            text = f"{complaint}. {held} until it is mended"
            self._outside.writer.event_of_map(namespace, name, self._map_uid, BAD_QUOTA, text)

    # What the watches bring.

    def _node(self, obj: Obj, gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
        self.cluster.apply(NODES, "DELETED" if gone else "MODIFIED", slim_node(obj))

    def _budget(self, obj: Obj, gone: bool) -> None:  # noqa: FBT001 - same
        self.cluster.apply(BUDGETS, "DELETED" if gone else "MODIFIED", obj)

    def _pods(self, objects: Sequence[Obj]) -> None:
        self.cluster.replace(PODS, objects)
        if self._inherited is None:
            self._inherited = bool(self.cluster.waiting())
        uids = [PodUid(str(obj["metadata"].get("uid"))) for obj in objects]
        self._bypasses.retain(uids)
        for uid in uids:
            self._look(uid)

    def _pod(self, obj: Obj, gone: bool) -> None:  # noqa: FBT001 - same
        slim = slim_pod(obj)
        if slim is None:
            return
        self.cluster.apply(PODS, "DELETED" if gone else "MODIFIED", slim)
        uid = PodUid(str(slim["metadata"].get("uid")))
        if gone:
            self._bypasses.forget(uid)
        else:
            self._look(uid)

    def _look(self, uid: PodUid) -> None:
        occupant = self.cluster.pod(uid)
        if occupant is not None:
            self._bypasses.look(occupant)

    def _limits(self, obj: Obj | None) -> None:
        before = self.quota.complaint
        news = self.quota.update(obj)
        self._map_uid = str(((obj or {}).get("metadata") or {}).get("uid") or "")
        if news.complaint and news.complaint != before:
            self._figures.quota_rejected()
            log.warning("quota not taken", reason=news.complaint)
        if news.namespaces:
            log.info("quota taken", namespaces=len(news.namespaces))
            self._changed |= news.namespaces
            if self.leader.leads():
                self._requeue()

    # What follows from it.

    def _led(self, leads: bool) -> None:  # noqa: FBT001 - the leader's one word
        if self._settings.leadership.mode is LeaderMode.LEASE:
            # A Service selects by it. One that still has it and leads no more refuses to bind.
            self._label("true" if leads else None)
        if leads:
            self._requeue()  # what changed before, and the one before may not have come to
            for finding in self._bypasses.findings():
                self._outside.writer.event(finding.occupant.pod, BYPASSED, finding.text)

    def _label(self, value: str | None) -> None:
        self._outside.writer.label(
            self._settings.namespace, self._settings.leadership.pod, LEADER_LABEL, value
        )

    def _requeue(self) -> None:
        """Touch the pods that wait and whose quota changed.

        A scheduler looks again at a pod that an extender refused when anything about it changes, else only
        every five minutes. The value is a digest of the quota, so that nothing is written twice.
        """
        quota, changed = self.quota.current, self._changed
        if quota is None or not changed:
            return
        for occupant in self.cluster.waiting():
            pod = occupant.pod
            named = pod.namespace in quota.namespaces
            if pod.namespace not in changed and (named or ANY not in changed):
                continue
            digest = f"{crc32(repr(quota.of(pod.namespace)).encode()):08x}"
            if pod.annotations.get(QUOTA_SEEN) != digest:
                self._outside.writer.annotate(pod, {QUOTA_SEEN: digest})

    def wake(self) -> None:
        """Touch the pods whose scheduler would not look at them in time. Done each second."""
        self._waker.tick(self.cluster.lapsed + self.binder.lapsed)

    def _wake(self, pod: Pod, value: str) -> None:
        if self.leader.leads():
            self._outside.writer.annotate(pod, {QUOTA_SEEN: value})

    def _refused(self, uid: PodUid, turn: int) -> None:
        if self.leader.leads():
            self._waker.refused(uid, turn)
            self._teller.refused(uid)

    def _bypassed(self, finding: Finding) -> None:
        self._figures.bypassed(finding.reason)
        if self.leader.leads():
            self._outside.writer.event(finding.occupant.pod, BYPASSED, finding.text)

    def _explain(self, occupant: Occupant) -> Explanation:
        return explain(
            occupant,
            self.cluster.snapshot(),
            self.quota.current,
            self.judge,
            self._settings.terms.minimum_cores,
        )

    def _ages(self) -> Mapping[str, float]:
        now = time.monotonic()
        return {name: now - w.heard for name, w in self._watches.items() if w.heard is not None}
