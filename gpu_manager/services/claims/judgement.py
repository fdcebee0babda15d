"""Judges what a ResourceClaim was allocated, before it is booked: only what this node can give in full, in a
way that its containers can have, becomes a grant.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from gpu_manager.domain.dra.allocated import AllocatedClaim, ClaimedShare
from gpu_manager.domain.dra.device import device_names, for_claims
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, format_bytes
from gpu_manager.ports.api_server import Pods
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.node_state import NodeState

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

        The limits of both would be mounted at one path, and the cards of one had none.
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
