"""Requeues refused pods that their scheduler would not retry in time.

A scheduler retries a pod that an extender refused when something happens in the cluster or the pod changes,
otherwise only every five minutes. It receives no event for two kinds of room:

- A place that was assumed or reserved for another pod and is not taken. Nothing happens in the API at all.
- Room whose event reached the scheduler before it reached this service: the scheduler retried at once, was
  refused by an older snapshot, and has no reason to retry.

Such pods are touched, the most important first, at most :data:`MOST_AT_ONCE` per call and each once per
refusal. The first kind is touched at once; the second once the pod has fitted for a while, past
kube-scheduler's own backoff, without a new question about it. A touch in vain delays the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final
from zlib import crc32

from admission.cluster.pod_view import PodView
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.clock import Clock

MOST_AT_ONCE: Final = 32
SETTLE_SECONDS: Final = 2.0  # a scheduler that saw the event retries within it
LONGEST_PAUSE: Final = 10.0  # kube-scheduler's podMaxBackoffSeconds; it starts at 1 s and doubles
LONGEST_WAIT: Final = 300.0  # by then kube-scheduler retries every pod
_MOST_LOOKS: Final = 64  # judged per call
_MOST_REFUSED: Final = 4096  # the oldest refusals are dropped


@dataclass(slots=True)
class _Refusal:
    """The last refusal of a pod. ``turn`` is the generation of the snapshot that it was judged by."""

    turn: int
    at: float
    times: int = 1
    touches: int = 0  # touches for room that its scheduler had not tried, in vain
    fits: float | None = None  # since when there has been room
    done: bool = False  # touched for this refusal

    def due(self) -> float:
        """When a scheduler that knew of the room would have retried."""
        pause = min(LONGEST_PAUSE, 2.0 ** min(self.times - 1, 8))
        settle = SETTLE_SECONDS * 2.0 ** min(self.touches, 8)
        return max(self.at + min(LONGEST_WAIT, pause + settle), (self.fits or self.at) + SETTLE_SECONDS)


@dataclass(eq=False, repr=False)
class Requeue:
    """Finds and touches such pods. Thread-safe; one thread calls :meth:`tick`.

    ``find``: the pod as it is known now. ``has_room``: whether it fits on a node changed after a
    generation.

    ``touch`` gets 8 hex digits, different each time.
    """

    find: Callable[[PodUid], PodView | None]
    has_room: Callable[[PodView, int], bool]
    touch: Callable[[Pod, str], None]
    clock: Clock

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: dict[PodUid, _Refusal] = {}  # least recently judged or refused first
        self._woken: set[PodUid] = set()  # to be touched
        self._lapsed = 0

    def refused(self, uid: PodUid, turn: int) -> None:
        """No node took the pod, by the snapshot of generation ``turn``."""
        now = self.clock.monotonic()
        with self._lock:
            before = self._refused.pop(uid, None)
            new = _Refusal(turn, now)
            if before is not None:
                new.times, new.touches = before.times + 1, before.touches
            self._refused[uid] = new
            self._woken.discard(uid)
            if len(self._refused) > _MOST_REFUSED:
                del self._refused[next(iter(self._refused))]

    def tick(self, lapsed: int) -> None:
        """Touch the pods that wait needlessly. ``lapsed``: total number of places given up. Call it each
        second.
        """
        now = self.clock.monotonic()
        with self._lock:
            if lapsed != self._lapsed:
                self._lapsed = lapsed
                self._woken.update(uid for uid, refusal in self._refused.items() if not refusal.done)
            open_ = ((u, r) for u, r in self._refused.items() if not r.done and u not in self._woken)
            looked = list(islice(open_, _MOST_LOOKS))
        for uid, refusal in looked:
            self._look(uid, refusal, now)
        for occupant in self._next():
            value = crc32(f"{occupant.uid} {lapsed} {self.clock.now()}".encode())
            self.touch(occupant.pod, f"{value:08x}")

    def _look(self, uid: PodUid, refusal: _Refusal, now: float) -> None:
        occupant = self.find(uid)
        waits = occupant is not None and occupant.waits
        fits = occupant is not None and waits and self.has_room(occupant, refusal.turn)
        with self._lock:
            if self._refused.get(uid) is not refusal:
                return  # filtered meanwhile
            del self._refused[uid]
            if not waits:
                return
            self._refused[uid] = refusal
            refusal.fits = (refusal.fits or now) if fits else None
            if fits and now >= refusal.due():
                refusal.touches += 1
                self._woken.add(uid)

    def _next(self) -> list[PodView]:
        """The pods to touch now."""
        with self._lock:
            found = (self.find(uid) for uid in self._woken)
            waiting = sorted(
                (o for o in found if o is not None and o.waits),
                key=lambda o: (-o.pod.priority, o.pod.began, o.uid),
            )
            self._woken = {o.uid for o in waiting[MOST_AT_ONCE:]}
            for occupant in waiting[:MOST_AT_ONCE]:
                if (refusal := self._refused.get(occupant.uid)) is not None:
                    refusal.done = True
        return waiting[:MOST_AT_ONCE]
