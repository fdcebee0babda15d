"""Closes a node to smaller requests, so that it drains for a large request that has waited long.

Draining (:mod:`gpu_manager.domain.score.multi_gpu_slots`) is a preference: as the queue grows, smaller
requests still take each card that gets free there. So once a request has waited for 1.25 departures per
running pod, counting neither departures nor pods of its own tenant, the node with the least to end is closed:
smaller requests are refused there.

Nobody may close nodes for good. One node is closed at a time, for at most :data:`CLOSED_FOR` departures per
running pod and at most a day. Once the request fits, the clock decides (:class:`NodeClock`; for a caller
without a clock, an eighth of a departure per running pod). If the pod has not come by then, no node is closed
for as many departures as this one was; for its tenant the pause is twice as long after a second failure in a
row, and so on; after a whole day, the pause is also a day, two days, and so on. The tenant, then the pod,
with the fewest nodes closed in vain is served first. A tenant's failures are forgotten once one of its pods
for which a node was closed has come; other tenants' pods do not count.

A pod that has room and does not come is kept off by something not visible here: a volume, or a constraint of
its scheduler. A scheduler retries every pod within five minutes, so waiting longer helps nobody, and costs
everybody else an idle node. Whether the pod came in the end makes no difference: it could come late each time
and leave at once.

The cost of a draining node is its idle part: an hour of a node of which half is idle counts as half an hour.
A pod of another tenant that cooperates with the waiting one may block the node on purpose. So these hours are
bounded, too; a tenant gets them back as pods run for which nodes were closed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from gpu_manager.domain.resources import CORES_PER_CARD

WAITED: Final = 1.25  # departures per running pod before a node is closed
CLOSED_FOR: Final = 3  # departures per running pod
COMES_WITHIN: Final = 8  # one part in so many of a departure per running pod, if there is room
MOST_DOUBLED: Final = 6  # how often the pause is doubled at most
LONGEST: Final = 86_400.0  # seconds

_Pod = TypeVar("_Pod", bound=Hashable)
_Node = TypeVar("_Node", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ClosedNode(Generic[_Pod, _Node]):
    """The closed node, the waiting pod, its cards, and for how many departures it stays closed at most.

    ``seconds``: the limit by the clock, from when the request fitted there; None while it does not fit.
    """

    node: _Node
    pod: _Pod
    cards: int
    left: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Tenants(Generic[_Pod]):
    """The tenant of each pod, the number of a tenant's running pods, and whether a pod runs. By default all
    pods belong to one unnamed tenant, and every departure counts for them.
    """

    of: Callable[[_Pod], str] = lambda _pod: ""
    running: Callable[[str], int] = lambda _tenant: 0
    runs: Callable[[_Pod], bool] = lambda _pod: False


@dataclass(slots=True)
class _Tenant:
    departures: int = 0  # of the tenant's own pods
    failures: int = 0  # in a row
    opens: int = 0  # number of departures from which on a node may be closed for the tenant
    opens_at: float = 0.0  # the clock time of that, after a node that was closed for too long


@dataclass(slots=True)
class _Closing(Generic[_Pod, _Node]):
    pod: _Pod
    tenant: str
    cards: int
    node: _Node
    began: int  # in departures so far, as all fields below
    ends: int
    comes: int  # departures within which the pod must come if there is room and no clock
    at: float  # seconds
    room: int | None = None  # since when the request fits
    seconds: float | None = None  # for how long it may stay closed since then
    idle: float = 0.0  # the free part of the requested cards there
    looked: float = 0.0  # seconds, at the last call


class NodeClosing(Generic[_Pod, _Node]):
    """Decides which node is closed. Not thread-safe."""

    def __init__(self) -> None:
        self._departures = 0
        self._tenants = defaultdict[str, _Tenant](_Tenant)
        self._since: dict[_Pod, tuple[int, int]] = {}  # departures when it began to wait: all, its tenant's
        self._in_vain: dict[_Pod, int] = {}  # number of nodes closed for it in vain
        self._closing: _Closing[_Pod, _Node] | None = None
        self._opens = 0  # number of departures from which on a node may be closed
        self._opens_at = 0.0  # the clock time of that
        self._with_room = NodeClock[_Node](ROOM_NODE_SECONDS, ROOM_TENANT_SECONDS)
        self._draining = NodeClock[_Node](IDLE_SECONDS, IDLE_SECONDS)
        self._uncounted: Callable[[float], None] | None = None  # charges the time up to then
        self._came: dict[
            _Pod, tuple[str, float]
        ] = {}  # pods for which a node was closed: tenant, charged until

    @property
    def closed(self) -> ClosedNode[_Pod, _Node] | None:
        """The node that is closed now; None if none is."""
        now = self._closing
        if now is None:
            return None
        left = max(0, now.ends - self._departures)
        return ClosedNode(now.node, now.pod, now.cards, left, now.seconds)

    def left(self, count: int = 1, tenant: str = "") -> None:
        """Record that ``count`` pods of a tenant have left their nodes; without a name, of the unnamed
        tenant.
        """
        self._departures += count
        if tenant:
            self._tenants[tenant].departures += count

    def started(self, pod: _Pod, cards: int, node: _Node) -> None:
        """Record that a pod with a request for ``cards`` whole cards has come to the node."""
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
        """Close no node until the next :meth:`look`: no pod waits, or the pod has its place."""
        self._count(now)

    def look(
        self,
        waiting: Mapping[_Pod, int],
        running: int,
        nearest: Callable[[_Pod], tuple[_Node, int] | None],
        now: float | None = None,
        tenants: Tenants[_Pod] = Tenants(),
    ) -> ClosedNode[_Pod, _Node] | None:
        """Decide which node is closed from now on. ``now`` in seconds, None without a clock.

        ``waiting``: the cards of each waiting request for several cards, the oldest first. ``running``:
        number of running pods. ``nearest``: the node on which the least must end before a request fits, and
        how many cores.
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
        """Return time to tenants for which nodes were closed and whose pods have run since the last call."""
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
        """True if this node, on which ``to_end`` cores must end, may be closed now."""
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
        """True if enough pods have left since the pod began to wait that a node may be closed for it."""
        known = self._tenants[tenant]
        all_, own = self._since[pod]
        left = self._departures - all_
        if left < WAITED * running or self._departures < known.opens or (now or 0.0) < known.opens_at:
            return False
        if not tenant:
            return True
        return left - (known.departures - own) >= WAITED * (running - runs(tenant))


DAY: Final = 86_400.0  # seconds, as all constants below
ROOM_NODE_SECONDS: Final = 600.0  # of one node, within a day, for any tenant, while the pod fits there
ROOM_TENANT_SECONDS: Final = 360.0  # of all nodes, within a week, for the pods of one tenant
IDLE_SECONDS: Final = 14_400.0  # of a whole idle node, for each of the two, while the pod does not fit
_TENANT_WINDOW: Final = 7 * DAY
_ONE_STRETCH: Final = 60.0  # a stretch that begins within this time extends the previous one

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class _Stretch(Generic[_Key]):
    node: _Key
    tenant: str
    seconds: float
    at: float  # its end
    back: float = 0.0  # the part of its seconds that was returned to the tenant


class NodeClock(Generic[_Key]):
    """Accounts of the time for which nodes were closed: at most ``node_seconds`` for one node within a day,
    and ``tenant_seconds`` for the pods of one tenant within a week. Not thread-safe.
    """

    def __init__(self, node_seconds: float, tenant_seconds: float) -> None:
        self._node_seconds, self._tenant_seconds = node_seconds, tenant_seconds
        self._stretches = deque[_Stretch[_Key]]()

    def spend(self, node: _Key, tenant: str, part: float, since: float, now: float) -> None:
        """Record that the node was closed for a pod of this tenant from ``since`` to ``now``; ``part`` of it
        idle.
        """
        last, seconds = self._stretches[-1] if self._stretches else None, part * (now - since)
        if last is not None and (last.node, last.tenant) == (node, tenant) and now - last.at <= _ONE_STRETCH:
            last.seconds, last.at = last.seconds + seconds, now
        elif seconds:
            self._stretches.append(_Stretch(node, tenant, seconds, now))

    def give_back(self, tenant: str, seconds: float) -> None:
        """Return time to the tenant: its pod has run for so long on the node that was closed for it."""
        for each in self._stretches:
            if each.tenant == tenant:
                back = min(seconds, each.seconds - each.back)
                each.back, seconds = each.back + back, seconds - back

    def left(self, node: _Key, tenant: str, now: float) -> float:
        """For how long the node may still be closed for the tenant if all of it is idle."""
        while self._stretches and now - self._stretches[0].at >= _TENANT_WINDOW:
            self._stretches.popleft()
        here = sum(s.seconds for s in self._stretches if s.node == node and now - s.at < DAY)
        theirs = sum(s.seconds - s.back for s in self._stretches if s.tenant == tenant)
        return min(self._node_seconds - here, self._tenant_seconds - theirs)
