"""Pods that wait for ResourceClaims and found no node: each is told why, card by card, within a second.

The extender is never asked about them, so what counts is what kube-scheduler writes into the pod's status.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.snapshot import ClusterState
from admission.explain.claims import ClaimingPod, claiming_pod, explain_claims, may_be_ours
from admission.explain.explanation import FITS, Explanation
from admission.explain.pending_events import EventSender, PendingEvents
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.pod import PodUid, parse_pod
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.ports.clock import Clock

_SETTLE_SECONDS: Final = 0.3
_MOST: Final = 4096


class ClaimingPods:
    """Thread-safe; :meth:`run` is one thread's."""

    def __init__(self, cluster: ClusterState, voice: EventSender, clock: Clock, minimum_cores: int) -> None:
        self._cluster = cluster
        self._minimum_cores = minimum_cores
        self._lock = threading.Lock()
        self._pods: OrderedDict[PodUid, tuple[PodView, ClaimingPod]] = OrderedDict()
        self._events = PendingEvents(self._find, self._explain, voice, clock, _SETTLE_SECONDS)

    def look(self, obj: Mapping[str, Any], *, gone: bool, tells: bool) -> None:
        """The pod as the watch shows it; one that waits and found no node is told why where ``tells``."""
        uid = PodUid(text(mapping(obj.get("metadata")).get("uid")))
        with self._lock:
            known = self._pods.pop(uid, None)
        if gone or (known is None and not mapping(obj.get("spec")).get("resourceClaims")):
            return
        claiming = claiming_pod(obj)
        try:
            view = pod_view(parse_pod(obj), obj)
        except RequestInvalid:
            return
        if claiming is None or not view.waits:
            return
        with self._lock:
            self._pods[uid] = view, claiming
            if len(self._pods) > _MOST:
                self._pods.popitem(last=False)
        if view.unschedulable and tells:
            self._events.refused(uid)

    def waiting(self, namespace: str | None = None) -> tuple[PodView, ...]:
        """Pods that look for a node and use claims of ours, of one namespace or of all."""
        with self._lock:
            known = list(self._pods.values())
        return tuple(
            view
            for view, claiming in known
            if namespace in (None, view.pod.namespace) and may_be_ours(claiming, self._cluster)
        )

    def explain(self, pod: PodView, *, everywhere: bool = False) -> Explanation | None:
        """Why the pod waits for its claims; None if it does not, or for none of ours.

        ``everywhere`` as in :func:`~admission.explain.claims.explain_claims`.
        """
        with self._lock:
            known = self._pods.get(pod.uid)
        if known is None:
            return None
        return explain_claims(known[1], self._cluster, self._minimum_cores, everywhere=everywhere)

    def run(self, ended: threading.Event) -> None:
        """Tell what is due until ``ended``."""
        self._events.run(ended)

    def tell(self) -> bool:
        """Tell of one pod that is due; False if there is none."""
        return self._events.tell()

    def _find(self, uid: PodUid) -> PodView | None:
        with self._lock:
            known = self._pods.get(uid)
        return known[0] if known else None

    def _explain(self, occupant: PodView) -> Explanation:
        # Nothing of ours, or gone meanwhile: nothing to tell.
        return self.explain(occupant) or Explanation(occupant.pod.key, "", "", "", {FITS: 1}, 0)
