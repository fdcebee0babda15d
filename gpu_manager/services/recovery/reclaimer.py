"""Releases shares of ended pods, when two rounds found them absent from both kubelet and API.

The thorough way, taken every few seconds; :mod:`gpu_manager.services.allocation.reclaim` is the quick one, at
each GetPreferredAllocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.ports.api_server import KnownPod, Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Injector, Processes
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.ports.records import CheckpointEntry, Kubelet
from gpu_manager.services.allocation.admission_window import AdmissionWindow
from gpu_manager.services.allocation.books import Key
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.allocation.reclaim import DepartedPods, living_pods
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 60.0  # after a registration the kubelet lists its pods one by one: absence proves nothing
ABSENT_ROUNDS = 2  # in a row that neither the kubelet nor the API server knows a holder: then it is gone
LOOK_SECONDS = 2.0  # between two looks whether a round is due
HURRY_SECONDS = 20.0  # after a pod has ended: its processes mostly end within a few seconds


@dataclass(eq=False, repr=False)
class Reclaimer:
    """Releases what ended pods held, after two rounds, and removes directories that no grant names.

    ``seconds``: between two rounds of :meth:`look` while no pod ends.
    """

    state: NodeState
    window: AdmissionWindow
    departed: DepartedPods
    kubelet: Kubelet
    pods: Pods
    tenants: ControlPages
    injector: Injector
    processes: Processes
    clock: Clock
    metrics: ServiceMetrics
    seconds: float

    def __post_init__(self) -> None:
        self._rounded = float("-inf")
        self._ended: dict[PodUid, float] = {}  # holders that the API has no longer, and since when
        self._absent: dict[Key, int] = {}
        self._all_living: tuple[StateView, Mapping[str, Sequence[KnownPod]]] | None = None
        self._orphans: frozenset[str] = frozenset()
        self._stuck = set[str]()

    def look(self) -> tuple[Allocation, ...]:
        """A round if it is time for one: at each look for a while after a pod has ended, since what it holds
        beyond its device ids comes back by no other way.
        """
        now, view = self.clock.monotonic(), self.state.view
        ended = self._without_pod(view, self.pods.local())
        if unnamed := set(filter(is_unidentified, ended)):
            ended -= unnamed  # of these the pods, which are named only in the kubelet's checkpoint
            entries = self.kubelet.checkpoint() or ()
            held = (g.ids for key, g in view.grants.items() if key[0] in unnamed)
            ended |= {e.pod for ids in held for e in _entries_of(ids, entries)} & self._known_ended()
        self._ended = {uid: self._ended.get(uid, now) for uid in ended}
        hurries = any(now - since < HURRY_SECONDS for since in self._ended.values())
        if not hurries and now - self._rounded < self.seconds:
            return ()
        self._rounded = now
        return self.round()

    def _without_pod(self, view: StateView, local: Mapping[str, Sequence[KnownPod]]) -> set[PodUid]:
        """The holders that the API has not, or has as ended; neither argument is ever changed in place."""
        if self._all_living is not None and self._all_living[0] is view and self._all_living[1] is local:
            return set()
        ended = set(view.ledger.pods) - living_pods(local)
        self._all_living = None if ended else (view, local)
        return ended

    def round(self) -> tuple[Allocation, ...]:
        """One round; returns what was released."""
        view = self.state.view
        unnamed = {key: g.ids for key, g in view.grants.items() if is_unidentified(g.allocation.pod)}
        entries = self.kubelet.checkpoint()
        listing = self.active()
        if self.clock.monotonic() - self.window.registered_at < SETTLE_SECONDS:
            self._absent = {}
            self._sweep()
            return ()
        held = (a for a in view.ledger if a.claim is None)  # claims are released as the kubelet says
        gone = {a.key for a in held if self._gone(a, entries, listing, unnamed.get(a.key))}
        self._absent = {key: self._absent.get(key, 0) + 1 for key in gone}
        due = [key for key, rounds in self._absent.items() if rounds >= ABSENT_ROUNDS]
        released = self.state.release([key for key in due if self.processes.alive(key[0]) is not True])
        for allocation in released:
            self.metrics.allocations_reclaimed.inc()
            log.info("reclaimed", pod=allocation.pod_key, container=allocation.container)
        self._sweep()
        return released

    def active(self) -> frozenset[tuple[str, str]] | None:
        """Pods that are active for the kubelet; None while it admits one or does not answer."""
        try:
            return self.window.when_idle(lambda: frozenset(self.kubelet.listing()))
        except NodeUnready:
            return None

    def _gone(
        self,
        allocation: Allocation,
        entries: Sequence[CheckpointEntry] | None,
        listing: frozenset[tuple[str, str]] | None,
        ids: Mapping[str, frozenset[str]] | None,
    ) -> bool:
        """Absent from the kubelet's books *and* from the API; one of the two alone proves nothing."""
        if ids is not None:
            return entries is not None and all(self._over(e.pod) for e in _entries_of(ids, entries))
        if self._living(allocation):
            return False
        if not allocation.granted:
            return True
        if entries is not None and not any((e.pod, e.container) == allocation.key for e in entries):
            return True
        if listing is None or (allocation.namespace, allocation.pod_name) in listing:
            return False
        # The checkpoint may show an ended pod until the next admission. A new kubelet lists its pods one by
        # one: not to be listed counts if the pod was before, or if nothing of it runs for certain.
        return self.departed.seen(allocation.pod) or self.processes.alive(allocation.pod) is False

    def _over(self, uid: PodUid) -> bool:
        """True if the API showed the pod's end and nothing of it runs: the kubelet keeps its entries until
        the next admission.
        """
        return uid in self._known_ended() and self.processes.alive(uid) is False

    def _known_ended(self) -> set[PodUid]:
        known = (f for found in self.pods.local().values() for f in found)
        return {f.pod.uid for f in known if f.tombstone or f.pod.terminal}

    def _living(self, allocation: Allocation) -> bool:
        """Pods that the API has; only a forged mirror of a static pod could have another's UID. Of one that
        cannot be read the kubelet alone says whether it has ended.
        """
        return any(
            f.pod.uid == allocation.pod
            and (not allocation.pod_name or f.pod.key == allocation.pod_key)
            and not (f.tombstone or f.unread or f.pod.terminal)
            for found in self.pods.local().values()
            for f in found
        )

    def _sweep(self) -> None:
        """Remove directories that no grant named in two rounds; one that cannot be removed is left to the
        next agent, which may have the right, and keeps nothing else from being given back.
        """
        named = frozenset(g.directory for g in self.state.view.grants.values())
        orphans = frozenset(self.tenants.names()) - named
        for name in (orphans & self._orphans) - self._stuck:
            try:
                self.tenants.remove(name)
            except NodeUnready as error:
                self._stuck.add(name)
                log.warning("directory_stays", directory=name, reason=str(error))
            else:
                log.info("directory_removed", directory=name)
        self._orphans = orphans
        self.injector.prune(named)


def _entries_of(
    ids: Mapping[str, frozenset[str]], entries: Sequence[CheckpointEntry]
) -> Sequence[CheckpointEntry]:
    """The entries of the checkpoint with exactly these ids, by resource."""
    return [e for e in entries if e.ids == ids.get(e.resource)]
