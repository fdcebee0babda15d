"""One node as the extender sees it: its books, and who is awaited there. Frozen; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from admission.cluster.kept_node import KeptFor
from admission.cluster.node_facts import Intern, NodeFacts
from admission.cluster.pod_view import PodView
from gpu_manager.domain.cluster.accounting import book_as_fact, charge_node
from gpu_manager.domain.cluster.claims import KnownClaim, charge_claims
from gpu_manager.domain.cluster.kubelet_ids import KubeletIds, NumaIds, kubelet_ids, numa_ids
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.pod_charges import allocations_of
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.whatif.scheduling_constraints import OPEN, NodeConstraints


@dataclass(frozen=True, slots=True, eq=False)
class NodeView(NodeBooks):
    """A node's books, and what else the choice among nodes looks at.

    ``problem`` is why no pod of ours may go there, empty if it may. ``bound`` are the pods on it, also those
    whose Binding is under way; ``nominated`` those for which preemption is making room. Equal ``hardware``
    means equal cards, equal ``state`` equal to placement, both but for the UUIDs of the cards. ``cpu`` is the
    host CPU that no pod has asked for, in thousandths; None if the node does not say what it has. Equal
    ``kind`` means equal to every pod that is not on the node and may use every pool; 0 marks a node with
    something of its own: a problem, a refusal, a pod nominated to it, one that it is kept for.
    ``constraints``, which kube-scheduler judges before it asks an extender, are no part of it. ``ids``: the
    kubelet's count, where pods shrank; ``numa_ids``: the same by NUMA node, where they lie elsewhere than
    their ids. ``kept``: for whom it is closed to smaller pods.
    """

    problem: str
    hardware: int
    bound: Mapping[PodUid, PodView]
    nominated: tuple[PodView, ...]
    state: int
    cpu: int | None = None
    kind: int = 0
    constraints: NodeConstraints = OPEN
    ids: KubeletIds | None = None
    numa_ids: NumaIds | None = None
    kept: KeptFor | None = None

    def awaits(self, pod: PodUid, priority: int) -> tuple[PodView, ...]:
        """Pods nominated here that ``pod`` must leave room for."""
        return tuple(o for o in self.nominated if o.uid != pod and o.pod.priority >= priority)

    def with_awaited(self, awaited: Sequence[PodView], ledger: Ledger | None = None) -> Ledger:
        """The books as if these pods lay here already, each where it would go.

        One that fits only once the deleted pods are gone is charged where they lie, so that nobody takes
        what they leave; one that does not fit even then takes nothing: its nomination is out of date.
        """
        node, books = self.node, (self.ledger if ledger is None else ledger).copy()
        for occupant in awaited:
            request = occupant.request(node.unit)
            if request is None or books.of_pod(occupant.uid):
                continue
            placement = find(request, node.cards, node.topology, books)
            if placement is None:
                later = books.copy()
                for uid, charge in self.charges.items():
                    if charge.pod.deleting:
                        later.release(uid)
                placement = find(request, node.cards, node.topology, later)
            if placement is not None:
                books = book_as_fact(books, node, tuple(allocations_of(occupant.pod, placement)))
        return books


def build_view(
    facts: NodeFacts,
    bound: Iterable[PodView],
    nominated: Iterable[PodView],
    intern: Intern,
    before: NodeView | None = None,
    cpu: int | None = None,
    claims: Iterable[KnownClaim] = (),
    kept: KeptFor | None = None,
) -> NodeView:
    """The node with these pods and claims on it.

    ``before`` is how it was, to start from where little has changed.
    """
    node, here = facts.report, {occupant.uid: occupant for occupant in bound}
    same = before if before is not None and before.node is node else None
    held = charge_claims(node, claims, same.held_claims if same else None)
    charges, ledger = charge_node(node, here.values(), held, before)
    awaited = tuple(sorted(nominated, key=lambda o: (-o.pod.priority, o.pod.began, o.uid)))
    ids = kubelet_ids(node, charges)
    numa = numa_ids(node, charges)
    left = None if ids is None else ids.left(ledger.pods)
    aligned = None if numa is None else numa.left(ledger.pods)
    cards = [state.card.uuid for state in node.cards]
    priorities = tuple(map(ledger.priorities, cards)) if ledger.prioritised else None
    state = intern((facts.hardware, tuple(map(ledger.booked, cards)), left, aligned, priorities))
    plain = not (facts.problem or node.refused or node.lingering or awaited or kept)
    kind = (state if cpu is None else intern((state, cpu))) if plain else 0
    return NodeView(
        node,
        ledger,
        charges,
        held,
        facts.problem,
        facts.hardware,
        here,
        awaited,
        state,
        cpu,
        kind,
        facts.constraints,
        ids,
        numa,
        kept,
    )
