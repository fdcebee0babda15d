"""When the cards are published to DRA: what they may give at once, their order every few seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_manager.domain.card import CardState
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.services.claims.upkeep import ORDER_SECONDS, REPAIR_SECONDS, RETRY_SECONDS, SlicePublisher
from tests.fakes.claims import FakeSlices, claim_grant
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeClock, cards
from tests.fakes.state import state_of

STATES = cards(3)


class Node:
    def __init__(self) -> None:
        self.state, self.slices, self.clock = state_of(STATES), FakeSlices(), FakeClock()
        self.metrics = service_metrics()
        self.publisher = SlicePublisher(self.state, self.slices, self.clock, self.metrics, 5)

    def show(self, *states: CardState) -> None:
        self.state.refit(states, Topology.uniform(len(states), Link(LinkKind.SYS)))

    @property
    def unpublished(self) -> float:
        return self.metrics.slice_unpublished.collect()[0].samples[0].value

    @property
    def names(self) -> list[str]:
        return [device.name[-1] for device in self.slices.told[-1]]


@pytest.fixture
def node() -> Node:
    made = Node()
    assert made.publisher.look()
    return made


def test_what_has_not_changed_is_not_published_again(node: Node) -> None:
    assert not node.publisher.look()
    assert node.names == ["0", "1", "2"]


def test_a_booking_moves_its_card_to_the_front_once_the_last_order_is_old_enough(node: Node) -> None:
    node.state.prepare([claim_grant("a", STATES[2])])
    assert not node.publisher.look()
    node.clock.pass_(ORDER_SECONDS)
    assert node.publisher.look()
    assert node.names == ["2", "0", "1"]


def test_a_card_that_closes_is_published_at_once(node: Node) -> None:
    node.show(replace(STATES[0], cordoned=True), *STATES[1:])
    assert node.publisher.look()
    assert node.names == ["1", "2", "0"]
    assert node.slices.told[-1][-1].taints


def test_a_slice_that_cannot_be_published_is_tried_again_and_said(node: Node) -> None:
    node.slices.error = "the API server is away"
    node.show(*STATES[:2])
    assert not node.publisher.look()
    assert (node.publisher.trouble, node.unpublished) == ("the API server is away", 1)
    node.slices.error = ""
    assert not node.publisher.look(), "an API server that refuses is not asked every second"
    node.clock.pass_(RETRY_SECONDS)
    assert node.publisher.look()
    assert (node.names, node.publisher.trouble, node.unpublished) == (["0", "1"], "", 0)


def test_what_others_may_have_changed_is_looked_at_every_minute(node: Node) -> None:
    node.clock.pass_(REPAIR_SECONDS)
    assert node.publisher.look()
