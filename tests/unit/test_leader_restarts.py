"""Who leads where a process starts again in the same pod."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from admission.extender.leader_election import HeldLease, Leader, PodLister, WatchedLeader
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.ports import FakeClock
from tests.unit.test_leader_election import BIND, Line, Replica, Server, holder, watcher


def again(replica: Replica, term: str) -> Replica:
    """The next process of that replica's pod, whose own pod names that term."""
    mandate = replica.mandate
    line, clock = Line(mandate._leases.server), replica.clock
    if isinstance(mandate, HeldLease):
        return Replica(HeldLease(line, clock, "a", 10.0, lambda: term), clock)
    return Replica(WatchedLeader(line, clock, mandate._hosts, lambda: term), clock)


def seconds_until_it_leads(replica: Replica, renewed: str = "") -> float:
    since = replica.clock.monotonic()
    while not replica.leads:
        if renewed:
            replica.mandate._leases.server.put(renewed, 15.0)
        replica.ticks()
    return replica.clock.monotonic() - since


def test_the_same_pod_takes_its_own_former_lease_once_its_own_bindings_are_over() -> None:
    a = holder(Server(), FakeClock())
    seconds_until_it_leads(a)
    assert a.mandate.term.startswith("a_")
    assert seconds_until_it_leads(again(a, a.mandate.term)) <= BIND + 1
    assert seconds_until_it_leads(again(a, "")) > 10


def test_a_lease_that_another_has_had_since_is_not_its_own() -> None:
    server, clock = Server(), FakeClock()
    a = holder(server, clock)
    seconds_until_it_leads(a)
    former = a.mandate.term
    clock.pass_(11)
    b = holder(server, clock, "b")
    seconds_until_it_leads(b)
    assert seconds_until_it_leads(again(a, former)) > 10
    assert not b.leads


def test_beside_a_scheduler_that_goes_on_only_its_own_bindings_are_waited_for() -> None:
    server, clock = Server(), FakeClock()
    server.put("a_1", 15.0, transitions=3)
    a = watcher(server, clock)
    seconds_until_it_leads(a, renewed="a_1")
    assert a.mandate.term == "a_1/3"
    assert seconds_until_it_leads(again(a, "a_1/3"), renewed="a_1") <= BIND + 1
    for other in ("a_1/2", "a_0/3", ""):
        assert seconds_until_it_leads(again(a, other), renewed="a_1") > 15


def test_while_its_own_pod_cannot_be_read_it_does_not_lead() -> None:
    server, clock = Server(), FakeClock()
    server.put("a_1", 15.0, transitions=3)
    said = ["", "no answer", "no answer"]

    def former() -> str:
        if said.pop():
            raise NodeUnready("no answer")
        return "a_1/3"

    a = Replica(WatchedLeader(Line(server), clock, frozenset({"a"}), former), clock)
    for _ in range(2):
        server.put("a_1")
        a.ticks()
    assert (said, a.mandate.until) == ([""], float("-inf"))
    assert seconds_until_it_leads(a, renewed="a_1") <= BIND + 1


@settings(max_examples=200)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0.0, 6.0), st.booleans(), st.booleans()), max_size=60
    )
)
def test_whoever_starts_again_nobody_leads_beside_another(steps: list[tuple[str, float, bool, bool]]) -> None:
    """Two pods' processes are killed and restarted; each passes on the last Lease term that its pod has seen."""
    server, clock = Server(), FakeClock()
    marks = {"a": "", "b": ""}

    def begin(name: str) -> Replica:
        made = Replica(HeldLease(Line(server), clock, name, 10.0, lambda: marks[name]), clock)
        told = made.books.catch_up

        def catch_up() -> None:
            marks[name] = made.mandate.term
            told()

        pods = PodLister(lambda: made.books.listed, catch_up, made.books.relist, lambda: True)
        made.leader = Leader(made.mandate, pods, clock, BIND)
        return made

    both = {name: begin(name) for name in "ab"}
    sent_until = {"a": float("-inf"), "b": float("-inf")}  # what a killed process may still have under way
    for who, pause, dies, lost in steps:
        clock.pass_(pause)
        if dies:
            if both[who].leader.leads(BIND):
                sent_until[who] = clock.monotonic() + BIND
            both[who] = begin(who)
        server.lost = lost
        both[who].leader.tick()
        server.lost = False
        leading = [name for name in "ab" if both[name].leader.leads()]
        assert len(leading) < 2
        assert all(sent_until[name] <= clock.monotonic() for name in "ab" if leading)
