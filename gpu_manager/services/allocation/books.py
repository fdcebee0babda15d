"""The agent's books: the one Ledger, each container's ids and directory, and their life on disk.

``Books`` is a plain value with rules; the allocator owns the one instance and the one lock around it.
What the kubelet has been told is on disk before it is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.contract import NVIDIA
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.ids import compact, expand
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.resources import Amount

Key = tuple[PodUid, str]
FORMAT = 1


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
    """Ledger and grants, always in step: every grant has its allocation in the ledger."""

    def __init__(self, cards: Iterable[Card], unit: int, grants: Iterable[Grant] = ()) -> None:
        facts = tuple(grants)
        self.cards: dict[CardUuid, Card] = {card.uuid: card for card in cards}
        self._written_cards = _facts(self.cards.values())
        self.ledger = Ledger(self.cards.values(), unit, (g.allocation for g in facts))
        self.grants: dict[Key, Grant] = {g.key: g for g in facts}
        self._owners: dict[str, set[PodUid]] = {}
        self._written: dict[Key, _Row] = {}
        for grant in facts:
            self._own(grant)

    def refit(self, cards: Iterable[Card]) -> None:
        """The node's cards as they are now. One that is lost stays known while somebody holds any of it."""
        lost = {uuid: card for uuid, card in self.cards.items() if self.ledger.holders(uuid)}
        self.cards = lost | {card.uuid: card for card in cards}
        self._written_cards = _facts(self.cards.values())
        self.ledger.refit(self.cards.values())

    def state(self, grant: Grant) -> None:
        """Record a grant that exists already, as a fact: a card may end up with more than it has."""
        others = [g for key, g in self.grants.items() if key != grant.key]
        planned = [a for a in self.ledger if a.key not in self.grants]
        facts = [*(g.allocation for g in (*others, grant)), *planned]
        self.ledger = Ledger(self.cards.values(), self.ledger.unit, facts)
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

    def encode(self) -> bytes:
        """The books as the store keeps them: every allocation, planned ones too.

        What has not changed since the last time is not written out again: an Allocate waits for this.
        """
        rows: dict[Key, _Row] = {}
        for allocation in self.ledger:
            key = allocation.key
            grant, known = self.grants.get(key), self._written.get(key)
            if known is None or known.allocation is not allocation or known.grant is not grant:
                known = _Row(allocation, grant, _text(allocation, grant))
            rows[key] = known
        self._written = rows
        allocations = ",".join(row.text for row in rows.values())
        return f'{{"v":{FORMAT},"cards":{self._written_cards},"allocations":[{allocations}]}}'.encode()


@dataclass(frozen=True, slots=True)
class _Row:
    """An allocation, its grant, and both as JSON."""

    allocation: Allocation
    grant: Grant | None
    text: str


def _text(allocation: Allocation, grant: Grant | None) -> str:
    row: dict[str, object] = {
        "pod": allocation.pod,
        "ns": allocation.namespace,
        "name": allocation.pod_name,
        "container": allocation.container,
        "kind": allocation.kind.value,
        "order": allocation.order,
        "shares": [[s.card, s.amount.cores, s.amount.memory] for s in allocation.shares],
    }
    if grant is not None:
        row |= {
            "dir": grant.directory,
            "ceiling": grant.ceiling,
            "ids": {resource: compact(ids) for resource, ids in grant.ids.items()},
            "proven": grant.proven,
        }
    return json.dumps(row, separators=(",", ":"))


def _facts(cards: Iterable[Card]) -> str:
    rows = [[c.index, c.uuid, c.model, c.memory, c.reserved, c.numa, c.minor] for c in cards]
    return json.dumps(rows, separators=(",", ":"))


def decode_held_cards(state: bytes) -> tuple[Card, ...]:
    """The cards of which a stored state says that somebody holds some: they may be lost by now. What cannot
    be read is left out; :func:`decode` says why.
    """
    try:
        data = json.loads(state)
        held = {share[0] for row in data["allocations"] for share in row["shares"]}
        rows = [row for row in data.get("cards", ()) if row[1] in held]
        return tuple(
            Card(int(index), CardUuid(str(uuid)), str(model), int(memory), int(reserved), numa, minor)
            for index, uuid, model, memory, reserved, numa, minor in rows
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return ()


def decode(state: bytes) -> tuple[tuple[Grant, ...], tuple[Allocation, ...]]:
    """Grants and planned allocations of a stored state.

    Raises:
        NodeUnready: the state is of a newer version or not ours.
    """
    try:
        data = json.loads(state)
        if data["v"] != FORMAT:
            raise NodeUnready(
                f"the ledger on disk has format {data['v']!r}, this program reads {FORMAT}: upgrade it"
            )
        grants, planned = [], []
        for row in data["allocations"]:
            allocation = _allocation(row)
            if "dir" in row:
                ids = {str(r): expand(written) for r, written in row["ids"].items()}
                grants.append(
                    Grant(allocation, str(row["dir"]), int(row["ceiling"]), ids, bool(row["proven"]))
                )
            else:
                planned.append(allocation)
        return tuple(grants), tuple(planned)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NodeUnready(
            f"the ledger on disk is not readable ({error}): the books are rebuilt from the kubelet"
        ) from error


def _allocation(row: Mapping[str, Any]) -> Allocation:
    return Allocation(
        pod=PodUid(row["pod"]),
        container=row["container"],
        kind=ContainerKind(row["kind"]),
        order=int(row["order"]),
        shares=tuple(
            Share(CardUuid(c), Amount(int(cores), int(memory))) for c, cores, memory in row["shares"]
        ),
        namespace=row["ns"],
        pod_name=row["name"],
        granted="dir" in row,
    )
