"""Which replica binds, and for how long it may still: read off a Lease, by this machine's own clock alone.

Two replicas must never bind at once, whatever their clocks say. So nobody looks at the times in a Lease:
the holder counts from before its renewal was sent, everybody else from after it was seen. One that takes
over waits until the last renewal of the one before it has run out, since Bindings of that one may be under
way until then, and binds only over all pods as they are after that: it writes into its own pod, and
once its watch of pods shows that, it has shown all that came before.

The Kubernetes client has an election of its own. It reads the wall clock, counts from after a renewal, cannot
be stopped, and cannot say for how long it still leads; so it is not used.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.api_server import LeaseRecord
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

RENEW_SECONDS: Final = 2.0
_NEVER: Final = float("-inf")
_NOBODY: Final = LeaseRecord("", 0.0, 0, "")
_GIVEN_UP: Final = 0.7
_CATCH_UP_SECONDS: Final = 3.0  # for a watch that shows changes at once; then pods are listed


class LeaseApi(Protocol):
    """One Lease. Both raise NodeUnready where no answer comes."""

    def read(self) -> LeaseRecord | None:
        """As it is now; None if there is none."""

    def write(self, holder: str, seconds: float, transitions: int) -> bool:
        """Renew or take what was read last; False if somebody else was quicker."""


@dataclass(frozen=True, slots=True)
class PodLister:
    """The picture that binding needs: the moment as of which it is complete, and how to get a later one.

    ``listed`` is of the monotonic clock, None before the first list. ``catch_up`` makes it the present moment
    once the watch has shown a change that is made now; it raises NodeUnready where none can be made.
    ``relist`` does so by a list of all pods. ``inherited``: whether the first list had a pod that waits for
    cards.
    """

    listed: Callable[[], float | None]
    catch_up: Callable[[], None]
    relist: Callable[[], None]
    inherited: Callable[[], bool]


class LeaseSource(Protocol):
    """What says until when this replica may bind."""

    def look(self) -> None:
        """Find out, and renew. Called each second; raises NodeUnready."""

    @property
    def until(self) -> float:
        """Monotonic; in the past if somebody else leads."""

    @property
    def fence(self) -> float:
        """Monotonic: before that, Bindings of the one that led before may be under way."""

    @property
    def shared(self) -> bool:
        """False if nobody else can ever lead."""

    def release(self) -> None:
        """Let another take over at once; nothing of this replica is under way any more."""


class Leader:
    """Answers :attr:`admission.extender.binding.BindRules.leads`. Thread-safe; :meth:`tick` is one
    thread's.
    """

    def __init__(
        self,
        lease: LeaseSource,
        pods: PodLister,
        clock: Clock,
        seconds: float,
        changed: Callable[[bool], None] = lambda _leads: None,
    ) -> None:
        """``seconds`` is a Binding's deadline; ``changed`` is told when leading begins and ends."""
        self._lease = lease
        self._pods = pods
        self._clock = clock
        self._changed = changed
        self._own_fence = clock.monotonic() + seconds  # what a former process of this replica sent may act
        # Since when the Lease is held without a break: whatever another did before, and had done when it gave
        # the Lease back, a watch may be late to show. Infinite while it is not.
        self._held_since = float("inf") if lease.shared else _NEVER
        self._asked = _NEVER  # the fence for which the picture is completed
        self._list_at = _NEVER  # when a list is asked for, should the watch not have caught up
        self._said = False
        self._resigned = threading.Event()

    def leads(self, seconds: float = 0.0) -> bool:
        """True if this process alone binds for at least so long, over a picture of all pods since."""
        now, listed = self._clock.monotonic(), self._pods.listed()
        if self._resigned.is_set() or listed is None:
            return False
        return self._fence <= listed and now + seconds < self._lease.until

    def tick(self) -> None:
        """Look at the Lease; call this each second."""
        was_held = self._clock.monotonic() < self._lease.until
        try:
            self._lease.look()
        except NodeUnready as error:
            log.warning("lease_unreadable", reason=str(error))
        now, listed = self._clock.monotonic(), self._pods.listed()
        if self._lease.shared:
            self._note_lease(now, was_held=was_held)
        fence = self._fence
        if listed is not None and listed < fence <= now < self._lease.until:
            self._complete(fence, now)
        self._say()

    def _complete(self, fence: float, now: float) -> None:
        """Learn of all that others bound before the fence: by the watch, and only if that fails by a list."""
        if self._asked != fence:
            self._asked, self._list_at = fence, now + _CATCH_UP_SECONDS
            try:
                self._pods.catch_up()
            except NodeUnready as error:
                log.warning("leader_lists_pods", reason=str(error))
                self._list_at = now
        if now >= self._list_at:
            self._list_at = float("inf")
            self._pods.relist()

    def _note_lease(self, now: float, *, was_held: bool) -> None:
        if now >= self._lease.until:
            self._held_since = float("inf")
        elif not was_held or self._held_since == float("inf"):
            self._held_since = now

    def resign(self) -> None:
        """Bind no more."""
        self._resigned.set()
        self._say()

    def release(self) -> None:
        """Let another replica begin at once. Only after :meth:`resign`, and once no Binding is under way."""
        try:
            self._lease.release()
        except NodeUnready as error:
            log.warning("lease_release_failed", reason=str(error))

    @property
    def _fence(self) -> float:
        """From when on all pods, as they are then, show all that others have bound.

        If no pod waited when this process began, there is nothing that a former one could still bind.
        """
        own = self._own_fence if self._pods.inherited() else _NEVER
        return max(self._lease.fence, self._held_since, own)

    def _say(self) -> None:
        leads = self.leads()
        if leads != self._said:
            self._said = leads
            log.info("leader_elected" if leads else "leadership_lost")
            self._changed(leads)


class HeldLease:
    """A Lease of our own: taken when it is free or has run out, renewed every two seconds."""

    def __init__(self, leases: LeaseApi, clock: Clock, pod: str, seconds: float) -> None:
        self._leases = leases
        self._clock = clock
        self._seconds = seconds
        self.shared = True
        self.identity = f"{pod}_{secrets.token_hex(8)}"
        self.until = _NEVER
        self.fence = _NEVER
        self._seen: tuple[LeaseRecord, float] | None = None  # another's, and when its last renewal was seen
        self._renewed = _NEVER

    def look(self) -> None:
        """See :class:`Mandate`."""
        if self._clock.monotonic() - self._renewed < RENEW_SECONDS:
            return
        found = self._leases.read()
        now = self._clock.monotonic()
        transitions = found.transitions if found else 0
        if found is None:
            self._take(transitions, now + self._seconds)  # someone may have deleted it under its holder
        elif not found.holder:
            self._take(transitions + 1, _NEVER)  # given back: nothing is under way
        elif found.holder == self.identity:
            self._write(transitions)
        else:
            self.until = _NEVER
            if self._seen is None or self._seen[0].mark != found.mark:
                self._seen = found, now
            ends = self._seen[1] + found.seconds
            if now >= ends:
                self._take(transitions + 1, ends)

    def release(self) -> None:
        """See :class:`Mandate`."""
        self.until = _NEVER
        found = self._leases.read()
        if found is not None and found.holder == self.identity:
            self._leases.write("", 1.0, found.transitions)

    def _take(self, transitions: int, fence: float) -> None:
        self.fence = fence  # first: a write without an answer may have been one
        if self._write(transitions):
            log.info("lease_acquired", identity=self.identity, transitions=transitions)

    def _write(self, transitions: int) -> bool:
        began = self._clock.monotonic()
        if not self._leases.write(self.identity, self._seconds, transitions):
            return False
        self.until, self._renewed, self._seen = began + self._seconds, began, None
        return True


class WatchedLeader:
    """The Lease of the kube-scheduler in this very pod: who holds it is the one that calls us.

    Its renewals happen between two looks; what counts is the earlier look. The one before it may have given
    the Lease back with calls of its own under way, so here, too, its last renewal must have run out.
    """

    def __init__(self, leases: LeaseApi, clock: Clock, hosts: frozenset[str]) -> None:
        """``hosts``: names that the scheduler may call its machine."""
        self._leases = leases
        self._clock = clock
        self._hosts = hosts
        self.shared = True
        self.until = _NEVER
        self.fence = _NEVER
        self._last: tuple[LeaseRecord, float] | None = None  # as last seen, and when that look began
        self._renewed = _NEVER  # when its last renewal was seen

    def look(self) -> None:
        """See :class:`Mandate`."""
        began = self._clock.monotonic()
        found = self._leases.read() or _NOBODY
        now = self._clock.monotonic()
        (before, looked), self._last = self._last or (None, began), (found, began)
        changed = before is None or before.mark != found.mark
        ours = self._ours(found.holder)
        if changed:
            self.fence = max(self.fence, self._over(before, looked, found, now))
            self._renewed = now
        if not ours:
            self.until = _NEVER
        elif changed and before is not None:
            self.until = looked + found.seconds

    def _over(self, before: LeaseRecord | None, looked: float, found: LeaseRecord, now: float) -> float:
        """When what others may have sent is over, as a changed record tells."""
        if before is None:
            return now + found.seconds if found.transitions or not self._ours(found.holder) else _NEVER
        if found.holder and not self._ours(found.holder):
            return now + found.seconds
        steps = found.transitions - before.transitions
        if self._ours(before.holder):
            # Its own renewal, or its scheduler began anew; anything more: someone led between two looks.
            return _NEVER if 0 <= steps <= (before.holder != found.holder) else now + found.seconds
        if not before.holder:
            return _NEVER
        # One that did not renew for so long has stopped trying (kube-scheduler: two thirds of its Lease).
        if looked - self._renewed >= _GIVEN_UP * before.seconds:
            return self._renewed + before.seconds
        return now + before.seconds

    def release(self) -> None:
        """The scheduler's own affair."""

    def _ours(self, holder: str) -> bool:
        name, _, rest = holder.rpartition("_")
        return bool(rest) and name in self._hosts


class SingleReplica:
    """There is no other replica."""

    until: float = float("inf")
    fence: float = _NEVER
    shared: bool = False

    def look(self) -> None:
        """Nothing to find out."""

    def release(self) -> None:
        """Nobody waits for it."""
