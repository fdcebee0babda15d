"""Events for pods that no node takes: the one-line explanation, published once, and again when it changes.

kube-scheduler reports each node's reason; this Event has their sum and the smallest change that would help. A
pod is explained a little after its refusal, since the next attempt may place it. Explaining costs time, so
one thread does it, with a bounded queue, and a pod gets at most one Event in five minutes.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

import structlog

from admission.cluster.pod_view import PodView
from admission.explain.explanation import FITS, Explanation
from gpu_manager.domain.cluster.pod_holder import HeldBy
from gpu_manager.domain.contract import EVENT_NOT_PLACED
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

SETTLE_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 300.0
_ROOM: Final = 4096
_PAUSE_SECONDS: Final = 0.1  # ten explanations a second at most


class EventSender(Protocol):
    """Where events go; returns at once."""

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        """An Event of the pod."""


@dataclass(slots=True)
class _Told:
    due: float | None  # None: nothing to look at until it is refused again
    last: float = float("-inf")
    line: str = ""
    looked: float = float("-inf")
    held: str = ""


@dataclass(eq=False, repr=False)
class PendingEvents:
    """Thread-safe; :meth:`run` is one thread's.

    ``find``: the pod as it is known now, None if it is gone.

    ``settle_seconds``: for how long a refusal stands before it is told.
    """

    find: Callable[[PodUid], PodView | None]
    explain: Callable[[PodView], Explanation]
    voice: EventSender
    clock: Clock
    settle_seconds: float = SETTLE_SECONDS

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._told: OrderedDict[PodUid, _Told] = OrderedDict()
        self._waited: frozenset[PodUid] = frozenset()

    def refused(self, uid: PodUid) -> None:
        """No node took it."""
        now = self.clock.monotonic()
        with self._lock:
            told = self._told.get(uid)
            if told is None:
                self._add(uid, now + self.settle_seconds)
            elif told.due is None:
                told.due = max(now + self.settle_seconds, told.last + AGAIN_SECONDS)

    def waiting(self, uids: Iterable[PodUid]) -> None:
        """The pods that wait for a node now; called every few seconds.

        If a node's totals are too small already, a scheduler calls no extender, and its own message is as
        short. A pod that is listed twice without an Event is explained too, and other pods again after a
        while.
        """
        now, here = self.clock.monotonic(), frozenset(uids)
        with self._lock:
            for uid in [u for u, told in self._told.items() if told.due is None and u not in here]:
                del self._told[uid]
            for told in self._told.values():
                if told.due is None and now >= told.looked + AGAIN_SECONDS:
                    told.due = now
            new = (here & self._waited) - self._told.keys()
            for uid in islice(new, max(0, _ROOM - len(self._told))):  # nobody is forgotten for it
                self._add(uid, now)
            self._waited = here

    def held(self) -> Mapping[str, int]:
        """Number of waiting pods by what holds them apart from the cards."""
        with self._lock:
            return Counter(told.held for told in self._told.values() if told.held)

    def _add(self, uid: PodUid, due: float) -> None:
        if len(self._told) >= _ROOM:
            self._told.popitem(last=False)
        self._told[uid] = _Told(due)

    def run(self, ended: threading.Event) -> None:
        """Publish due Events until ``ended``."""
        while not ended.wait(_PAUSE_SECONDS):
            try:
                self.tell()
            except NodeUnready as error:
                log.debug("explanation_skipped", reason=str(error))
            except Exception:  # noqa: BLE001 - a run loop: one pod's explanation must not end all others'
                threads.failed("explanation_failed")

    def tell(self) -> bool:
        """Publish the Event of one pod that is due; False if there is none."""
        now = self.clock.monotonic()
        with self._lock:
            due = ((uid, t) for uid, t in self._told.items() if t.due is not None and t.due <= now)
            uid, told = next(due, (None, None))
            if uid is None or told is None:
                return False
            told.due = None
        occupant = self.find(uid)
        if occupant is None or not occupant.waits:
            with self._lock:
                self._told.pop(uid, None)
            return True
        explanation = self.explain(occupant)
        told.held, told.looked = explanation.held, now
        is_told = not told.held or HeldBy(told.held).is_told
        if not is_told or explanation.counts.get(FITS) or explanation.line == told.line:
            return True
        told.last, told.line = now, explanation.line
        self.voice.event(occupant.pod, EVENT_NOT_PLACED, explanation.line)
        return True
