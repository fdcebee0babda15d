"""A kube-scheduler of the size of a sandbox: counts resources, asks the extender, binds, preempts.

One pod is decided at a time; binding runs beside the next decision. It knows node selectors and unschedulable
nodes, and of cards nothing at all: those the extender judges. Without one it is the scheduler of a cluster
that never heard of cards: whether any single one has the room is then judged by who runs on the node.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError
from gpu_manager.runtime import threads
from sandbox.api import ApiError, StandInApi
from sandbox.claims import ClaimScheduler
from sandbox.events import tell
from sandbox.extender import ExtenderClient
from sandbox.nodes import FilterCandidate, NodeRoom, lesser, pods_by_node, waits
from sandbox.queue import Queue

log = structlog.get_logger(__name__)

SCHEDULER: Final = "default-scheduler"
_ROUND_SECONDS: Final = 0.5  # how late a change of a node alone is seen
_BINDERS: Final = 8
Obj = Mapping[str, Any]


class Scheduler:
    """Started and stopped once."""

    def __init__(
        self,
        api: StandInApi,
        extender: ExtenderClient | None = None,
        claims: ClaimScheduler | None = None,
    ) -> None:
        """Without ``claims`` no node has devices for a ResourceClaim."""
        self._api = api
        self._claims = claims
        self._extender = extender
        self._lock = threading.Lock()
        self._queue = Queue()
        self._assumed: dict[str, str] = {}  # uid → node, from the decision until the API shows it bound
        self._seen: object = None
        self._stop = threading.Event()
        self._thread = threads.forever("scheduler", self._run)
        self._binding = ThreadPoolExecutor(_BINDERS, thread_name_prefix="binding")

    def start(self) -> None:
        """Begin to schedule."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and what it is binding."""
        self._stop.set()
        self._api.wake()
        if self._thread.is_alive():
            self._thread.join(5)
        self._binding.shutdown(cancel_futures=True)
        if self._extender is not None:
            self._extender.close()

    def _run(self) -> None:
        seen = 0
        while not self._stop.is_set():
            with self._lock:
                due = self._queue.next_due(time.monotonic())
            seen = self._api.wait("pods", seen, min(_ROUND_SECONDS, due + 0.01))
            try:
                self._round()
            except (VcudaError, ApiError) as error:
                log.warning("round_failed", reason=str(error))

    def _round(self) -> None:
        pods = self._look()
        nodes = self._api.list("nodes")
        while not self._stop.is_set():
            with self._lock:
                uid = self._queue.take(time.monotonic())
            if uid is None:
                return
            pod = next((p for p in pods if p["metadata"]["uid"] == uid), None)
            if pod is not None:
                self._decide(pod, pods, nodes)

    def _look(self) -> Sequence[Obj]:
        """Take in what the API has, and whether something happened that may have made room."""
        pods = self._api.list("pods")
        mine = [p for p in pods if waits(p, SCHEDULER)]
        seen = _news(pods, self._api.list("nodes"), self._api.list("resourceclaims"))
        with self._lock:
            for pod in pods:
                if pod["spec"].get("nodeName"):
                    self._assumed.pop(str(pod["metadata"]["uid"]), None)
            there = {str(p["metadata"]["uid"]) for p in mine}
            self._queue.keep(there)
            for uid in [uid for uid in self._assumed if uid not in there]:
                del self._assumed[uid]
            if seen != self._seen:
                self._seen = seen
                self._queue.event()
            for pod in mine:
                meta = pod["metadata"]
                age = str(meta["creationTimestamp"]), int(meta["resourceVersion"])
                uid, priority = str(meta["uid"]), int(pod["spec"].get("priority") or 0)
                self._queue.offer(uid, priority, age, _version(pod))
        return pods

    # One pod.

    def _decide(self, pod: Obj, pods: Sequence[Obj], nodes: Sequence[Obj]) -> None:
        try:
            candidates = self._candidates(pod, pods, nodes)
            fitting = [c for c in candidates if not c.reason]
            if fitting and self._extender is not None and self._extender.manages(pod):
                fitting = self._ask(self._extender, pod, fitting)
            if fitting and pod["spec"].get("resourceClaims"):
                fitting = self._allocate(pod, fitting)
            if not fitting:
                self._preempt(pod, candidates)
                self._refuse(pod, "Unschedulable", _summary(candidates))
                self._failed(pod)
                return
            self._assume(pod, self._best(pod, [c.name for c in fitting]))
        except (NodeUnready, RequestInvalid) as error:
            self._refuse(pod, "SchedulerError", str(error))
            self._failed(pod, error=True)

    def _candidates(self, pod: Obj, pods: Sequence[Obj], nodes: Sequence[Obj]) -> list[FilterCandidate]:
        """Every node, as the plugins that only count judge it."""
        with self._lock:
            assumed = dict(self._assumed)
        here = pods_by_node(pods, assumed)
        return [
            NodeRoom(node, here.get(str(node["metadata"]["name"]), ()), pods).judge(pod) for node in nodes
        ]

    def _ask(
        self, extender: ExtenderClient, pod: Obj, fitting: list[FilterCandidate]
    ) -> list[FilterCandidate]:
        """Those that the extender takes; the others learn why not."""
        found = extender.filter(pod, [c.name for c in fitting])
        for candidate in fitting:
            lasting = found.unresolvable.get(candidate.name)
            if candidate.name not in found.nodes:
                candidate.reason = lasting or found.failed.get(candidate.name) or "left out by the extender"
                candidate.lasting = lasting is not None
        return [c for c in fitting if not c.reason]

    def _allocate(self, pod: Obj, fitting: list[FilterCandidate]) -> list[FilterCandidate]:
        """The first node on which the pod's claims can be allocated; there they are. Nobody is evicted."""
        why = self._claims.why_not(pod) if self._claims is not None else ""
        for candidate in fitting:
            try:
                if not why and self._claims is not None and self._claims.allocate(pod, candidate.name):
                    return [candidate]
            except DoesNotFit as error:
                why = str(error)
            candidate.reason, candidate.lasting = why or "cannot allocate all claims", True
        return []

    def _best(self, pod: Obj, names: Sequence[str]) -> str:
        if len(names) == 1 or self._extender is None or not self._extender.manages(pod):
            return random.choice(names)
        try:
            scores = self._extender.prioritize(pod, names)
        except NodeUnready as error:
            log.info("prioritize_failed", pod=pod["metadata"]["name"], reason=str(error))
            scores = {}
        top = max(scores.get(name, 0) for name in names)
        return random.choice([name for name in names if scores.get(name, 0) == top])

    def _assume(self, pod: Obj, node: str) -> None:
        with self._lock:
            self._assumed[str(pod["metadata"]["uid"])] = node
        self._binding.submit(self._bind, pod, node)

    def _bind(self, pod: Obj, node: str) -> None:
        meta = pod["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        words = ""
        try:
            if self._extender is not None and self._extender.manages(pod):
                self._extender.bind(pod, node)
            else:
                words = 'binding rejected: running Bind plugin "DefaultBinder": '
                self._api.bind(meta["name"], node, meta["namespace"])
        except (NodeUnready, ApiError) as error:
            log.info("bind_refused", pod=key, reason=str(error))
            with self._lock:
                self._assumed.pop(str(meta["uid"]), None)
            self._refuse(pod, "SchedulerError", f"{words}{error}")
            self._failed(pod, error=True)
            return
        tell(self._api, SCHEDULER, pod, "Scheduled", f"Successfully assigned {key} to {node}")

    def _failed(self, pod: Obj, *, error: bool = False) -> None:
        with self._lock:
            self._queue.failed(str(pod["metadata"]["uid"]), time.monotonic(), error=error)
        self._api.wake()

    # Preemption.

    def _preempt(self, pod: Obj, candidates: Sequence[FilterCandidate]) -> None:
        """Evict lesser pods where that makes room, and keep the place for this one."""
        if pod["spec"].get("preemptionPolicy") == "Never" or self._waits_for_victims(pod, candidates):
            return
        victims = {
            c.name: found for c in candidates if not c.lasting and (found := c.victims(pod)) is not None
        }
        if not victims:
            return
        chosen = {name: ([str(p["metadata"]["uid"]) for p in found], 0) for name, found in victims.items()}
        if self._extender is not None and self._extender.manages(pod):
            chosen = self._extender.preempt(pod, victims)
        there = {str(p["metadata"]["uid"]): p for c in candidates for p in c.pods}
        best = min(
            (
                (broken, [there[u] for u in uids if u in there], name)
                for name, (uids, broken) in chosen.items()
            ),
            key=lambda c: (c[0], max((_priority(p) for p in c[1]), default=0), len(c[1]), c[2]),
            default=None,
        )
        if best is None or not best[1]:
            return
        for victim in best[1]:
            meta, text = victim["metadata"], f"Preempted by {pod['metadata']['name']} on node {best[2]}"
            tell(self._api, SCHEDULER, victim, "Preempted", text)
            try:
                self._api.delete("pods", meta["name"], meta["namespace"])
            except ApiError as error:
                log.info("victim_not_deleted", pod=meta["name"], reason=str(error))
        self._status(pod, {"nominatedNodeName": best[2]})

    def _waits_for_victims(self, pod: Obj, candidates: Sequence[FilterCandidate]) -> bool:
        """True while pods that left for its sake are still going."""
        node = (pod.get("status") or {}).get("nominatedNodeName")
        here = next((c.pods for c in candidates if c.name == node), ())
        return any(p["metadata"].get("deletionTimestamp") for p in lesser(pod, here))

    # What the API server is told.

    def _refuse(self, pod: Obj, reason: str, message: str) -> None:
        """Say so once, and again only when the reason has changed."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        now = self._api.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"]) or {}
        known = (now.get("status") or {}).get("conditions") or ()
        if condition in known or not now or now["spec"].get("nodeName"):
            return
        others = [c for c in known if c["type"] != "PodScheduled"]
        if self._status(pod, {"conditions": [*others, condition]}):
            tell(self._api, SCHEDULER, pod, "FailedScheduling", message, warning=True)

    def _status(self, pod: Obj, change: Obj) -> bool:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"]}, "status": change}
        try:
            self._api.patch("pods", meta["name"], patch, meta["namespace"], subresource="status")
        except ApiError as error:
            log.info("status_not_written", pod=meta["name"], reason=str(error))
            return False  # it has just gone, or changed: the next round looks again
        return True


def _version(pod: Obj) -> str:
    """What of a pod that waits makes a scheduler look at it anew: its own word about it counts too."""
    meta, conditions = pod["metadata"], (pod.get("status") or {}).get("conditions") or ()
    said = [c.get("message") for c in conditions if c.get("type") == "PodScheduled"]
    return repr((meta.get("annotations"), meta.get("labels"), said))


def _priority(pod: Obj) -> int:
    return int(pod["spec"].get("priority") or 0)


def _summary(candidates: Sequence[FilterCandidate]) -> str:
    """In kube-scheduler's form: how many nodes fail for which reason."""
    total = len(candidates)
    if not total:
        return "no nodes available to schedule pods"
    reasons = Counter(reason for c in candidates for reason in c.reasons)
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"0/{total} nodes are available: {told.removesuffix('.')}."


def _news(pods: Sequence[Obj], nodes: Sequence[Obj], claims: Sequence[Obj]) -> object:
    """What of the cluster can make room: nodes but for their heartbeats, pods that have one, and claims."""
    return (
        [(claim["metadata"]["uid"], (claim.get("status") or {}).get("allocation")) for claim in claims],
        [
            (
                node["metadata"].get("annotations"),
                node["metadata"].get("labels"),
                node.get("spec"),
                (node.get("status") or {}).get("allocatable"),
            )
            for node in nodes
        ],
        [
            (
                pod["metadata"]["uid"],
                pod["metadata"].get("annotations"),
                (pod.get("status") or {}).get("phase"),
            )
            for pod in pods
            if pod["spec"].get("nodeName")
        ],
    )
