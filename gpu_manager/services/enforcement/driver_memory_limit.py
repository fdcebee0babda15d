"""Sets a second memory limit, in the driver or the kernel, once a container's cgroup exists.

The limit is the container's memory plus room for one context and its code: it stops programs that bypass the
library, and must never affect a program within its share. It ends with the container.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.evasion import CONTEXT_BYTES
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.api_server import KnownPod, Pods
from gpu_manager.ports.cards import DriverMemoryLimitSetter
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.container_grants import ContainerGrants
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

RETRY_SECONDS = 60.0  # until the next attempt where no kind worked: the driver may be upgraded meanwhile
NONE = "none"


class DriverMemoryLimits:
    """Sets the limits. One thread calls ``look``; any may read ``kinds``."""

    def __init__(
        self,
        state: NodeState,
        pods: Pods,
        setter: DriverMemoryLimitSetter,
        clock: Clock,
        metrics: ServiceMetrics,
    ) -> None:
        self._state = state
        self._pods = pods
        self._setter = setter
        self._clock = clock
        self._metrics = metrics
        self._containers = ContainerGrants()
        self._held: dict[tuple[str, CardUuid], str | None] = {}
        self._retry: dict[tuple[str, CardUuid], float] = {}
        self._last: tuple[object, object, Mapping[tuple[str, CardUuid], int]] | None = None
        self._looked: object = None
        self._next = 0.0  # when to retry if nothing changes
        self.kinds: Mapping[str, int] = {}
        """How many limits each holder keeps; ``none`` counts those that nobody does."""

    def look(self) -> None:
        """Set the limits of new containers, and drop those of ended ones."""
        wanted, now = self._wanted(), self._clock.monotonic()
        if wanted is self._looked and now < self._next:
            return
        for place in [place for place in self._held if place not in wanted]:
            self._let_go(*place)
        self._retry = {place: at for place, at in self._retry.items() if place in wanted}
        for place, limit in wanted.items():
            if self._held.get(place) is None and now >= self._retry.get(place, now):
                self._hold(*place, limit)
        unheld = (self._retry.get(place, now) for place in wanted if self._held.get(place) is None)
        self._looked, self._next = wanted, min(unheld, default=math.inf)
        self.kinds = Counter(kind or NONE for kind in (self._held.get(place) for place in wanted))

    def _wanted(self) -> Mapping[tuple[str, CardUuid], int]:
        """(container id, card) → bytes, for every fraction whose container exists.

        Recomputed only if grants or pods have changed: neither mapping is ever changed in place.
        """
        grants, pods = self._state.view.grants, self._pods.local()
        if self._last is None or self._last[0] is not grants or self._last[1] is not pods:
            self._last = grants, pods, self._limits(grants, pods)
        return self._last[2]

    def _limits(
        self, grants: Mapping[Key, Grant], pods: Mapping[str, Sequence[KnownPod]]
    ) -> dict[tuple[str, CardUuid], int]:
        limited: dict[Key, tuple[Limit, ...]] = {
            key: limits_of(grant) for key, grant in grants.items() if grant.proven
        }
        gone = {f.pod.uid for found in pods.values() for f in found if f.tombstone}
        return {
            (runtime_id, limit.card): limit.memory + CONTEXT_BYTES
            for (uid, runtime_id), keys in self._containers.of(pods, grants).items()
            if uid not in gone
            for key in keys
            for limit in limited.get(key, ())
        }

    def _hold(self, container_id: str, card: CardUuid, limit: int) -> None:
        place = (container_id, card)
        try:
            kind = self._setter.hold(container_id, card, limit)
        except NodeUnready as error:
            log.debug("driver_memory_limit_pending", container=container_id[:12], reason=str(error))
            return
        self._held[place] = kind
        if kind is None:
            self._retry[place] = self._clock.monotonic() + RETRY_SECONDS
        else:
            log.info("driver_memory_limit_set", container=container_id[:12], card=card, bytes=limit, by=kind)

    def _let_go(self, container_id: str, card: CardUuid) -> None:
        if self._held.pop((container_id, card)) is None:
            return
        try:
            self._setter.let_go(container_id, card)
        except NodeUnready as error:
            log.warning("driver_memory_limit_not_removed", container=container_id[:12], reason=str(error))
