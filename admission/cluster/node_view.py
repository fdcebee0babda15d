"""One node as the extender sees it: its cards, who holds what of them, who is awaited. Frozen; pure.

The books are the ledger that the agent keeps too: a pod that fits here fits at the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from admission.cluster.charges import Charge, allocations_of, booked_as_fact
from admission.cluster.node_facts import Intern, NodeFacts
from admission.cluster.pod_view import PodView
from gpu_manager.domain.cluster.terminating import terminating_allocations
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.resources import Amount


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """A node and the books of its cards; nobody changes them. Equal ``state`` means equal to placement,
    but for the UUIDs of the cards. ``cpu`` is the host CPU that no pod has asked for, in thousandths; None if
    the node does not say what it has. Equal ``kind`` means equal to every pod that is not on the node and
    may use every pool; 0 marks a node with something of its own: a fault, a refusal, a pod nominated to it.
    """

    facts: NodeFacts
    ledger: Ledger
    charges: Mapping[PodUid, Charge]
    nominated: tuple[PodView, ...]
    state: int
    cpu: int | None = None
    kind: int = 0

    @property
    def name(self) -> str:
        """The node's name."""
        return self.facts.name

    def usage(self) -> Iterator[tuple[tuple[str, str], Amount]]:
        """What each pod holds by (namespace, model)."""
        for charge in self.charges.values():
            for model, amount in charge.usage:
                yield (charge.occupant.pod.namespace, model), amount

    def awaits(self, pod: PodUid, priority: int) -> tuple[PodView, ...]:
        """Pods nominated here that ``pod`` must leave room for."""
        return tuple(o for o in self.nominated if o.uid != pod and o.pod.priority >= priority)

    def without(self, pods: Iterable[PodUid]) -> Ledger:
        """The books as if these pods were gone."""
        ledger = self.ledger.copy()
        for pod in pods:
            ledger.release(pod)
        return ledger

    def with_awaited(self, awaited: Sequence[PodView], ledger: Ledger | None = None) -> Ledger:
        """The books as if these pods lay here already, each where it would go.

        One that fits only once the deleted pods are gone is charged where they lie, so that nobody takes
        what they leave; one that does not fit even then takes nothing: its nomination is out of date.
        """
        books = (self.ledger if ledger is None else ledger).copy()
        for occupant in awaited:
            request = occupant.request(self.facts.unit)
            if request is None or books.of_pod(occupant.uid):
                continue
            placement = find(request, self.facts.cards, self.facts.topology, books)
            if placement is None:
                later = books.copy()
                for uid, charge in self.charges.items():
                    if charge.occupant.pod.deleting:
                        later.release(uid)
                placement = find(request, self.facts.cards, self.facts.topology, later)
            if placement is not None:
                books = booked_as_fact(books, self.facts, tuple(allocations_of(occupant, placement)))
        return books


def build_view(
    facts: NodeFacts,
    charges: Mapping[PodUid, Charge],
    nominated: Iterable[PodView],
    intern: Intern,
    before: NodeView | None = None,
    cpu: int | None = None,
) -> NodeView:
    """The node with these pods on it; ``before`` is how it was, to start from where little has changed."""
    ledger = _patched(before, facts, charges)
    if ledger is None:
        ledger = _fresh(facts, charges)
    awaited = tuple(sorted(nominated, key=lambda o: (-o.pod.priority, o.began, o.uid)))
    booked = tuple(ledger.booked(state.card.uuid) for state in facts.cards)
    state = intern((facts.hardware, booked))
    plain = not (facts.problem or facts.refused or facts.lingering or awaited)
    kind = (state if cpu is None else intern((state, cpu))) if plain else 0
    return NodeView(facts, ledger, charges, awaited, state, cpu, kind)


def _fresh(facts: NodeFacts, charges: Mapping[PodUid, Charge]) -> Ledger:
    held = [a for charge in charges.values() for a in charge.allocations]
    left = terminating_allocations(facts.lingering, charges)
    return Ledger((s.card for s in facts.cards), facts.unit, (*held, *left))


def _patched(before: NodeView | None, facts: NodeFacts, charges: Mapping[PodUid, Charge]) -> Ledger | None:
    """The old books with what differs; None where that is no shorter, or where a fact breaks them."""
    if before is None or before.facts is not facts or facts.lingering:
        return None  # with each pod that comes or goes, what lingers of it may count or not
    old = before.charges
    gone = [uid for uid in old if uid not in charges or charges[uid].allocations != old[uid].allocations]
    come = [
        charge
        for uid, charge in charges.items()
        if uid not in old or old[uid].allocations != charge.allocations
    ]
    if not gone and not come:
        return before.ledger
    ledger = before.without(gone)
    try:
        for charge in come:
            ledger.commit(charge.allocations)
    except DoesNotFit:
        return None
    return ledger
