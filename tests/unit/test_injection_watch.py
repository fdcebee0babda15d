"""While no container can be injected no card is offered, and all are again once one can."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_manager.domain.card import CardState
from gpu_manager.ports.containers import Injectable
from gpu_manager.services.cards.closed_cards import InjectionWatch
from gpu_manager.services.cards.health import Health
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeCards, FakeClock, FakeNodeObject, cards


class Probe:
    """A node that says what it is told to."""

    def __init__(self) -> None:
        self.answer = Injectable()

    def probe(self, cards: Sequence[CardState]) -> Injectable:
        return self.answer


class Node:
    def __init__(self) -> None:
        self.probe, self.metrics = Probe(), service_metrics()
        self.health = Health(FakeCards(cards(2)), FakeNodeObject(), FakeClock())
        self.health.discover()
        self.health.settle()
        self.watch = InjectionWatch(self.probe, self.health, self.metrics)

    def look(self, answer: Injectable) -> tuple[CardState, ...]:
        self.probe.answer = answer
        self.watch.look()
        self.health.settle()
        return self.health.states()

    @property
    def possible(self) -> float:
        (family,) = self.metrics.injection_possible.collect()
        return family.samples[0].value


def test_no_card_is_offered_while_none_can_be_given_and_all_are_at_once_afterwards() -> None:
    node = Node()
    closed = node.look(Injectable("no libcuda.so.1"))
    assert [(s.healthy, s.reason) for s in closed] == [(False, "no libcuda.so.1")] * 2
    assert (node.watch.why, node.possible) == ("no libcuda.so.1", 0)
    opened = node.look(Injectable())
    assert [(s.healthy, s.reason) for s in opened] == [(True, "")] * 2
    assert (node.watch.why, node.possible) == ("", 1)


def test_a_card_that_cannot_be_given_is_closed_alone() -> None:
    node = Node()
    second = node.health.states()[1].card.uuid
    states = node.look(Injectable(cards={second: "no /dev/nvidia1"}))
    assert [(s.healthy, s.reason) for s in states] == [(True, ""), (False, "no /dev/nvidia1")]
    assert (node.watch.why, node.possible) == ("", 1)


def test_a_card_of_another_plugin_says_that_first() -> None:
    node = Node()
    first = node.health.states()[0].card.uuid
    node.health.offered_elsewhere({first: "nvidia.com/gpu"})
    states = node.look(Injectable("no driver"))
    assert "nvidia.com/gpu" in states[0].reason
    assert states[1].reason == "no driver"
