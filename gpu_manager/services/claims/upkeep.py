"""Publishes the node's cards as the devices of its ResourceSlice, and has the kubelet prepare claims again.

What a card may give changes rarely, and is published at once. The order in which the scheduler takes the
cards follows each booking, and is published every few seconds at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from gpu_manager.domain.contract import PREPARE_AGAIN
from gpu_manager.domain.dra.device import SharedDevice, published_devices
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.ports.api_server import Claims, Pods, Slices
from gpu_manager.ports.clock import Clock
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


# Has the kubelet try again what it could not prepare.
# A kubelet that fails to prepare a pod's claims, because this agent was just being replaced or a card was
# still in use, looks at the pod again only at its next full round: 60 to 90 s later with its default period
# (seen on kubelet 1.36.3). A change of the pod's annotations makes it look at once.


LOOK_SECONDS = 1.0
FIRST_SECONDS = 3.0  # the kubelet prepares a new pod within a few tenths of one
LONGEST_SECONDS = 30.0  # between two tries of one pod
TRIES = 10  # in three to four minutes; then the kubelet's own rounds have to do


@dataclass(slots=True)
class _Wait:
    """Of one pod: when the kubelet is made to look next, how long after that, and how often still."""

    due: float
    pause: float = FIRST_SECONDS
    left: int = TRIES  # 0 as well where none of its claims is ours


@dataclass(eq=False, repr=False)
class PrepareAgain:
    """Call :meth:`look` every :data:`LOOK_SECONDS`, from one thread.

    ``registrations`` is how often the kubelet has taken the driver, 0 while it has not; ``is_prepared`` is
    true of a claim, by namespace and name, that was prepared since this agent started.
    """

    registrations: Callable[[], int]
    is_prepared: Callable[[str, str], bool]
    claims: Claims
    pods: Pods
    clock: Clock

    def __post_init__(self) -> None:
        self._seen = 0  # registrations
        self._waiting: dict[PodUid, _Wait] = {}

    def look(self) -> None:
        """Annotate each pod that has waited for its claims for some seconds, or since before the driver was
        registered; again after twice the time, as long as it waits.
        """
        registrations = self.registrations()
        if not registrations:
            return
        now, anew = self.clock.monotonic(), registrations != self._seen
        pods = {pod.uid: pod for pod in self._pending()}
        if anew:
            self._seen, self._waiting = registrations, {}
        first = now if anew else now + FIRST_SECONDS
        self._waiting = {uid: self._waiting.get(uid) or _Wait(first) for uid in pods}
        for uid, wait in self._waiting.items():
            if wait.left and wait.due <= now:
                self._have_tried(pods[uid], wait, now)

    def _have_tried(self, pod: Pod, wait: _Wait, now: float) -> None:
        try:
            ours = self._is_ours(pod)
        except NodeUnready:
            return  # the API server is away, and the kubelet needs it, too
        wait.left = wait.left - 1 if ours else 0
        if not ours:
            return
        log.info("prepare_again", pod=pod.key)
        self.pods.annotate(pod, {PREPARE_AGAIN: str(int(self.clock.now() * 1000))})
        wait.due, wait.pause = now + wait.pause, min(2 * wait.pause, LONGEST_SECONDS)

    def _pending(self) -> list[Pod]:
        """The pods of this node with a container that has not started and names a claim not prepared yet."""
        living = (f.pod for found in self.pods.local().values() for f in found if not f.tombstone)
        return [
            pod
            for pod in living
            if not (pod.terminal or pod.deleting) and any(self._lacks(pod, name) for name in _unstarted(pod))
        ]

    def _lacks(self, pod: Pod, claim: str) -> bool:
        return not self.is_prepared(pod.namespace, claim)

    def _is_ours(self, pod: Pod) -> bool:
        """True if one of the claims was allocated a card. Raises NodeUnready."""
        for name in _unstarted(pod):
            try:
                if self.claims.read(pod.namespace, name) is not None:
                    return True
            except RequestInvalid:
                continue  # of another driver, or one that will be refused again
        return False


def _unstarted(pod: Pod) -> list[str]:
    return [name for one in pod.containers if not one.running and not one.over for name, _ in one.claims]


ORDER_SECONDS = 5.0  # between two publications that differ in the order of the cards alone
RETRY_SECONDS = 5.0  # after an attempt that failed
REPAIR_SECONDS = 60.0  # between two looks at what others may have changed


@dataclass(eq=False, repr=False)
class SlicePublisher:
    """``look`` is called by one thread; ``trouble`` may be read by any.

    ``minimum_cores`` is the smallest part of a card that the cluster gives, in hundredths.
    """

    state: NodeState
    slices: Slices
    clock: Clock
    metrics: ServiceMetrics
    minimum_cores: int
    policy: PlacementPolicy = PlacementPolicy.BINPACK

    def __post_init__(self) -> None:
        self._told: tuple[SharedDevice, ...] | None = None
        self._told_at = self._failed_at = float("-inf")
        self.trouble = ""
        """Why the devices are not published, for /readyz; empty while they are."""

    def look(self) -> bool:
        """Publish the devices if it is time; True if the slice was written."""
        devices, now = self._devices(), self.clock.monotonic()
        if not self._due(devices, now):
            return False
        try:
            written = self.slices.publish(devices)
        except NodeUnready as error:
            self.metrics.slice_failures.inc()
            self.metrics.slice_unpublished.set(1)
            if self.trouble != str(error):
                log.error("slice_not_published", reason=str(error))
            self.trouble, self._failed_at = str(error), now
            return False
        self.trouble = ""
        self.metrics.slice_unpublished.set(0)
        self._told, self._told_at = devices, now
        if written:
            log.info("slice_published", devices=[device.name for device in devices])
        return written

    def run(self, stop: threading.Event, news: threading.Event, seconds: float = 1.0) -> None:
        """Publish until stopped: when there are ``news``, and every so many seconds."""
        while not stop.is_set():
            self.look()
            news.wait(seconds)
            news.clear()

    def _devices(self) -> tuple[SharedDevice, ...]:
        view = self.state.view
        used = {state.card.uuid: view.ledger.booked(state.card.uuid) for state in view.node.cards}
        return published_devices(
            view.node.cards, used, self.policy, view.node.unit, self.minimum_cores, sides=view.sides
        )

    def _due(self, devices: Sequence[SharedDevice], now: float) -> bool:
        if now - self._failed_at < RETRY_SECONDS:
            return False
        if self._told is None or now - self._told_at >= REPAIR_SECONDS:
            return True
        if tuple(devices) == self._told:
            return False
        return _by_name(devices) != _by_name(self._told) or now - self._told_at >= ORDER_SECONDS


def _by_name(devices: Sequence[SharedDevice]) -> dict[str, SharedDevice]:
    return {device.name: device for device in devices}
