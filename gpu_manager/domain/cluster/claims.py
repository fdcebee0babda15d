"""ResourceClaims in the cluster's accounting: how much of which card an allocated claim holds.

What the scheduler allocated counts, however odd: an amount that cannot be read counts as the whole card, and
a share of an unknown card still counts for the namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.claim import ClaimSpec, parse_claim_spec
from gpu_manager.domain.dra.device import CORES, MEMORY, device_names
from gpu_manager.domain.dra.parameters import read_config, terms_of
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, text, timestamp

_POD = "Pod"


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device of this driver that was allocated for a claim's request. ``pool`` is the node's name.

    ``cores`` and ``memory`` are None if the allocation does not state them: then all of the card.
    ``priority`` is that of the share inside its card.
    """

    request: str
    pool: str
    device: str
    share_id: str
    cores: int | None
    memory: int | None
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class KnownClaim:
    """A ResourceClaim. ``spec`` is None if it cannot be read; ``devices`` are this driver's devices that it
    holds, ``admin_devices`` pool and name of devices under admin access, which holds nothing.

    ``pods``: UID and name of the pods for which it is reserved; ``owner`` is the pod for which it was
    created, ``began`` its creation time, in seconds since 1970.
    """

    uid: PodUid
    namespace: str
    name: str
    spec: ClaimSpec | None
    allocated: bool = False
    devices: tuple[HeldDevice, ...] = ()
    pods: tuple[tuple[PodUid, str], ...] = ()
    owner: str = ""
    began: float | None = None
    admin_devices: tuple[tuple[str, str], ...] = ()

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes of its devices: one, as Kubernetes allocates."""
        return frozenset(one.pool for one in self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class ClaimCharge:
    """What one claim holds of a node; ``usage`` is the sum by card model (empty: unknown), ``protected`` the
    part of that in protected shares.
    """

    claim: KnownClaim
    allocations: tuple[Allocation, ...]
    usage: tuple[tuple[str, Amount], ...]
    protected: tuple[tuple[str, Amount], ...] = ()


def read_claim(obj: object) -> KnownClaim | None:
    """Read a ResourceClaim of resource.k8s.io/v1; None without a UID. Malformed parts count as absent."""
    claim = mapping(obj)
    meta, status = mapping(claim.get("metadata")), mapping(claim.get("status"))
    uid = text(meta.get("uid"))
    if not uid:
        return None
    try:
        spec = parse_claim_spec(claim.get("spec"))
    except RequestInvalid:
        spec = None
    allocation = status.get("allocation")
    given = mapping(mapping(allocation).get("devices"))
    ours = [one for one in mappings(given.get("results")) if one.get("driver") == DRA_DRIVER]
    devices = [_device(one) for one in ours if not _is_admin(one)]
    owners = (
        text(one.get("name")) for one in mappings(meta.get("ownerReferences")) if one.get("kind") == _POD
    )
    return KnownClaim(
        PodUid(uid),
        text(meta.get("namespace")),
        text(meta.get("name")),
        spec,
        isinstance(allocation, Mapping),
        _with_priorities(devices, given.get("config")),
        tuple(
            (PodUid(text(one.get("uid"))), text(one.get("name")))
            for one in mappings(status.get("reservedFor"))
            if one.get("resource") == "pods"
        ),
        next(owners, ""),
        timestamp(meta.get("creationTimestamp")),
        tuple((text(one.get("pool")), text(one.get("device"))) for one in ours if _is_admin(one)),
    )


def _is_admin(result: Mapping[str, Any]) -> bool:
    return result.get("adminAccess") is True


def _device(result: Mapping[str, Any]) -> HeldDevice:
    consumed = mapping(result.get("consumedCapacity"))
    return HeldDevice(
        text(result.get("request")),
        text(result.get("pool")),
        text(result.get("device")),
        text(result.get("shareID")),
        _consumed(consumed.get(CORES)),
        _consumed(consumed.get(MEMORY)),
    )


def _with_priorities(devices: Sequence[HeldDevice], config: object) -> tuple[HeldDevice, ...]:
    """The devices with the priorities in their requests' parameters."""
    cores: dict[str, int] = {}  # by the name of the chosen alternative
    for one in devices:
        cores[one.request] = max(cores.get(one.request, 0), one.cores or CORES_PER_CARD)
    try:
        told = read_config(config)
        priorities = {request: terms_of(told, request, most).priority for request, most in cores.items()}
    except RequestInvalid:
        priorities = {}
    return tuple(
        replace(
            one, request=one.request.partition("/")[0], priority=priorities.get(one.request, Priority.NORMAL)
        )
        for one in devices
    )


def _consumed(value: object) -> int | None:
    """The consumed capacity; None if absent, unreadable or not positive: kube-scheduler 1.36 can overflow."""
    try:
        number = Fraction(0) if value is None else parse_quantity(value)
    except RequestInvalid:
        return None
    return ceil(number) if number > 0 else None


def charge_claims(
    node: NodeReport, claims: Iterable[KnownClaim], known: Mapping[PodUid, ClaimCharge] | None = None
) -> dict[PodUid, ClaimCharge]:
    """The charge of each claim on the node. ``known`` are earlier charges by the same report."""
    charges: dict[PodUid, ClaimCharge] = {}
    for claim in claims:
        done = known.get(claim.uid) if known else None
        charges[claim.uid] = done if done is not None and done.claim is claim else _charge(claim, node)
    return charges


def _charge(claim: KnownClaim, node: NodeReport) -> ClaimCharge:
    """What the claim holds of this node; its devices elsewhere are left out."""
    cards = {name: uuid for uuid, name in device_names([state.card for state in node.cards]).items()}
    rooms = {state.card.uuid: state.card.capacity(node.unit) for state in node.cards}
    requests: dict[str, list[tuple[HeldDevice, Share]]] = {}
    usage: dict[str, Amount] = {}
    protected: dict[str, Amount] = {}
    for one in claim.devices:
        if one.pool != node.name:
            continue
        card = cards.get(one.device)
        amount = _amount(one, rooms.get(card) if card else None)
        model = node.models.get(card, "") if card else ""
        usage[model] = usage.get(model, ZERO) + amount
        if one.priority is Priority.PROTECTED:
            protected[model] = protected.get(model, ZERO) + amount
        if card is not None:
            requests.setdefault(one.request, []).append((one, Share(card, amount)))
    allocations = tuple(_allocation(claim, request, held) for request, held in requests.items())
    return ClaimCharge(claim, allocations, tuple(sorted(usage.items())), tuple(sorted(protected.items())))


def _amount(device: HeldDevice, room: Amount | None) -> Amount:
    if room is None:
        return Amount(min(device.cores or CORES_PER_CARD, CORES_PER_CARD), device.memory or 0)
    cores = CORES_PER_CARD if device.cores is None else min(device.cores, CORES_PER_CARD)
    return Amount(cores, room.memory if device.memory is None else min(device.memory, room.memory))


def _allocation(claim: KnownClaim, request: str, held: Sequence[tuple[HeldDevice, Share]]) -> Allocation:
    """The allocation in the form in which the agent books it."""
    return Allocation(
        claim.uid,
        f"{claim.name}/{request}",
        ContainerKind.APP,
        0,
        tuple(share for _, share in held),
        claim.namespace,
        claim.pods[0][1] if len(claim.pods) == 1 else claim.name,
        claim=HoldingClaim(
            claim.name, request, tuple((one.device, one.share_id) for one, _ in held), claim.pods
        ),
        priority=held[0][0].priority,
    )


def claims_by_node(claims: Sequence[KnownClaim]) -> Iterator[tuple[str, KnownClaim]]:
    """Yield each allocated claim with each node of its devices."""
    for claim in claims:
        for node in sorted(claim.nodes):
            yield node, claim
