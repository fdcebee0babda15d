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
    """Keyed by UID; any thread. Methods that change it return what changed, for those who listen."""

    def __init__(self, clock: Clock, keep_seconds: float = TOMBSTONE_SECONDS) -> None:
        self._clock = clock
        self._keep = keep_seconds
        self._lock = threading.Lock()
        self._known: dict[PodUid, _Known] = {}
        self._next = 0
        self._names: Mapping[str, Sequence[Found]] | None = None  # by_name's answer until something changes

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
            self._names = None
            until = self._clock.monotonic() + self._keep
            for pod in pods:
                known = self._known.get(pod.uid)
                if known is None:
                    self._known[pod.uid] = _Known(pod, self._order(), until)
                elif known.until is not None and not known.tombstone:
                    known.pod, known.until = pod, until

    def by_name(self) -> Mapping[str, Sequence[Found]]:
        """``namespace/name`` → pods of that name: living before dead, newest first."""
        with self._lock:
            self._expire()
            if self._names is None:
                names: dict[str, list[Found]] = {}
                for known in sorted(self._known.values(), key=lambda k: (k.tombstone, -k.order)):
                    names.setdefault(known.pod.key, []).append(Found(known.pod, known.tombstone))
                self._names = {name: tuple(found) for name, found in names.items()}
            return self._names

    def _show(self, pod: Pod) -> Found:
        self._names = None
        known = self._known.get(pod.uid)
        self._known[pod.uid] = _Known(pod, known.order if known else self._order(), None)
        return Found(pod)

    def _bury(self, pod: Pod) -> Found:
        self._names = None
        known = self._known.pop(pod.uid, None)
        until = self._clock.monotonic() + self._keep
        self._known[pod.uid] = _Known(pod, known.order if known else self._order(), until, tombstone=True)
        self._expire()
        return Found(pod, tombstone=True)

    def _order(self) -> int:
        self._next += 1
        return self._next

    def _expire(self) -> None:
        now = self._clock.monotonic()
        passing = [(k.until, uid) for uid, k in self._known.items() if k.until is not None]
        if len(passing) > _TOMBSTONES:
            passing.sort()
            passing = [
                (now if i < len(passing) - _TOMBSTONES else t, uid) for i, (t, uid) in enumerate(passing)
            ]
        for until, uid in passing:
            if until <= now:
                self._names = None
                del self._known[uid]
