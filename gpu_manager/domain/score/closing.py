"""A node that is closed to smaller requests, so that it drains for one that has waited for long.

A node that is left to drain (:mod:`gpu_manager.domain.score.draining`) is a preference: where the queue
grows, smaller requests still take each card that gets free there. So once a request has waited for a quarter
more departures than pods run, the node with the least to end is closed: smaller requests are refused there.

Nobody may close nodes for good. One node is closed at a time, for :data:`CLOSED_FOR` departures a running
pod at most, and for a day at most; where the request fits and does not come, only for an eighth of a
departure a running pod. If it has not come by then, no node is closed for as many departures as this one
was, for twice as many after a second time in a row, and so on; after a day also for a day, two, and so on.
Whoever has waited for long enough too, and had nodes closed for it in vain less often, has its turn first.
All of this is forgotten once one for whom a node was closed has come.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

WAITED: Final = 1.25  # departures, a running pod, before a node is closed
CLOSED_FOR: Final = 3  # departures, a running pod
COMES_WITHIN: Final = 8  # a running pod's departure has so many parts: one of them, where there is room
MOST_DOUBLED: Final = 6  # times that the pause is doubled
LONGEST: Final = 86_400.0  # seconds

_Pod = TypeVar("_Pod", bound=Hashable)
_Node = TypeVar("_Node", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ClosedNode(Generic[_Pod, _Node]):
    """The node, the pod that waits, its cards, and how many departures it stays closed at most."""

    node: _Node
    pod: _Pod
    cards: int
    left: int


@dataclass(slots=True)
class _Closing(Generic[_Pod, _Node]):
    pod: _Pod
    cards: int
    node: _Node
    began: int  # in departures so far, as all that follows
    ends: int
    comes: int  # departures within which it comes where there is room
    at: float  # seconds
    room: int | None = None  # since when the request fits


class NodeClosing(Generic[_Pod, _Node]):
    """Not thread-safe."""

    def __init__(self) -> None:
        self._departures = 0
        self._since: dict[_Pod, int] = {}  # departures when it began to wait
        self._in_vain: dict[_Pod, int] = {}  # nodes that were closed for it
        self._closing: _Closing[_Pod, _Node] | None = None
        self._failures = 0  # in a row
        self._opens = 0  # departures from which on a node may be closed
        self._opens_at = 0.0  # the same by the clock, after a node that was closed for too long by it

    @property
    def closed(self) -> ClosedNode[_Pod, _Node] | None:
        """The node that is closed now."""
        now = self._closing
        if now is None:
            return None
        return ClosedNode(now.node, now.pod, now.cards, max(0, now.ends - self._departures))

    def left(self, count: int = 1) -> None:
        """So many pods have left their nodes."""
        self._departures += count

    def started(self, pod: _Pod, cards: int, node: _Node) -> None:
        """A pod that asks for so many whole cards of one node has come to the node."""
        self._since.pop(pod, None)
        self._in_vain.pop(pod, None)
        now = self._closing
        if now is not None and (pod == now.pod or (node == now.node and cards >= now.cards)):
            self._closing, self._failures, self._opens, self._opens_at = None, 0, self._departures, 0.0

    def look(
        self,
        waiting: Mapping[_Pod, int],
        running: int,
        nearest: Callable[[_Pod], tuple[_Node, int] | None],
        now: float = 0.0,
    ) -> ClosedNode[_Pod, _Node] | None:
        """Return the node that is closed from now on, ``now`` in seconds.

        ``waiting``: the cards of each request for several that waits, the first come first. ``running``: pods
        that run. ``nearest``: the node on which the least must end before a request fits, and how many cores.
        """
        self._since = {pod: self._since.get(pod, self._departures) for pod in waiting}
        self._in_vain = {pod: count for pod, count in self._in_vain.items() if pod in waiting}
        if self._closing is not None:
            self._go_on(self._closing, waiting, nearest, now)
        if self._closing is None and self._departures >= self._opens and now >= self._opens_at:
            self._begin(waiting, running, nearest, now)
        return self.closed

    def _go_on(
        self,
        closing: _Closing[_Pod, _Node],
        waiting: Mapping[_Pod, int],
        nearest: Callable[[_Pod], tuple[_Node, int] | None],
        now: float,
    ) -> None:
        found = nearest(closing.pod) if closing.pod in waiting else None
        if now - closing.at >= LONGEST:
            self._opens_at = now + (now - closing.at) * 2 ** min(self._failures, MOST_DOUBLED)
            self._fail(closing)
            return
        if found is None or self._departures >= closing.ends:
            self._fail(closing)
            return
        closing.node, to_end = found
        if to_end:
            closing.room = None
        elif closing.room is None:
            closing.room = self._departures
        elif self._departures - closing.room >= closing.comes:
            self._fail(closing)

    def _fail(self, closing: _Closing[_Pod, _Node]) -> None:
        lasted = max(1, self._departures - closing.began)
        self._opens = self._departures + (lasted << min(self._failures, MOST_DOUBLED))
        self._failures += 1
        self._in_vain[closing.pod] = self._in_vain.get(closing.pod, 0) + 1
        self._closing = None

    def _begin(
        self,
        waiting: Mapping[_Pod, int],
        running: int,
        nearest: Callable[[_Pod], tuple[_Node, int] | None],
        now: float,
    ) -> None:
        running = max(1, running)
        able = (pod for pod in waiting if self._departures - self._since[pod] >= WAITED * running)
        for pod in sorted(able, key=lambda pod: self._in_vain.get(pod, 0)):
            found = nearest(pod)
            if found is not None:
                ends, comes = self._departures + CLOSED_FOR * running, max(1, running // COMES_WITHIN)
                self._closing = _Closing(pod, waiting[pod], found[0], self._departures, ends, comes, now)
                return
