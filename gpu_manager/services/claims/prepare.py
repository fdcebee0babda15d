"""Prepares and releases ResourceClaims of this node: books them, and makes what their containers need.

What the kubelet asks is answered from the books where they have the claim. Its pages and CDI specs are made
again each time, because a reboot takes them and the books stay.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from gpu_manager.domain.contract import EVENT_REFUSED
from gpu_manager.domain.dra.allocated import AllocatedClaim, ClaimedShare
from gpu_manager.domain.dra.published import device_names, for_claims
from gpu_manager.domain.dra.sides import Side
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError, quoted
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.pod import ContainerKind, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, format_bytes
from gpu_manager.ports.claims import Claims
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.ports.injector import Injector
from gpu_manager.ports.pods import Pods
from gpu_manager.ports.processes import Processes
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

_SHOWN = 3  # holders named
ROUNDS = 2  # in which a claim that the kubelet never released is absent from the API server


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a claim as the kubelet hands it to the containers that refer to ``request``."""

    request: str
    pool: str
    device: str
    share_id: str
    cdi: tuple[str, ...]


class ClaimPreparer:
    """Thread-safe. No lock is held while the API server is asked."""

    def __init__(
        self,
        state: NodeState,
        claims: Claims,
        pods: Pods,
        pages: ControlPages,
        injector: Injector,
        processes: Processes,
        metrics: ServiceMetrics,
        *,
        evict: bool = False,
    ) -> None:
        """``evict``: delete controlled pods whose claim is of a card that has left DRA."""
        self._evict = evict
        self._freed: frozenset[PodUid] = frozenset()
        self._state = state
        self._claims = claims
        self._pods = pods
        self._pages = pages
        self._injector = injector
        self._processes = processes
        self._metrics = metrics
        self._lock = threading.Lock()  # of what is made on the node: one claim at a time
        self._absent: dict[PodUid, int] = {}  # rounds in which the API server did not have the claim

    def restore(self) -> None:
        """Make the pages of all claims that are booked; their CDI specs are the injection keeper's.

        Call it before the kubelet can start a container. What fails is tried again with the next Prepare.
        """
        for uid in {allocation.pod for allocation in self._state.view.ledger.claims}:
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
            self._metrics.claims.labels("refused").inc()
            log.warning("claim_refused", claim=f"{namespace}/{name}", uid=uid, reason=str(error))
            raise
        self._metrics.claims.labels("prepared").inc()
        return made

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
            self._metrics.claims.labels("lingering").inc()
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
        held = {allocation.pod: allocation for allocation in self._state.view.ledger.claims}
        self._absent = {uid: rounds for uid, rounds in self._absent.items() if uid in held}
        for uid, allocation in held.items():
            try:
                found = self._claims.read(allocation.namespace, _holder(allocation).name)
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
            if grants and self._absent[uid] >= ROUNDS and not self._living(grants, ()):
                self._release(grants, "gone from the API server")
                released += [grant.allocation for grant in grants]
        return tuple(released)

    def _follow(self, uid: PodUid, allocation: Allocation, found: AllocatedClaim) -> None:
        if found.pods and set(found.pods) != set(_holder(allocation).pods):
            try:
                self._state.set_claim_pods(uid, found.pods)
            except NodeUnready as error:
                log.warning("claim_pods_not_saved", claim=uid, reason=str(error))

    def _held(self, claim: PodUid) -> tuple[Grant, ...]:
        view = self._state.view
        return tuple(view.grants[a.key] for a in view.ledger.of_pod(claim).values() if a.key in view.grants)

    def _book(self, namespace: str, uid: PodUid, name: str) -> tuple[Grant, ...]:
        found = self._claims.read(namespace, name)
        if found is None:
            raise RequestInvalid(f"claim {namespace}/{name} does not exist any more")
        if found.uid != uid:
            raise RequestInvalid(
                f"claim {namespace}/{name} was replaced: it has UID {found.uid} and not {uid}; delete the pod"
            )
        try:
            self._check_late(found)
            grants = self._grants(found)
            try:
                booked = self._state.prepare(grants)
            except DoesNotFit as error:
                raise DoesNotFit(self._no_room(found, grants) or str(error)) from error
        except (RequestInvalid, DoesNotFit) as error:
            self._tell(found, str(error))
            raise
        log.info(
            "claim_booked",
            claim=f"{namespace}/{name}",
            requests=[_holder(grant.allocation).request for grant in booked],
            cards=[self._state.node.index(card) for grant in booked for card in grant.allocation.cards],
            directories=[grant.directory for grant in booked],
        )
        return booked

    def _grants(self, claim: AllocatedClaim) -> tuple[Grant, ...]:
        """A grant for each request: its containers share the pages."""
        requests: dict[str, list[ClaimedShare]] = {}
        for share in claim.shares:
            requests.setdefault(share.request, []).append(share)
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
                        claim.name, request, tuple((one.device, one.share_id) for one in shares), claim.pods
                    ),
                ),
                secrets.token_hex(16),
                claim.ceilings.get(request, 0),
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
        state = for_claims(self._state.view.sides, there)
        if state is None:
            raise DoesNotFit(f"{who} was allocated card {there.card.index}, which is on its way to claims")
        if one.is_admin:
            raise RequestInvalid(
                f"{who} asks for admin access, which this driver does not give: card {state.card.index} is "
                "seen by `kubectl vcuda top` and on the agent's pages"
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

    def _check_late(self, claim: AllocatedClaim) -> None:
        """Refuse, and free, a claim of a card that has left DRA: its scheduler saw a slice of before.

        Kubernetes allocates a claim anew once no pod reserves it, and a pod with a claim never moves itself.
        """
        view, uids = self._state.view, {uid for uid, _ in claim.pods}
        names = device_names([state.card for state in view.node.cards])
        sides = {names[s.card.uuid]: (s, (view.sides or {}).get(s.card.uuid)) for s in view.node.cards}
        gone = [
            sides[one.device][0]
            for one in claim.shares
            if one.device in sides and sides[one.device][1] in (Side.PLUGIN, Side.TO_PLUGIN)
        ]
        if not gone:
            return
        there = [f.pod for named in self._pods.local().values() for f in named if not f.tombstone]
        pods = [pod for pod in there if pod.uid in uids and not pod.terminal]
        evicted = [pod for pod in pods if self._evict and pod.controlled and not pod.static]
        all_go = bool(evicted) and len(evicted) == len(pods)
        cure = "its pod is deleted, to be placed anew" if all_go else "delete the pod, to have it placed anew"
        text = (
            f"claim {claim.namespace}/{claim.name} was allocated card {gone[0].card.index}, which has gone "
            f"over to pods that ask for extended resources; {cure}"
        )
        self._metrics.late_claims.inc()
        for pod in evicted:
            if pod.uid not in self._freed and not pod.deleting:
                self._pods.evict(pod, text)
        self._freed = (self._freed & {pod.uid for pod in there}) | {pod.uid for pod in evicted}
        raise DoesNotFit(text)

    def _no_room(self, claim: AllocatedClaim, grants: Sequence[Grant]) -> str:
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

    def _make_ready(self, grant: Grant) -> tuple[PreparedDevice, ...]:
        """Pages first, then the specs that mount them."""
        self._open(grant)
        holder = _holder(grant.allocation)
        cdi = self._injector.inject_claim(grant.directory, grant.allocation.shares)
        pool = self._state.node.name
        return tuple(
            PreparedDevice(holder.request, pool, device, share_id, cdi[n : n + 1])
            for n, (device, share_id) in enumerate(holder.results)
        )

    def _open(self, grant: Grant) -> None:
        if limits := limits_of(grant):
            self._pages.open(grant.directory, limits)

    def _reserved(self, namespace: str, uid: PodUid, name: str) -> Sequence[tuple[PodUid, str]]:
        """The pods of the claim as the API server has it now; none if it cannot be read."""
        try:
            found = self._claims.read(namespace, name)
        except (NodeUnready, RequestInvalid):
            return ()
        return found.pods if found is not None and found.uid == uid else ()

    def _living(self, held: Sequence[Grant], more: Sequence[tuple[PodUid, str]]) -> str:
        """Names of the claim's pods of which a process lives; empty if none does, or none can be seen."""
        pods = {uid: name for grant in held for uid, name in (*_holder(grant.allocation).pods, *more)}
        self._processes.look_again(pods.keys())
        alive = {uid: self._processes.alive(uid) for uid in pods}
        if None in alive.values() and self._in_use(held):
            return "its pods"
        return ", ".join(sorted(f"pod {pods[uid]}" for uid, lives in alive.items() if lives))

    def _in_use(self, held: Sequence[Grant]) -> bool:
        """True if a process has a slot in a page of the claim: all that an agent without hostPID can see."""
        for grant in held:
            if limits_of(grant):
                try:
                    used = self._pages.usage(grant.directory)
                except NodeUnready:  # gone, or tampered with: it says nothing
                    continue
                if any(use.processes for use in used):
                    return True
        return False

    def _release(self, held: Sequence[Grant], why: str) -> None:
        with self._lock:
            released = self._state.release([grant.key for grant in held])
            for grant in held:
                self._pages.remove(grant.directory)
        self._metrics.claims.labels("released").inc()
        for one in released:
            log.info("claim_released", claim=one.pod_key, request=_holder(one).request, reason=why)

    def _tell(self, claim: AllocatedClaim, text: str) -> None:
        """An Event at each pod that waits for the claim."""
        uids = {uid for uid, _ in claim.pods}
        for found in self._pods.local().values():
            for one in found:
                if one.pod.uid in uids and not one.tombstone:
                    self._pods.event(one.pod, EVENT_REFUSED, text, warning=True)


def _holder(allocation: Allocation) -> HoldingClaim:
    if allocation.claim is None:
        raise TypeError("what a container holds has no claim")
    return allocation.claim
