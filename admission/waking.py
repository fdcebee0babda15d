"""Pods that were refused while a place was kept for another that never came: scheduled anew at once.

A place that was expected or reserved and is not taken comes back without a word of the API server. A
scheduler looks again at a pod that an extender refused when anything about it changes, else only every five
minutes, so such pods are touched. Not more than :data:`MOST_AT_ONCE` at each call, the most important first,
each once for a refusal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final
from zlib import crc32

from admission.occupant import Occupant
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.ports import Clock

MOST_AT_ONCE: Final = 32
_MOST_REFUSED: Final = 4096  # the oldest refusals go


class Waker:
    """Thread-safe; :meth:`tick` is one thread's."""

    def __init__(
        self,
        find: Callable[[PodUid], Occupant | None],
        touch: Callable[[Pod, str], None],
        clock: Clock,
    ) -> None:
        """``find``: the pod as it is known now. ``touch`` is given 8 hex digits, others each time."""
        self._find = find
        self._touch = touch
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[PodUid, None] = {}  # since the last place came back; the oldest first
        self._woken: set[PodUid] = set()  # to be touched
        self._lapsed = 0

    def refused(self, uid: PodUid) -> None:
        """No node took the pod."""
        with self._lock:
            self._refused.pop(uid, None)
            self._refused[uid] = None
            if len(self._refused) > _MOST_REFUSED:
                del self._refused[next(iter(self._refused))]

    def tick(self, lapsed: int) -> None:
        """Touch who waits if places came back. ``lapsed``: how many ever did. To be called each second."""
        with self._lock:
            if lapsed != self._lapsed:
                self._lapsed = lapsed
                self._woken.update(self._refused)
                self._refused.clear()
            found = (self._find(uid) for uid in self._woken)
            waiting = sorted(
                (o for o in found if o is not None and o.waits),
                key=lambda o: (-o.pod.priority, o.began, o.uid),
            )
            self._woken = {o.uid for o in waiting[MOST_AT_ONCE:]}
        for occupant in waiting[:MOST_AT_ONCE]:
            value = crc32(f"{occupant.uid} {lapsed} {self._clock.now()}".encode())
            self._touch(occupant.pod, f"{value:08x}")
