"""The scheduler's part of the service: watches, cluster state, extender, leader, events; started and stopped.

Access to the cluster's API is passed in as :class:`~admission.ports.ClusterAccess`; this module knows no API
server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog

from admission.cluster.bypass import Bypasses, BypassFinding
from admission.cluster.claim_templates import SWEEP_SECONDS, ClaimTemplates
from admission.cluster.claims import CLAIMS, CLASSES, TEMPLATES, slim_claim, slim_class, slim_template
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import BUDGETS, NODES, PODS, ClusterState
from admission.cluster.trim import slim_node, slim_pod
from admission.config import AdmissionSettings, ClusterTerms, LeaderMode
from admission.explain.claims import ClaimingPods
from admission.explain.explanation import Explanation, explain
from admission.explain.pending_events import PendingEvents
from admission.extender.binding import BIND_SECONDS, TRAVEL_SECONDS, Binder, BindRules
from admission.extender.claim_leadership import ClaimLeadership
from admission.extender.cluster_metrics import ClusterFigures, ClusterMetrics
from admission.extender.decisions import unrecorded
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.leader_election import Leader, PodLister
from admission.extender.requeue import Requeue
from admission.extender.resizing import ResizeAnswers
from admission.extender.verbs import Extender
from admission.gangs.keeper import GangKeeper
from admission.gangs.members import GangMembers
from admission.placeholders.keeper import PERIOD_SECONDS, REASON, Placeholders
from admission.ports import ClusterAccess, Involved, Obj, WatchRequest
from admission.quota.claims_quota import AdmittedClaims, ClaimCreations
from admission.quota_controller import QuotaController
from admission.replay.recorder import DecisionRecorder
from admission.serving.https_server import HttpsServer
from gpu_manager.domain.contract import (
    EVENT_BYPASSED,
    EVENT_UNREADABLE,
    FEATURES,
    LEADER_LABEL,
    QUOTA_SEEN,
    RELEASE_FEATURES,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.records import encode
from gpu_manager.domain.resize.sizes import KINDS
from gpu_manager.domain.untrusted import mapping
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads
from gpu_manager.runtime.program import spare_pauses

log = structlog.get_logger(__name__)

QUOTA: Final = "quota"
_TICK_SECONDS: Final = 1.0
_SPARE_SECONDS: Final = 10.0
_GROUPS_SECONDS: Final = 60.0


class SchedulingController:
    """A :class:`admission.program.ProgramPart`. ``listener`` serves :attr:`extender` once it is given."""

    def __init__(
        self, settings: AdmissionSettings, access: ClusterAccess, metrics: ClusterMetrics, clock: Clock
    ) -> None:
        terms = settings.terms
        self._settings = settings
        self._access = access
        self._metrics = metrics
        self._clock = clock
        self.cluster = ClusterState(
            terms.unit,
            by_capacity=settings.nodes_by_capacity,
            keep_seconds=settings.keep_seconds,
            namespace=settings.namespace,
        )
        self.judge = FeasibilityJudge()
        self.recorder = self._recorder_in(access)
        recorded = self.recorder.decided if self.recorder else unrecorded
        self._members = GangMembers(self.cluster.lock)
        self._began = clock.monotonic()
        self._inherited: bool | None = None  # whether the first list had a pod that waits
        watches = {
            NODES: self._of_cluster(NODES, slim_node),
            PODS: WatchRequest(PODS, self._pods, self._pod, self._unreadable),
            BUDGETS: self._of_cluster(BUDGETS, lambda obj: obj),
            QUOTA: WatchRequest(QUOTA, self._quota_listed, self._quota_changed, self._unreadable),
        }
        watches |= {resource: self._sizes_of(kind, resource) for kind, resource in KINDS.items()}
        watches |= {group: self._of_groups(group) for group, _ in settings.pod_groups}
        if settings.claims:
            watches |= {
                CLAIMS: self._of_cluster(CLAIMS, slim_claim),
                CLASSES: self._of_cluster(CLASSES, slim_class),
                TEMPLATES: self._of_cluster(TEMPLATES, slim_template),
            }
        self._watches = {name: access.watch(wanted) for name, wanted in watches.items()}
        pods = self._watches[PODS]
        self.leader = Leader(
            access.lease,
            PodLister(lambda: pods.listed, self._catch_up, pods.relist, lambda: self._inherited is not False),
            clock,
            BIND_SECONDS + TRAVEL_SECONDS,
            self._led,
        )
        self.claiming = ClaimingPods(self.cluster, access.writer, clock, terms.minimum_cores)
        self._quota = QuotaController(
            settings.quota_map, self.cluster, access.writer, metrics, self.leader.leads, self.claiming.waiting
        )
        self.quota = self._quota.book
        rules = BindRules(self.leader.leads, settings.binds_for, terms.minimum_cores)
        self.gangs = GangKeeper(
            self._members,
            self.cluster,
            self.judge,
            self.quota,
            clock,
            rules.binds,
            minimum_cores=terms.minimum_cores,
            seconds=settings.gang_seconds,
            unread=self._groups_unread,
            recorded=recorded,
        )
        self.binder = Binder(
            self.cluster,
            self.quota,
            self.judge,
            access.api,
            clock,
            rules,
            metrics.count,
            self.gangs.hold,
            recorded,
        )
        self._pending_events = PendingEvents(self.cluster.pod, self._explain, access.writer, clock)
        self.policy = LeastFragmentation(self.cluster, quota=self.quota, routine=access.roll_out)
        self._placeholders: Placeholders | None = None
        if access.placeholders is not None:
            self._placeholders = Placeholders(
                settings.placeholders,
                access.placeholders,
                self.cluster,
                self.policy,
                self.quota,
                terms.minimum_cores,
            )
        self.extender = Extender(
            self.cluster,
            self.quota,
            self.judge,
            self.policy,
            self.binder,
            clock=clock,
            gangs=self.gangs,
            minimum_cores=terms.minimum_cores,
            best_nodes=settings.best_nodes,
            never=self._why_never,
            count=metrics.count,
            refused=self._refused,
            recorded=recorded,
        )
        self.templates = ClaimTemplates(access.templates, clock) if access.templates else None
        self._claim_leadership: ClaimLeadership | None = None
        self.claims: ClaimCreations | None = None
        if settings.claims:
            record = AdmittedClaims(access.claim_record, self.cluster, clock)
            self._claim_leadership = ClaimLeadership(self.leader, self._watches[CLAIMS], self.cluster, record)
            self.claims = ClaimCreations(
                self.cluster, self.quota, clock, self._claim_leadership.leads, record.keep
            )
        self._resizes = ResizeAnswers(
            self.cluster,
            self.quota,
            access.api,
            clock,
            rules,
            access.writer.event,
            metrics.count,
            access.limits,
            recorded,
        )
        self._waker = Requeue(self.cluster.pod, self.extender.has_room, self._wake, clock)
        self._bypasses = Bypasses(terms.unit, terms.minimum_cores, settings.unseen_namespaces, self._bypassed)
        metrics.show(
            ClusterFigures(
                self.cluster,
                self.quota,
                self.leader.leads,
                self._ages,
                self._bypasses.counts,
                lambda: {name: watch.unreadable for name, watch in self._watches.items()},
                self._pending_events.held,
                lambda: self._placeholders.count if self._placeholders else 0,
            )
        )
        self._ended = threading.Event()
        self.listener: HttpsServer | None = None
        self.checks: list[Callable[[], None]] = []  # done each second beside everything else
        self._threads = [
            threads.every(_TICK_SECONDS, "leader", self.leader.tick, self._ended, at_once=True),
            threads.every(_TICK_SECONDS, "chores", self._chores, self._ended, at_once=True),
            threads.forever("resizes", lambda: self._resizes.run(self._ended)),
            threads.forever("pending-events", lambda: self._pending_events.run(self._ended)),
            *([threads.forever("claim-events", self._tell_of_claims)] if settings.claims else []),
            *([self._sweeper(self.templates)] if self.templates else []),
            *([self.recorder.thread(self._ended)] if self.recorder else []),
            *(
                [threads.every(PERIOD_SECONDS, "placeholders", self._keep_placeholders, self._ended)]
                if self._placeholders
                else []
            ),
        ]
        self._spared = clock.monotonic()

    def _recorder_in(self, access: ClusterAccess) -> DecisionRecorder | None:
        if access.records is None:
            return None
        terms = self._settings.terms
        about = {"release": version("gpu-manager"), "terms": encode(ClusterTerms, terms)}
        about |= {"unit": terms.unit, "minimum_cores": terms.minimum_cores}
        recorder = DecisionRecorder(access.records, self._clock, about)
        self.cluster.follow(recorder.built)
        return recorder

    # Life.

    def start(self) -> None:
        """Begin; does not wait for the API server."""
        self._access.writer.start()
        own = self._settings.leadership.pod
        # In a pod: what the image can do, the image says, since a chart does not know which one it runs.
        if self._settings.leadership.pod_uid:
            features = ",".join(sorted(RELEASE_FEATURES))
            self._access.writer.annotate_named(self._settings.namespace, own, {FEATURES: features})
        if self._is_labelled:
            self._label(None)  # one that was killed while it led has left it on
        for watch in self._watches.values():
            watch.start()
        if self.listener is not None:
            self.listener.start()
        for thread in self._threads:
            thread.start()

    def elsewhere(self) -> bool:
        """True if a scheduler should call another replica: connections then end with their answer.

        The Service selects by the leader's label, which affects only new connections.
        """
        return self._settings.leadership.mode is LeaderMode.LEASE and not self.leader.leads()

    def ready(self) -> Mapping[str, bool]:
        """Once nodes and pods are known."""
        return {"snapshot": self.cluster.synced}

    def why(self) -> str:
        """What cannot be read at present, for /readyz, without names; empty if everything can."""
        counts = {name: len(watch.spoiled) for name, watch in self._watches.items() if watch.spoiled}
        found = ", ".join(f"{count} of the {name}" for name, count in sorted(counts.items()))
        return f"cannot read {found}: see object_unreadable in the log" if found else ""

    def stop(self) -> None:
        """Bind no more; once nothing is under way, let another begin; then end everything."""
        self.leader.resign()
        if self.listener is not None:
            self.listener.stop()
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2 * BIND_SECONDS)
        if self.recorder is not None:
            self.recorder.write()
        self.leader.release()
        for watch in self._watches.values():
            watch.close()
        self._access.writer.close()

    def _chores(self) -> None:
        for check in self.checks:
            check()
        self.binder.settle()
        now = self._clock.monotonic()
        self.cluster.expire(now)
        self.gangs.settle()
        if self.cluster.synced:
            self.policy.close(now)
        self.wake()
        if self.cluster.synced:
            self.judge.prepare(self.cluster.snapshot())
        if self.cluster.synced and now - self._spared >= _SPARE_SECONDS:
            self._spared = now
            spare_pauses()
            if self.leader.leads():
                self._pending_events.waiting(occupant.uid for occupant in self.cluster.waiting())
        self._quota.complain()
        if self._claim_leadership is not None:
            self._claim_leadership.look(now)

    @property
    def _is_labelled(self) -> bool:
        """True if a Service selects the leader by its label: for its extender, or for claims."""
        mode = self._settings.leadership.mode
        return mode is LeaderMode.LEASE or (self._settings.claims and mode is LeaderMode.SCHEDULER)

    # What the watches bring.

    def _of_groups(self, api: str) -> WatchRequest:
        """The PodGroups of one API group: how many members their gangs want."""

        def changed(obj: Obj, gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
            self._members.take_group(api, obj, gone=gone)

        return WatchRequest(api, partial(self._members.replace_groups, api), changed, self._unreadable)

    def _groups_unread(self, api: str) -> bool:
        """True while the first list of PodGroups may still come: where nobody serves them, none does."""
        watch = self._watches.get(api)
        waits = self._clock.monotonic() - self._began < _GROUPS_SECONDS
        return watch is not None and watch.listed is None and waits

    def _of_cluster(self, resource: str, slim: Callable[[Obj], Obj]) -> WatchRequest:
        def changed(obj: Obj, gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
            self.cluster.apply(resource, "DELETED" if gone else "MODIFIED", slim(obj))
            if gone and resource == TEMPLATES and self.templates is not None:
                self.templates.forget(*(str(obj["metadata"].get(key)) for key in ("namespace", "name")))

        def replaced(objects: Iterator[Obj], take: Callable[[Obj], None]) -> None:
            self.cluster.replace(resource, objects, take)

        return WatchRequest(resource, replaced, changed, self._unreadable)

    def _unreadable(self, involved: Involved, text: str) -> None:
        if involved.uid and self.leader.leads():
            self._access.writer.event_about(involved, EVENT_UNREADABLE, text)

    def _quota_listed(self, objects: Iterator[Obj], take: Callable[[Obj], None]) -> None:
        found = next(objects, None)
        if found is None:
            self._quota.take(None)
        else:
            take(found)

    def _quota_changed(self, obj: Obj, gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
        self._quota.take(None if gone else obj)

    def _sweeper(self, templates: ClaimTemplates) -> threading.Thread:
        """The leader's deletions of templates that no turned pod needs any more."""

        def sweep() -> None:
            if self.leader.leads():
                with self.cluster.lock:
                    found = self.cluster.claims.turned
                try:
                    templates.sweep(found)
                except NodeUnready as error:
                    log.warning("claim_templates_not_swept", reason=str(error))

        return threads.every(SWEEP_SECONDS, "claim-templates", sweep, self._ended)

    def _sizes_of(self, kind: str, resource: str) -> WatchRequest:
        """The sizes that workloads of this kind ask for."""

        def replaced(objects: Iterator[Obj], take: Callable[[Obj], None]) -> None:
            self.cluster.workloads.replace(kind, objects, take)
            self._resizes.wake()

        def changed(obj: Obj, gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
            if self.cluster.workloads.change(kind, obj, gone=gone):
                self._resizes.wake()

        return WatchRequest(resource, replaced, changed, self._unreadable)

    def _tell_of_claims(self) -> None:
        self.claiming.run(self._ended)

    def _pods(self, objects: Iterator[Obj], take: Callable[[Obj], None]) -> None:
        uids = self.cluster.replace(PODS, objects, take)
        if self._inherited is None:
            self._inherited = bool(self.cluster.waiting())
        self._bypasses.retain(uids)
        self._members.retain(uids)
        if self._placeholders is not None:
            self._placeholders.retain(uids)

    def _why_never(self, pod: Obj) -> str:
        return REASON if self._placeholders is not None and self._placeholders.owns(pod) else ""

    def _keep_placeholders(self) -> None:
        if self._placeholders is None or not (self.leader.leads() and self.cluster.synced):
            return
        try:
            self._placeholders.round()
        except NodeUnready as error:
            log.warning("placeholders_not_kept", reason=str(error))

    def _pod(self, obj: Obj, gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
        if self._placeholders is not None:
            self._placeholders.see(obj, gone=gone)
            if not gone and self._placeholders.owns(obj):
                return  # it is placed nowhere, and nothing is to make room for it
        self._members.see(obj, gone=gone)
        trimmed = slim_pod(obj) or ({"metadata": mapping(obj.get("metadata"))} if gone else None)
        if trimmed is None:
            return
        self.cluster.apply(PODS, "DELETED" if gone else "MODIFIED", trimmed)
        if self._settings.claims:
            self.claiming.look(trimmed, gone=gone, tells=self.leader.leads())
        uid = PodUid(str(trimmed["metadata"].get("uid")))
        if gone:
            self._bypasses.forget(uid)
        else:
            self._look(uid)

    def _look(self, uid: PodUid) -> None:
        occupant = self.cluster.pod(uid)
        if occupant is not None:
            self._bypasses.look(occupant)
            self._resizes.look(occupant)

    # What follows from it.

    def _catch_up(self) -> None:
        since = self._clock.monotonic()
        self._watches[PODS].catch_up(self._access.mark(self._access.lease.term), since)

    def _led(self, leads: bool) -> None:  # noqa: FBT001 - the leader's one word
        if self._is_labelled:
            # A Service selects by it. One that still has it and leads no more refuses to bind.
            self._label("true" if leads else None)
        if not leads:
            self.binder.end()
            return
        self.binder.begin()
        self.gangs.begin()
        self._quota.wake()  # what changed before, and the one before may not have come to
        for finding in self._bypasses.findings():
            self._access.writer.event(finding.occupant.pod, EVENT_BYPASSED, finding.text)

    def _label(self, value: str | None) -> None:
        self._access.writer.label(
            self._settings.namespace, self._settings.leadership.pod, LEADER_LABEL, value
        )

    def wake(self) -> None:
        """Touch the pods that their scheduler would not retry in time. Called each second."""
        self._waker.tick(self.cluster.lapsed + self.binder.lapsed)

    def _wake(self, pod: Pod, value: str) -> None:
        if self.leader.leads():
            self._access.writer.annotate(pod, {QUOTA_SEEN: value})

    def _refused(self, uid: PodUid, turn: int) -> None:
        if self.leader.leads():
            self._waker.refused(uid, turn)
            self._pending_events.refused(uid)

    def _bypassed(self, finding: BypassFinding) -> None:
        self._metrics.bypassed(finding.reason)
        if self.leader.leads():
            self._access.writer.event(finding.occupant.pod, EVENT_BYPASSED, finding.text)

    def _explain(self, occupant: PodView) -> Explanation:
        return explain(
            occupant,
            self.cluster.snapshot(),
            self.quota.current,
            self.judge,
            self._settings.terms.minimum_cores,
            schedulers=self._settings.binds_for,
            gang=self.gangs.state(occupant.uid),
        )

    def stale_seconds(self) -> float:
        """Seconds since the last event of the longest-down watch; 0 while all are up."""
        now = self._clock.monotonic()
        down = (now - w.heard for w in self._watches.values() if w.error and w.heard is not None)
        return max(down, default=0.0)

    def _ages(self) -> Mapping[str, float]:
        now = time.monotonic()
        return {name: now - w.heard for name, w in self._watches.items() if w.heard is not None}
