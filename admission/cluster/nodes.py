"""The nodes with their books, each built anew where something changed; and whose quota they hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final, NamedTuple

from admission.cluster.node_view import (
    AWAY,
    KeptFor,
    NodeFacts,
    NodeView,
    build_view,
    facts_again,
    facts_by_capacity,
    node_facts,
    node_fingerprint,
)
from admission.cluster.pod_view import PodView
from gpu_manager.domain.card import CardState
from gpu_manager.domain.cluster.claims import ClaimCharge, KnownClaim
from gpu_manager.domain.cluster.node_books import Used
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.cluster.pod_charges import Charge
from gpu_manager.domain.contract import RELEASE_FEATURES, TerminatingShare
from gpu_manager.domain.dra.demand import OfferedCards
from gpu_manager.domain.kube.constraints import node_constraints
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.untrusted import mapping

_MOST_STATES: Final = (
    1 << 16
)  # distinct node states remembered; beyond, numbering goes on with an empty table


def name_of(obj: Mapping[str, Any]) -> str:
    """The object's name."""
    return str(mapping(obj.get("metadata")).get("name") or "")


class OnNode(NamedTuple):
    """Pods with cards that are bound, awaited or nominated on a node, the host CPU of all other pods in
    thousandths, shares of pods deleted by force, claims that hold a device there, the pod for which the node
    is closed to smaller pods, and whether its agent's pod is not ready.
    """

    pods: Sequence[PodView]
    others_cpu: int
    deleted: tuple[TerminatingShare, ...] = ()
    claims: tuple[KnownClaim, ...] = ()
    kept: KeptFor | None = None
    agent_away: bool = False


Built = Callable[[int, str, NodeFacts | None, OnNode], None]
"""Called with the turn and all that a node is built from; without facts its object is not known."""


class Nodes:
    """Not thread-safe. ``unit``: bytes of one unit of memory; ``turn`` rises with every :meth:`build`.

    ``built`` is called for every node that is built; a copy has none.
    """

    built: Built | None = None

    def __init__(self, unit: int, *, by_capacity: bool = False) -> None:
        self.turn = 0
        self.names_turn = 0  # the last at which a node came or went
        self._unit = unit
        self._read = facts_by_capacity if by_capacity else node_facts
        self._facts: dict[str, NodeFacts] = {}
        self._said: dict[str, Hashable] = {}  # what of the node's object the facts came from
        self._views: dict[str, NodeView] = {}
        self._built: dict[str, int] = {}  # node → the turn in which it was built; the newest last
        self._used: dict[str, dict[str, Amount]] = {}
        self._protected: dict[str, dict[str, Amount]] = {}
        self._states: dict[Hashable, int] = {}
        self._next_state = 0
        self._offered: OfferedCards | None = None  # until a node's cards change

    def copy(self) -> Nodes:
        """An independent copy. New states get equal numbers in both, so caches by node state must not be
        shared between the two.
        """
        other = Nodes(self._unit)
        other.turn, other._next_state, other._read = self.turn, self._next_state, self._read
        other.names_turn = self.names_turn
        other._facts, other._said = self._facts.copy(), self._said.copy()
        other._views, other._built = self._views.copy(), self._built.copy()
        other._used = {namespace: models.copy() for namespace, models in self._used.items()}
        other._protected = {namespace: models.copy() for namespace, models in self._protected.items()}
        other._states = self._states.copy()
        return other

    def take(self, obj: Mapping[str, Any]) -> bool:
        """Apply the node's object; False if nothing relevant changed, as with a heartbeat."""
        name, said = name_of(obj), node_fingerprint(obj)
        if self._said.get(name) == said:
            facts, constraints = self._facts[name], node_constraints(obj)
            if facts.constraints == constraints:
                return False
            self._facts[name] = replace(facts, constraints=constraints)
            return True
        before, facts = self._facts.get(name), self._read(obj, self._unit, self._intern)
        if before is None or _offer(before) != _offer(facts):
            self._offered = None
        self._facts[name], self._said[name] = facts, said
        return True

    def take_facts(self, name: str, facts: NodeFacts | None) -> None:
        """Apply facts read by another process, as if the node's object had been shown; None: it is gone."""
        if facts is None:
            self.drop(name)
        else:
            self._facts[name] = facts_again(facts, self._intern)

    def drop(self, name: str) -> bool:
        """The node is gone; False if it was not known."""
        self._said.pop(name, None)
        self._offered = None
        return self._facts.pop(name, None) is not None

    def known(self) -> tuple[str, ...]:
        """The names of the nodes whose object is known."""
        return tuple(self._facts)

    def offered(self) -> OfferedCards:
        """The cards that claims may be allocated; the same object until they change."""
        if self._offered is None:
            self._offered = OfferedCards(map(_offer, self._facts.values()))
        return self._offered

    def build(self, changed: Mapping[str, OnNode]) -> None:
        """Build these anew."""
        self.turn += 1
        for name, here in changed.items():
            was_there = self._built.pop(name, None) is not None
            self._build(name, here)
            is_there = name in self._views
            if is_there:
                self._built[name] = self.turn
            if is_there != was_there:
                self.names_turn = self.turn

    @property
    def views(self) -> Mapping[str, NodeView]:
        """All of them as they stand; a copy."""
        return self._views.copy()

    @property
    def live(self) -> Mapping[str, NodeView]:
        """All nodes, not copied: the mapping changes with the next :meth:`build`."""
        return self._views

    @property
    def used(self) -> Used:
        """What pods hold, by namespace and model; a copy."""
        return {namespace: models.copy() for namespace, models in self._used.items()}

    @property
    def protected(self) -> Used:
        """What protected shares hold, by namespace and model; a copy."""
        return {namespace: models.copy() for namespace, models in self._protected.items()}

    def since(self, turn: int) -> Iterable[str]:
        """The names of the nodes rebuilt after that generation, the newest first."""
        return takewhile(lambda name: self._built[name] > turn, reversed(self._built))

    def imagined(self, obj: Mapping[str, Any]) -> NodeView:
        """An empty node by its object alone, from its capacity where it has no inventory."""
        facts = facts_by_capacity(obj, self._unit, self._intern, RELEASE_FEATURES)
        return build_view(facts, (), (), self._intern, cpu=facts.cpu)

    def report(self, name: str) -> NodeReport | None:
        """The node's report; None if its object is not known."""
        facts = self._facts.get(name)
        return None if facts is None else facts.report

    def _build(self, name: str, on_node: OnNode) -> None:
        here, others_cpu, deleted, claims, kept, agent_away = on_node
        before, facts = self._views.pop(name, None), self._facts.get(name)
        if self.built is not None:
            self.built(self.turn, name, facts, on_node)
        if facts is None:
            if not claims and not any(o.occupies for o in here):
                self._count(before, None)
                return
            # What its cards were is forgotten: a service that starts now cannot know, and is to count alike.
            facts = NodeFacts(NodeReport(name, self._unit), "this node is not known here")
        if agent_away and not facts.problem:
            facts = replace(facts, problem=AWAY)
        if deleted:
            held = (*facts.report.lingering, *deleted)
            facts = replace(facts, report=replace(facts.report, lingering=held))
        bound = [o for o in here if o.occupies and o.pod.node == name]
        nominated = [o for o in here if o.waits and o.nominated == name]
        cpu = None if facts.cpu is None else facts.cpu - others_cpu - sum(o.cpu for o in bound)
        view = build_view(facts, bound, nominated, self._intern, before, cpu, claims, kept)
        self._views[name] = view
        self._count(before, view)

    def _count(self, before: NodeView | None, view: NodeView | None) -> None:
        """Count what a node's pods and claims hold now, and not what they held; most hold what they held."""
        for one, other, sign in ((before, view, -1), (view, before, 1)):
            for namespace, held in _changed(one, other):
                _add(self._used, namespace, held.usage, sign)
                _add(self._protected, namespace, held.protected, sign)

    def _intern(self, key: Hashable) -> int:
        number = self._states.get(key)
        if number is None:
            if len(self._states) >= _MOST_STATES:
                self._states.clear()
            self._next_state += 1
            number = self._states[key] = self._next_state
        return number


def _changed(one: NodeView | None, other: NodeView | None) -> Iterator[tuple[str, Charge | ClaimCharge]]:
    """Namespace and charge of all that is on the node in one view and not, or not the same, in the other."""
    if one is None:
        return
    for uid, charge in one.charges.items():
        if other is None or other.charges.get(uid) is not charge:
            yield charge.pod.namespace, charge
    for uid, held in one.held_claims.items():
        if other is None or other.held_claims.get(uid) is not held:
            yield held.claim.namespace, held


def _add(
    sums: dict[str, dict[str, Amount]], namespace: str, held: Iterable[tuple[str, Amount]], sign: int
) -> None:
    """Add what is held of each model to the sums by namespace and model, or take it off."""
    for model, amount in held:
        models = sums.setdefault(namespace, {})
        before = models.get(model, ZERO)
        models[model] = before + amount if sign > 0 else before - amount
        if models[model] == ZERO:
            del models[model]
            if not models:
                del sums[namespace]


def _offer(facts: NodeFacts) -> tuple[str, str, int, tuple[CardState, ...]]:
    report = facts.report
    return report.name, report.pool, report.unit, report.cards
