"""The agent's ledger with each container's ids and directory; and the node's cards, as the kubelet gets them.

``Books`` is a plain value with rules, without lock or port; :class:`NodeState` owns the one instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY, NVIDIA
from gpu_manager.domain.dra.sides import Side, Sides
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.ids import DeviceIds
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.resize.judgement import size_of
from gpu_manager.domain.resources import ZERO
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.domain.topology import Topology

# The node's cards, and the device lists that the kubelet gets.


@dataclass(frozen=True, slots=True)
class NodeCards:
    """The node's cards at one moment; immutable, so that readers need no lock."""

    name: str
    unit: int
    cards: tuple[CardState, ...]
    topology: Topology
    ids: DeviceIds

    @staticmethod
    def of(name: str, unit: int, cards: Sequence[CardState], topology: Topology) -> NodeCards:
        """Build it, with the ids that its cards have."""
        return NodeCards(name, unit, tuple(cards), topology, DeviceIds(tuple(s.card for s in cards), unit))

    def card(self, uuid: CardUuid) -> CardState | None:
        """The card of that UUID, or None if it is gone."""
        return next((s for s in self.cards if s.card.uuid == uuid), None)

    def index(self, uuid: CardUuid) -> int | str:
        """The card's index for messages, or its UUID if it is gone."""
        state = self.card(uuid)
        return state.card.index if state else uuid


@dataclass(frozen=True, slots=True)
class KubeletOffer:
    """The devices offered to the kubelet: a card held under one resource name is not offered under the other.

    ``lent`` are whole cards held as ``nvidia.com/gpu``; ``busy`` are cards of which a pod holds or awaits a
    part under our names. ``withdrawn``: ids by resource that nobody holds and nobody may get.
    """

    node: NodeCards
    lent: frozenset[CardUuid] = frozenset()
    busy: frozenset[CardUuid] = frozenset()
    withdrawn: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def healthy(self, resource: str, state: CardState) -> bool:
        """True if the card's ids of the resource may be handed out, or are in use."""
        uuid = state.card.uuid
        if resource != NVIDIA:
            return state.healthy and uuid not in self.lent
        return state.healthy and (uuid in self.lent or (state.open and uuid not in self.busy))


Key = tuple[PodUid, str]


def is_claims(key: Key) -> bool:
    """True for what a ResourceClaim holds: ``claim/request``, where the name of a container has no slash."""
    return "/" in key[1]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container was granted.

    ``directory`` is the random name of its control pages, ``ceiling`` its elastic core limit in percent
    (0: hard), ``ids`` the device ids by resource, ``proven`` whether a PreStartContainer has confirmed it.
    ``memory_cap`` is the memory limit in bytes on each of its cards while the program has not yet freed what
    a shrink takes from it, all of which stays booked (0: the limit is what is booked).
    """

    allocation: Allocation
    directory: str
    ceiling: int = 0
    ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    proven: bool = False
    memory_cap: int = 0

    @property
    def key(self) -> Key:
        """Pod UID and container name; of a claim its UID and ``claim/request``."""
        return self.allocation.key


class Books:
    """The node, its ledger and its grants: every grant has its allocation in the ledger.

    ``meant``: a container that may hold a grant → that grant's key, while its true holder is unknown
    (:mod:`gpu_manager.services.allocation.unidentified_grants`). ``lending``: pods planned with whole cards
    under another vendor's name. ``planned``: pods as they were when they were planned. ``resized``: fractions
    booked at another size than their ids count; ``withdrawn``: ids by resource that are not handed out.
    ``sides``: the owner of each card on a node of mode ``split``; None in the other modes. A card without an
    owner is not offered.
    """

    def __init__(self, node: NodeCards, grants: Iterable[Grant] = (), sides: Sides | None = None) -> None:
        facts = tuple(grants)
        self.sides = sides
        self.node = self._closed(node)
        self.meant: dict[Key, Key] = {}
        self.lending: set[PodUid] = set()
        self.planned: Mapping[PodUid, Pod] = {}
        self.resized: set[Key] = set()
        self.withdrawn: Mapping[str, frozenset[str]] = {}
        self.cards: dict[CardUuid, Card] = {s.card.uuid: s.card for s in node.cards}
        self.ledger = Ledger(self.cards.values(), node.unit, (g.allocation for g in facts))
        self.grants: dict[Key, Grant] = {g.key: g for g in facts}
        self._owners: dict[str, set[PodUid]] = {}
        for grant in facts:
            self._own(grant)
            self._compare(grant)

    def refit(self, node: NodeCards) -> None:
        """Take in the node's present cards. A lost card stays known while a pod holds a part of it."""
        lost = {uuid: card for uuid, card in self.cards.items() if self.ledger.holders(uuid)}
        self.node = self._closed(node)
        self.cards = lost | {s.card.uuid: s.card for s in node.cards}
        self.ledger.refit(self.cards.values())

    def set_sides(self, sides: Sides | None) -> None:
        """Set the owner of each card on a node of mode ``split``; None in the other modes."""
        self.sides = sides
        self.node = self._closed(self.node)

    def away(self) -> frozenset[CardUuid]:
        """Cards of a split node that pods cannot have."""
        if self.sides is None:
            return frozenset()
        uuids = (s.card.uuid for s in self.node.cards if s.card.undivided)
        return frozenset(uuid for uuid in uuids if self.sides.get(uuid) is not Side.PLUGIN)

    def state(self, grant: Grant) -> None:
        """Record a grant that exists already, as a fact, even if its card is then over-committed."""
        others = [g for key, g in self.grants.items() if key != grant.key]
        planned = [a for a in self.ledger if a.key not in self.grants]
        facts = [*(g.allocation for g in (*others, grant)), *planned]
        self.ledger = Ledger(self.cards.values(), self.node.unit, facts)
        self.grants[grant.key] = grant
        self._own(grant)
        self._compare(grant)

    def holds(self, pod: PodUid, container: str, resource: str) -> frozenset[str]:
        """Ids of the resource that the container holds."""
        grant = self.grants.get((pod, container))
        return grant.ids.get(resource, frozenset()) if grant else frozenset()

    def lent(self) -> frozenset[CardUuid]:
        """Whole cards that pods hold as ``nvidia.com/gpu``."""
        return frozenset(
            card for g in self.grants.values() if g.ids.get(NVIDIA) for card in g.allocation.cards
        )

    def owners(self, ids: Iterable[str]) -> frozenset[PodUid]:
        """Every pod that holds one of these ids. Only after a start an id has several holders: the kubelet's
        checkpoint still has it for an ended pod, the store for the next one.
        """
        return frozenset(uid for device in self.taken(ids) for uid in self._owners[device])

    def taken(self, ids: Iterable[str]) -> set[str]:
        """The ids that are held by any pod."""
        return self._owners.keys() & ids

    def free_ids(self, resource: str, cards: Iterable[CardUuid]) -> set[str]:
        """Ids of these cards that no pod holds and that the kubelet may hand out."""
        there = {device for card in cards for device in self.node.ids.of_card[resource].get(card, ())}
        return there - self.taken(there) - self.withdrawn.get(resource, frozenset())

    def plan(self, allocations: Iterable[Allocation]) -> None:
        """Book a pod ahead of its admission. Grants stay as they are.

        Raises:
            DoesNotFit: nothing has changed.
        """
        fresh = [replace(a, granted=False) for a in allocations if a.key not in self.grants]
        self._check_side(Side.PLUGIN, fresh)
        self.ledger.commit(fresh)

    def put(self, grant: Grant) -> None:
        """Record a grant (new, or with more ids, other amounts or cards).

        Raises:
            DoesNotFit: a card would be over-committed; nothing has changed.
        """
        before = self.grants.get(grant.key)
        if before is None or before.allocation.cards != grant.allocation.cards:
            self._check_side(Side.PLUGIN, (grant.allocation,))
        self.ledger.commit((replace(grant.allocation, granted=True),))
        self.grants[grant.key] = replace(grant, allocation=replace(grant.allocation, granted=True))
        self._own(grant)
        self._compare(grant)
        if before is not None:
            self._part(before)

    def put_claim(self, grants: Sequence[Grant]) -> tuple[Grant, ...]:
        """Record what a ResourceClaim holds, a grant for each of its requests, all or none. What is recorded
        of the claim already stays, and is returned.

        Raises:
            DoesNotFit: a card would be over-committed; nothing has changed.
        """
        if held := self._of(grants[0].allocation.pod):
            return held
        self._check_side(Side.DRA, [g.allocation for g in grants if not g.allocation.is_admin])
        self.ledger.commit(grant.allocation for grant in grants)
        self.grants |= {grant.key: grant for grant in grants}
        return tuple(grants)

    def set_claim_pods(self, claim: PodUid, pods: tuple[tuple[PodUid, str], ...]) -> None:
        """Record which pods may use a claim now."""
        for grant in self._of(claim):
            holder = grant.allocation.claim
            if holder is not None:
                named = replace(grant.allocation, claim=replace(holder, pods=pods))
                self.put(replace(grant, allocation=named))

    def retract(self, key: Key) -> None:
        """Undo a grant that the container did not get: it becomes a plan for the same cards again."""
        grant = self.grants.pop(key)
        self.resized.discard(key)
        self._part(grant)
        self.ledger.commit((replace(grant.allocation, granted=False),))

    def detach(self, ids: Iterable[str]) -> None:
        """Remove ids that the kubelet has taken back; amounts stay booked until the processes have ended."""
        taken = frozenset(ids)
        for key, grant in list(self.grants.items()):
            if any(taken & held for held in grant.ids.values()):
                self.grants[key] = replace(grant, ids={r: held - taken for r, held in grant.ids.items()})
                self.resized.discard(key)  # it ends: what is booked more than its ids are processes
        for device in taken:
            self._owners.pop(device, None)

    def mark(self, keys: Iterable[Key], *, proven: bool) -> None:
        """Mark grants as confirmed or not; unknown ones are skipped."""
        for key in keys:
            if key in self.grants:
                self.grants[key] = replace(self.grants[key], proven=proven)

    def set_ceilings(self, ceilings: Mapping[Key, int]) -> None:
        """Set elastic core limits of grants, in percent; unknown ones are skipped."""
        for key, ceiling in ceilings.items():
            if key in self.grants:
                self.grants[key] = replace(self.grants[key], ceiling=ceiling)

    def meant_for(self, pod: PodUid) -> frozenset[str]:
        """Containers of the pod for which an unidentified grant is booked."""
        found = (name for (uid, name), taken in self.meant.items() if uid == pod and taken in self.grants)
        return frozenset(found)

    def introduce(self, pod: Pod) -> bool:
        """Fill in the pod's name in grants made before the pod was seen; True if there were any.

        A static pod is admitted before the kubelet makes its copy in the API.
        """
        order = {c.name: (n, c.kind) for n, c in enumerate(pod.containers)}
        strangers = [g for g in self._of(pod.uid) if not g.allocation.pod_name and g.key[1] in order]
        for grant in strangers:
            place, kind = order[grant.key[1]]
            known = replace(
                grant.allocation,
                kind=kind,
                order=place,
                namespace=pod.namespace,
                pod_name=pod.name,
                priority=priority_of(pod),
            )
            self.state(replace(grant, allocation=known))
        return bool(strangers)

    def release(self, pod: PodUid, container: str | None = None) -> tuple[Allocation, ...]:
        """Release what a container or a whole pod holds, or what is planned for it."""
        gone = self.ledger.release(pod, container)
        for allocation in gone:
            grant = self.grants.pop(allocation.key, None)
            self.resized.discard(allocation.key)
            if grant is not None:
                self._part(grant)
        return gone

    def drop_plan(self, pod: PodUid) -> None:
        """Drop the pod's plan; grants stay."""
        for allocation in tuple(self.ledger.of_pod(pod).values()):
            if not allocation.granted:
                self.release(*allocation.key)

    def _check_side(self, side: Side, allocations: Iterable[Allocation]) -> None:
        """A card is booked for one side alone, whoever asks."""
        if self.sides is None:
            return
        for card in (card for one in allocations for card in one.cards):
            state = self.node.card(card)
            if self.sides.get(card) is not side and (state is None or state.card.undivided):
                how = "ResourceClaims" if side is Side.DRA else "extended resources"
                raise DoesNotFit(f"card {self.node.index(card)} is not given by {how}: the node is split")

    def _closed(self, node: NodeCards) -> NodeCards:
        """The node as those see it who place pods: what is not theirs is held by claims."""
        ours = {True: DRA_DRIVER, False: ""}
        if self.sides is None and all(s.held != DRA_DRIVER for s in node.cards):
            return node
        theirs = {u for u, side in (self.sides or {}).items() if side is Side.PLUGIN}
        cards = tuple(
            replace(s, held=ours[self.sides is not None and s.card.undivided and s.card.uuid not in theirs])
            if s.held in ("", DRA_DRIVER)
            else s
            for s in node.cards
        )
        return node if cards == node.cards else replace(node, cards=cards)

    def _of(self, pod: PodUid) -> tuple[Grant, ...]:
        return tuple(g for key, g in self.grants.items() if key[0] == pod)

    def _compare(self, grant: Grant) -> None:
        """Note whether the grant is a fraction of another size than the ids that it has count."""
        size = ZERO if any(s.whole for s in grant.allocation.shares) else size_of(grant.allocation)
        counted = {} if size == ZERO else {CORE: size.cores, MEMORY: size.memory // self.node.unit}
        if any(r in counted and len(ids) != counted[r] for r, ids in grant.ids.items() if ids):
            self.resized.add(grant.key)
        else:
            self.resized.discard(grant.key)

    @staticmethod
    def _ids(grant: Grant) -> frozenset[str]:
        return frozenset().union(*grant.ids.values())

    def _own(self, grant: Grant) -> None:
        for device in self._ids(grant):
            self._owners.setdefault(device, set()).add(grant.allocation.pod)

    def _part(self, former: Grant) -> None:
        """Ids that no other container of the pod holds: an init container's ids go on to later containers."""
        pod = former.allocation.pod
        for device in self._ids(former).difference(*map(self._ids, self._of(pod))):
            left = self._owners.get(device, set()) - {pod}
            if left:
                self._owners[device] = left
            else:
                self._owners.pop(device, None)
