"""A node's state for tests of those who look at it: cards made of numbers, a store in memory."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_manager.domain.card import CardState
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.ports.records import Store
from gpu_manager.services.allocation.books import Books, Grant, NodeCards
from gpu_manager.services.allocation.node_state import NodeState
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeStore

NODE = "n1"


def node_of(states: Sequence[CardState]) -> NodeCards:
    topology = Topology.uniform(len(states), Link(LinkKind.SYS))
    return NodeCards.of(NODE, DEFAULT_UNIT, states, topology)


def state_of(states: Sequence[CardState], *grants: Grant, store: Store | None = None) -> NodeState:
    return NodeState(Books(node_of(states), grants), store or FakeStore(), service_metrics())


def put(state: NodeState, *grants: Grant) -> None:
    """The same node with these grants beside, or in place of, those that it has."""
    view = state.view
    known = {**view.grants, **{grant.key: grant for grant in grants}}
    state.open(Books(view.node, known.values()))
