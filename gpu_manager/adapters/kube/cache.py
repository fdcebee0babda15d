"""What is known of this node's pods: the living, the just deleted, those that the watch has yet to show."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.ports import Clock, Found

TOMBSTONE_SECONDS = (
    120.0  # the kubelet admits force-deleted pods this much later at most (association runs c4 to c7)
)
_TOMBSTONES = 4096  # a bound, not an expectation: 110 pods a node, replaced every 3 s for two minutes


@dataclass(slots=True)
class _Known:
    pod: Pod
    order: int  # by first sight: later is newer
    until: float | None  # monotonic end of a tombstone or of a memory, None while the watch shows it
    tombstone: bool = False


class PodCache:
    """Keyed by UID; any thread. Methods that change it return what changed, for those who listen.

    Thousands of tombstones must not slow the questions: what a pod changes is worked out for its name alone.
    """

    def __init__(self, clock: Clock, keep_seconds: float = TOMBSTONE_SECONDS) -> None:
        self._clock = clock
        self._keep = keep_seconds
        self._lock = threading.Lock()
        self._known: dict[PodUid, _Known] = {}
        self._passing: dict[PodUid, float] = {}  # whose time runs out when, the soonest first
        self._next = 0
        self._named: dict[str, set[PodUid]] = {}
        self._stale: set[str] = set()  # names of which _answer is behind
        self._answer: Mapping[str, Sequence[Found]] = {}  # handed out: replaced, never changed

    def replace(self, pods: Sequence[Pod]) -> list[Found]:
        """Take in a full list: who is missing has been deleted unseen."""
        with self._lock:
            listed = {pod.uid for pod in pods}
            gone = [k.pod for k in self._known.values() if k.until is None and k.pod.uid not in listed]
            changes = [self._bury(pod) for pod in gone]
            for pod in sorted(pods, key=lambda pod: pod.created):
                known = self._known.get(pod.uid)
                if known is None or known.until is not None or known.pod != pod:
                    changes.append(self._show(pod))
            return changes

    def put(self, pod: Pod) -> Found:
        """The watch shows a pod."""
        with self._lock:
            return self._show(pod)

    def remove(self, pod: Pod) -> Found:
        """The watch shows its end: keep it as a tombstone."""
        with self._lock:
            return self._bury(pod)

    def remember(self, pods: Iterable[Pod]) -> None:
        """Somebody nearer to the kubelet knows these; the watch will show them, or their time runs out."""
        with self._lock:
            until = self._clock.monotonic() + self._keep
            for pod in pods:
                known = self._known.get(pod.uid)
                if known is None:
                    self._set(_Known(pod, self._order(), until))
                elif known.until is not None and not known.tombstone:
                    self._set(_Known(pod, known.order, until))

    def by_name(self) -> Mapping[str, Sequence[Found]]:
        """``namespace/name`` → pods of that name: living before dead, newest first."""
        with self._lock:
            self._expire()
            if self._stale:
                answer = dict(self._answer)
                for name in self._stale:
                    known = [self._known[uid] for uid in self._named.get(name, ())]
                    known.sort(key=lambda k: (k.tombstone, -k.order))
                    answer[name] = tuple(Found(k.pod, k.tombstone) for k in known)
                    if not known:
                        del answer[name]
                self._stale.clear()
                self._answer = answer
            return self._answer

    def _show(self, pod: Pod) -> Found:
        known = self._known.get(pod.uid)
        self._set(_Known(pod, known.order if known else self._order(), None))
        return Found(pod)

    def _bury(self, pod: Pod) -> Found:
        known = self._known.get(pod.uid)
        until = self._clock.monotonic() + self._keep
        self._set(_Known(pod, known.order if known else self._order(), until, tombstone=True))
        self._expire()
        return Found(pod, tombstone=True)

    def _order(self) -> int:
        self._next += 1
        return self._next

    def _set(self, known: _Known) -> None:
        uid = known.pod.uid
        before = self._known.get(uid)
        if before is not None and not before.tombstone and before.pod.key != known.pod.key:
            return  # a forged mirror: names never change, and the UID of a static pod is no secret
        self._drop(uid)
        self._known[uid] = known
        if known.until is not None:
            self._passing[uid] = known.until
        self._named.setdefault(known.pod.key, set()).add(uid)
        self._stale.add(known.pod.key)

    def _drop(self, uid: PodUid) -> None:
        known = self._known.pop(uid, None)
        self._passing.pop(uid, None)
        if known is None:
            return
        name = known.pod.key
        self._stale.add(name)
        self._named[name].discard(uid)
        if not self._named[name]:
            del self._named[name]

    def _expire(self) -> None:
        now = self._clock.monotonic()
        while self._passing:
            uid, until = next(iter(self._passing.items()))
            if until > now and len(self._passing) <= _TOMBSTONES:
                return
            self._drop(uid)
