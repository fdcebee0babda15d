"""Room that comes without a word to the scheduler: who was refused for want of it is looked at again."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from admission.cluster.pod_view import pod_view
from admission.cluster.snapshot import BUDGETS, NODES, PODS
from admission.config import AdmissionSettings, LeaderMode, Leadership
from admission.controller import SchedulingController
from admission.extender.cluster_metrics import ClusterMetrics
from admission.extender.leader_election import SingleReplica
from admission.extender.requeue import LONGEST_PAUSE, LONGEST_WAIT, MOST_AT_ONCE, SETTLE_SECONDS, Requeue
from admission.ports import ClusterAccess
from gpu_manager.domain.contract import QUOTA_SEEN
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, FakeApi, answer, args, node, pod
from tests.fakes.ports import FakeClock

DEADLINE = 10.0


class Watch:
    """Has listed everything just now, and shows nothing more."""

    def __init__(self, clock):
        self.clock, self.error, self.last = clock, None, None
        self.unreadable, self.spoiled = 0, {}

    @property
    def listed(self):
        return self.clock.monotonic()

    @property
    def heard(self):
        return self.clock.monotonic() if self.last is None else self.last

    def start(self):
        pass

    def relist(self):
        pass

    def close(self):
        pass


class Writer:
    """Keeps what it is to write."""

    def __init__(self):
        self.touched = {}
        self.changed = threading.Condition()

    def start(self):
        pass

    def close(self):
        pass

    def annotate(self, pod, annotations):
        with self.changed:
            self.touched.setdefault(pod.name, []).append(annotations[QUOTA_SEEN])
            self.changed.notify_all()

    def event(self, pod, reason, message, *, warning=True):
        pass

    def event_about(self, involved, reason, message):
        pass

    def label(self, namespace, name, key, value):
        pass

    def annotate_named(self, namespace, name, annotations):
        pass

    def wait_for(self, *names):
        with self.changed:
            assert self.changed.wait_for(lambda: set(names) <= self.touched.keys(), DEADLINE), self.touched


class NoRecord:
    """Claims are off: nobody asks for it."""

    def read(self):
        raise NodeUnready("no record")

    def write(self, text):
        raise NodeUnready("no record")


@contextmanager
def running(nodes, pods, *, chores=True, records=None):
    """The scheduling half of the service over a cluster on paper; without its threads, who calls does them."""
    clock, api, writer = FakeClock(), FakeApi(), Writer()
    outside = ClusterAccess(
        *(api, writer, SingleReplica(), NoRecord(), lambda _wanted: Watch(clock), lambda _term: "1"),
        records=records,
    )
    one = SchedulingController(
        AdmissionSettings(leadership=Leadership(LeaderMode.ALONE)),
        outside,
        ClusterMetrics(CollectorRegistry()),
        clock,
    )
    for kind, objects in ((NODES, nodes), (PODS, pods), (BUDGETS, ())):
        one.cluster.replace(kind, objects)
    for obj in pods:
        api.put(obj)
    one.quota.update(None)
    clock.pass_(10)
    one.leader.tick()
    if chores:
        one.start()
    try:
        yield one, clock, api, writer
    finally:
        one.stop()


def filtered(one, obj):
    return answer(one.extender.filter(args(obj, ["n1"])))["NodeNames"]


def test_an_expectation_that_runs_out_wakes_who_was_refused_meanwhile():
    first, second, third = pod("first", 80), pod("second", 80), pod("third", 80)
    with running([node("n1", cards=1)], [first, second, third]) as (one, clock, _, writer):
        assert filtered(one, first) == ["n1"]
        assert filtered(one, second) == []
        clock.pass_(900)
        writer.wait_for("second")
        assert "first" not in writer.touched
        assert "third" not in writer.touched  # nobody refused it
        assert filtered(one, second) == ["n1"]


def test_a_reservation_that_ends_unbound_wakes_who_was_refused_meanwhile():
    first, second = pod("first", 80), pod("second", 80)
    with running([node("n1", cards=1)], [first, second]) as (one, clock, api, writer):
        assert filtered(one, first) == ["n1"]
        api.plan = ["lost"]
        asked = {"PodName": "first", "PodNamespace": "default", "PodUID": "uid-default-first", "Node": "n1"}
        body = repr(asked).replace("'", '"').encode()
        assert "did not say" in answer(one.extender.bind(body))["Error"]
        assert filtered(one, second) == []
        clock.pass_(11)  # no request of ours can act any more
        writer.wait_for("second")
        assert filtered(one, second) == ["n1"]


def touches(one, clock, writer, name, seconds):
    """How often the pod was touched once so much time has passed, second by second."""
    before = len(writer.touched.get(name, ()))
    for _ in range(int(seconds)):
        clock.pass_(1)
        one.wake()
    return len(writer.touched.get(name, ())) - before


def delete(one, obj):
    one.cluster.apply(PODS, "DELETED", obj)


@pytest.fixture
def late():
    """A full node, and a pod that was refused there before this service heard of its neighbour's end."""
    old, waiting = pod("old", 80, on="n1"), pod("waiting", 80)
    with running([node("n1", cards=1)], [old, waiting], chores=False) as (one, clock, _, writer):
        assert filtered(one, waiting) == []
        yield one, clock, writer, old, waiting


def test_room_that_the_scheduler_heard_of_first_wakes_who_was_refused_by_the_older_picture(late):
    one, clock, writer, old, waiting = late
    delete(one, old)
    assert touches(one, clock, writer, "waiting", 2) == 0  # its scheduler may have heard only now
    assert touches(one, clock, writer, "waiting", 3) == 1
    assert touches(one, clock, writer, "waiting", 600) == 0  # once for a refusal
    assert filtered(one, waiting) == ["n1"]


def test_a_node_that_gets_cards_a_refused_pod_did_not_find_wakes_it(late):
    one, clock, writer, *_ = late
    one.cluster.apply(NODES, "MODIFIED", node("n1", cards=2))
    assert touches(one, clock, writer, "waiting", 5) == 1


def test_a_refusal_of_the_agent_that_has_run_out_wakes_the_pod():
    shut, waiting = node("n1", refused=[Amount(80, 4 * UNIT)]), pod("waiting", 80)
    with running([shut], [waiting], chores=False) as (one, clock, _, writer):
        assert filtered(one, waiting) == []
        one.cluster.apply(NODES, "MODIFIED", node("n1"))
        assert touches(one, clock, writer, "waiting", 5) == 1


def test_news_that_make_no_room_wake_nobody(late):
    one, clock, writer, *_ = late
    one.cluster.apply(NODES, "MODIFIED", node("n1", cards=1, labels={"a": "b"}))
    one.cluster.apply(NODES, "ADDED", node("n2", cards=1, unhealthy=[0]))
    assert touches(one, clock, writer, "waiting", 30) == 0


def test_a_node_that_had_room_when_the_pod_was_refused_is_no_news():
    """The scheduler left it out by itself: a selector, a taint, no CPU."""
    full, waiting = pod("old", 80, on="n1"), pod("waiting", 80)
    nodes = [node("n1", cards=1), node("n2", cards=1)]
    with running(nodes, [full, waiting], chores=False) as (one, clock, _, writer):
        assert filtered(one, waiting) == []  # n2 was not offered
        assert touches(one, clock, writer, "waiting", 30) == 0


def test_a_pod_that_its_scheduler_asks_about_again_is_not_touched(late):
    one, clock, writer, old, waiting = late
    delete(one, old)
    assert touches(one, clock, writer, "waiting", 2) == 0
    assert filtered(one, waiting) == ["n1"]  # expected there from now on
    assert touches(one, clock, writer, "waiting", 4) == 0


def test_a_pod_in_its_schedulers_longest_pause_is_given_that_time(late):
    one, clock, writer, old, waiting = late
    for _ in range(6):
        clock.pass_(LONGEST_PAUSE)
        assert filtered(one, waiting) == []
    delete(one, old)
    assert touches(one, clock, writer, "waiting", LONGEST_PAUSE) == 0
    assert touches(one, clock, writer, "waiting", SETTLE_SECONDS + 1) == 1


def test_touching_in_vain_becomes_rare():
    """A neighbour that comes and goes on a node that the scheduler never offers."""
    full, waiting = pod("old", 80, on="n1"), pod("waiting", 80)
    nodes = [node("n1", cards=1), node("n2", cards=1)]
    gaps, last = [], 0
    with running(nodes, [full, waiting], chores=False) as (one, clock, _, writer):
        assert filtered(one, waiting) == []
        for second in range(2400):
            one.cluster.apply(NODES, "MODIFIED", node("n2", cards=1 + second % 2))
            if touches(one, clock, writer, "waiting", 1):
                gaps.append(second - last)
                last = second
                assert filtered(one, waiting) == []
    assert gaps == sorted(gaps)
    assert gaps[-1] >= LONGEST_WAIT
    assert len(gaps) < 16


class Touched(list):
    def __call__(self, pod, value):
        self.append((pod.name, value))


def waker(*objects):
    known = {o.uid: o for o in (pod_view(parse_pod(obj), obj) for obj in objects)}
    touched = Touched()
    one = Requeue(known.get, lambda _occupant, _turn: False, touched, FakeClock())
    for uid in known:
        one.refused(uid, 0)
    return one, touched, known


def test_no_more_than_a_few_are_touched_at_once_the_most_important_first_and_each_once():
    one, touched, _ = waker(*(pod(f"p{i:03}", priority=i) for i in range(2 * MOST_AT_ONCE + 1)))
    one.tick(0)
    assert touched == []
    sizes = []
    for _ in range(5):
        one.tick(1)
        sizes.append(len(touched))
    assert sizes == [MOST_AT_ONCE, 2 * MOST_AT_ONCE] + [2 * MOST_AT_ONCE + 1] * 3
    assert [name for name, _ in touched] == [f"p{i:03}" for i in range(2 * MOST_AT_ONCE, -1, -1)]


def test_who_was_placed_or_is_gone_is_left_alone_and_each_time_the_value_is_new():
    one, touched, known = waker(pod("a"), pod("placed", on="n1"), pod("gone"))
    del known["uid-default-gone"]
    one.tick(1)
    one.refused("uid-default-a", 0)
    one.tick(1)
    one.tick(2)
    (first, value), (second, other) = touched
    assert first == second == "a"
    assert value != other


def test_what_the_api_server_has_not_told_for_a_while_is_stale_and_a_quiet_watch_is_not():
    with running([node("n1", cards=1)], [], chores=False) as (one, clock, _, _):
        assert one.stale_seconds() == 0.0
        down = one._watches[NODES]
        down.error, down.last = "the API server does not answer", clock.monotonic()
        clock.pass_(41)
        assert one.stale_seconds() == 41.0


def test_who_was_refused_by_a_node_closed_for_a_larger_pod_is_woken_once_that_is_gone():
    """The service closes and opens nodes by itself, each second."""
    big = pod("big", 400, None)
    big["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    with running([node("n1", cards=4)], [pod("held", 30, on="n1"), big], chores=False) as (
        one,
        clock,
        _,
        writer,
    ):
        one._chores()
        for number in range(2):
            passing = pod(f"passing{number}", 1, 0, on="n1")
            one.cluster.apply(PODS, "ADDED", passing)
            delete(one, passing)
            one._chores()
        waiting = pod("waiting", 30)
        one.cluster.apply(PODS, "ADDED", waiting)
        refused = answer(one.extender.filter(args(waiting, ["n1"])))["FailedAndUnresolvableNodes"]
        assert refused["n1"].startswith("kept for default/big, which asks for 4 cards")
        assert touches(one, clock, writer, "waiting", LONGEST_PAUSE) == 0
        delete(one, big)
        one._chores()
        assert touches(one, clock, writer, "waiting", LONGEST_PAUSE) == 1
        assert filtered(one, waiting) == ["n1"]


def gang_of(size, cores=100):
    labels = {"kueue.x-k8s.io/pod-group-name": "g"}
    count = {"kueue.x-k8s.io/pod-group-total-count": str(size)}
    return [pod(f"g-{i}", cores, None, labels=labels, annotations=count) for i in range(size)]


@contextmanager
def gang_that_waits(held, size=4):
    """A gang that needs every card of n1. Pods hold ``held`` cards, so all members of the gang are refused."""
    old = [pod(f"old-{i}", 100, None, on="n1") for i in range(held)]
    gang = gang_of(size)
    with running([node("n1", cards=size)], [*old, *gang], chores=False) as (one, clock, _, writer):
        for obj in (*old, *gang):
            one._members.see(obj, gone=False)
        for obj in gang:
            assert filtered(one, obj) == []
        yield one, clock, writer, old, gang


def test_a_gang_is_not_touched_for_room_that_is_enough_for_one_member_only():
    with gang_that_waits(held=4) as (one, clock, writer, old, gang):
        for obj in old[:3]:
            delete(one, obj)
            assert touches(one, clock, writer, "g-0", 60) == 0
        delete(one, old[3])
        assert touches(one, clock, writer, "g-0", LONGEST_PAUSE) == 1
        assert all(filtered(one, obj) == ["n1"] for obj in gang)


def test_a_gang_for_which_cards_came_and_went_is_touched_soon_once_there_is_room():
    """What was seen: each touch in vain doubled the pause, and the last gang waited beside an empty node."""
    with gang_that_waits(held=4) as (one, clock, writer, old, gang):
        for number in range(8):
            delete(one, old[0])
            if touches(one, clock, writer, "g-0", LONGEST_PAUSE + 2 * SETTLE_SECONDS * 2**number):
                assert filtered(one, gang[0]) == []
            one.cluster.apply(PODS, "ADDED", old[0])
        for obj in old:
            delete(one, obj)
        assert touches(one, clock, writer, "g-0", LONGEST_PAUSE + 2 * SETTLE_SECONDS) == 1


def test_a_member_that_was_refused_by_what_was_judged_for_another_is_touched_too():
    """Room has come between the two questions, of which the second was answered like the first."""
    with gang_that_waits(held=4) as (one, clock, writer, old, gang):
        clock.pass_(LONGEST_PAUSE)
        assert filtered(one, gang[0]) == []
        for obj in old:
            delete(one, obj)
        assert filtered(one, gang[1]) == []  # within half a second
        assert touches(one, clock, writer, "g-1", LONGEST_PAUSE) == 1


def test_a_member_whose_place_is_kept_since_another_was_asked_about_is_touched():
    with gang_that_waits(held=4) as (one, clock, writer, old, gang):
        for obj in old:
            delete(one, obj)
        clock.pass_(1)
        assert filtered(one, gang[0]) == ["n1"]
        assert touches(one, clock, writer, "g-1", LONGEST_PAUSE) == 1
        assert "g-0" not in writer.touched


def test_many_gangs_that_wait_are_tried_in_turn():
    with gang_that_waits(held=4) as (one, clock, writer, old, _):
        more = []
        for number in range(20):
            for obj in gang_of(4):
                meta, labels = obj["metadata"], {"kueue.x-k8s.io/pod-group-name": f"g{number}"}
                own = {"name": f"{number}-{meta['name']}", "uid": f"{number}-{meta['uid']}", "labels": labels}
                more.append({**obj, "metadata": {**meta, **own}})
        for obj in more:
            one._members.see(obj, gone=False)
            one.cluster.apply(PODS, "ADDED", obj)
            assert filtered(one, obj) == []
        for obj in old:
            delete(one, obj)
        assert touches(one, clock, writer, "19-g-3", 2 * LONGEST_PAUSE) == 1
