"""A node that is closed to smaller requests, so that it drains for one that has waited for long.

A node that is left to drain (:mod:`gpu_manager.domain.score.multi_gpu_slots`) is a preference: where the
queue grows, smaller requests still take each card that gets free there. So once a request has waited for a
quarter more departures than pods run, those of its own tenant counted neither among the ones nor among the
others, the node with the least to end is closed: smaller requests are refused there.

Nobody may close nodes for good. One node is closed at a time, for :data:`CLOSED_FOR` departures a running
pod at most, and for a day at most; where the request fits already the clock decides
(:mod:`gpu_manager.domain.score.closing`; for who gives no time, an eighth of a departure a running pod).
If it has not come by then, no node is closed for as many departures as this one was, and none for its tenant
for twice as many after a second time in a row, and so on; after a day also for a day, two, and so on. Whose
tenant had nodes closed in vain less often, and after that who had so itself, has its turn first. A tenant's
failures are forgotten once one of its pods for which a node was closed has come, those of others are not.

For how long a node may stay closed by the clock: by node and tenant (:class:`NodeClock`).

A pod that has room and does not come is kept off by something that is not seen here: a volume, a constraint
of its scheduler's own. A scheduler looks at every pod again within five minutes, so more helps nobody, and
costs everybody else an idle node. Whether the pod came in the end makes no difference: it could come late
each time, and leave at once.

While a node drains, what it costs others is its idle part: an hour of a node of which a half is idle counts
as half an hour. A pod may stand in the way on purpose, of another tenant that works with the one that waits.
So these hours have a bound, too; a tenant has them back as its pods run for which nodes were closed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from gpu_manager.domain.resources import CORES_PER_CARD

WAITED: Final = 1.25  # departures, a running pod, before a node is closed
CLOSED_FOR: Final = 3  # departures, a running pod
COMES_WITHIN: Final = 8  # a running pod's departure has so many parts: one of them, where there is room
MOST_DOUBLED: Final = 6  # times that the pause is doubled
LONGEST: Final = 86_400.0  # seconds

_Pod = TypeVar("_Pod", bound=Hashable)
_Node = TypeVar("_Node", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ClosedNode(Generic[_Pod, _Node]):
    """The node, the pod that waits, its cards, and how many departures it stays closed at most.

    ``seconds``: the same by the clock, from when the request fitted there on; None while it does not.
    """

    node: _Node
    pod: _Pod
    cards: int
    left: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Tenants(Generic[_Pod]):
    """Whose each pod is, how many pods of a tenant run, and whether a pod does. By default all pods are of
    one that is nobody's: every departure counts for them.
    """

    of: Callable[[_Pod], str] = lambda _pod: ""
    running: Callable[[str], int] = lambda _tenant: 0
    runs: Callable[[_Pod], bool] = lambda _pod: False


@dataclass(slots=True)
class _Tenant:
    departures: int = 0  # of its own pods
    failures: int = 0  # in a row
    opens: int = 0  # departures from which on a node may be closed for it
    opens_at: float = 0.0  # the same by the clock, after a node that was closed for too long by it


@dataclass(slots=True)
class _Closing(Generic[_Pod, _Node]):
    pod: _Pod
    tenant: str
    cards: int
    node: _Node
    began: int  # in departures so far, as all that follows
    ends: int
    comes: int  # departures within which it comes where there is room and nobody knows the time
    at: float  # seconds
    room: int | None = None  # since when the request fits
    seconds: float | None = None  # for how long it may, since then
    idle: float = 0.0  # the part of the cards it asks for that is free there
    looked: float = 0.0  # seconds, the last time


class NodeClosing(Generic[_Pod, _Node]):
    """Not thread-safe."""

    def __init__(self) -> None:
        self._departures = 0
        self._tenants = defaultdict[str, _Tenant](_Tenant)
        self._since: dict[_Pod, tuple[int, int]] = {}  # departures when it began to wait: all, its tenant's
        self._in_vain: dict[_Pod, int] = {}  # nodes that were closed for it
        self._closing: _Closing[_Pod, _Node] | None = None
        self._opens = 0  # departures from which on a node may be closed
        self._opens_at = 0.0  # the same by the clock
        self._with_room = NodeClock[_Node](ROOM_NODE_SECONDS, ROOM_TENANT_SECONDS)
        self._draining = NodeClock[_Node](IDLE_SECONDS, IDLE_SECONDS)
        self._uncounted: Callable[[float], None] | None = None  # counts the time until then
        self._came: dict[
            _Pod, tuple[str, float]
        ] = {}  # pods for which a node was closed: tenant, counted until

    @property
    def closed(self) -> ClosedNode[_Pod, _Node] | None:
        """The node that is closed now."""
        now = self._closing
        if now is None:
            return None
        left = max(0, now.ends - self._departures)
        return ClosedNode(now.node, now.pod, now.cards, left, now.seconds)

    def left(self, count: int = 1, tenant: str = "") -> None:
        """So many pods of one tenant have left their nodes; of nobody's without a name."""
        self._departures += count
        if tenant:
            self._tenants[tenant].departures += count

    def started(self, pod: _Pod, cards: int, node: _Node) -> None:
        """A pod that asks for so many whole cards of one node has come to the node."""
        self._since.pop(pod, None)
        self._in_vain.pop(pod, None)
        now = self._closing
        if now is not None and (pod == now.pod or (node == now.node and cards >= now.cards)):
            tenant = self._tenants[now.tenant]
            tenant.failures, tenant.opens, tenant.opens_at = 0, self._departures, 0.0
            if pod == now.pod:
                self._came[pod] = now.tenant, now.looked
            self._closing, self._opens, self._opens_at = None, self._departures, 0.0

    def hold(self, now: float) -> None:
        """No node is closed from now on until the next look: nobody waits, or the pod has its place."""
        self._count(now)

    def look(
        self,
        waiting: Mapping[_Pod, int],
        running: int,
        nearest: Callable[[_Pod], tuple[_Node, int] | None],
        now: float | None = None,
        tenants: Tenants[_Pod] = Tenants(),
    ) -> ClosedNode[_Pod, _Node] | None:
        """Return the node that is closed from now on, ``now`` in seconds, None for who has no clock.

        ``waiting``: the cards of each request for several that waits, the first come first. ``running``: pods
        that run. ``nearest``: the node on which the least must end before a request fits, and how many cores.
        """
        if now is not None:
            self._count(now)
            self._give_back(now, tenants.runs)
        self._since = {pod: self._since.get(pod) or self._begins(tenants.of(pod)) for pod in waiting}
        self._in_vain = {pod: count for pod, count in self._in_vain.items() if pod in waiting}
        if self._closing is not None:
            self._go_on(self._closing, waiting, nearest, now)
        if self._closing is None and self._departures >= self._opens and (now or 0.0) >= self._opens_at:
            self._begin(waiting, running, nearest, now, tenants)
        closing = self._closing
        if closing is not None and now is not None:
            closing.looked = now
            clock = self._draining if closing.room is None else self._with_room
            self._uncounted = partial(clock.spend, closing.node, closing.tenant, closing.idle, now)
        return self.closed

    def _begins(self, tenant: str) -> tuple[int, int]:
        return self._departures, self._tenants[tenant].departures if tenant else 0

    def _count(self, now: float) -> None:
        if self._uncounted is not None:
            self._uncounted(now)
        self._uncounted = None

    def _give_back(self, now: float, runs: Callable[[_Pod], bool]) -> None:
        """What the pods that came, and run still, have run for since the last look."""
        self._came = {pod: each for pod, each in self._came.items() if runs(pod)}
        for pod, (tenant, since) in self._came.items():
            self._draining.give_back(tenant, now - since)
            self._came[pod] = tenant, now

    def _go_on(
        self,
        closing: _Closing[_Pod, _Node],
        waiting: Mapping[_Pod, int],
        nearest: Callable[[_Pod], tuple[_Node, int] | None],
        now: float | None,
    ) -> None:
        found = nearest(closing.pod) if closing.pod in waiting else None
        if now is not None and now - closing.at >= LONGEST:
            lasted, tenant = now - closing.at, self._tenants[closing.tenant]
            self._opens_at = now + lasted
            tenant.opens_at = now + lasted * 2 ** min(tenant.failures, MOST_DOUBLED)
            self._fail(closing)
        elif found is None or self._departures >= closing.ends or not self._stays(closing, *found, now):
            self._fail(closing)

    def _stays(self, closing: _Closing[_Pod, _Node], node: _Node, to_end: int, now: float | None) -> bool:
        """True if this node may be closed now, on which so many cores must end."""
        moved, closing.node = node != closing.node, node
        closing.idle = max(0.0, 1 - to_end / (CORES_PER_CARD * closing.cards))
        if to_end:
            closing.room = closing.seconds = None
            return now is None or self._draining.left(node, closing.tenant, now) > 0
        if closing.room is None:
            closing.room = self._departures
        if now is None:
            return self._departures - closing.room < closing.comes
        left = self._with_room.left(node, closing.tenant, now)
        if moved or closing.seconds is None:
            closing.seconds = left
        return left > 0

    def _fail(self, closing: _Closing[_Pod, _Node]) -> None:
        lasted, tenant = max(1, self._departures - closing.began), self._tenants[closing.tenant]
        self._opens = self._departures + lasted
        tenant.opens = self._departures + (lasted << min(tenant.failures, MOST_DOUBLED))
        tenant.failures += 1
        self._in_vain[closing.pod] = self._in_vain.get(closing.pod, 0) + 1
        self._closing = None

    def _begin(
        self,
        waiting: Mapping[_Pod, int],
        running: int,
        nearest: Callable[[_Pod], tuple[_Node, int] | None],
        now: float | None,
        tenants: Tenants[_Pod],
    ) -> None:
        running = max(1, running)
        able = [
            (self._tenants[tenant].failures, self._in_vain.get(pod, 0), place, pod, tenant)
            for place, pod in enumerate(waiting)
            if self._has_waited(pod, tenant := tenants.of(pod), running, now, tenants.running)
        ]
        for *_, pod, tenant in sorted(able, key=lambda each: each[:3]):
            found = nearest(pod)
            if found is None:
                continue
            ends, comes = self._departures + CLOSED_FOR * running, max(1, running // COMES_WITHIN)
            closing = _Closing(pod, tenant, waiting[pod], found[0], self._departures, ends, comes, now or 0.0)
            if now is None or self._stays(closing, *found, now):
                self._closing = closing
                return

    def _has_waited(
        self, pod: _Pod, tenant: str, running: int, now: float | None, runs: Callable[[str], int]
    ) -> bool:
        """True if so many have left since it began to wait that a node may be closed for it."""
        known = self._tenants[tenant]
        all_, own = self._since[pod]
        left = self._departures - all_
        if left < WAITED * running or self._departures < known.opens or (now or 0.0) < known.opens_at:
            return False
        if not tenant:
            return True
        return left - (known.departures - own) >= WAITED * (running - runs(tenant))


DAY: Final = 86_400.0  # seconds, as all that follows
ROOM_NODE_SECONDS: Final = 600.0  # of one node, within a day, for whomever, while the pod fits there
ROOM_TENANT_SECONDS: Final = 360.0  # of all nodes, within a week, for the pods of one tenant
IDLE_SECONDS: Final = 14_400.0  # of a whole idle node, for each of the two, while the pod does not fit
_TENANT_WINDOW: Final = 7 * DAY
_ONE_STRETCH: Final = 60.0  # what follows within that is added to what was there

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class _Stretch(Generic[_Key]):
    node: _Key
    tenant: str
    seconds: float
    at: float  # its end
    back: float = 0.0  # of its seconds, what the tenant has had back


class NodeClock(Generic[_Key]):
    """How long nodes were closed: ``node_seconds`` are there for one node within a day, ``tenant_seconds``
    for the pods of one tenant within a week. Not thread-safe.
    """

    def __init__(self, node_seconds: float, tenant_seconds: float) -> None:
        self._node_seconds, self._tenant_seconds = node_seconds, tenant_seconds
        self._stretches = deque[_Stretch[_Key]]()

    def spend(self, node: _Key, tenant: str, part: float, since: float, now: float) -> None:
        """The node was closed for a pod of this tenant until now, and such a part of it was idle."""
        last, seconds = self._stretches[-1] if self._stretches else None, part * (now - since)
        if last is not None and (last.node, last.tenant) == (node, tenant) and now - last.at <= _ONE_STRETCH:
            last.seconds, last.at = last.seconds + seconds, now
        elif seconds:
            self._stretches.append(_Stretch(node, tenant, seconds, now))

    def give_back(self, tenant: str, seconds: float) -> None:
        """A pod of this tenant has run for so long on the node that was closed for it."""
        for each in self._stretches:
            if each.tenant == tenant:
                back = min(seconds, each.seconds - each.back)
                each.back, seconds = each.back + back, seconds - back

    def left(self, node: _Key, tenant: str, now: float) -> float:
        """For how long it may be closed so from now on, were all of it idle."""
        while self._stretches and now - self._stretches[0].at >= _TENANT_WINDOW:
            self._stretches.popleft()
        here = sum(s.seconds for s in self._stretches if s.node == node and now - s.at < DAY)
        theirs = sum(s.seconds - s.back for s in self._stretches if s.tenant == tenant)
        return min(self._node_seconds - here, self._tenant_seconds - theirs)
