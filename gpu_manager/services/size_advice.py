"""What the containers of this node need, by workload, and what size is advised for them.

Demand is kept by template: all replicas of a Deployment here are one, and pods that have gone count for it.
It is stored, so that a day of watching outlives the agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from gpu_manager.domain.advice.demand import DAY, DAYS, STRETCH_SECONDS, Demand
from gpu_manager.domain.advice.size import AdvicePolicy, Sized, Workload, advise, largest
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.records import Store
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

WALK_SECONDS: Final = 60.0  # between two looks at containers of which nothing has changed
FIRST_SECONDS: Final = 5.0  # between two looks before anything was told, as after a start
SAVE_SECONDS: Final = 300.0
WORKLOADS_MOST: Final = 2000  # the one that was seen longest ago goes first
_LONGEST_READING: Final = 5.0  # seconds; a longer gap between two samples says nothing of its time


@dataclass(slots=True)
class _Seen:
    """One container's last figures, and the stretch of work that is being added up."""

    use: ShareUse
    at: float
    seconds: float = 0.0
    busy: float = 0.0
    held_back: float = 0.0
    in_flight: float = 0.0


@dataclass(eq=False, repr=False)
class SizeAdviser:
    """One thread adds samples; ``told`` may be read from any thread."""

    pods: Pods
    store: Store
    clock: Clock
    metrics: ServiceMetrics
    policy: AdvicePolicy
    half_life: float

    def __post_init__(self) -> None:
        self._demands: dict[Workload, Demand] = {}
        self._started: dict[Workload, set[str]] = {}  # runtime ids of containers whose start is counted
        self._last: dict[Workload, float] = {}  # seconds since 1970 at which one of its containers was seen
        self._seen: dict[Key, _Seen] = {}
        self._local: Mapping[PodUid, Pod] = {}
        self._walked = self._saved = self.clock.monotonic()
        self._shares: tuple[ShareUse, ...] | None = None
        self._grants: Mapping[Key, Grant] | None = None
        self.told: tuple[Sized, ...] = ()

    def restore(self) -> None:
        """Continue from the disk."""
        try:
            stored = self.store.load()
            for namespace, workload, container, last, started, row in json.loads(stored) if stored else ():
                place = str(namespace), str(workload), str(container)
                self._started[place] = {str(one) for one in started}
                self._demands[place] = Demand.decode(row, self.half_life)
                self._last[place] = float(last)
        except (NodeUnready, ValueError, TypeError) as error:
            for kept in (self._demands, self._last, self._started):
                kept.clear()
            log.error("demands_lost", reason=str(error))
            self.metrics.scrape_errors.labels("demands").inc()

    def add(self, sample: Sample, unit: int) -> None:
        """Take in a sample of usage; ``unit`` is bytes of a unit of memory."""
        walk = sample.at - self._walked >= (WALK_SECONDS if self.told else FIRST_SECONDS)
        booked = sample.grants is not self._grants  # another size of a container is told at once
        if sample.shares is self._shares and not (walk or booked):
            return
        self._shares, self._grants = sample.shares, sample.grants
        now = self.clock.now()
        if walk:
            self._walked = sample.at
            self._local = {f.pod.uid: f.pod for named in self.pods.local().values() for f in named}
        for use in sample.shares:
            self._look(use, sample, now, walk=walk)
        if walk:
            self._forget(sample, now)
        if walk or (booked and self.told):
            self.told = tuple(self._sized(sample, now, unit))
        if walk and sample.at - self._saved >= SAVE_SECONDS:
            self._save(sample.at)

    def _look(self, use: ShareUse, sample: Sample, now: float, *, walk: bool) -> None:
        before = self._seen.get(use.key)
        if before is not None and before.use is use and not walk and not before.seconds:
            before.at = sample.at
            return
        place = self._workload(use.key, sample)
        if place is None or use.memory is None:
            return
        demand = self._demands.get(place)
        if demand is None:
            demand = self._demands[place] = Demand(now, starts=0, half_life=self.half_life)
        self._last[place] = now
        demand.held(use.held or 0, now)
        seen = self._seen.setdefault(use.key, _Seen(use, sample.at))
        if walk:
            self._count_start(place, demand, use.key)
        if (use.refusals or 0) > (seen.use.refusals or 0):
            demand.refused(use.memory + use.refused_bytes, now)
        self._work(demand, seen, use, sample.at, now)
        seen.use, seen.at = use, sample.at

    @staticmethod
    def _work(demand: Demand, seen: _Seen, use: ShareUse, at: float, now: float) -> None:
        """Add the time since the last sample to the stretch, and the stretch to the demand once it is
        long.
        """
        seconds = at - seen.at
        held_back = max(0.0, use.held_idle - seen.use.held_idle)
        busy = (use.core or 0.0) * seconds
        in_flight = max(busy, use.in_flight - seen.use.in_flight)
        if 0 < seconds <= _LONGEST_READING and (busy or held_back or seen.busy):
            seen.seconds += seconds
            seen.busy += busy
            seen.held_back += held_back
            seen.in_flight += in_flight
        if seen.seconds >= STRETCH_SECONDS:
            demand.worked(seen.seconds, seen.busy, seen.held_back, now, seen.in_flight)
            seen.seconds = seen.busy = seen.held_back = seen.in_flight = 0.0

    def _workload(self, key: Key, sample: Sample) -> Workload | None:
        """The workload of a container that holds a share of one card; None for any other."""
        grant, pod = sample.grants.get(key), self._local.get(key[0])
        if grant is None or pod is None or len(grant.allocation.shares) != 1 or key in sample.ended:
            return None
        return pod.namespace, pod.workload, key[1]

    def _count_start(self, place: Workload, demand: Demand, key: Key) -> None:
        """Count the container's start, once: an agent that starts meets containers that it knew before."""
        container, known = self._local[key[0]].container(key[1]), self._started.setdefault(place, set())
        if container is not None and container.runtime_id and container.runtime_id not in known:
            known.add(container.runtime_id)
            demand.starts += 1

    def _sized(self, sample: Sample, now: float, unit: int) -> Iterator[Sized]:
        members: dict[Workload, list[Key]] = {}
        for key in sample.grants:
            if (place := self._workload(key, sample)) is not None and place in self._demands:
                members.setdefault(place, []).append(key)
        for place, keys in members.items():
            given = largest(sample.grants[key].allocation.shares[0].amount for key in keys)
            need = self._demands[place].need(now, self.policy.percentile)
            pods = sorted((self._local[key[0]].name, key[0]) for key in keys)
            names, uids = tuple(name for name, _ in pods), tuple(uid for _, uid in pods)
            advice, margin = advise(need, given, unit, self.policy), self.policy.margin
            yield Sized(place, names, given, unit, need, advice, uids, margin)

    def _forget(self, sample: Sample, now: float) -> None:
        """Drop containers that have gone, workloads unseen for a week, and the oldest beyond the most."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in sample.grants}
        if there := {c.runtime_id for pod in self._local.values() for c in pod.containers}:
            self._started = {place: known & there for place, known in self._started.items()}
        oldest = sorted(self._last, key=self._last.__getitem__)
        surplus = len(oldest) - WORKLOADS_MOST
        for rank, place in enumerate(oldest):
            if rank < surplus or now - self._last[place] > DAYS * DAY:
                del self._demands[place], self._last[place]
                self._started.pop(place, None)

    def _save(self, at: float) -> None:
        self._saved = at
        rows: list[list[Any]] = [
            [*place, self._last[place], sorted(self._started.get(place, ())), demand.encode()]
            for place, demand in self._demands.items()
        ]
        try:
            self.store.save(json.dumps(rows).encode())
        except NodeUnready as error:
            log.error("demands_not_saved", reason=str(error))
            self.metrics.scrape_errors.labels("demands").inc()
