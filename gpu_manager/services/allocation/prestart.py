"""PreStartContainer: checks by the kubelet's checkpoint which container holds device ids, writes its limits,
and the cards that it really holds into its pod's annotation.

A wrong name or amount is corrected here. A wrong card cannot be: device ids are fixed for the pod's life.
Then the start is refused, an Event says why, and a pod that has a controller is evicted.

:class:`LimitPages` is the one writer of limits into the pages of admitted containers. A container's start,
its elastic limit, a resize and new settings of the agent all write the whole page. Each holds
:attr:`LimitPages.changing` from reading the books to the page, so that none writes what another has changed
meanwhile. Allocate creates the pages before that, without waiting: PreStartContainer writes them again, from
the books, before the container runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.pod_charges import allocation_annotations, annotations_differ
from gpu_manager.domain.contract import (
    CORE,
    EVENT_ALLOCATED,
    EVENT_START_REFUSED,
    MEMORY,
    NVIDIA,
    decode_assignment,
)
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement import explain
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.ports.records import CheckpointEntry, Kubelet
from gpu_manager.services.allocation.adopt import is_predecessor_pod
from gpu_manager.services.allocation.association import pod_of
from gpu_manager.services.allocation.books import Grant, NodeCards
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class PreStart:
    """Handles PreStartContainer. Thread-safe: several containers may start at once.

    ``not_injectable``: why no container can use these cards now, empty if one can.
    """

    state: NodeState
    kubelet: Kubelet
    pods: Pods
    limits: LimitPages
    clock: InitVar[Clock]
    metrics: ServiceMetrics
    _: KW_ONLY
    evict: bool
    not_injectable: Callable[[Collection[CardUuid]], str] = lambda _: ""

    def __post_init__(self, clock: Clock) -> None:
        self._writeback = AnnotationWriteback(self.state, self.pods, clock)

    def prove(self, resource: str, devices: Sequence[str]) -> None:
        """Verify which container holds these device ids, write its limits, and reset its usage page.

        ``resource`` is one whose Allocate responses carry the cards.

        Raises:
            NodeUnready: the kubelet's checkpoint does not show the ids yet; the kubelet tries again.
            DoesNotFit: the container cannot run with the cards it was given.
        """
        ids = frozenset(devices)
        entries = self.kubelet.checkpoint()
        if entries is None:
            grants = [g for g in self.state.view.grants.values() if g.ids.get(resource) == ids]
            if not grants:
                raise NodeUnready(
                    "the kubelet's checkpoint cannot be read and the books do not know these ids: "
                    "the start is tried again"
                )
            self.metrics.container_starts_unverified.inc()
            self._start(grants)
            return
        hits = [e for e in entries if e.resource == resource and e.ids == ids]
        if not hits:
            self.metrics.container_starts_delayed.inc()
            raise NodeUnready(
                "these ids are in no entry of the kubelet's checkpoint: the start is tried again"
            )
        grants = [self._settle(entry, entries) for entry in hits]
        self._check_nodes(hits, grants)
        self._check_pages(hits, grants)
        self._start(grants)

    def _check_driver(self, grants: Sequence[Grant]) -> None:
        """Refuse a start while the driver is away: a runtime makes directories of files that are not there,
        and the container would run without its card.
        """
        if why := self.not_injectable({card for grant in grants for card in grant.allocation.cards}):
            raise NodeUnready(f"{why}: the start is tried again")

    def _settle(self, entry: CheckpointEntry, entries: Sequence[CheckpointEntry]) -> Grant:
        """Return the grant of a checkpoint entry, corrected if it was booked for another container."""
        memory = next(
            (
                e.ids
                for e in entries
                if (e.pod, e.container, e.resource) == (entry.pod, entry.container, MEMORY)
            ),
            frozenset[str](),
        )
        known = self.state.view.grants.get((entry.pod, entry.container))
        nameless = any(map(is_unidentified, self.state.owners(memory)))  # its memory is booked beside it
        if is_predecessor_pod({entry.resource: entry.ids}):
            return self._of_predecessor(entry, known)
        if known is not None and known.ids.get(entry.resource) == entry.ids and not nameless:
            told = decode_assignment(entry.annotation)
            # Without an answer of ours NVIDIA's own plugin started it; its id is the card.
            theirs = entry.resource == NVIDIA and told is None
            if theirs or (known.directory and (told is None or told.directory == known.directory)):
                return known
        pod = pod_of(self.pods.local(), entry.pod)
        try:
            grant = self.state.adopt(entry, memory, pod)
        except (DoesNotFit, RequestInvalid) as error:
            self._refuse(entry, pod, str(error))
            raise DoesNotFit(
                f"container {entry.container!r} cannot start with the card it was given: {error}"
            ) from error
        self.metrics.association_corrected.inc()
        log.warning(
            "association_corrected", pod=entry.pod, container=entry.container, directory=grant.directory
        )
        return grant

    def _of_predecessor(self, entry: CheckpointEntry, known: Grant | None) -> Grant:
        """Return the grant of a container that the predecessor's agent admitted and that starts again.

        The kubelet replays the predecessor's response: a whole card works as before, but a fraction's library
        looks for a manager that no longer runs. Raises DoesNotFit then.
        """
        if known is not None and all(share.whole for share in known.allocation.shares):
            return known
        why = "no record says on which card" if known is None else "its library needs that manager to start"
        reason = f"the predecessor admitted it, and {why}; delete the pod, so that a new one is admitted"
        self._refuse(entry, pod_of(self.pods.local(), entry.pod), reason)
        raise DoesNotFit(f"container {entry.container!r} cannot start again: {reason}")

    def _check_nodes(self, hits: Sequence[CheckpointEntry], grants: Sequence[Grant]) -> None:
        """Refuse a start whose device nodes now belong to another card.

        The kubelet replays an Allocate response for the pod's life, also after a reboot, but the driver
        numbers its cards anew at each boot: after a card is lost, the same device node may be another card.
        """
        node = self.state.node
        for entry, grant in zip(hits, grants, strict=True):
            if entry.nodes and not node.cards:
                raise NodeUnready("the driver has not told its cards yet: the start is tried again")
            moved = next(filter(None, (_moved(card, entry, node) for card in grant.allocation.cards)), "")
            if entry.nodes and moved:
                reason = f"{moved}; delete the pod, so that a new one is admitted"
                self._refuse(entry, pod_of(self.pods.local(), entry.pod), reason)
                raise DoesNotFit(f"container {entry.container!r} cannot start: {reason}")

    def _check_pages(self, hits: Sequence[CheckpointEntry], grants: Sequence[Grant]) -> None:
        """Refuse a start if containers with different limits were given the same directory of control pages.

        An init and an app container that share device ids normally have a page each; they got the same
        one if their pod was taken for another of the same name.
        """
        limits: dict[str, object] = {}
        for entry, grant in zip(hits, grants, strict=True):
            if grant.directory and limits.setdefault(grant.directory, limits_of(grant)) != limits_of(grant):
                reason = (
                    "its limits are another container's too; delete the pod, so that a new one is admitted"
                )
                self._refuse(entry, pod_of(self.pods.local(), entry.pod), reason)
                raise DoesNotFit(f"container {entry.container!r} cannot start: {reason}")

    def _start(self, grants: Sequence[Grant]) -> None:
        self._check_driver(grants)
        fresh = [g for g in grants if not g.proven]
        for grant in grants:
            if limits_of(grant) and not grant.directory:
                raise NodeUnready(
                    f"container {grant.allocation.container!r} is known by its ids alone, and the kubelet's "
                    f"checkpoint, which knows its directory, cannot be read: the start is tried again"
                )
            self.limits.start(grant)  # its size or elastic limit may have changed during the verification
        if fresh:
            self.state.confirm([grant.key for grant in fresh])
        for grant in fresh:
            self._announce(grant)

    def _announce(self, grant: Grant) -> None:
        pod = pod_of(self.pods.local(), grant.allocation.pod)
        if pod is not None:
            allocation = grant.allocation
            beside = explain.neighbours(self.state.view.ledger, allocation.pod, allocation.cards)
            text = explain.explain_shares(allocation.shares, self.state.node.cards)
            text += explain.with_priority(explain.explain_unprotected(allocation.priority, beside))
            self.pods.event(pod, EVENT_ALLOCATED, f'container "{allocation.container}": {text}')
            self._writeback.tell(pod)

    def _refuse(self, entry: CheckpointEntry, pod: Pod | None, reason: str) -> None:
        self.metrics.container_starts_refused.inc()
        log.error(
            "container_start_refused",
            pod=pod.key if pod else entry.pod,
            container=entry.container,
            reason=reason,
        )
        if pod is not None:
            self.pods.event(
                pod, EVENT_START_REFUSED, f'container "{entry.container}": {reason}', warning=True
            )
            if self.evict and pod.controlled:
                self.pods.evict(pod, reason)


def _moved(uuid: CardUuid, entry: CheckpointEntry, node: NodeCards) -> str:
    """Return why the container's device nodes are not this card's; empty if they are."""
    state = node.card(uuid)
    if state is None or state.missing:
        return f"its card {state.card.index if state else uuid} is no longer there"
    number = state.card.minor
    if number is None or number in entry.nodes:
        return ""
    was = ", ".join(f"/dev/nvidia{n}" for n in sorted(entry.nodes))
    return (
        f"it was given {was}, and since the last boot its card {state.card.index} ({uuid}) is "
        f"/dev/nvidia{number}: it would run on another pod's card"
    )


class LimitPages:
    """Writes limits pages. Thread-safe. A thread that holds ``changing`` may take the locks of
    :class:`NodeState`, never the reverse.
    """

    def __init__(self, state: NodeState, pages: ControlPages) -> None:
        self._state = state
        self._pages = pages
        self.changing = threading.RLock()

    def write(self, grant: Grant) -> None:
        """Put these limits in force. The caller holds ``changing`` since it read the grant.

        Raises:
            NodeUnready: the page cannot be written.
        """
        self._pages.open(grant.directory, limits_of(grant))

    def apply_settings(self) -> None:
        """Write the limits of every fraction anew, with the settings of this agent (``--oversubscribe``,
        ``--fail-open``, ``--context-mib``); its library follows at once.

        Pages that are not there are left to the start of their container. A page that cannot be written is
        logged, and keeps the settings that it has.
        """
        try:
            there = frozenset(self._pages.names())
        except NodeUnready as error:
            log.warning("page_settings_not_applied", reason=str(error))
            return
        for key in self._state.view.grants:
            with self.changing:
                grant = self._state.view.grants.get(key)
                if grant is None or grant.directory not in there or not limits_of(grant):
                    continue
                try:
                    self.write(grant)
                except NodeUnready as error:
                    log.warning("page_settings_not_applied", directory=grant.directory, reason=str(error))

    def start(self, grant: Grant) -> None:
        """Before the container starts: its limits as the books have them now, and no usage.

        Raises:
            NodeUnready: a page cannot be written.
        """
        with self.changing:
            now = self._state.view.grants.get(grant.key, grant)
            if limits_of(now):
                self.write(now)
                self._pages.reset(now.directory)


# Writes the cards that a pod's containers really hold into its annotation, for the scheduler.
# The annotation is written when the first container starts, and checked whenever the pod appears or
# changes: a write that was pending when the agent was killed is lost, and pods of the predecessor have only
# its annotation.
# At its graceful end the agent serves until all pods that are bound to this node are admitted. A pod that
# the kubelet admits while no plugin serves fails for good. So schedulers are told first, and then the pods
# that they have bound already are awaited. Told counts only once the API server has taken it: one that is
# busy may take seconds, and pods are bound here until then.


class AnnotationWriteback:
    """Thread-safe; returns at once."""

    def __init__(self, state: NodeState, pods: Pods, clock: Clock) -> None:
        self._state = state
        self._pods = pods
        self._clock = clock

    def tell(self, pod: Pod) -> None:
        """Annotate the pod if it has started and its annotation does not name its cards."""
        view = self._state.view
        placement, node = _placement(view, pod), view.node
        if not placement or pod.terminal:
            return
        truth = allocation_annotations(
            pod,
            node.name,
            placement,
            node.cards,
            self._clock.now(),
            assigned=True,
            numa_ids=strayed_ids(view, pod.uid),
        )
        if annotations_differ(pod, truth):
            self._pods.annotate(pod, truth)


def strayed_ids(view: StateView, pod: PodUid) -> dict[str, dict[int, tuple[int, int]]]:
    """Container → NUMA node → its ids of cores and of memory there, of containers that hold ids of other NUMA
    nodes than those of their cards: the kubelet counts them there.
    """
    numa = {state.card.uuid: state.card.numa for state in view.node.cards}
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for held in view.ledger.of_pod(pod).values():
        grant = view.grants.get(held.key)
        counts: dict[int, tuple[int, int]] = {}
        for at, resource in enumerate((CORE, MEMORY)):
            for device in grant.ids.get(resource, ()) if grant is not None else ():
                node = numa.get(view.node.ids.card_of[resource].get(device, CardUuid("")))
                if node is not None:
                    cores, units = counts.get(node, (0, 0))
                    counts[node] = (cores + (at == 0), units + (at == 1))
        if not counts.keys() <= {numa.get(card) for card in held.cards}:
            found[held.container] = dict(sorted(counts.items()))
    return found


def _placement(view: StateView, pod: Pod) -> Mapping[str, Sequence[Share]]:
    """Container → shares; empty until a container's grant is confirmed, since it may be another pod's."""
    held = view.ledger.of_pod(pod.uid)
    grants = [grant for a in held.values() if (grant := view.grants.get(a.key)) is not None]
    if not any(grant.proven or is_predecessor_pod(grant.ids) for grant in grants):
        return {}
    return {name: allocation.shares for name, allocation in held.items()}


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
