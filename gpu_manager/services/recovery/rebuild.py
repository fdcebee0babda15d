"""Rebuilds the books at the agent's start, whichever sources are lost.

Precedence: the store, then our annotation in the checkpoint's response, then ids and pod spec, then the pod's
annotation as a hint. Disagreements are logged, counted and resolved in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import EVENT_LEDGER_REBUILT
from gpu_manager.domain.dra.sides import Sides
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of, priority_of
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.records import CheckpointEntry, PodResourcesEntry, PredecessorPod, Store
from gpu_manager.services.allocation.adopt import (
    in_parts,
    is_predecessor_pod,
    recognised,
    shares_by_annotation,
    shares_by_record,
)
from gpu_manager.services.allocation.books import Books, Grant, Key, NodeCards
from gpu_manager.services.allocation.books_format import decode, decode_sides
from gpu_manager.services.allocation.grant import annotation_of
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


@dataclass
class _Held:
    """What a container holds by the kubelet's checkpoint or listing."""

    ids: dict[str, frozenset[str]] = field(default_factory=dict)
    annotation: str | None = None


def rebuild(
    stored: bytes | None,
    entries: Sequence[CheckpointEntry] | None,
    listing: Mapping[tuple[str, str], Sequence[PodResourcesEntry]] | None,
    local: Mapping[str, Sequence[KnownPod]],
    node: NodeCards,
    metrics: ServiceMetrics,
    predecessor: Sequence[PredecessorPod] = (),
) -> Books:
    """The rebuilt books. Every source may be missing.

    ``predecessor`` is what the predecessor left, for containers that the kubelet or the API still shows.
    """
    pods = {f.pod.uid: f.pod for named in local.values() for f in named}
    grants: dict[Key, Grant] = {}
    complete = False  # the store was read, and so were the pods
    planned: tuple[Allocation, ...] = ()
    sides: Sides | None = None
    if stored is not None:
        try:
            found, planned = decode(stored)
            sides = decode_sides(stored)
            grants, complete = {g.key: g for g in found}, bool(pods)
        except NodeUnready as error:
            metrics.recovery_disagreements.labels("store").inc()
            log.error("ledger_ignored", reason=str(error))
    held = _by_entry(entries) if entries is not None else _by_listing(listing or {}, local)
    records = {(record.pod, record.container): record for record in predecessor}
    for key in records:
        pod = pods.get(key[0])
        if key not in held and (entries is None or (pod is not None and not pod.terminal)):
            held[key] = _Held()
    nameless = [g for g in grants.values() if is_unidentified(g.allocation.pod)]
    for key, shown in held.items():
        unnameds = [g for g in nameless if any(shown.ids.get(r) == ids for r, ids in g.ids.items())]
        for unnamed in unnameds:
            grants.pop(unnamed.key, None)  # the kubelet's books name its container: not booked twice
            if shown.annotation is None and any(r in unnamed.ids for r in contract.CARRIERS):
                shown.annotation = annotation_of(unnamed, node.name)
        pod = pods.get(key[0])
        ours = contract.decode_assignment(shown.annotation) is not None and not unnameds
        if complete and ours and pod is None and key not in grants:
            # We granted and released it: the kubelet writes its checkpoint at the next admission.
            log.info("entry_of_ended_pod_left", pod=key[0], container=key[1])
            continue
        grant = _grant(key, shown, grants.get(key), pod, node, metrics, records.get(key))
        if grant is not None:
            grants[key] = grant
    grants = {key: recognised(grant, node) for key, grant in grants.items()}
    books = Books(node, grants.values(), sides)
    for allocation in planned:
        try:
            books.plan((allocation,))
        except DoesNotFit:
            log.info("plan_dropped", pod=allocation.pod_key, container=allocation.container)
    log.info("ledger_rebuilt", grants=len(grants), stored=stored is not None, checkpoint=entries is not None)
    return books


def _by_entry(entries: Sequence[CheckpointEntry]) -> dict[Key, _Held]:
    held: dict[Key, _Held] = {}
    for entry in entries:
        one = held.setdefault((entry.pod, entry.container), _Held())
        one.ids[entry.resource] = entry.ids
        if entry.resource in contract.CARRIERS:
            one.annotation = entry.annotation
    return held


def _by_listing(
    listing: Mapping[tuple[str, str], Sequence[PodResourcesEntry]], local: Mapping[str, Sequence[KnownPod]]
) -> dict[Key, _Held]:
    held: dict[Key, _Held] = {}
    for (namespace, name), containers in listing.items():
        live = [f.pod for f in local.get(f"{namespace}/{name}", ()) if not f.tombstone]
        for listed in containers:
            ids = {r: devices for r, devices in listed.ids.items() if r in contract.RESOURCES and devices}
            if live and ids:
                held[live[0].uid, listed.container] = _Held(ids)
    return held


def _grant(
    key: Key,
    shown: _Held,
    stored: Grant | None,
    pod: Pod | None,
    node: NodeCards,
    metrics: ServiceMetrics,
    record: PredecessorPod | None,
) -> Grant | None:
    if stored is not None:
        if any(stored.ids.get(r) != ids for r, ids in shown.ids.items()):
            metrics.recovery_disagreements.labels("ids").inc()
            log.warning("device_ids_differ_from_kubelet", pod=key[0], container=key[1])
            return replace(stored, ids={**stored.ids, **shown.ids})
        return stored
    metrics.recovery_disagreements.labels("missing").inc()
    told = contract.decode_assignment(shown.annotation)
    cores, memory = shown.ids.get(contract.CORE, frozenset()), shown.ids.get(contract.MEMORY, frozenset())
    if told is not None and told.containers:
        shares = tuple(Share(card, amount) for card, amount in next(iter(told.containers.values())))
        if is_unidentified(PodUid(told.pod)):  # the amounts were guessed; the ids count them
            shares = counted(next(iter(told.containers.values())), shown.ids, node)
        directory = told.directory
    elif record is not None or is_predecessor_pod(shown.ids):
        shares, directory = shares_by_record(record, node) if record else (), ""
        shares = shares or shares_by_annotation(pod, key[1], shown.ids, node)
    else:
        shares, directory = _from_ids(cores, memory, shown.ids.get(contract.NVIDIA, frozenset()), node), ""
        said = _annotated(pod, key[1], shown.ids, node)
        ours = pod is not None and pod.annotations.get(contract.ASSIGNED) == "true"
        if said and (ours or len(said) != len(shares)):  # under a NUMA policy ids may be tokens
            shares = said
    if not shares:
        log.warning(
            "device_ids_of_no_card", pod=key[0], container=key[1], cores=len(cores), memory=len(memory)
        )
        return None
    kind, order, ran = next(
        (
            (c.kind, n, bool(c.runtime_id))
            for n, c in enumerate(pod.containers if pod else ())
            if c.name == key[1]
        ),
        (ContainerKind.APP, 0, False),
    )
    allocation = Allocation(
        key[0],
        key[1],
        kind,
        order,
        shares,
        pod.namespace if pod else "",
        pod.name if pod else "",
        priority=priority_of(pod) if pod else Priority.NORMAL,
    )
    log.info("grant_recovered_from_kubelet", pod=key[0], container=key[1], directory=directory)
    # A container that exists was confirmed before by the same checkpoint.
    ceiling = (legal_ceiling_of(pod) if pod else None) or 0
    return Grant(allocation, directory, ceiling, shown.ids, proven=ran and told is not None)


def _annotated(
    pod: Pod | None, container: str, ids: Mapping[str, frozenset[str]], node: NodeCards
) -> tuple[Share, ...]:
    """The cards of the pod's annotation with the amounts of its ids; empty if they contradict each other.

    The agent writes it when a container has started; before, it is the scheduler's choice.
    """
    told = contract.decode_assignment(pod.annotations.get(contract.ALLOCATION)) if pod is not None else None
    if pod is None or told is None or (told.node, told.pod) != (node.name, pod.api_uid):
        return ()
    shares = counted(told.containers.get(container, ()), ids, node)
    cores = sum(share.amount.cores for share in shares)
    wanted = len(ids.get(contract.CORE, ())) + len(ids.get(contract.NVIDIA, ())) * CORES_PER_CARD
    return shares if cores == wanted and all(node.card(s.card) is not None for s in shares) else ()


def counted(
    told: Sequence[tuple[CardUuid, Amount]], ids: Mapping[str, frozenset[str]], node: NodeCards
) -> tuple[Share, ...]:
    """A container's shares of these cards by its ids: whole cards, or an equal part of each."""
    cores, parts = len(ids.get(contract.CORE, ())), in_parts(told)
    cores += len(ids.get(contract.NVIDIA, ())) * CORES_PER_CARD
    memory = len(ids.get(contract.MEMORY, ())) * node.unit
    part = Amount(min(cores // parts, CORES_PER_CARD), memory // parts)
    room = {s.card.uuid: s.card.capacity(node.unit) for s in node.cards}
    whole = parts == 1 and cores >= CORES_PER_CARD
    return tuple(Share(c, room.get(c, Amount(CORES_PER_CARD, 0)) if whole else part) for c, _ in told)


def _from_ids(
    cores: frozenset[str], memory: frozenset[str], lent: frozenset[str], node: NodeCards
) -> tuple[Share, ...]:
    """Cards and amounts from the ids, which name their card."""
    counts = {card: Amount(CORES_PER_CARD, 0) for card in node.ids.cards_of(contract.NVIDIA, lent)}
    for device in cores:
        if card := node.ids.card_of[contract.CORE].get(device):
            counts[card] = counts.get(card, Amount(0, 0)) + Amount(1, 0)
    for device in memory:
        if card := node.ids.card_of[contract.MEMORY].get(device):
            counts[card] = counts.get(card, Amount(0, 0)) + Amount(0, node.unit)
    whole = {s.card.uuid: s.card.capacity(node.unit) for s in node.cards}
    return tuple(
        Share(card, whole[card] if amount.cores >= CORES_PER_CARD else amount)
        for card, amount in sorted(counts.items())
    )


_REBUILT = "the books are rebuilt from the kubelet's checkpoint and the pods, and no pod loses its cards"


def load_books(store: Store, event: Callable[[str, str], None], metrics: ServiceMetrics) -> bytes | None:
    """The stored books; None if there are none, or none that this agent can read: then they are kept under
    another name for the agent that wrote them, and an Event on the node (``event``: reason, message) says so.
    """
    said = ""
    try:
        stored = store.load()
        if kept := store.aside():
            said = "the ledger on disk is of another agent's format"
            said += f"; its files are kept as {', '.join(kept)}"
    except NodeUnready as error:
        stored, said = None, str(error)
    if stored is not None:
        try:
            decode(stored)
            decode_sides(stored)
        except NodeUnready as error:
            stored, said = None, f"{error}{_kept(store)}"
    if said:
        metrics.recovery_disagreements.labels("store").inc()
        log.error("ledger_ignored", reason=said)
        event(EVENT_LEDGER_REBUILT, f"{said}; {_REBUILT}")
    return stored


def _kept(store: Store) -> str:
    try:
        return f"; its files are kept as {', '.join(store.set_aside('unread'))}"
    except NodeUnready as error:
        return f"; its files are written over: {error}"
