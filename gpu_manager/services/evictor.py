"""Evicts the pods that agents mark, within a rate: a node that is taken over cannot empty the cluster.

An Eviction names no node, so no policy could keep an agent's own right to evict to its node. A mark is an
annotation of a pod, which a policy keeps to the agent of that pod's node. Whoever takes that node over can so
have its own pods evicted, which it could end anyway, and no faster than the rate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from gpu_manager.domain.contract import EVENT_EVICTED, EVICT, decode_eviction_mark
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.evictions import why_not_evicted
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.api_server import Evictions
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

WINDOW_SECONDS: Final = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 300.0  # seconds before a refused eviction is tried again


@dataclass(frozen=True, slots=True)
class _Refused:
    """An eviction that the API server refused, by a disruption budget or else: when it is tried again."""

    due: float
    pause: float


class Evictor:
    """One thread calls :meth:`look`. Every try counts against the rate, refused ones too."""

    def __init__(self, evictions: Evictions, clock: Clock, *, per_minute: int, node_per_minute: int) -> None:
        self._evictions = evictions
        self._clock = clock
        self._per_minute = per_minute
        self._node_per_minute = node_per_minute
        self._tries: deque[tuple[float, str]] = deque()  # of the last minute: when, and on which node
        self._refused: dict[PodUid, _Refused] = {}
        self._done: frozenset[PodUid] = frozenset()
        self._passed_over: frozenset[PodUid] = frozenset()

    def look(self) -> None:
        """Evict the marked pods whose turn it is; stop if the API server does not answer."""
        marked = {pod.uid: pod for pod in self._evictions.marked() if not (pod.deleting or pod.terminal)}
        self._done &= marked.keys()
        self._refused = {uid: one for uid, one in self._refused.items() if uid in marked}
        wanted = [pod for pod in self._obeyed(marked) if pod.uid not in self._done]
        while (pod := self._next(wanted)) is not None and self._try(pod):
            pass

    def _obeyed(self, marked: Mapping[PodUid, Pod]) -> list[Pod]:
        now = self._clock.now()
        why = {
            uid: why_not_evicted(pod, decode_eviction_mark(pod.annotations.get(EVICT)), now)
            for uid, pod in marked.items()
        }
        passed_over = frozenset(uid for uid, reason in why.items() if reason)
        for uid in passed_over - self._passed_over:
            log.warning("mark_passed_over", pod=marked[uid].key, node=marked[uid].node, reason=why[uid])
        self._passed_over = passed_over
        return [pod for uid, pod in marked.items() if not why[uid]]

    def _next(self, wanted: list[Pod]) -> Pod | None:
        """The pod to evict now, None if there is none: nodes with the fewest tries of the last minute first,
        then the pods that were never refused.
        """
        now = self._clock.monotonic()
        while self._tries and now - self._tries[0][0] >= WINDOW_SECONDS:
            self._tries.popleft()
        if len(self._tries) >= self._per_minute:
            return None
        tries = Counter(node for _, node in self._tries)

        def due(pod: Pod) -> float:
            refused = self._refused.get(pod.uid)
            return refused.due if refused else float("-inf")

        ready = [
            pod
            for pod in wanted
            if pod.uid not in self._done and due(pod) <= now and tries[pod.node] < self._node_per_minute
        ]
        return min(ready, key=lambda pod: (tries[pod.node], due(pod), pod.uid), default=None)

    def _try(self, pod: Pod) -> bool:
        """Ask the API server; False if it does not answer."""
        self._tries.append((self._clock.monotonic(), pod.node))
        mark = decode_eviction_mark(pod.annotations.get(EVICT))
        reason = mark.reason if mark else ""
        try:
            wait = self._evictions.evict(pod)
        except NodeUnready as error:
            self._put_off(pod, 0.0)
            log.warning("eviction_unanswered", pod=pod.key, node=pod.node, reason=str(error))
            return False
        if wait is not None:
            self._put_off(pod, wait)
            return True
        self._done |= {pod.uid}
        log.warning("evicted", pod=pod.key, uid=pod.uid, node=pod.node, reason=reason)
        self._evictions.event(pod, EVENT_EVICTED, f"evicted, as the agent of node {pod.node} asked: {reason}")
        return True

    def _put_off(self, pod: Pod, wait: float) -> None:
        before = self._refused.get(pod.uid)
        pause = min(_LONGEST_PAUSE, max(wait, before.pause * 2 if before else _FIRST_PAUSE))
        self._refused[pod.uid] = _Refused(self._clock.monotonic() + pause, pause)
