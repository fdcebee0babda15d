"""Finds containers that bypass the library, by comparing the driver's figures with their pages.

:mod:`gpu_manager.domain.enforcement.evasion` decides on the figures of several samples. This service collects
them and reports evaders by an Event, a log line, a metric and, if enabled, an eviction. A container with a
figure that could not be read is not judged.

One of the figures is memory that the driver counts for a container beyond its account: memory that is not
charged, memory that is charged but gone, and memory that the driver counts for several processes at once;
:mod:`gpu_manager.domain.enforcement.driver_overhead` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import EVENT_EVADER
from gpu_manager.domain.enforcement.driver_overhead import (
    NO_EXCESS,
    CountedTwice,
    Excess,
    Unaccounted,
    divide_twice,
)
from gpu_manager.domain.enforcement.evasion import (
    EVICTABLE,
    ContainerEvidence,
    EvasionReason,
    SharedTime,
    Suspicion,
    busy_of,
    judge,
    weigh,
)
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.containers import HostProcesses
from gpu_manager.ports.control_pages import PageEvidence, TenantUse
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.time_sharing import SliceCheck
from gpu_manager.services.enforcement.usage_sample import (
    DriverSample,
    PageSlots,
    Place,
    Sample,
    ShareUse,
    described,
    is_beside_others,
    pods_by_uid,
    users_of,
    without_slots,
)
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Twice:
    """Bytes of one container that the driver counts more than once: confirmed by several samples, and now."""

    lasting: int = 0
    now: int = 0


_NONE = _Twice()


class MemoryPastAccount:
    """Processes one sample: :meth:`begin`, then :meth:`added` for each container whose page was read."""

    def __init__(self, last_read: Callable[[Place], TenantUse | None]) -> None:
        """``last_read``: the container's usage of the card when its page was last read."""
        self._last_read = last_read
        self._driver = DriverSample()
        self._looked_ns = 0
        self._unaccounted: dict[Place, Unaccounted] = {}
        self._counted_twice: dict[CardUuid, CountedTwice] = {}
        self._twice: Mapping[Place, _Twice] = {}

    def begin(self, driver: DriverSample, looked_ns: int) -> None:
        """Begin a sample of the driver. ``looked_ns`` (CLOCK_MONOTONIC) is a time before it was read."""
        self._driver, self._looked_ns = driver, looked_ns
        self._counted_twice = self._counted_twice_by_card()
        self._twice = self._counted_twice_by_place()

    def added(self, use: ShareUse) -> ShareUse:
        """The usage with the memory that its account lacks; with the last figure if the driver has none."""
        if use.enforcement != "active" or use.memory is None:
            return use
        processes = self._driver.of(use.place)
        before = self._unaccounted.get(use.place)
        if not processes and before is None:
            return use  # most containers idle most of the time
        twice = self._twice.get(use.place, _NONE)
        known = [p.memory for p in processes if p.memory is not None]
        found, excess = before or Unaccounted(), NO_EXCESS
        if use.share.card in self._driver.cards and len(known) == len(processes):
            counted = sum(known)
            found = found.seen(counted - twice.lasting, use.memory, use.share.amount.memory)
            if processes:
                self._unaccounted[use.place] = found
                excess = self._excess(use.place, counted, use.memory)
            else:
                self._unaccounted.pop(use.place)
        if found.bytes == use.beyond and excess == use.excess and twice.now == use.twice:
            return use
        return replace(use, beyond=found.bytes, excess=excess, twice=twice.now)

    def follows(self, place: Place) -> bool:
        """True while the container's figure may change although the container does nothing."""
        return place in self._unaccounted

    def forget_all_but(self, grants: Collection[Key]) -> None:
        """Forget all containers but these."""
        self._unaccounted = {place: one for place, one in self._unaccounted.items() if place[0] in grants}

    def _excess(self, place: Place, counted: int, account: int) -> Excess:
        read = self._last_read(place)
        if read is None or not read.untold:
            return NO_EXCESS
        return Excess.seen(self._looked_ns, counted, account, read.movable)

    def _counted_twice_by_card(self) -> dict[CardUuid, CountedTwice]:
        """By card, what the driver counts twice, for cards that report their used memory and all their
        processes.
        """
        held: dict[CardUuid, list[int | None]] = {}
        for process in self._driver.processes:
            held.setdefault(process.uuid, []).append(process.memory)
        found: dict[CardUuid, CountedTwice] = {}
        for card, each in held.items():
            said = self._driver.cards.get(card)
            known = [memory for memory in each if memory is not None]
            if said is not None and said.memory_used is not None and len(known) == len(each):
                before = self._counted_twice.get(card, CountedTwice())
                found[card] = before.seen(sum(known), said.memory_used)
        return found

    def _counted_twice_by_place(self) -> Mapping[Place, _Twice]:
        """The cards' figures, divided among the containers with a page."""
        beyond: dict[CardUuid, dict[Place, int]] = {}
        for place, own in self._driver.by_place.items():
            counted, read = self._counted_twice.get(place[1]), self._last_read(place)
            if counted is not None and counted.now and read is not None:
                driver = sum(process.memory or 0 for process in own)
                beyond.setdefault(place[1], {})[place] = driver - read.memory
        found: dict[Place, _Twice] = {}
        for card, parts in beyond.items():
            lasting = divide_twice(self._counted_twice[card].bytes, parts)
            now = divide_twice(self._counted_twice[card].now, parts)
            found |= {place: _Twice(lasting[place], now[place]) for place in parts}
        return found


@dataclass(frozen=True, slots=True)
class Evader:
    """A container reported as evader, as in the metric. ``evidence`` dates from the report."""

    namespace: str
    pod: str
    container: str
    card: CardUuid
    reason: EvasionReason
    evidence: str


@dataclass(frozen=True, slots=True)
class _Case:
    suspicion: Suspicion = field(default_factory=Suspicion)
    evidence: str = ""
    told: bool = False


_Place = tuple[Key, CardUuid]
_Accused = tuple[_Place, EvasionReason]


@dataclass(eq=False, repr=False)
class EvasionDetector:
    """Judges each sample. One thread calls ``look``; any may read ``evaders`` and ``blind``.

    ``evict``: evict evaders that a controller recreates. ``leases``: the cards whose gates cannot be
    opened because of a lease, with the PIDs that hold it.
    """

    state: NodeState
    last_sample: Callable[[], Sample]
    pods: Pods
    witness: PageEvidence
    host: HostProcesses
    metrics: ServiceMetrics
    _: KW_ONLY
    evict: bool
    leases: Callable[[], Mapping[CardUuid, Sequence[int]]] = dict

    def __post_init__(self) -> None:
        self._slots = PageSlots(self.witness, self.host)
        self._seen_at: float | None = None
        self._clean: tuple[object, ...] = ()  # what was judged last, if there was nothing to report
        self._cases: Mapping[_Accused, _Case] = {}
        self._attacks: dict[str, int] = {}
        self._time = SharedTime()
        self._slices = SliceCheck()
        self._evicted: frozenset[PodUid] = frozenset()
        self.evaders: tuple[Evader, ...] = ()
        self.blind: frozenset[str] = frozenset()
        """What the detector lacks: ``host-pid`` (the node's processes), ``cards`` (the driver's figures)."""

    def look(self) -> None:
        """Judge the last sample, if it is new and not empty."""
        sample = self.last_sample()
        if sample.at == self._seen_at:
            return
        first, self._seen_at = self._seen_at is None, sample.at
        if first and not sample.grants and not sample.cards:
            return  # no sample yet
        self.blind = frozenset(
            lack
            for lack, there in (("host-pid", self.host.host_pid()), ("cards", bool(sample.cards)))
            if not there
        )
        if self._nothing_new(sample):
            return
        pods = pods_by_uid(self.pods.local())
        grants = {key: grant for key, grant in sample.grants.items() if key not in sample.ended}
        self._weigh(self._verdicts(sample, pods), grants, pods)
        self._time.forget(sample.processes.keys())

    def _nothing_new(self, sample: Sample) -> bool:
        """True if no process uses a card, in this sample and in the one judged before, there was nothing to
        report then, and no page was changed illegally since. Most nodes idle most of the time.
        """
        before, tampering = self._clean, self.witness.tampering()
        self._clean = (
            () if self.leases() or sample.processes else (sample.shares, sample.grants, self.blind, tampering)
        )
        if self._cases or not before or not self._clean:
            return False
        return before[0] is sample.shares and before[1] is sample.grants and before[2:] == self._clean[2:]

    def _verdicts(self, sample: Sample, pods: Mapping[PodUid, Pod]) -> dict[_Accused, str]:
        """The verdict on every container, for each card that it uses, was granted, or was reported for."""
        uses = {(use.key, use.share.card): use for use in sample.shares}
        accused = {place for place, _ in self._cases}
        places = {*uses, *sample.processes, *accused}
        known = {grant.directory for grant in sample.grants.values()}
        self._attacks = {name: count for name, count in self._attacks.items() if name in known}
        return {
            (place, reason): evidence
            for place in places
            if place[0] in sample.grants or place[0][0] in pods
            if place in accused or not self._is_quiet(place, uses.get(place), sample)
            for reason, evidence in judge(self._facts(place, uses.get(place), sample, pods)).items()
        } | {**self._lease_holders(pods), **self._slices.verdicts(sample)}

    def _lease_holders(self, pods: Mapping[PodUid, Pod]) -> dict[_Accused, str]:
        """Containers whose lease on the gate's file keeps the agent or the watcher from opening the gate."""
        found = {}
        for card, pids in self.leases().items():
            for pid in pids:
                uid, container_id = self.host.container_of(pid) or ("", "")
                pod = pods.get(PodUid(uid))
                for container in pod.containers if pod is not None else ():
                    if container.runtime_id == container_id:
                        place = (PodUid(uid), container.name), card
                        found[place, EvasionReason.TAMPERED] = (
                            f"process {pid} holds a lease on the card's gate: until the kernel ends it, "
                            "protected containers of the card wait as normal ones do"
                        )
        return found

    def _is_quiet(self, place: _Place, use: ShareUse | None, sample: Sample) -> bool:
        """True if there is nothing to judge: no process on the card, and a sound, unchanged page.

        Most containers are idle most of the time; this check keeps an idle agent cheap.
        """
        grant = sample.grants.get(place[0])
        if grant is None or use is None or use.enforcement != "active" or sample.processes.get(place):
            return False
        return self.witness.attacks(grant.directory)[0] == self._attacks.get(grant.directory, 0)

    def _facts(
        self, place: _Place, use: ShareUse | None, sample: Sample, pods: Mapping[PodUid, Pod]
    ) -> ContainerEvidence:
        key, card = place
        grant = sample.grants.get(key)
        seen = sample.processes.get(place, ())
        there = card in sample.cards and "host-pid" not in self.blind
        if grant is None and _asks(pods.get(key[0]), key[1]):
            return ContainerEvidence(None, held=False)  # the kubelet gave it a card: the ledger is incomplete
        if use is None:
            return ContainerEvidence(without_slots(seen) if there else None, held=False)
        if grant is None:
            return ContainerEvidence(None, held=True)  # released between the sampler's two reads
        if use.enforcement == "exclusive" or not grant.directory:
            return ContainerEvidence(without_slots(seen) if there else None, held=True)
        processes = self._slots.of(grant.directory, seen) if there else None
        shared = is_beside_others(seen, sample.busy.get(card, 0.0))
        active = use.enforcement == "active"
        busy, claimed = self._time.seen(
            place, busy_of(processes or ()), use.core if active else None, shared=shared
        )
        return ContainerEvidence(
            processes,
            held=True,
            limited=True,
            memory_limit=use.share.amount.memory,
            ceiling=max(grant.ceiling, use.share.amount.cores) / CORES_PER_CARD,
            claimed_memory=use.memory if active else None,
            claimed_busy=claimed,
            seen_busy=busy,
            tampering=self._tampering(grant, use),
            admin=grant.allocation.is_admin,
            twice=use.twice,
            unreadable=use.reason if use.enforcement == "unknown" else "",
        )

    def _tampering(self, grant: Grant, use: ShareUse) -> str | None:
        count, what = self.witness.attacks(grant.directory)
        before, self._attacks[grant.directory] = self._attacks.get(grant.directory, 0), count
        if count > before:
            return f"its pages were changed as the library never does it: {what}"
        return "" if use.enforcement == "active" else None

    def _weigh(
        self, verdicts: Mapping[_Accused, str], grants: Mapping[Key, Grant], pods: Mapping[PodUid, Pod]
    ) -> None:
        cases: dict[_Accused, _Case] = {}
        evaders = []
        shown = {accused for accused, evidence in verdicts.items() if evidence}
        for accused in sorted(shown | self._cases.keys(), key=str):
            ((key, card), reason), before = accused, self._cases.get(accused, _Case())
            grant = grants.get(key)
            users = users_of(key, grant, pods)
            if grant is None and not users:
                continue  # the container is gone or has ended, and its verdict with it
            case = before
            if (evidence := verdicts.get(accused)) is not None:
                suspicion = weigh(before.suspicion, reason, shown=bool(evidence))
                case = _Case(suspicion, evidence or before.evidence, before.told and suspicion.named)
            evader = _evader(key, card, reason, case.evidence, grant, users[0] if users else None)
            if case.suspicion.named:
                evaders.append(evader)
                if not before.suspicion.named:
                    self._name(evader)
                if users and not case.told:
                    for pod in users:
                        self._tell(evader, pod, grant)
                    case = replace(case, told=True)
            elif before.suspicion.named:
                log.info("evasion_ended", **_fields(evader))
            if case.suspicion.named or case.suspicion.seen:
                cases[accused] = case
        self._cases, self.evaders = cases, tuple(evaders)
        self._evicted &= frozenset(pods)

    def _name(self, evader: Evader) -> None:
        self.metrics.evaders_named.labels(evader.reason.value).inc()
        log.error("evasion_detected", **_fields(evader), evidence=evader.evidence)

    def _tell(self, evader: Evader, pod: Pod, grant: Grant | None) -> None:
        """Report an evader; a pod without a grant is reported too, but never evicted."""
        card = self.state.node.index(evader.card)
        text = f"{described(evader.container, grant)} on card {card}: {evader.evidence}"
        evicts = self.evict and grant is not None and pod.controlled and evader.reason in EVICTABLE
        if evicts and pod.uid not in self._evicted:
            self._evicted |= {pod.uid}
            log.warning("evading_pod_evicted", **_fields(evader))
            self.pods.evict(pod, text)
            text += "; the pod is evicted"
        self.pods.event(pod, EVENT_EVADER, text, warning=True)


def _asks(pod: Pod | None, name: str) -> bool:
    container = pod.container(name) if pod else None
    return container is None or container.asks


def _evader(
    key: Key, card: CardUuid, reason: EvasionReason, evidence: str, grant: Grant | None, pod: Pod | None
) -> Evader:
    namespace, name = (pod.namespace, pod.name) if pod else ("", "")
    if grant is not None:
        namespace, name = grant.allocation.namespace or namespace, grant.allocation.pod_name or name
    return Evader(namespace, name, key[1], card, reason, evidence)


def _fields(evader: Evader) -> dict[str, str]:
    return {
        "pod": f"{evader.namespace}/{evader.pod}",
        "container": evader.container,
        "card": evader.card,
        "reason": evader.reason.value,
    }
