"""Keeps the injections of granted containers: what a reboot, a power cut or a hand takes is made again.

A container that starts again is injected by what its allocation left on the node. Under CDI that is a spec in
/var/run/cdi, without which it never starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import HeldInjection, Injector
from gpu_manager.services.allocation.node_state import NodeState

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 2.0
PATIENCE_SECONDS = 5.0  # of a directory that the node has removed, before the agent restarts


class InjectionKeeper:
    """``look`` is called by one thread; ``trouble`` may be read by any."""

    def __init__(
        self,
        state: NodeState,
        pods: Pods,
        injector: Injector,
        clock: Clock,
        restart: Callable[[], None],
        outdated: Callable[[], str] = str,
    ) -> None:
        """``restart`` ends the agent, to be started again with its mounts made anew. ``outdated``: why the
        way of injection, which is chosen at the start, gives containers no cards any more.
        """
        self._outdated = outdated
        self._left = False
        self._state = state
        self._pods = pods
        self._injector = injector
        self._clock = clock
        self._restart = restart
        self._detached: float | None = None
        self._asked = False
        self._sources: tuple[object, object] = (None, None)
        self._found: Mapping[str, HeldInjection] = {}
        self.trouble = ""
        """Why a granted container could not start again, for /readyz; empty if each could."""

    def look(self) -> None:
        """Make again what is lost."""
        try:
            self._injector.restore(self._held())
        except NodeUnready as error:
            if self.trouble != str(error):
                log.error("injection_lost", reason=str(error))
            self.trouble = str(error)
        else:
            if self.trouble:
                log.info("injection_restored")
            self.trouble = ""
        self._follow_mount()
        if (why := self._outdated()) and not self._left:
            self._left = True
            log.warning("injection_chosen_anew", reason=why)
            self._restart()

    def _follow_mount(self) -> None:
        now = self._clock.monotonic()
        if not self._injector.detached():
            self._detached = None
            return
        self._detached = now if self._detached is None else self._detached
        if now - self._detached >= PATIENCE_SECONDS and not self._asked:
            self._asked = True
            log.error("restarting", reason=self.trouble)
            self._restart()

    def _held(self) -> Mapping[str, HeldInjection]:
        """Made anew only from other grants or pods: neither is ever changed in place."""
        grants, local = self._state.view.grants, self._pods.local()
        if self._sources[0] is not grants or self._sources[1] is not local:
            pods = {f.pod.uid: f.pod for found in local.values() for f in found}
            self._found = {
                grant.directory: _injection(grant.allocation, pods.get(uid))
                for (uid, _), grant in grants.items()
                if grant.directory
            }
            self._sources = grants, local
        return self._found


def _injection(held: Allocation, pod: Pod | None) -> HeldInjection:
    if held.claim is None:
        return HeldInjection(held.shares, pod)
    return HeldInjection(held.shares, pod, by_claim=True, priority=held.priority, preload=held.claim.preload)
