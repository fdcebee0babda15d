"""PreStartContainer: proof from the kubelet's checkpoint of whose ids these are, then the final limits.

It may correct names and amounts. A wrong card cannot be repaired, since ids are fixed for the pod's
life: then the start is refused, said, and the pod evicted where a controller makes a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import (
    EVENT_ALLOCATED,
    EVENT_START_REFUSED,
    MEMORY,
    NVIDIA,
    decode_assignment,
)
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.placement.place import follow
from gpu_manager.domain.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules import legal_values
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.ports import CheckpointEntry, Clock, ControlPages, Kubelet, Pods
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.annotation_writeback import AnnotationWriteback
from gpu_manager.services.allocation.books import Books, Grant, Key
from gpu_manager.services.allocation.grant import limits_of, success_text
from gpu_manager.services.allocation.planner import NodeCards
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from gpu_manager.services.metrics import ServiceMetrics
from gpu_manager.services.recovery.predecessor_pods import is_predecessor_pod

log = structlog.get_logger(__name__)


class PreStart:
    """Thread-safe; called from the workers of several pods at once."""

    def __init__(
        self,
        allocator: Allocator,
        kubelet: Kubelet,
        pods: Pods,
        tenants: ControlPages,
        clock: Clock,
        tally: ServiceMetrics,
        *,
        evict: bool,
    ) -> None:
        self._allocator = allocator
        self._kubelet = kubelet
        self._pods = pods
        self._tenants = tenants
        self._tally = tally
        self._evict = evict
        self._truth = AnnotationWriteback(allocator, pods, clock)

    def prove(self, resource: str, devices: Sequence[str]) -> None:
        """Confirm the holder of these ids, write its limits, begin its usage anew. ``resource`` is one whose
        answer carries cards.

        Raises:
            NodeUnready: the kubelet's books do not show these ids (yet): it tries again.
            DoesNotFit: the container cannot run with the cards it was given.
        """
        ids = frozenset(devices)
        entries = self._kubelet.checkpoint()
        if entries is None:
            grants = self._allocator.read(
                lambda books, _: [g for g in books.grants.values() if g.ids.get(resource) == ids]
            )
            if not grants:
                raise NodeUnready(
                    "the kubelet's checkpoint cannot be read and the books do not know these ids: "
                    "the start is tried again"
                )
            self._tally.count("unproven")
            self._start(grants)
            return
        hits = [e for e in entries if e.resource == resource and e.ids == ids]
        if not hits:
            self._tally.count("proof_mismatches")
            raise NodeUnready(
                "these ids are in no entry of the kubelet's checkpoint: the start is tried again"
            )
        grants = [self._settle(entry, entries) for entry in hits]
        self._check_nodes(hits, grants)
        self._check_pages(hits, grants)
        self._start(grants)

    def _settle(self, entry: CheckpointEntry, entries: Sequence[CheckpointEntry]) -> Grant:
        """The grant of this entry; corrected if the books had it under another name."""
        memory = next(
            (
                e.ids
                for e in entries
                if (e.pod, e.container, e.resource) == (entry.pod, entry.container, MEMORY)
            ),
            frozenset[str](),
        )
        known, nameless = self._allocator.read(
            lambda books, _: (
                books.grants.get((entry.pod, entry.container)),
                any(is_unidentified(uid) for uid in books.owners(memory)),  # its memory is booked beside it
            )
        )
        if is_predecessor_pod({entry.resource: entry.ids}):
            return self._inherited(entry, known)
        if known is not None and known.ids.get(entry.resource) == entry.ids and not nameless:
            told = decode_assignment(entry.annotation)
            # Without an answer of ours NVIDIA's own plugin started it; its id is the card.
            theirs = entry.resource == NVIDIA and told is None
            if theirs or (known.directory and (told is None or told.directory == known.directory)):
                return known
        pod = self._pod(entry.pod)
        try:
            grant = self._allocator.change(lambda books, node: adopt(books, node, entry, memory, pod))
        except (DoesNotFit, RequestInvalid) as error:
            self._refuse(entry, pod, str(error))
            raise DoesNotFit(
                f"container {entry.container!r} cannot start with the card it was given: {error}"
            ) from error
        self._tally.count("association_corrected")
        log.warning(
            "association corrected", pod=entry.pod, container=entry.container, directory=grant.directory
        )
        return grant

    def _inherited(self, entry: CheckpointEntry, known: Grant | None) -> Grant:
        """A container that the predecessor granted starts again. The kubelet replays the predecessor's
        answer: a whole card works as before, a fraction's library looks for a manager that is gone.
        """
        if known is not None and all(share.whole for share in known.allocation.shares):
            return known
        why = "no record says on which card" if known is None else "its library needs that manager to start"
        reason = f"the predecessor admitted it, and {why}; delete the pod, so that a new one is admitted"
        self._refuse(entry, self._pod(entry.pod), reason)
        raise DoesNotFit(f"container {entry.container!r} cannot start again: {reason}")

    def _check_nodes(self, hits: Sequence[CheckpointEntry], grants: Sequence[Grant]) -> None:
        """The kubelet repeats the answer to an Allocate for the pod's life, across reboots too. The driver
        numbers its cards anew at each: with one lost, a node that was given may be another card's.
        """
        node = self._allocator.node
        for entry, grant in zip(hits, grants, strict=True):
            if entry.nodes and not node.cards:
                raise NodeUnready("the driver has not told its cards yet: the start is tried again")
            moved = next(filter(None, (_moved(card, entry, node) for card in grant.allocation.cards)), "")
            if entry.nodes and moved:
                reason = f"{moved}; delete the pod, so that a new one is admitted"
                self._refuse(entry, self._pod(entry.pod), reason)
                raise DoesNotFit(f"container {entry.container!r} cannot start: {reason}")

    def _check_pages(self, hits: Sequence[CheckpointEntry], grants: Sequence[Grant]) -> None:
        """An init and an app container that share ids have a page each. Where they were answered for one, as
        a pod that was taken for its namesake is, no page can hold the limits of both.
        """
        limits: dict[str, object] = {}
        for entry, grant in zip(hits, grants, strict=True):
            if grant.directory and limits.setdefault(grant.directory, limits_of(grant)) != limits_of(grant):
                reason = (
                    "its limits are another container's too; delete the pod, so that a new one is admitted"
                )
                self._refuse(entry, self._pod(entry.pod), reason)
                raise DoesNotFit(f"container {entry.container!r} cannot start: {reason}")

    def _start(self, grants: Sequence[Grant]) -> None:
        fresh = [g for g in grants if not g.proven]
        # As the books are now: while the proof was looked for, the pod's ceiling may have been changed.
        for grant in self._allocator.read(lambda books, _: [books.grants.get(g.key, g) for g in grants]):
            limits = limits_of(grant)
            if limits and not grant.directory:
                raise NodeUnready(
                    f"container {grant.allocation.container!r} is known by its ids alone, and the kubelet's "
                    f"checkpoint, which knows its directory, cannot be read: the start is tried again"
                )
            if limits:
                self._tenants.open(grant.directory, limits)
                self._tenants.reset(grant.directory)
        if fresh:
            keys = [grant.key for grant in fresh]
            self._allocator.change(
                lambda books, _: _mark(books, keys, proven=True),
                # What memory alone knew would be written by no later start.
                undo=lambda books: _mark(books, keys, proven=False),
            )
        for grant in fresh:
            self._announce(grant)

    def _announce(self, grant: Grant) -> None:
        pod = self._pod(grant.allocation.pod)
        if pod is not None:
            text = success_text(grant, self._allocator.node)
            self._pods.event(pod, EVENT_ALLOCATED, f'container "{grant.allocation.container}": {text}')
            self._truth.tell(pod)

    def _refuse(self, entry: CheckpointEntry, pod: Pod | None, reason: str) -> None:
        self._tally.count("proof_refusals")
        log.error(
            "start refused", pod=pod.key if pod else entry.pod, container=entry.container, reason=reason
        )
        if pod is not None:
            self._pods.event(
                pod, EVENT_START_REFUSED, f'container "{entry.container}": {reason}', warning=True
            )
            if self._evict and pod.controlled:
                self._pods.evict(pod, reason)

    def _pod(self, uid: PodUid) -> Pod | None:
        return next((f.pod for found in self._pods.local().values() for f in found if f.pod.uid == uid), None)


def _moved(uuid: CardUuid, entry: CheckpointEntry, node: NodeCards) -> str:
    """Why the device nodes that the container was given are not this card's; empty if they are."""
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


def adopt(
    books: Books, node: NodeCards, entry: CheckpointEntry, memory: frozenset[str], pod: Pod | None
) -> Grant:
    """Book what the checkpoint proves: this container, these ids, the cards of the response it was given.

    Raises:
        NodeUnready: the response in the checkpoint is not ours to read.
        DoesNotFit: its cards have no room, or the pod may not use them.
    """
    told = decode_assignment(entry.annotation)
    shares = next(iter(told.containers.values()), ()) if told else ()
    if told is None or not shares or not told.directory:
        raise NodeUnready(
            f"the checkpoint's response for container {entry.container!r} carries no allocation of ours"
        )
    cards = [card for card, _ in shares]
    cores = len(entry.ids) * (CORES_PER_CARD if entry.resource == NVIDIA else 1)
    whole = cores >= CORES_PER_CARD
    amount = Amount(min(cores, CORES_PER_CARD), len(memory) * node.unit)
    kind, order = next(
        ((c.kind, n) for n, c in enumerate(pod.containers if pod else ()) if c.name == entry.container),
        (ContainerKind.APP, 0),
    )
    allocation = Allocation(
        pod=entry.pod,
        container=entry.container,
        kind=kind,
        order=order,
        shares=tuple(
            Share(c, replace(amount, memory=books.ledger.capacity(c).memory) if whole else amount)
            for c in cards
        ),
        namespace=pod.namespace if pod else "",
        pod_name=pod.name if pod else "",
    )
    undo = [
        g
        for g in books.grants.values()
        if g.key != allocation.key
        and (g.directory == told.directory or g.ids.get(MEMORY) == memory != frozenset())
    ]
    undo = [g for g in undo if not (g.allocation.pod == entry.pod and g.directory != told.directory)]
    for wrong in undo:
        books.release(*wrong.key)
    try:
        if pod is not None:
            _allowed(pod, entry.container, cards, books, node)
        grant = Grant(
            allocation,
            told.directory,
            (legal_values.ceiling_of(pod) if pod else None) or 0,
            {entry.resource: entry.ids, **({MEMORY: memory} if memory else {})},
        )
        books.put(grant)
    except (DoesNotFit, RequestInvalid):
        for wrong in undo:
            books.put(wrong)
        raise
    return grant


def _allowed(pod: Pod, container: str, cards: Sequence[CardUuid], books: Books, node: NodeCards) -> None:
    """The pod's own rules about cards (allow lists, count); its plan elsewhere is dropped."""
    request = judged_request(pod, node.unit)
    own = replace(request, containers=tuple(c for c in request.containers if c.name == container))
    ledger = books.ledger.copy()
    ledger.release(pod.uid)
    follow(own, {container: [(card, ZERO) for card in cards]}, node.cards, ledger)


def _mark(books: Books, keys: Sequence[Key], *, proven: bool) -> None:
    for key in keys:
        current = books.grants.get(key)
        if current is not None:
            books.grants[key] = replace(current, proven=proven)
