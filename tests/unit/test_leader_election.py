"""Who leads: two replicas never at once, whatever their clocks, their looks and the API server do."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.extender.leader_election import HeldLease, Leader, PodLister, SingleReplica, WatchedLeader
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.api_server import LeaseRecord
from tests.fakes.ports import FakeClock

BIND = 5.0


@dataclass
class Server:
    """The one Lease. ``down`` answers nobody; ``lost`` takes the next write and does not say so."""

    record: LeaseRecord | None = None
    version: int = 0
    down: bool = False
    lost: bool = False

    def put(self, holder: str, seconds: float = 15.0, transitions: int | None = None) -> None:
        old = self.record.transitions if self.record else 0
        self.version += 1
        self.record = LeaseRecord(
            holder, seconds, old if transitions is None else transitions, f"{holder} {self.version}"
        )


@dataclass
class Line:
    """One replica's way to it, with the version it read last."""

    server: Server
    read_version: int = -1

    def read(self) -> LeaseRecord | None:
        if self.server.down:
            raise NodeUnready("no answer")
        self.read_version = self.server.version
        return self.server.record

    def write(self, holder: str, seconds: float, transitions: int) -> bool:
        if self.server.down:
            raise NodeUnready("no answer")
        if self.read_version != self.server.version:
            return False
        self.server.put(holder, seconds, transitions)
        self.read_version = self.server.version
        if self.server.lost:
            self.server.lost = False
            raise NodeUnready("the answer was lost")
        return True


@dataclass
class Books:
    """Since when all pods are known. The watch catches up at once, and so does a list, unless held.

    ``unmarked``: the API server does not take the change that the watch has to show.
    """

    clock: FakeClock
    listed: float | None = None
    pending: bool = True
    held: bool = False
    unmarked: bool = False
    asked: int = 0
    lists: int = 0

    def catch_up(self) -> None:
        self.asked += 1
        if self.unmarked:
            raise NodeUnready("no answer")
        if not self.held:
            self.listed = self.clock.monotonic()

    def relist(self) -> None:
        self.lists += 1
        if not self.held:
            self.listed = self.clock.monotonic()


@dataclass
class Replica:
    mandate: HeldLease | WatchedLeader | SingleReplica
    clock: FakeClock
    books: Books = field(init=False)
    said: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.books = Books(self.clock, listed=self.clock.monotonic())
        books = self.books
        pods = PodLister(lambda: books.listed, books.catch_up, books.relist, lambda: books.pending)
        self.leader = Leader(self.mandate, pods, self.clock, BIND, self.said.append)

    def ticks(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.pass_(1.0)
            self.leader.tick()

    @property
    def leads(self) -> bool:
        return self.leader.leads(BIND)


def holder(server: Server, clock: FakeClock, name: str = "a") -> Replica:
    return Replica(HeldLease(Line(server), clock, name, 10.0), clock)


def watcher(server: Server, clock: FakeClock, name: str = "a") -> Replica:
    return Replica(WatchedLeader(Line(server), clock, frozenset({name})), clock)


def leading(server: Server, clock: FakeClock) -> Replica:
    """A watcher whose own scheduler has the Lease."""
    made = watcher(server, clock)
    made.books.pending = False
    made.ticks()
    server.put("a_1", 10.0)
    made.ticks()
    assert made.leads
    return made


# One replica alone.


def test_what_a_former_process_sent_must_be_over_and_pods_listed_after_that() -> None:
    alone = Replica(SingleReplica(), FakeClock())
    alone.ticks(4)
    assert not alone.leads
    alone.books.held = True
    alone.ticks(2)
    assert (alone.leads, alone.books.asked) == (False, 1)
    alone.books.listed = alone.clock.monotonic()
    assert alone.leads


def test_where_no_pod_waits_nothing_can_be_under_way() -> None:
    alone = Replica(SingleReplica(), FakeClock())
    alone.books.pending = False
    alone.leader.tick()
    assert alone.leads
    assert alone.said == [True]
    alone.leader.resign()
    assert (alone.leads, alone.said) == (False, [True, False])


# A Lease of our own.


def test_the_first_takes_the_lease_and_waits_for_whoever_may_have_had_a_deleted_one() -> None:
    server, clock = Server(), FakeClock()
    a = holder(server, clock)
    a.ticks(9)
    assert server.record is not None
    assert not a.leads
    a.ticks(3)
    assert a.leads


def led(server: Server, clock: FakeClock) -> Replica:
    server.put("")
    a = holder(server, clock)
    a.books.pending = False
    a.ticks(2)
    assert a.leads
    return a


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    server, clock = Server(), FakeClock()
    a = led(server, clock)
    b = holder(server, clock, "b")
    b.ticks(6)
    assert not b.leads
    a.leader.resign()
    a.leader.release()
    b.ticks()
    assert b.leads
    assert not a.leads


def test_what_was_bound_before_a_lease_was_given_back_must_have_been_listed() -> None:
    """The one before has ended its Bindings, but this replica's watch may be late to show them."""
    server, clock = Server(), FakeClock()
    a = led(server, clock)
    b = holder(server, clock, "b")
    b.books.pending = False
    b.ticks()
    b.books.held = True
    a.leader.resign()
    a.leader.release()
    b.ticks(3)
    assert (b.leads, b.books.asked) == (False, 1)
    b.books.listed = clock.monotonic()
    assert b.leads


def given_to_b(*, unmarked: bool = False) -> Replica:
    """The Lease goes from one replica to another, whose books hold all from before that."""
    server, clock = Server(), FakeClock()
    a = led(server, clock)
    b = holder(server, clock, "b")
    b.books.pending, b.books.unmarked = False, unmarked
    b.ticks()
    b.books.held = True
    a.leader.resign()
    a.leader.release()
    b.ticks()
    return b


def test_a_change_of_leader_lists_nothing() -> None:
    b = given_to_b()
    b.ticks()
    b.books.listed = b.clock.monotonic()
    b.ticks(9)
    assert (b.leads, b.books.asked, b.books.lists) == (True, 1, 0)


def test_a_watch_that_does_not_catch_up_in_time_is_followed_by_one_list() -> None:
    b = given_to_b()
    b.ticks(9)
    assert (b.leads, b.books.asked, b.books.lists) == (False, 1, 1)
    b.books.listed = b.clock.monotonic()
    assert b.leads


def test_where_no_change_can_be_made_that_the_watch_would_show_there_is_a_list_at_once() -> None:
    b = given_to_b(unmarked=True)
    assert (b.books.asked, b.books.lists) == (1, 1)
    b.ticks(9)
    assert (b.books.asked, b.books.lists) == (1, 1)


def test_a_lease_that_ran_out_unseen_and_was_led_by_another_needs_a_new_list() -> None:
    server, clock = Server(), FakeClock()
    a = led(server, clock)
    asked = a.books.asked
    clock.pass_(30)  # this process did not run; another led meanwhile, and gave the Lease back
    server.put("", 1.0, 5)
    a.books.held = True
    a.leader.tick()
    assert (a.leads, a.books.asked) == (False, asked + 1)


def test_a_dead_leader_is_followed_once_its_lease_has_run_out_and_never_before() -> None:
    server, clock = Server(), FakeClock()
    a = led(server, clock)
    b = holder(server, clock, "b")
    b.books.pending = False
    b.ticks()
    waited = 0
    while not b.leads:
        assert not (a.leads and b.leads)
        b.ticks()
        waited += 1
    assert not a.leads
    assert waited <= 13
    assert b.books.listed is not None


def test_renewals_lost_on_the_way_end_in_not_leading_in_time() -> None:
    server, clock = Server(), FakeClock()
    a = led(server, clock)
    server.down = True
    a.ticks(5)
    assert not a.leads  # a Binding's deadline would outlive the Lease
    assert a.leader.leads(1.0)
    server.down = False
    a.ticks(2)
    assert a.leads


def test_a_take_without_an_answer_still_waits_for_the_one_before() -> None:
    server, clock = Server(), FakeClock()
    server.put("x_1", 10.0)
    b = holder(server, clock, "b")
    b.ticks(10)
    server.lost = True
    b.ticks(1)
    assert server.record is not None
    assert server.record.holder.startswith("b_")
    b.ticks(3)
    assert b.leads
    assert b.mandate.fence > clock.monotonic() - 6


def test_a_list_from_before_the_take_is_not_enough() -> None:
    server, clock = Server(), FakeClock()
    server.put("x_1", 10.0)
    b = holder(server, clock, "b")
    b.books.held = True
    b.ticks(14)
    assert (b.leads, b.books.asked) == (False, 1)
    b.books.listed = clock.monotonic()
    assert b.leads


def test_a_renewal_that_is_answered_late_counts_from_when_it_was_sent() -> None:
    """The API server may have taken it at once: others count from then."""
    server, clock = Server(), FakeClock()
    a = holder(server, clock)
    a.books.pending = False
    slow = a.mandate._leases  # type: ignore[union-attr]
    written = slow.write

    def late(*record: object) -> bool:
        found = written(*record)
        clock.pass_(3.0)
        return bool(found)

    slow.write = late
    a.leader.tick()
    assert a.mandate.until == pytest.approx(clock.monotonic() - 3 + 10)


# The scheduler's Lease.


def test_the_scheduler_beside_us_leads_from_its_second_renewal_on() -> None:
    server, clock = Server(), FakeClock()
    a = watcher(server, clock)
    a.books.pending = False
    a.ticks(2)
    assert not a.leads
    server.put("a_1")
    a.ticks()
    assert a.leads  # its first one was seen, and nobody ever had it before
    server.put("a_1")
    a.ticks()
    assert a.mandate.until == pytest.approx(clock.monotonic() - 1 + 15)


def test_a_lease_found_held_has_an_unknown_age_and_an_unknown_past() -> None:
    server, clock = Server(), FakeClock()
    server.put("a_1", transitions=3)
    a = watcher(server, clock)
    a.books.pending = False
    a.ticks()
    assert not a.leads
    server.put("a_1")
    a.ticks()
    assert not a.leads  # another may have given it back a moment ago
    for _ in range(15):
        server.put("a_1")
        a.ticks()
    assert a.leads


@pytest.mark.parametrize("name", ["b_1", "ab_1", "a-2_1", "a", "_", ""])
def test_another_pods_scheduler_is_not_ours(name: str) -> None:
    server, clock = Server(), FakeClock()
    a = watcher(server, clock)
    for _ in range(20):
        server.put(name)
        a.ticks()
        assert not a.leads


def test_after_a_crash_elsewhere_we_lead_when_that_lease_has_run_out() -> None:
    server, clock = Server(), FakeClock()
    a = watcher(server, clock)
    server.put("b_1", 10.0)
    a.ticks(11)
    server.put("a_1", 10.0, transitions=1)
    a.ticks()
    server.put("a_1", 10.0)
    a.ticks()
    assert a.leads


def test_after_it_was_given_back_elsewhere_we_wait_for_the_calls_under_way() -> None:
    server, clock = Server(), FakeClock()
    a = watcher(server, clock)
    for _ in range(4):
        server.put("b_1", 10.0)
        a.ticks()
    server.put("", 1.0)
    server.put("a_1", 10.0, transitions=1)
    since = clock.monotonic()
    while not a.leads:
        server.put("a_1", 10.0)
        a.ticks()
    assert 10.0 <= clock.monotonic() - since <= 12.0


def test_someone_who_led_between_two_looks_is_noticed() -> None:
    server, clock = Server(), FakeClock()
    a = leading(server, clock)
    server.put("b_1", 10.0, transitions=1)
    server.put("a_2", 10.0, transitions=2)
    a.ticks()
    assert not a.leads


def test_a_scheduler_that_begins_anew_in_the_same_pod_goes_on() -> None:
    server, clock = Server(), FakeClock()
    a = leading(server, clock)
    server.put("a_2", 10.0, transitions=1)
    a.ticks()
    assert a.leads


# Both, under any interleaving.


@settings(max_examples=300)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0.0, 6.0), st.booleans(), st.booleans()), max_size=60
    ),
    ahead=st.floats(-1e6, 1e6),
)
def test_two_holders_never_lead_at_once(steps: list[tuple[str, float, bool, bool]], ahead: float) -> None:
    """Their clocks are apart, looks come late, answers are lost, the server is away for a while."""
    server = Server()
    clocks = {"a": FakeClock(0.0), "b": FakeClock(ahead)}
    both = {name: holder(server, clock, name) for name, clock in clocks.items()}
    for who, pause, down, lost in steps:
        for clock in clocks.values():
            clock.pass_(pause)
        server.down, server.lost = down, lost and not down
        both[who].leader.tick()
        server.lost = False
        assert not (both["a"].leader.leads() and both["b"].leader.leads())
        # What the one may still send is over before the other begins.
        for mine, other in (("a", "b"), ("b", "a")):
            if both[mine].leader.leads():
                assert both[other].mandate.until <= clocks[other].monotonic()
