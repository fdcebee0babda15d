"""Keeps the elastic limit equal to its annotation while the pod runs.

A starting container uses the limit in the ledger. So the ledger follows the annotation when the pod changes,
when a starting agent finds it changed, and when the ledger was rebuilt without the pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.allocation.prestart import LimitPages

log = structlog.get_logger(__name__)


class ElasticLimit:
    """Thread-safe. A failed update is repeated at the pod's next change."""

    def __init__(self, state: NodeState, limits: LimitPages) -> None:
        self._state = state
        self._limits = limits

    def follow(self, pod: Pod) -> None:
        """Update the pod's pages and the ledger from its annotation; an illegal one changes nothing."""
        ceiling = legal_ceiling_of(pod)
        if ceiling is None or pod.terminal:
            return
        with self._limits.changing:
            self._follow(pod, ceiling)

    def _follow(self, pod: Pod, ceiling: int) -> None:
        stale = _others(self._state.view, pod, ceiling)
        if not stale:
            return
        now = [replace(grant, ceiling=ceiling) for grant in stale]
        try:
            for grant in now:
                self._limits.write(grant)
            self._state.set_ceilings({g.key: g.ceiling for g in now}, {g.key: g.ceiling for g in stale})
        except NodeUnready as error:
            log.warning("elastic_limit_not_changed", pod=pod.key, ceiling=ceiling, reason=str(error))
            return
        log.info("elastic_limit_changed", pod=pod.key, before=stale[0].ceiling, now=ceiling)


def _others(view: StateView, pod: Pod, ceiling: int) -> Sequence[Grant]:
    """The pod's fractions with another ceiling in the ledger."""
    grants = (view.grants.get(a.key) for a in view.ledger.of_pod(pod.uid).values())
    return [g for g in grants if g and g.directory and g.ceiling != ceiling and limits_of(g)]
