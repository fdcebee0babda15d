"""Which replica binds, and until when: decided from a Lease, by this machine's own clock alone.

Two replicas must never bind at once, whatever their clocks show. So the times in a Lease are ignored: the
holder counts from before it sent a renewal, every other replica from after it saw it. A new leader waits
until the previous leader's last renewal has expired, since Bindings of that one may be in progress until
then. It binds only once it knows all pods as they are after that: it writes into its own pod, and once its
watch of pods shows the write, the watch has shown all earlier changes.

That write names the *term*: the Lease's holder and its transitions. A process that starts again in the same
pod and finds the Lease in the term that its own pod names knows that nobody else has led since, and all that
others sent before was over then. It waits only for what its former process may have sent.

The Kubernetes client's own leader election reads the wall clock, counts from after a renewal, cannot be
stopped, and does not tell for how long it still leads; so it is not used.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import InitVar, dataclass
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
_CATCH_UP_SECONDS: Final = 3.0  # for a watch that shows changes at once; after that pods are listed


class LeaseApi(Protocol):
    """Access to one Lease. Both methods raise NodeUnready if there is no answer."""

    def read(self) -> LeaseRecord | None:
        """The present record; None if the Lease does not exist."""

    def write(self, holder: str, seconds: float, transitions: int) -> bool:
        """Renew or take the Lease as it was last read; False if another replica was quicker."""


@dataclass(frozen=True, slots=True)
class PodLister:
    """The list of pods that binding needs: as of when it is complete, and how to get a later one.

    ``listed`` is a monotonic time, None before the first list. ``catch_up`` advances it to the present once
    the watch has shown a change made now; it raises NodeUnready if that change cannot be made. ``relist``
    advances it by listing all pods. ``inherited``: whether the first list had a pod that waits for cards.
    """

    listed: Callable[[], float | None]
    catch_up: Callable[[], None]
    relist: Callable[[], None]
    inherited: Callable[[], bool]


class LeaseSource(Protocol):
    """Decides until when this replica may bind."""

    def look(self) -> None:
        """Read and renew the Lease. Called each second; raises NodeUnready."""

    @property
    def until(self) -> float:
        """Until when this replica leads, monotonic; in the past if another one leads."""

    @property
    def fence(self) -> float:
        """Until when Bindings of the previous leader may be in progress, monotonic."""

    @property
    def shared(self) -> bool:
        """False if no other replica can ever lead."""

    @property
    def term(self) -> str:
        """The holder and transitions of the Lease, while this replica leads by it."""

    def release(self) -> None:
        """Let another replica take over at once; no request of this replica is in progress any more."""


def _term(found: LeaseRecord) -> str:
    return f"{found.holder}/{found.transitions}"


class FormerTerm(Protocol):
    """What this replica's own pod says of a former process in it."""

    def __call__(self) -> str:
        """The term that it named once all pods were known; empty if there is none, or if another process of
        the pod may be alive. Raises NodeUnready.
        """


@dataclass(eq=False, repr=False)
class Leader:
    """Answers :attr:`admission.extender.binding.BindRules.leads`. Thread-safe; one thread calls
    :meth:`tick`.

    ``seconds`` is a Binding's deadline; ``changed`` is called when leading begins and ends.
    """

    lease: LeaseSource
    pods: PodLister
    clock: Clock
    seconds: InitVar[float]
    changed: Callable[[bool], None] = lambda _leads: None

    def __post_init__(self, seconds: float) -> None:
        self._own_fence = (
            self.clock.monotonic() + seconds
        )  # Bindings of a former process may still take effect
        # Since when the Lease is held without a break: whatever another did before, and had done when it gave
        # the Lease back, a watch may be late to show. Infinite while it is not.
        self._held_since = float("inf") if self.lease.shared else _NEVER
        self._asked = _NEVER  # the fence for which the list is being completed
        self._list_at = _NEVER  # when to request a list, if the watch has not caught up
        self._said = False
        self._resigned = threading.Event()

    def leads(self, seconds: float = 0.0) -> bool:
        """True if only this process binds for at least ``seconds``, and its list of pods is complete."""
        now, listed = self.clock.monotonic(), self.pods.listed()
        if self._resigned.is_set() or listed is None:
            return False
        return self._fence <= listed and now + seconds < self.lease.until

    def tick(self) -> None:
        """Read the Lease; call this each second."""
        was_held = self.clock.monotonic() < self.lease.until
        try:
            self.lease.look()
        except NodeUnready as error:
            log.warning("lease_unreadable", reason=str(error))
        now, listed = self.clock.monotonic(), self.pods.listed()
        if self.lease.shared:
            self._note_lease(now, was_held=was_held)
        fence = self._fence
        if listed is not None and listed < fence <= now < self.lease.until:
            self._complete(fence, now)
        self._say()

    def _complete(self, fence: float, now: float) -> None:
        """Learn of everything bound before the fence: by the watch, or by a list if the watch does not catch
        up.
        """
        if self._asked != fence:
            self._asked, self._list_at = fence, now + _CATCH_UP_SECONDS
            try:
                self.pods.catch_up()
            except NodeUnready as error:
                log.warning("leader_lists_pods", reason=str(error))
                self._list_at = now
        if now >= self._list_at:
            self._list_at = float("inf")
            self.pods.relist()

    def _note_lease(self, now: float, *, was_held: bool) -> None:
        if now >= self.lease.until:
            self._held_since = float("inf")
        elif not was_held or self._held_since == float("inf"):
            self._held_since = now

    def resign(self) -> None:
        """Stop binding."""
        self._resigned.set()
        self._say()

    def release(self) -> None:
        """Let another replica begin at once. Only after :meth:`resign`, and once no Binding is in
        progress.
        """
        try:
            self.lease.release()
        except NodeUnready as error:
            log.warning("lease_release_failed", reason=str(error))

    @property
    def _fence(self) -> float:
        """The time as of which the list of pods shows everything that other replicas have bound.

        If no pod waited when this process started, a previous leader has nothing left to bind.
        """
        own = self._own_fence if self.pods.inherited() else _NEVER
        return max(self.lease.fence, self._held_since, own)

    def _say(self) -> None:
        leads = self.leads()
        if leads != self._said:
            self._said = leads
            log.info("leader_elected" if leads else "leadership_lost")
            self.changed(leads)


class HeldLease:
    """A Lease of this service: taken when it is free or has expired, renewed every two seconds."""

    def __init__(
        self, leases: LeaseApi, clock: Clock, pod: str, seconds: float, former: FormerTerm = lambda: ""
    ) -> None:
        self._former = former
        self._leases = leases
        self._clock = clock
        self._seconds = seconds
        self.shared = True
        self.identity = f"{pod}_{secrets.token_hex(8)}"
        self.until = _NEVER
        self.fence = _NEVER
        self.term = ""
        self._seen: tuple[LeaseRecord, float] | None = None  # another's, and when its last renewal was seen
        self._renewed = _NEVER

    def look(self) -> None:
        """See :class:`LeaseSource`."""
        if self._clock.monotonic() - self._renewed < RENEW_SECONDS:
            return
        found = self._leases.read()
        now = self._clock.monotonic()
        transitions = found.transitions if found else 0
        if found is None:
            self._take(transitions, now + self._seconds)  # it may have been deleted under its holder
        elif not found.holder:
            self._take(transitions + 1, _NEVER)  # released: no request is in progress
        elif found.holder == self.identity:
            self._write(transitions)
        elif self._seen is None and self._former() == _term(found):
            self._take(transitions + 1, _NEVER)
        else:
            self.until = _NEVER
            if self._seen is None or self._seen[0].mark != found.mark:
                self._seen = found, now
            ends = self._seen[1] + found.seconds
            if now >= ends:
                self._take(transitions + 1, ends)

    def release(self) -> None:
        """See :class:`LeaseSource`."""
        self.until = _NEVER
        found = self._leases.read()
        if found is not None and found.holder == self.identity:
            self._leases.write("", 1.0, found.transitions)

    def _take(self, transitions: int, fence: float) -> None:
        self.fence = fence  # first: a write without an answer may have succeeded
        if self._write(transitions):
            log.info("lease_acquired", identity=self.identity, transitions=transitions)

    def _write(self, transitions: int) -> bool:
        began = self._clock.monotonic()
        if not self._leases.write(self.identity, self._seconds, transitions):
            return False
        self.until, self._renewed, self._seen = began + self._seconds, began, None
        self.term = f"{self.identity}/{transitions}"
        return True


class WatchedLeader:
    """The Lease of the kube-scheduler in this pod: its holder is the scheduler that calls this extender.

    Renewals happen between two reads; the time of the earlier read counts. The previous holder may have
    released the Lease with requests of its own in progress, so here, too, its last renewal must have expired.
    """

    def __init__(
        self, leases: LeaseApi, clock: Clock, hosts: frozenset[str], former: FormerTerm = lambda: ""
    ) -> None:
        """``hosts``: names that the scheduler may use for its machine."""
        self._former = former
        self._leases = leases
        self._clock = clock
        self._hosts = hosts
        self.shared = True
        self.until = _NEVER
        self.fence = _NEVER
        self._last: tuple[LeaseRecord, float] | None = None  # as last read, and when that read began
        self._renewed = _NEVER  # when its last renewal was seen

    def look(self) -> None:
        """See :class:`LeaseSource`."""
        began = self._clock.monotonic()
        found = self._leases.read() or _NOBODY
        former = "" if self._last else self._former()
        now = self._clock.monotonic()
        (before, looked), self._last = self._last or (None, began), (found, began)
        changed = before is None or before.mark != found.mark
        ours = self._ours(found.holder)
        if changed:
            over = _NEVER if ours and former == _term(found) else self._over(before, looked, found, now)
            self.fence = max(self.fence, over)
            self._renewed = now
        if not ours:
            self.until = _NEVER
        elif changed and before is not None:
            self.until = looked + found.seconds

    @property
    def term(self) -> str:
        """See :class:`LeaseSource`."""
        return _term(self._last[0]) if self._last else ""

    def _over(self, before: LeaseRecord | None, looked: float, found: LeaseRecord, now: float) -> float:
        """When requests of previous holders are over, judging by a changed record."""
        if before is None:
            return now + found.seconds if found.transitions or not self._ours(found.holder) else _NEVER
        if found.holder and not self._ours(found.holder):
            return now + found.seconds
        steps = found.transitions - before.transitions
        if self._ours(before.holder):
            # Its own renewal, or its scheduler restarted; more than that: another one led between two reads.
            return _NEVER if 0 <= steps <= (before.holder != found.holder) else now + found.seconds
        if not before.holder:
            return _NEVER
        # A holder that did not renew for so long has stopped trying (kube-scheduler: two thirds of the
        # Lease).
        if looked - self._renewed >= _GIVEN_UP * before.seconds:
            return self._renewed + before.seconds
        return now + before.seconds

    def release(self) -> None:
        """Nothing: the scheduler releases its own Lease."""

    def _ours(self, holder: str) -> bool:
        name, _, rest = holder.rpartition("_")
        return bool(rest) and name in self._hosts


class SingleReplica:
    """The only replica, which always leads."""

    until: float = float("inf")
    fence: float = _NEVER
    shared: bool = False
    term: str = ""

    def look(self) -> None:
        """Nothing to read."""

    def release(self) -> None:
        """Nothing to release."""
