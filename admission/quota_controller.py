"""Applies the quota's ConfigMap as it changes, reports faults in it, and requeues the pods that wait for
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from zlib import crc32

import structlog

from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState
from admission.extender.cluster_metrics import ClusterMetrics
from admission.ports import Involved, Obj, Writer
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.quota import ANY
from gpu_manager.domain.contract import EVENT_QUOTA_UNUSABLE, QUOTA_SEEN
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.rules.pod_annotations import priority_of

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class QuotaController:
    """Keeps :attr:`book`, the quota in force.

    ``place``: namespace and name of the ConfigMap; ``leads``: True if this replica is the one that writes.

    ``claiming``: pods that wait and use ResourceClaims.
    """

    place: tuple[str, str]
    cluster: ClusterState
    writer: Writer
    metrics: ClusterMetrics
    leads: Callable[[], bool]
    claiming: Callable[[], Iterable[PodView]]

    def __post_init__(self) -> None:
        self.book = QuotaBook(self.place)
        self._uid = ""
        self._told = ""
        self._changed: frozenset[str] = frozenset()  # namespaces whose quota changed while this ran

    def take(self, obj: Obj | None) -> None:
        """Apply the present ConfigMap, None if there is none."""
        before = self.book.complaint
        news = self.book.update(obj)
        self._uid = str(((obj or {}).get("metadata") or {}).get("uid") or "")
        if news.complaint and news.complaint != before:
            self.metrics.quota_rejected()
            log.warning("quota_rejected", reason=news.complaint)
        if news.namespaces:
            log.info("quota_loaded", namespaces=len(news.namespaces))
            self._changed |= news.namespaces
            if self.leads():
                self.wake()

    def wake(self) -> None:
        """Touch the waiting pods whose quota changed.

        A scheduler retries a pod that an extender refused when the pod changes, otherwise only every five
        minutes; the controller that creates claims from templates, one of which may have been refused, only
        after up to a quarter of an hour. The value is a digest of the quota, so that nothing is written
        twice.
        """
        quota, changed = self.book.current, self._changed
        if quota is None or not changed:
            return
        by_claims = ((one, Priority.PROTECTED) for one in self.claiming())  # a claim says its priority itself
        for occupant, priority in (*((o, priority_of(o.pod)) for o in self.cluster.waiting()), *by_claims):
            pod = occupant.pod
            named = pod.namespace in quota.named
            if pod.namespace not in changed and (named or ANY not in changed):
                continue
            mine = quota.of(pod.namespace, priority)
            digest = f"{crc32(repr(mine).encode()):08x}"
            if pod.annotations.get(QUOTA_SEEN) != digest:
                self.writer.annotate(pod, {QUOTA_SEEN: digest})

    def complain(self) -> None:
        """One Event for each fault of the ConfigMap, the leader's. To be called each second."""
        complaint = self.book.complaint
        if not complaint:
            self._told = ""
        elif complaint != self._told and self.leads():
            self._told = complaint
            held = "The last good quota stays in force" if self.book.current else "No GPU pod is placed"
            text = f"{complaint}. {held} until it is mended"
            involved = Involved("ConfigMap", *self.place, self._uid)
            self.writer.event_about(involved, EVENT_QUOTA_UNUSABLE, text)
