"""Prepares and releases ResourceClaims of this node: books them, and makes what their containers need.

What the kubelet asks is answered from the books where they have the claim. Its pages and CDI specs are made
again each time, because a reboot takes them and the books stay.

What a claim was allocated is judged before it is booked: only what this node can give in full, in a
way that its containers can have, becomes a grant.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from gpu_manager.domain.contract import EVENT_REFUSED
from gpu_manager.domain.dra.allocation import AllocatedClaim, ClaimedShare
from gpu_manager.domain.dra.device import device_names, for_claims
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError, quoted
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, format_bytes
from gpu_manager.ports.api_server import Claims, Pods
from gpu_manager.ports.containers import Injector, Processes
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.metrics import CLAIM_REASONS, ServiceMetrics

log = structlog.get_logger(__name__)

_SHOWN = 3  # holders named


class ClaimJudge:
    """Of one node."""

    def __init__(self, state: NodeState, pods: Pods) -> None:
        self._state = state
        self._pods = pods

    def grants(self, claim: AllocatedClaim) -> tuple[Grant, ...]:
        """Return a grant for each request of the claim: its containers share the pages.

        Raises:
            RequestInvalid: it cannot be given, or not to a container that uses it so.
            DoesNotFit: its cards take no new work.
            NodeUnready: a pod that uses it cannot be read.
        """
        self._check_containers(claim)
        return self._grants(claim)

    def no_room(self, claim: AllocatedClaim, grants: Sequence[Grant]) -> str:
        """Say which card lacks the room; empty if each has enough for each share alone."""
        ledger = self._state.view.ledger
        for share in (share for grant in grants for share in grant.allocation.shares):
            free = ledger.free(share.card)
            if not share.amount.fits_in(free):
                holders = sorted({one.pod_key for one in ledger.holders(share.card)})
                held = f"; it is held by {', '.join(holders[:_SHOWN])}" if holders else ""
                return (
                    f"claim {claim.namespace}/{claim.name} was allocated {share.amount} of card "
                    f"{self._state.node.index(share.card)}, and {free} are free there{held}. It is tried "
                    "again; delete the pod, and the claim if it is the pod's own, to have it placed anew"
                )
        return ""

    def _grants(self, claim: AllocatedClaim) -> tuple[Grant, ...]:
        requests: dict[str, list[ClaimedShare]] = {}
        for share in claim.shares:
            requests.setdefault(share.request, []).append(share)
        self._check_admin(claim, requests)
        name = claim.pods[0][1] if len(claim.pods) == 1 else claim.name
        return tuple(
            Grant(
                Allocation(
                    PodUid(claim.uid),
                    f"{claim.name}/{request}",
                    ContainerKind.APP,
                    0,
                    tuple(self._share(claim, one) for one in shares),
                    claim.namespace,
                    name,
                    claim=HoldingClaim(
                        claim.name,
                        request,
                        tuple((one.device, one.share_id) for one in shares),
                        claim.pods,
                        claim.terms_of(request).preload,
                    ),
                    priority=claim.terms_of(request).priority,
                ),
                secrets.token_hex(16),
                claim.terms_of(request).ceiling,
                proven=True,
            )
            for request, shares in requests.items()
        )

    def _share(self, claim: AllocatedClaim, one: ClaimedShare) -> Share:
        node, who = self._state.node, f"claim {claim.namespace}/{claim.name}"
        names = device_names([state.card for state in node.cards])
        there = next((s for s in node.cards if names[s.card.uuid] == one.device), None)
        if there is None or one.pool != node.name:
            raise RequestInvalid(
                f"{who} was allocated device {quoted(one.device)} of pool {quoted(one.pool)}, and node "
                f"{node.name} has no such card: delete the claim, so that it is allocated anew"
            )
        if one.is_admin:  # it takes nothing of a card that is full, closed, or given to pods
            return Share(there.card.uuid, ZERO)
        state = for_claims(self._state.view.sides, there)
        if state is None:
            raise DoesNotFit(
                f"{who} was allocated card {there.card.index}, which is given by extended resources since "
                "this agent's start: delete the pod, and the claim if it is the pod's own, to have it placed "
                "anew"
            )
        if not state.open:
            why = state.reason or ("it is cordoned" if state.cordoned else "it takes no new work")
            raise DoesNotFit(f"{who} was allocated card {state.card.index}, which is closed: {why}")
        room = state.card.capacity(node.unit)
        if one.amount.cores == CORES_PER_CARD and one.amount.memory != room.memory:
            raise RequestInvalid(
                f"{who} was allocated {CORES_PER_CARD} cores with {format_bytes(one.amount.memory)} of card "
                f"{state.card.index}, which has {format_bytes(room.memory)}: leave the capacity out for a "
                f"whole card, or ask for at most {CORES_PER_CARD - 1} cores"
            )
        return Share(state.card.uuid, one.amount)

    @staticmethod
    def _check_admin(claim: AllocatedClaim, requests: Mapping[str, Sequence[ClaimedShare]]) -> None:
        """Refuse a request that looks at some of its cards and holds a part of others: it has one page."""
        for request, shares in requests.items():
            if len({one.is_admin for one in shares}) > 1:
                raise RequestInvalid(
                    f"claim {claim.namespace}/{claim.name}: request {quoted(request)} was allocated admin "
                    "access to some of its cards and a part of others: delete the claim, so that it is "
                    "allocated anew"
                )

    def _check_containers(self, claim: AllocatedClaim) -> None:
        """Refuse a container that uses two requests of ours, of this claim or another that is prepared.

        A container has one path for its limits page, so the cards of one request would be without limits.
        """
        ledger = self._state.view.ledger
        for pod in self._pods_of(claim):
            others = {
                (holder.name, holder.request)
                for holder in (one.claim for one in ledger.claims if one.namespace == claim.namespace)
                if holder is not None and pod.uid in {uid for uid, _ in holder.pods}
            }
            there = others | {(claim.name, share.request) for share in claim.shares}
            for container in pod.containers:
                used = {
                    one
                    for one in there
                    for name, request in container.claims
                    if name == one[0] and request in {"", one[1]}
                }
                if len(used) > 1:
                    names = ", ".join(sorted(f"{name}/{request}" for name, request in used))
                    raise RequestInvalid(
                        f'container "{container.name}" of pod {pod.key} uses {len(used)} requests of this '
                        f"driver ({names}), and the limits of one alone can be mounted: use one request, "
                        "with count for parts of several cards"
                    )

    def _pods_of(self, claim: AllocatedClaim) -> list[Pod]:
        """The pods for which the claim is reserved; the API server is asked for those not seen yet."""
        uids = {uid for uid, _ in claim.pods}
        there = [f.pod for named in self._pods.local().values() for f in named if f.pod.uid in uids]
        for uid, name in claim.pods:
            if all(pod.uid != uid for pod in there):
                found = self._pods.fetch(claim.namespace, name)
                there += [found] if found is not None and found.uid == uid else []
        return there


ABSENT_ROUNDS = 2  # in which a claim that the kubelet never released is absent from the API server


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a claim as the kubelet hands it to the containers that refer to ``request``."""

    request: str
    pool: str
    device: str
    share_id: str
    cdi: tuple[str, ...]


@dataclass(eq=False, repr=False)
class ClaimPreparer:
    """Thread-safe. No lock is held while the API server is asked."""

    state: NodeState
    claims: Claims
    pods: Pods
    pages: ControlPages
    injector: Injector
    processes: Processes
    metrics: ServiceMetrics

    def __post_init__(self) -> None:
        self._judge = ClaimJudge(self.state, self.pods)
        self._lock = threading.Lock()  # of what is made on the node: one claim at a time
        self._absent: dict[PodUid, int] = {}  # rounds in which the API server did not have the claim
        self._lingering: set[PodUid] = set()  # released by the kubelet, and held by processes
        self._prepared: set[tuple[str, str]] = set()  # namespace and name, since this agent started

    def restore(self) -> None:
        """Make the pages of all claims that are booked; their CDI specs are the injection keeper's.

        Call it before the kubelet can start a container. What fails is tried again with the next Prepare.
        """
        for uid in {allocation.pod for allocation in self.state.view.ledger.claims}:
            try:
                with self._lock:
                    for grant in self._held(uid):
                        self._open(grant)
            except NodeUnready as error:
                log.warning("claim_not_restored", claim=uid, reason=str(error))

    def prepare(self, namespace: str, uid: str, name: str) -> tuple[PreparedDevice, ...]:
        """Book what the claim was allocated and make it ready; returns its devices. Idempotent.

        Raises:
            RequestInvalid: there is no such claim, or what it was allocated cannot be given.
            DoesNotFit: its cards have no room, or take no new work.
            NodeUnready: the API server does not answer, or books, pages or specs cannot be written.
        """
        claim = PodUid(uid)
        try:
            held = self._held(claim) or self._book(namespace, claim, name)
            with self._lock:
                made = tuple(device for grant in held for device in self._make_ready(grant))
        except VcudaError as error:
            self.metrics.claims.labels("refused", _reason(error)).inc()
            log.warning("claim_refused", claim=f"{namespace}/{name}", uid=uid, reason=str(error))
            raise
        self.metrics.claims.labels("prepared", "").inc()
        self._prepared.add((namespace, name))
        self._linger(claim, lingers=False)  # a pod came before its processes had ended
        return made

    def is_prepared(self, namespace: str, name: str) -> bool:
        """True if the claim of this name was prepared since this agent started, and not released since."""
        return (namespace, name) in self._prepared

    def unprepare(self, namespace: str, uid: str, name: str) -> None:
        """Release the claim; one that is not known is released already.

        Raises:
            NodeUnready: processes of its pods still run. The kubelet calls again.
        """
        claim = PodUid(uid)
        held = self._held(claim)
        if not held:
            return
        if still := self._living(held, self._reserved(namespace, claim, name)):
            self.metrics.claims.labels("lingering", "").inc()
            self._linger(claim, lingers=True)
            raise NodeUnready(
                f"processes of {still} still run and use what claim {namespace}/{name} holds: "
                "it is released once they have ended"
            )
        self._release(held, "unprepared")

    def round(self) -> tuple[Allocation, ...]:
        """Follow the pods of each claim, and release claims that the API server no longer has and whose
        processes have ended: the kubelet that lost its records never does. Returns what was released.
        """
        released: list[Allocation] = []
        held = {allocation.pod: allocation for allocation in self.state.view.ledger.claims}
        self._absent = {uid: rounds for uid, rounds in self._absent.items() if uid in held}
        for uid, allocation in held.items():
            try:
                found = self.claims.read(allocation.namespace, _holder(allocation).name)
            except NodeUnready:
                return tuple(released)  # nothing is known of the others either
            except RequestInvalid:
                self._absent.pop(
                    uid, None
                )  # it is there, and only the kubelet knows whether it is done with it
                continue
            if found is not None and found.uid == uid:
                self._absent.pop(uid, None)
                self._follow(uid, allocation, found)
                continue
            self._absent[uid] = self._absent.get(uid, 0) + 1
            grants = self._held(uid)
            if grants and self._absent[uid] >= ABSENT_ROUNDS and not self._living(grants, ()):
                self._release(grants, "gone from the API server")
                released += [grant.allocation for grant in grants]
        return tuple(released)

    def _follow(self, uid: PodUid, allocation: Allocation, found: AllocatedClaim) -> None:
        if found.pods and set(found.pods) != set(_holder(allocation).pods):
            try:
                self.state.set_claim_pods(uid, found.pods)
            except NodeUnready as error:
                log.warning("claim_pods_not_saved", claim=uid, reason=str(error))

    def _held(self, claim: PodUid) -> tuple[Grant, ...]:
        view = self.state.view
        return tuple(view.grants[a.key] for a in view.ledger.of_pod(claim).values() if a.key in view.grants)

    def _book(self, namespace: str, uid: PodUid, name: str) -> tuple[Grant, ...]:
        found = self.claims.read(namespace, name)
        if found is None:
            raise RequestInvalid(f"claim {namespace}/{name} does not exist any more")
        if found.uid != uid:
            raise RequestInvalid(
                f"claim {namespace}/{name} was replaced: it has UID {found.uid} and not {uid}; delete the pod"
            )
        try:
            grants = self._judge.grants(found)
            try:
                booked = self.state.prepare(grants)
            except DoesNotFit as error:
                raise DoesNotFit(self._judge.no_room(found, grants) or str(error)) from error
        except (RequestInvalid, DoesNotFit) as error:
            self._tell(found, str(error))
            raise
        log.info(
            "claim_booked",
            claim=f"{namespace}/{name}",
            requests=[_holder(grant.allocation).request for grant in booked],
            cards=[self.state.node.index(card) for grant in booked for card in grant.allocation.cards],
            directories=[grant.directory for grant in booked],
        )
        return booked

    def _make_ready(self, grant: Grant) -> tuple[PreparedDevice, ...]:
        """Pages first, then the specs that mount them."""
        self._open(grant)
        holder = _holder(grant.allocation)
        allocation = grant.allocation
        cdi = self.injector.inject_claim(
            grant.directory, allocation.shares, allocation.priority, preload=holder.preload
        )
        pool = self.state.node.name
        return tuple(
            PreparedDevice(holder.request, pool, device, share_id, cdi[n : n + 1])
            for n, (device, share_id) in enumerate(holder.results)
        )

    def _open(self, grant: Grant) -> None:
        if limits := limits_of(grant):
            self.pages.open(grant.directory, limits)

    def _reserved(self, namespace: str, uid: PodUid, name: str) -> Sequence[tuple[PodUid, str]]:
        """The pods of the claim as the API server has it now; none if it cannot be read."""
        try:
            found = self.claims.read(namespace, name)
        except (NodeUnready, RequestInvalid):
            return ()
        return found.pods if found is not None and found.uid == uid else ()

    def _living(self, held: Sequence[Grant], more: Sequence[tuple[PodUid, str]]) -> str:
        """Names of the claim's pods of which a process lives; empty if none does, or none can be seen."""
        pods = {uid: name for grant in held for uid, name in (*_holder(grant.allocation).pods, *more)}
        self.processes.look_again(pods.keys())
        alive = {uid: self.processes.alive(uid) for uid in pods}
        # What a killed kubelet left behind before its start waits for us, as we would for it.
        alive |= {uid: False for uid, lives in alive.items() if lives and self.processes.unstarted(uid)}
        if None in alive.values() and self._in_use(held):
            return "its pods"
        return ", ".join(sorted(f"pod {pods[uid]}" for uid, lives in alive.items() if lives))

    def _in_use(self, held: Sequence[Grant]) -> bool:
        """True if a process has a slot in a page of the claim: all that an agent without hostPID can see."""
        for grant in held:
            if limits_of(grant):
                try:
                    used = self.pages.usage(grant.directory)
                except NodeUnready:  # gone, or tampered with: it says nothing
                    continue
                if any(use.processes for use in used):
                    return True
        return False

    def _release(self, held: Sequence[Grant], why: str) -> None:
        for grant in held:
            self._prepared.discard((grant.allocation.namespace, _holder(grant.allocation).name))
        with self._lock:
            released = self.state.release([grant.key for grant in held])
            for grant in held:
                self.pages.remove(grant.directory)
        self.metrics.claims.labels("released", "").inc()
        self._linger(held[0].allocation.pod, lingers=False)
        for one in released:
            log.info("claim_released", claim=one.pod_key, request=_holder(one).request, reason=why)

    def _linger(self, claim: PodUid, *, lingers: bool) -> None:
        """Note whether only living processes keep the claim from its release."""
        with self._lock:
            (self._lingering.add if lingers else self._lingering.discard)(claim)
            self.metrics.lingering_claims.set(len(self._lingering))

    def _tell(self, claim: AllocatedClaim, text: str) -> None:
        """An Event at each pod that waits for the claim."""
        uids = {uid for uid, _ in claim.pods}
        for found in self.pods.local().values():
            for one in found:
                if one.pod.uid in uids and not one.tombstone:
                    self.pods.event(one.pod, EVENT_REFUSED, text, warning=True)


def _reason(error: VcudaError) -> str:
    return next((text for kind, text in CLAIM_REASONS.items() if isinstance(error, kind)), "not-ready")


def _holder(allocation: Allocation) -> HoldingClaim:
    if allocation.claim is None:
        raise TypeError("what a container holds has no claim")
    return allocation.claim
