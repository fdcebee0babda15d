"""Compares a container's mounts with its grant, once after each start.

No other check notices a container runtime that ignores an injection: if CDI is assumed to be on and is off,
pods start without a card, without their limits and without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from gpu_manager.domain.contract import EVENT_NOT_INJECTED
from gpu_manager.domain.injection import injection_faults
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import ContainerMounts
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.container_grants import ContainerGrants

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 2.0
LOOKS = 2  # a container that is being created shows its node's mounts for a moment
PATIENCE_SECONDS = 60.0  # for which a container without a visible process is checked in each round
RARELY_SECONDS = 60.0  # interval between checks after that

Container = tuple[PodUid, str]
"""Pod UID, container id."""


@dataclass(frozen=True, slots=True)
class NotInjected:
    """A running container whose mounts differ from its grant, and what is missing."""

    namespace: str
    pod: str
    container: str
    why: str


@dataclass(slots=True)
class _Open:
    """A container not judged yet: since when, its next check, and how often its mounts were wrong."""

    since: float
    due: float
    wrong: int = 0


class InjectionCheck:
    """Runs the check. One thread calls ``look``; any may read ``found``."""

    def __init__(
        self,
        state: NodeState,
        pods: Pods,
        processes: ContainerMounts,
        clock: Clock,
        strategy: str,
        *,
        driver: bool,
    ) -> None:
        """``strategy`` is how containers are injected, for messages; ``driver``: the cards are real ones."""
        self._state = state
        self._pods = pods
        self._processes = processes
        self._clock = clock
        self._strategy = strategy
        self._driver = driver
        self._grants = ContainerGrants()
        self._open: dict[Container, _Open] = {}
        self._judged: dict[Container, NotInjected | None] = {}

    @property
    def found(self) -> tuple[NotInjected, ...]:
        """The running containers that lack something of their grant."""
        return tuple(one for one in tuple(self._judged.values()) if one is not None)

    def look(self) -> None:
        """Judge the containers that have started since the last call."""
        running = self._running()
        self._judged = {one: fault for one, fault in self._judged.items() if one in running}
        now = self._clock.monotonic()
        self._open = {
            one: self._open.get(one) or _Open(now, now) for one in running if one not in self._judged
        }
        due = {one for one, looked in self._open.items() if looked.due <= now}
        if not due:
            return
        mounts = self._processes.mounts(due)
        for one in due:
            looked = self._open[one]
            looked.due = now if now - looked.since < PATIENCE_SECONDS else now + RARELY_SECONDS
            if one not in mounts:
                continue
            pod, name, grant = running[one]
            faults = [
                injection_faults(
                    seen,
                    grant.directory,
                    fraction=not any(share.whole for share in grant.allocation.shares),
                    driver=self._driver,
                )
                for seen in mounts[one]
            ]
            looked.wrong = looked.wrong + 1 if all(faults) else 0
            if not all(faults):
                self._judged[one] = None
            elif looked.wrong >= LOOKS:
                fewest = min(faults, key=len)
                self._judged[one] = self._tell(pod, name, "; ".join(fewest))

    def _running(self) -> Mapping[Container, tuple[Pod, str, Grant]]:
        """The containers that run by a grant of this agent (their own or a claim's), with their names."""
        grants, local = self._state.view.grants, self._pods.local()
        keys = self._grants.of(local, grants)
        return {
            place: (f.pod, container.name, grant)
            for found in local.values()
            for f in found
            if not (f.tombstone or f.pod.terminal)
            for container in f.pod.containers
            if container.runtime_id and container.running
            for place in ((PodUid(f.pod.uid), container.runtime_id),)
            if (grant := next((grants[key] for key in keys[place] if key in grants), None)) is not None
            if grant.directory and grant.allocation.shares
        }

    def _tell(self, pod: Pod, name: str, why: str) -> NotInjected:
        log.error("container_not_injected", pod=pod.key, container=name, injection=self._strategy, reason=why)
        text = (
            f'container "{name}" runs without what it was granted: {why}. The container runtime did not '
            f"act on the injection by {self._strategy}: run `gpu-manager doctor` on the node, choose another "
            "--device-injection, then delete the pod"
        )
        self._pods.event(pod, EVENT_NOT_INJECTED, text, warning=True)
        return NotInjected(pod.namespace, pod.name, name, why)
