"""Pods that were refused and that their scheduler would not look at again in time: scheduled anew.

A scheduler looks again at a pod that an extender refused when something happens in the cluster or anything
about the pod changes, else only every five minutes. Two kinds of room come without a word to it:

- A place that was expected or reserved for another and is not taken. Nothing happens in the API at all.
- Room whose event reached the scheduler before it reached this service: it asked at once, was refused by an
  older picture, and has no reason to ask again.

Such pods are touched, the most important first, not more than :data:`MOST_AT_ONCE` at each call and each once
for a refusal. The first kind at once; the second when the pod has fitted for a while, past the pause that
kube-scheduler makes by itself, and nobody has asked about it. Touching in vain makes the next time later.
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
SETTLE_SECONDS: Final = 2.0  # a scheduler that saw the event asks within it
LONGEST_PAUSE: Final = (
    10.0  # kube-scheduler's podMaxBackoffSeconds; the first is 1 s, each the double of the last
)
LONGEST_WAIT: Final = 300.0  # by then kube-scheduler looks at every pod
_MOST_LOOKS: Final = 64  # judged at each call
_MOST_REFUSED: Final = 4096  # the oldest refusals go


@dataclass(slots=True)
class _Refusal:
    """The last one of a pod. ``turn`` is of the picture that it was judged by."""

    turn: int
    at: float
    times: int = 1
    touches: int = 0  # for room that its scheduler did not ask about, and in vain
    fits: float | None = None  # since when there is room
    done: bool = False  # touched for this refusal

    def due(self) -> float:
        """When a scheduler that knew of the room would have asked again."""
        pause = min(LONGEST_PAUSE, 2.0 ** min(self.times - 1, 8))
        settle = SETTLE_SECONDS * 2.0 ** min(self.touches, 8)
        return max(self.at + min(LONGEST_WAIT, pause + settle), (self.fits or self.at) + SETTLE_SECONDS)


class Requeue:
    """Thread-safe; :meth:`tick` is one thread's."""

    def __init__(
        self,
        find: Callable[[PodUid], PodView | None],
        has_room: Callable[[PodView, int], bool],
        touch: Callable[[Pod, str], None],
        clock: Clock,
    ) -> None:
        """``find``: the pod as it is known now. ``has_room``: on a node that changed after that turn.

        ``touch`` is given 8 hex digits, others each time.
        """
        self._find = find
        self._has_room = has_room
        self._touch = touch
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[PodUid, _Refusal] = {}  # who was looked at or refused longest ago first
        self._woken: set[PodUid] = set()  # to be touched
        self._lapsed = 0

    def refused(self, uid: PodUid, turn: int) -> None:
        """No node took the pod, by the picture of that turn."""
        now = self._clock.monotonic()
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
        """Touch who waits for nothing. ``lapsed``: how many places ever came back. Call it each second."""
        now = self._clock.monotonic()
        with self._lock:
            if lapsed != self._lapsed:
                self._lapsed = lapsed
                self._woken.update(uid for uid, refusal in self._refused.items() if not refusal.done)
            open_ = ((u, r) for u, r in self._refused.items() if not r.done and u not in self._woken)
            looked = list(islice(open_, _MOST_LOOKS))
        for uid, refusal in looked:
            self._look(uid, refusal, now)
        for occupant in self._next():
            value = crc32(f"{occupant.uid} {lapsed} {self._clock.now()}".encode())
            self._touch(occupant.pod, f"{value:08x}")

    def _look(self, uid: PodUid, refusal: _Refusal, now: float) -> None:
        occupant = self._find(uid)
        waits = occupant is not None and occupant.waits
        fits = occupant is not None and waits and self._has_room(occupant, refusal.turn)
        with self._lock:
            if self._refused.get(uid) is not refusal:
                return  # asked about meanwhile
            del self._refused[uid]
            if not waits:
                return
            self._refused[uid] = refusal
            refusal.fits = (refusal.fits or now) if fits else None
            if fits and now >= refusal.due():
                refusal.touches += 1
                self._woken.add(uid)

    def _next(self) -> list[PodView]:
        """Who is to be touched now."""
        with self._lock:
            found = (self._find(uid) for uid in self._woken)
            waiting = sorted(
                (o for o in found if o is not None and o.waits),
                key=lambda o: (-o.pod.priority, o.pod.began, o.uid),
            )
            self._woken = {o.uid for o in waiting[MOST_AT_ONCE:]}
            for occupant in waiting[:MOST_AT_ONCE]:
                if (refusal := self._refused.get(occupant.uid)) is not None:
                    refusal.done = True
        return waiting[:MOST_AT_ONCE]
