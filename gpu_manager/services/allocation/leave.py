"""The agent's graceful end: it serves until all pods that are bound to this node are admitted.

A pod that the kubelet admits while no plugin serves fails for good. So schedulers are told first, and then
the pods that they have bound already are awaited. Told counts only once the API server has taken it: one that
is busy may take seconds, and pods are bound here until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from gpu_manager.domain.kube.pod import Pod
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.services.allocation.node_state import NodeState

log = structlog.get_logger(__name__)

QUIET_SECONDS = 2.0  # for schedulers to see that the agent leaves, and for their last pods to appear here
LEAVE_SECONDS = 20.0  # at most: of the 45 s that the chart gives the pod to end, of 30 without the chart
_LOOK_SECONDS = 0.1


def serve_the_last(
    state: NodeState,
    pods: Pods,
    clock: Clock,
    told: Callable[[], bool],
    *,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Return once schedulers are ``told`` and no pod has been awaited for :data:`QUIET_SECONDS`.

    False if that does not happen within :data:`LEAVE_SECONDS`.
    """
    began = since = clock.monotonic()
    while (now := clock.monotonic()) - since < QUIET_SECONDS:
        coming, heard = awaited(state, pods), told()
        if now - began >= LEAVE_SECONDS and (coming or not heard):
            log.warning("left_before_pods_were_admitted", pods=coming[:5], told=heard)
            return False
        since = now if coming or not heard else since
        pause(_LOOK_SECONDS)
    return True


def awaited(state: NodeState, pods: Pods) -> list[str]:
    """Pods that are bound to this node, request cards, and are not yet admitted by the kubelet."""
    ledger = state.view.ledger
    known = (found for named in pods.local().values() for found in named if not found.tombstone)
    return sorted(
        found.pod.key for found in known if _arriving(found.pod) and not ledger.granted(found.pod.uid)
    )


def _arriving(pod: Pod) -> bool:
    return pod.asks and not (pod.started or pod.terminal or pod.deleting)
