"""The node's card states, step by step on a clock of our own: faults, probation, cordons, a driver that is away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import UNREAD_MODEL, Card, CardState, CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.topology import SELF, Link, Topology
from gpu_manager.ports.cards import CardEvent, HealthChange, XidError
from gpu_manager.services.cards.card_history import MOST_EVENTS, CardXids, HealthLog
from gpu_manager.services.cards.health import VANISHED, Health, HealthTimes
from tests.fakes.ports import FakeNodeObject

PIX, SYS = Link.parse("PIX"), Link.parse("SYS")


def card(index: int, memory: int = 1 << 34) -> Card:
    return Card(
        index=index, uuid=CardUuid(f"GPU-{index}"), model="T4" if memory else UNREAD_MODEL, memory=memory
    )


@dataclass
class FakeCards:
    """Cards that say what they are told to say."""

    cards: dict[int, str] = field(default_factory=lambda: {0: "", 1: ""})  # index → fault
    error: str = ""
    watch_error: str = ""
    changed: Callable[[CardEvent], None] | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    read: int = 0

    def list(self) -> Sequence[CardState]:
        if self.error:
            raise NodeUnready(self.error)
        return [
            CardState(card(i, self.sizes.get(i, 1 << 34)), healthy=not fault, reason=fault)
            for i, fault in self.cards.items()
        ]

    def topology(self) -> Topology:
        """PIX between healthy cards; the driver says SYS of a card that is lost."""
        self.read += 1
        well = [not fault for fault in self.cards.values()]
        return Topology(
            tuple(
                tuple(SELF if a == b else PIX if well[a] and well[b] else SYS for b in range(len(well)))
                for a in range(len(well))
            )
        )

    def usage(self):
        return (), ()

    def watch(self, changed: Callable[[CardEvent], None]) -> None:
        if self.watch_error:
            raise NodeUnready(self.watch_error)
        assert self.changed is None
        self.changed = changed

    def close(self) -> None:
        raise AssertionError("the cards belong to the caller")


class Node:
    """The service under test, its neighbours, and what a subscriber was told."""

    def __init__(self, **times: float) -> None:
        self.cards, self.inventory, self.seconds = FakeCards(), FakeNodeObject(), 1000.0
        self.told: list[tuple[CardState, ...]] = []
        self.health = Health(self.cards, self.inventory, self, HealthTimes(**times))
        self.health.subscribe(self.told.append)

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def step(self, seconds: float = 0.0) -> list[tuple[bool, str]]:
        """Time passes, the cards are looked at, everybody is told."""
        self.seconds += seconds
        self.health.discover()
        return self.settle()

    def settle(self) -> list[tuple[bool, str]]:
        self.health.settle()
        return [(s.healthy, s.reason) for s in self.health.states()]

    def event(self, index: int, reason: str = "") -> None:
        assert self.cards.changed is not None
        self.cards.changed(HealthChange(CardUuid(f"GPU-{index}"), healthy=not reason, reason=reason))


WELL = (True, "")


def test_nobody_is_told_anything_before_the_first_look():
    node = Node()
    node.health.settle()
    assert node.told == []
    assert node.health.states() == ()


def test_healthy_cards_are_open_at_once_and_told_once():
    node = Node()
    assert node.step() == [WELL, WELL]
    node.step(10)
    node.step(10)
    assert len(node.told) == 1
    assert node.told[0] == node.health.states()


def test_a_late_subscriber_is_told_the_state_and_the_others_nothing_new():
    node, late = Node(), []
    node.step()
    node.health.subscribe(late.append)
    node.settle()
    assert late == node.told
    assert len(node.told) == 1


def test_a_fault_event_closes_the_card_without_a_look():
    node = Node()
    node.step()
    node.event(1, "XID 79")
    assert node.settle() == [WELL, (False, "XID 79")]
    assert len(node.told) == 2


def test_a_card_opens_again_only_after_its_probation():
    node = Node(probation=15)
    node.step()
    node.event(0, "XID 48")
    node.settle()
    assert node.step(1)[0] == (False, "XID 48")  # well again, first seen now
    assert node.step(14.9)[0] == (False, "XID 48")
    assert node.step(0.1)[0] == WELL


def test_a_card_that_flaps_stays_closed():
    node = Node(probation=15)
    node.step()
    for _ in range(5):
        node.event(0, "flap")
        node.step(10)
        node.event(0)
        assert node.step(3)[0] == (False, "flap")
    assert len(node.told) == 2
    assert node.step(15)[0] == WELL


def test_a_well_again_event_begins_the_probation():
    node = Node(probation=15)
    node.step()
    node.event(0, "fault")
    node.settle()
    node.event(0)
    node.seconds += 15
    assert node.settle()[0] == WELL


def test_a_card_that_is_listed_sick_is_closed_with_its_reason():
    node = Node()
    node.cards.cards[1] = "row remapping has failed"
    assert node.step() == [WELL, (False, "row remapping has failed")]
    node.cards.cards[1] = "fallen off the bus"
    assert node.step(10)[1] == (False, "fallen off the bus")
    assert len(node.told) == 2


def test_a_vanished_card_stays_unhealthy_until_it_is_forgotten():
    node = Node()
    node.step()
    del node.cards.cards[0]
    assert node.step(10) == [(False, VANISHED), WELL]
    assert [state.missing for state in node.health.states()] == [True, False]
    assert node.step(1000) == [(False, VANISHED), WELL]
    assert not node.health.forget(CardUuid("GPU-1"))
    assert not node.health.forget(CardUuid("GPU-9"))
    assert node.health.forget(CardUuid("GPU-0"))
    assert node.settle() == [WELL]
    assert node.told[-1] == node.health.states()


def test_a_vanished_card_that_comes_back_serves_its_probation():
    node = Node(probation=15)
    node.step()
    del node.cards.cards[0]
    node.step(10)
    node.cards.cards[0] = ""
    assert node.step(10)[-1] == WELL
    assert node.health.states()[0].reason == VANISHED
    assert not node.health.states()[0].missing, "its number is the driver's word again"
    assert node.step(15) == [WELL, WELL]


def test_a_card_that_never_told_its_size_leaves_no_ghost():
    node = Node()
    node.cards.cards[2], node.cards.sizes[2] = "no answer", 0
    assert len(node.step()) == 3
    del node.cards.cards[2]
    assert len(node.step(10)) == 2


def test_a_cordon_closes_a_card_and_an_uncordon_opens_it_at_once():
    node = Node()
    node.step()
    node.inventory.closed = frozenset({CardUuid("GPU-1"), CardUuid("GPU-unknown")})
    node.settle()
    assert [s.open for s in node.health.states()] == [True, False]
    assert node.health.states()[1].healthy
    node.inventory.error = "API away"
    node.settle()
    assert [s.open for s in node.health.states()] == [True, False]
    node.inventory.error, node.inventory.closed = "", frozenset()
    node.settle()
    assert [s.open for s in node.health.states()] == [True, True]
    assert len(node.told) == 3
    counts = node.health.counts()
    assert (counts["card_cordoned"], counts["card_uncordoned"], counts["cordons_unreadable"]) == (1, 1, 1)


def test_without_a_driver_the_agent_has_no_cards_says_why_and_tries_again_ever_slower():
    node = Node(retry_first=1, retry_last=30)
    node.cards.error = "could not load the NVML library: install it"
    pauses = [node.health.discover() for _ in range(7)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert node.settle() == []
    assert node.told == []
    assert node.health.trouble == "could not load the NVML library: install it"
    node.cards.error = ""
    assert node.health.discover() == 10
    assert node.settle() == [WELL, WELL]
    assert node.health.trouble == ""
    node.cards.error = "away"
    assert node.health.discover() == 1


def test_one_failed_look_changes_nothing_and_a_long_outage_closes_all():
    node = Node(grace=30, probation=15)
    node.step()
    node.cards.error = "driver not loaded"
    assert node.step(10) == [WELL, WELL]
    assert node.step(29) == [WELL, WELL]
    assert node.step(1) == [(False, "the driver cannot be asked: driver not loaded")] * 2
    node.cards.error = ""
    assert node.step(1) == [WELL, WELL], "nothing was wrong with the cards"


def test_an_event_of_an_unknown_card_and_a_failing_watch_are_survived():
    node = Node()
    node.cards.watch_error = "no events"
    assert node.step() == [WELL, WELL]
    assert node.health.counts()["watch_failed"] == 1
    node.cards.watch_error = ""
    node.step(10)
    node.event(7, "who?")
    assert node.settle() == [WELL, WELL]


def test_a_listener_that_fails_does_not_keep_the_news_from_the_others():
    node = Node()
    later: list[tuple[CardState, ...]] = []

    def broken(_: tuple[CardState, ...]) -> None:
        raise RuntimeError("listener")

    node.health = Health(node.cards, node.inventory, node)
    node.health.subscribe(broken)
    node.health.subscribe(later.append)
    node.step()
    assert len(later) == 1
    assert node.health.counts()["listener_failed"] == 1


def test_states_are_in_the_order_of_the_cards():
    node = Node()
    node.cards.cards = {2: "", 0: "", 1: ""}
    node.step()
    assert [s.card.index for s in node.health.states()] == [0, 1, 2]


def test_the_links_follow_the_states_and_outlive_a_loss():
    node = Node()
    node.cards.cards = {0: "", 1: "sick", 2: ""}
    node.step()

    def links() -> list[str]:
        return [
            " ".join(str(link) for link in row) for row in node.health.topology(node.health.states()).links
        ]

    assert links() == ["X SYS PIX", "SYS X SYS", "PIX SYS X"]  # never read of card 1 in health
    node.cards.cards[1] = ""
    node.step(10)
    assert links() == ["X PIX PIX", "PIX X PIX", "PIX PIX X"]
    node.cards.cards[0] = "lost"
    node.step(10)
    del node.cards.cards[2]
    node.step(10)
    assert links() == ["X PIX PIX", "PIX X PIX", "PIX PIX X"]
    node.cards.cards[9] = ""
    node.step(10)
    assert links()[3] == "SYS PIX SYS X"
    node.health.forget(CardUuid("GPU-2"))
    node.settle()
    assert len(links()) == 3


def test_the_links_are_read_only_when_the_cards_change():
    node = Node()
    for _ in range(5):
        node.step(10)
    assert node.cards.read == 1


STEP = st.one_of(
    st.tuples(st.just("event"), st.integers(0, 3), st.sampled_from(["", "fault"])),
    st.tuples(st.just("list"), st.integers(0, 3), st.sampled_from(["", "sick", "gone"])),
    st.tuples(st.just("driver"), st.just(0), st.sampled_from(["", "away"])),
    st.tuples(st.just("cordon"), st.integers(0, 3), st.sampled_from(["on", "off"])),
    st.tuples(st.just("time"), st.integers(1, 20), st.just("")),
    st.tuples(st.just("forget"), st.integers(0, 3), st.just("")),
)


@given(st.lists(STEP, max_size=40))
def test_whatever_happens_no_card_is_lost_and_none_opens_within_its_probation(steps):
    node = Node(probation=15, grace=30)
    node.step()
    seen = {s.card.uuid for s in node.health.states()}
    closed_at: dict[CardUuid, float] = {}
    unasked: dict[CardUuid, bool] = {}
    for kind, number, what in steps:
        uuid = CardUuid(f"GPU-{number}")
        if kind == "event":
            node.event(number, what)
        elif kind == "list" and what == "gone":
            node.cards.cards.pop(number, None)
        elif kind == "list":
            node.cards.cards[number] = what
        elif kind == "driver":
            node.cards.error = what
        elif kind == "cordon":
            node.inventory.closed = (
                node.inventory.closed ^ {uuid}
                if (uuid in node.inventory.closed) is (what == "off")
                else node.inventory.closed
            )
        elif kind == "time":
            node.seconds += number
        elif node.health.forget(uuid):
            seen.discard(uuid)
            closed_at.pop(uuid, None)
        node.step()
        states = {s.card.uuid: s for s in node.health.states()}
        assert seen <= set(states)
        seen = set(states)
        for state in states.values():
            assert state.healthy is (state.reason == "")
            assert state.cordoned is (state.card.uuid in node.inventory.closed)
            if not state.healthy:
                closed_at.setdefault(state.card.uuid, node.seconds)
                unasked[state.card.uuid] = state.reason.startswith("the driver cannot be asked")
            elif state.card.uuid in closed_at:
                assert node.seconds - closed_at.pop(state.card.uuid) >= 15 or unasked[state.card.uuid]
        assert node.told[-1] == node.health.states()
    assert all(a != b for a, b in zip(node.told, node.told[1:], strict=False))


@pytest.mark.parametrize("name", ["card_found", "card_closed", "card_opened", "card_forgotten"])
def test_every_turn_is_counted(name):
    node = Node(probation=0)
    node.step()
    node.event(0, "fault")
    node.settle()
    node.event(0)
    node.settle()
    del node.cards.cards[1]
    node.step()
    node.health.forget(CardUuid("GPU-1"))
    assert node.health.counts()[name] >= 1


def test_a_driver_that_reloads_has_its_cards_back_within_seconds():
    node = Node()
    node.step()
    node.cards.error = "the NVIDIA kernel driver is not loaded"
    gone_for, pause = 0.0, node.health.discover()
    while gone_for < 120:
        node.seconds, gone_for = node.seconds + pause, gone_for + pause
        pause = node.health.discover()
        node.settle()
    assert {healthy for healthy, _ in node.settle()} == {False}
    assert node.health.trouble == "the NVIDIA kernel driver is not loaded"
    node.cards.error, back = "", node.seconds
    while any(not healthy for healthy, _ in node.settle()):
        node.seconds += pause
        pause = node.health.discover()
    assert node.seconds - back <= 14


def test_a_card_that_was_ailing_when_the_driver_went_serves_its_probation_when_it_is_back():
    node = Node(probation=15, grace=30)
    node.cards.cards[1] = "row remapping has failed"
    node.step()
    node.cards.error, node.cards.cards[1] = "away", ""
    node.step(10)
    node.step(40)
    node.cards.error = ""
    assert node.step(5) == [WELL, (False, "the driver cannot be asked: away")]
    assert node.step(15) == [WELL, WELL]


def test_xids_are_counted_by_card_and_by_whether_they_close_it():
    node = Node()
    node.step()
    program = XidError(CardUuid("GPU-0"), 31, closes=False)
    for event in (program, program, XidError(CardUuid("GPU-1"), 79, closes=True)):
        node.cards.changed(event)
    assert node.health.xids() == {
        "GPU-0": CardXids(closing=0, others=2, last=31),
        "GPU-1": CardXids(closing=1, others=0, last=79),
    }
    assert node.step() == [WELL, WELL], "the change of health is told on its own"
    newest, *_ = node.health.events(CardUuid("GPU-0"))
    assert (newest.event, newest.text, newest.count) == ("xid", "31", 2)
    assert [e.event for e in node.health.events(CardUuid("GPU-1"))] == ["closing_xid", "card_found"]


def test_a_card_tells_why_it_was_closed_and_since_when():
    node = Node()
    node.step()
    node.cards.cards[1] = "XID 79: the card is lost"
    node.step(10)
    closed, found = node.health.events(CardUuid("GPU-1"))
    assert (closed.event, closed.text) == ("card_closed", "XID 79: the card is lost")
    assert closed.last - found.last == 10
    assert found.last >= node.health.began
    assert node.health.events(CardUuid("GPU-none")) == ()


def test_a_storm_of_events_is_bounded_and_does_not_lose_the_newest():
    log = HealthLog()
    for number in range(100):
        log.note(CardUuid("GPU-0"), "xid", str(number), number)
    log.note(CardUuid("GPU-0"), "xid", "90", 100.0)
    events = log.of(CardUuid("GPU-0"))
    assert len(events) == MOST_EVENTS
    assert (events[0].text, events[0].first, events[0].last, events[0].count) == ("90", 90, 100.0, 2)
    assert events[-1].text == "80"
