"""The cache of this node's pods: running, recently deleted, and pods that the watch has not shown yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.clock import Clock

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
