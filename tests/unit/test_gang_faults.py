"""Cards that close while a gang is asked about, waits and is bound: it runs whole soon, and no card bears two."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES
from admission.extender.binding import HOLD_SECONDS
from bench.gang_faults import Fault, Kind
from bench.gang_load import SCHEDULERS, Gang, Load
from bench.gang_scheduler import Model
from bench.gangs import PARTIAL_SECONDS
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, Amount
from tests.fakes.extender import UNIT, World, node, pod, uuid

CALLS = 13  # to the extender until four members are bound
KUEUE = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


def run(scheduler, fault, nodes, seed):
    """A gang of four that fills a node."""
    model = Model(SCHEDULERS[scheduler], Load(0, nodes, disturbances=False, fault=fault), seed)
    one = Gang("a", 4, 200, 0, seconds=30.0, came=0.0)
    model.bring([one])
    model.run(300.0)
    return one, model


def runs_whole(scheduler, fault, nodes, seed):
    one, model = run(scheduler, fault, nodes, seed)
    assert one.done is not None
    assert one.worst <= PARTIAL_SECONDS
    assert model.over_committed() == []


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=15)
@given(
    kind=st.sampled_from(Kind),
    at=st.integers(1, CALLS),
    seconds=st.floats(0.1, 5.0),
    card=st.integers(0, 7),
    seed=st.integers(0, 99),
)
def test_wherever_a_card_closes_for_a_moment_the_gang_runs_whole(scheduler, kind, at, seconds, card, seed):
    runs_whole(scheduler, Fault(kind, at, seconds, card), 1, seed)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=15)
@given(kind=st.sampled_from(Kind), at=st.integers(1, CALLS), card=st.integers(0, 7), seed=st.integers(0, 99))
def test_wherever_a_card_closes_for_good_the_gang_runs_whole_where_there_is_room(
    scheduler, kind, at, card, seed
):
    runs_whole(scheduler, Fault(kind, at, 900.0, card), 2, seed)


# One member after the other, by hand.

WHOLE = Amount(CORES_PER_CARD, 16 * GIB // UNIT)


class Nodes:
    """n1 with four cards and n2 with one, whose agents report what the test says; ``later`` happens while a bind
    waits.
    """

    def __init__(self, size=4, spare=0):
        self.later = {}
        self.world = World(
            [node("n1", size), node("n2", spare)], watching=True, expecting=True, pause=self._pause
        )
        names, count = KUEUE
        self.gang = [
            pod(f"g-{i}", 100, None, labels={names: "g"}, annotations={count: str(size)}) for i in range(size)
        ]
        self.world.create(*self.gang)
        self.size = size
        for one in self.gang:
            assert self.world.filter(one)["NodeNames"] == ["n1"]
        self.waited = 0.0

    def change_leader(self, **about):
        """A new one begins with what the API server has, and this of n1."""
        held = [node("n1", self.size, **about), node("n2", 0)]
        objects = list(self.world.api.pods.values())
        self.world = World(held, objects, watching=True, expecting=True, pause=self._pause)
        self.world.binder.begin()
        self.world.gangs.begin()

    def _pause(self, seconds):
        self.waited += seconds
        self.world.clock.pass_(seconds)
        for at in [at for at in self.later if at <= self.waited]:
            self.later.pop(at)()

    def reports(self, **about):
        self.world.cluster.apply(NODES, "MODIFIED", node("n1", self.size, **about))

    def lingers(self, *cards):
        """Processes of pods that are gone hold these."""
        self.reports(lingering=[TerminatingShare(f"gone-{i}", uuid("n1", i), WHOLE) for i in cards])

    def card_of(self, at):
        """Where that member's place is kept, or it lies."""
        held = self.world.cluster.snapshot().nodes["n1"].ledger.of_pod(self.gang[at]["metadata"]["uid"])
        return next(i for i in range(self.size) if uuid("n1", i) in held["main"].cards)

    def bind(self, at):
        return self.world.bind(self.gang[at], "n1")

    @property
    def bound(self):
        return [bool(one["spec"].get("nodeName")) for one in self.world.api.pods.values()]


def test_a_member_whose_siblings_are_bound_waits_for_processes_that_end():
    """What was seen: three of four bound, the fourth refused for "a pod that is gone and whose processes run"."""
    nodes = Nodes()
    assert [nodes.bind(at) for at in range(3)] == ["", "", ""]
    nodes.lingers(nodes.card_of(3))
    nodes.later[1.0] = nodes.reports
    assert nodes.bind(3) == ""
    assert nodes.world.over_committed() == []
    assert 1.0 <= nodes.waited < HOLD_SECONDS


def test_none_is_bound_while_processes_hold_anothers_card():
    nodes = Nodes()
    nodes.lingers(nodes.card_of(3))
    nodes.later[1.0] = nodes.reports
    assert [nodes.bind(at) for at in range(4)] == [""] * 4
    assert nodes.waited >= 1.0


def test_where_they_do_not_end_in_time_none_is_bound():
    nodes = Nodes()
    nodes.lingers(nodes.card_of(3))
    assert "g-3 on n1 is not free for a moment" in nodes.bind(0)
    assert HOLD_SECONDS <= nodes.waited < HOLD_SECONDS + 1
    assert all("have a place: none is bound until all have" in nodes.bind(at) for at in (1, 2, 3))
    assert not any(nodes.bound)


def test_none_is_bound_once_anothers_card_is_closed_and_nobody_waits():
    nodes = Nodes()
    nodes.reports(closed=[nodes.card_of(3)])
    assert "not free any more" in nodes.bind(0)
    assert not any(nodes.bound)
    assert nodes.waited == 0.0


def test_none_is_bound_while_the_agent_is_away():
    nodes = Nodes()
    nodes.reports(serving=False)
    nodes.later[2.0] = nodes.reports
    assert nodes.bind(2) == ""
    assert nodes.waited >= 2.0


def test_a_member_whose_card_closes_after_its_siblings_were_bound_gets_another():
    nodes = Nodes()
    assert [nodes.bind(at) for at in range(3)] == ["", "", ""]
    nodes.reports(closed=[nodes.card_of(3)])
    assert nodes.bind(3)
    assert nodes.waited == 0.0
    nodes.world.cluster.apply(NODES, "MODIFIED", node("n2", 1))
    assert nodes.world.filter(nodes.gang[3])["NodeNames"] == ["n2"]
    assert nodes.world.bind(nodes.gang[3], "n2") == ""


@pytest.mark.parametrize("led", ["all along", "by another since"])
def test_room_comes_to_a_gang_in_part_before_it_comes_to_who_asks_first(led):
    nodes = Nodes()
    assert [nodes.bind(at) for at in range(3)] == ["", "", ""]
    card = nodes.card_of(3)
    if led == "all along":
        nodes.reports(closed=[card])
        assert nodes.bind(3)
    else:
        nodes.lingers(card)
        nodes.change_leader(lingering=[TerminatingShare("gone", uuid("n1", card), WHOLE)])
    alone = pod("alone", 100, None)
    nodes.world.create(alone)
    assert nodes.world.filter(alone)["NodeNames"] == []
    nodes.reports()
    assert nodes.world.filter(alone)["NodeNames"] == []
    assert nodes.world.filter(nodes.gang[3])["NodeNames"] == ["n1"]
    assert nodes.bind(3) == ""


def test_who_is_more_important_than_a_gang_in_part_does_not_wait_for_it():
    nodes = Nodes()
    assert [nodes.bind(at) for at in range(3)] == ["", "", ""]
    nodes.reports(closed=[nodes.card_of(3)])
    assert nodes.bind(3)
    urgent = pod("urgent", 100, None, priority=5)
    nodes.world.create(urgent)
    nodes.reports()
    assert nodes.world.filter(urgent)["NodeNames"] == ["n1"]


def test_a_member_that_is_asked_about_while_processes_hold_its_card_gets_another():
    nodes = Nodes()
    nodes.world.cluster.apply(NODES, "MODIFIED", node("n2", 1))
    nodes.lingers(nodes.card_of(3))
    assert nodes.world.filter(nodes.gang[3])["NodeNames"] == ["n2"]


def test_a_pod_of_no_gang_is_refused_at_once():
    nodes = Nodes(size=2)
    assert [nodes.bind(at) for at in range(2)] == ["", ""]
    alone = pod("alone", 100, None)
    nodes.world.create(alone)
    nodes.world.binder.offers.remember(alone["metadata"]["uid"], ["n1"])
    assert "0 of 2 idle" in nodes.world.bind(alone, "n1")
    assert nodes.waited == 0.0


def test_no_more_binds_wait_than_half_of_the_threads():
    """Each begins while the one before it waits."""
    nodes = Nodes(size=12)
    nodes.lingers(nodes.card_of(11))
    depth, begun = 0, []

    def pause(seconds):
        nonlocal depth
        depth += 1
        if depth not in begun:
            begun.append(depth)
            assert nodes.bind(depth)
        nodes.world.clock.pass_(seconds)
        depth -= 1

    nodes.world.binder.pause = pause
    assert nodes.bind(0)
    assert begun == list(range(1, 9))
    assert not any(nodes.bound)
