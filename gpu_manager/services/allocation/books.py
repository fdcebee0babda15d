"""The agent's books: the one Ledger, each container's ids and directory.

``Books`` is a plain value with rules, without lock or port; :class:`NodeState` owns the one instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.contract import NVIDIA
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.services.allocation.node_cards import NodeCards

Key = tuple[PodUid, str]


@dataclass(frozen=True, slots=True)
class Grant:
    """What the kubelet was told about one container.

    ``directory`` is the random name of its control pages, ``ceiling`` its elastic core limit in percent
    (0: hard), ``ids`` the device ids by resource, ``proven`` whether a PreStartContainer has confirmed it.
    """

    allocation: Allocation
    directory: str
    ceiling: int = 0
    ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    proven: bool = False

    @property
    def key(self) -> Key:
        """Pod UID and container name."""
        return self.allocation.key


class Books:
    """The node, its ledger and its grants, always in step: every grant has its allocation in the ledger.

    ``meant``: a container that may hold a grant → that grant's key, as long as nobody is known to hold it
    (:mod:`gpu_manager.services.allocation.unidentified_grants`). ``lending``: pods that are planned whole
    cards under another vendor's name.
    """

    def __init__(self, node: NodeCards, grants: Iterable[Grant] = ()) -> None:
        facts = tuple(grants)
        self.node = node
        self.meant: dict[Key, Key] = {}
        self.lending: set[PodUid] = set()
        self.cards: dict[CardUuid, Card] = {s.card.uuid: s.card for s in node.cards}
        self.ledger = Ledger(self.cards.values(), node.unit, (g.allocation for g in facts))
        self.grants: dict[Key, Grant] = {g.key: g for g in facts}
        self._owners: dict[str, set[PodUid]] = {}
        for grant in facts:
            self._own(grant)

    def refit(self, node: NodeCards) -> None:
        """The node as it is now. A card that is lost stays known while somebody holds any of it."""
        lost = {uuid: card for uuid, card in self.cards.items() if self.ledger.holders(uuid)}
        self.node = node
        self.cards = lost | {s.card.uuid: s.card for s in node.cards}
        self.ledger.refit(self.cards.values())

    def state(self, grant: Grant) -> None:
        """Record a grant that exists already, as a fact: a card may end up with more than it has."""
        others = [g for key, g in self.grants.items() if key != grant.key]
        planned = [a for a in self.ledger if a.key not in self.grants]
        facts = [*(g.allocation for g in (*others, grant)), *planned]
        self.ledger = Ledger(self.cards.values(), self.node.unit, facts)
        self.grants[grant.key] = grant
        self._own(grant)

    def holds(self, pod: PodUid, container: str, resource: str) -> frozenset[str]:
        """The ids that container holds of the resource."""
        grant = self.grants.get((pod, container))
        return grant.ids.get(resource, frozenset()) if grant else frozenset()

    def lent(self) -> frozenset[CardUuid]:
        """The cards that pods have whole under another vendor's name."""
        return frozenset(
            card for g in self.grants.values() if g.ids.get(NVIDIA) for card in g.allocation.cards
        )

    def owners(self, ids: Iterable[str]) -> frozenset[PodUid]:
        """Every pod that holds one of these ids. An id has several only after a start: the kubelet's
        checkpoint still shows it at a pod that has ended, the store at the one after it.
        """
        return frozenset(uid for device in self.taken(ids) for uid in self._owners[device])

    def taken(self, ids: Iterable[str]) -> set[str]:
        """Those of these ids that somebody holds."""
        return self._owners.keys() & ids

    def plan(self, allocations: Iterable[Allocation]) -> None:
        """Book a pod ahead of its admission. What is granted already stays as granted.

        Raises:
            DoesNotFit: nothing has changed.
        """
        self.ledger.commit(replace(a, granted=False) for a in allocations if a.key not in self.grants)

    def put(self, grant: Grant) -> None:
        """Record a grant (new, or with more ids, other amounts or cards).

        Raises:
            DoesNotFit: a card would be over-committed; nothing has changed.
        """
        self.ledger.commit((replace(grant.allocation, granted=True),))
        before = self.grants.get(grant.key)
        self.grants[grant.key] = replace(grant, allocation=replace(grant.allocation, granted=True))
        self._own(grant)
        if before is not None:
            self._part(before)

    def retract(self, key: Key) -> None:
        """What was granted to this container it has not got: it is planned again, where it was."""
        grant = self.grants.pop(key)
        self._part(grant)
        self.ledger.commit((replace(grant.allocation, granted=False),))

    def detach(self, ids: Iterable[str]) -> None:
        """The kubelet has taken these ids back; the amounts stay booked until their processes are gone."""
        taken = frozenset(ids)
        for key, grant in list(self.grants.items()):
            if any(taken & held for held in grant.ids.values()):
                self.grants[key] = replace(grant, ids={r: held - taken for r, held in grant.ids.items()})
        for device in taken:
            self._owners.pop(device, None)

    def mark(self, keys: Iterable[Key], *, proven: bool) -> None:
        """Note whether these containers' starts have been confirmed; who is gone is passed over."""
        for key in keys:
            if key in self.grants:
                self.grants[key] = replace(self.grants[key], proven=proven)

    def set_ceilings(self, ceilings: Mapping[Key, int]) -> None:
        """The elastic core limits of these grants, in percent; who is gone is passed over."""
        for key, ceiling in ceilings.items():
            if key in self.grants:
                self.grants[key] = replace(self.grants[key], ceiling=ceiling)

    def meant_for(self, pod: PodUid) -> frozenset[str]:
        """The containers of this pod for which something is booked that nobody is known to hold."""
        found = (name for (uid, name), taken in self.meant.items() if uid == pod and taken in self.grants)
        return frozenset(found)

    def introduce(self, pod: Pod) -> bool:
        """Fill in the names of what was granted to a pod before anybody had seen it; True if there were any.

        A static pod is admitted before the kubelet makes its copy in the API.
        """
        order = {c.name: (n, c.kind) for n, c in enumerate(pod.containers)}
        strangers = [g for g in self._of(pod.uid) if not g.allocation.pod_name and g.key[1] in order]
        for grant in strangers:
            place, kind = order[grant.key[1]]
            known = replace(
                grant.allocation, kind=kind, order=place, namespace=pod.namespace, pod_name=pod.name
            )
            self.state(replace(grant, allocation=known))
        return bool(strangers)

    def release(self, pod: PodUid, container: str | None = None) -> tuple[Allocation, ...]:
        """Give back what a container or a whole pod holds or is planned to hold."""
        gone = self.ledger.release(pod, container)
        for allocation in gone:
            grant = self.grants.pop(allocation.key, None)
            if grant is not None:
                self._part(grant)
        return gone

    def drop_plan(self, pod: PodUid) -> None:
        """Forget what is planned for the pod; what is granted stays."""
        for allocation in tuple(self.ledger.of_pod(pod).values()):
            if not allocation.granted:
                self.release(*allocation.key)

    def _of(self, pod: PodUid) -> tuple[Grant, ...]:
        return tuple(g for key, g in self.grants.items() if key[0] == pod)

    @staticmethod
    def _ids(grant: Grant) -> frozenset[str]:
        return frozenset().union(*grant.ids.values())

    def _own(self, grant: Grant) -> None:
        for device in self._ids(grant):
            self._owners.setdefault(device, set()).add(grant.allocation.pod)

    def _part(self, former: Grant) -> None:
        """The pod's other containers may still hold some of these: an init container hands its own on."""
        pod = former.allocation.pod
        for device in self._ids(former).difference(*map(self._ids, self._of(pod))):
            left = self._owners.get(device, set()) - {pod}
            if left:
                self._owners[device] = left
            else:
                self._owners.pop(device, None)
