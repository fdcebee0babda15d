"""The elastic ceiling is what its annotation says, also while the pod runs.

Nothing is asked at a start but what the books say. So they follow the annotation: when the pod changes, when
an agent that starts finds it changed, and where books rebuilt without the pod knew of no ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of
from gpu_manager.ports import ControlPages
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState, StateView

log = structlog.get_logger(__name__)


class ElasticLimit:
    """Thread-safe. What fails is done at the pod's next change."""

    def __init__(self, state: NodeState, tenants: ControlPages) -> None:
        self._state = state
        self._tenants = tenants

    def follow(self, pod: Pod) -> None:
        """Bring this pod's pages and the books to its annotation; one that is not legal changes nothing."""
        ceiling = legal_ceiling_of(pod)
        if ceiling is None or pod.terminal:
            return
        stale = _others(self._state.view, pod, ceiling)
        if not stale:
            return
        now = [replace(grant, ceiling=ceiling) for grant in stale]
        try:
            for grant in now:
                self._tenants.open(grant.directory, limits_of(grant))
            self._state.set_ceilings({g.key: g.ceiling for g in now}, {g.key: g.ceiling for g in stale})
        except NodeUnready as error:
            log.warning("elastic_limit_not_changed", pod=pod.key, ceiling=ceiling, reason=str(error))
            return
        log.info("elastic_limit_changed", pod=pod.key, before=stale[0].ceiling, now=ceiling)


def _others(view: StateView, pod: Pod, ceiling: int) -> Sequence[Grant]:
    """The pod's fractions that the books have with another ceiling."""
    grants = (view.grants.get(a.key) for a in view.ledger.of_pod(pod.uid).values())
    return [g for g in grants if g and g.directory and g.ceiling != ceiling and limits_of(g)]
