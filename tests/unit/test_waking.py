"""A place that was kept for a pod that never came: who was refused because of it is looked at again at once."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from admission.config import LeaderMode, Leadership, Settings
from admission.figures import Figures
from admission.leading import Alone
from admission.occupant import occupant_of
from admission.scheduling import Outside, Scheduling
from admission.snapshot import BUDGETS, NODES, PODS
from admission.waking import MOST_AT_ONCE, Waker
from gpu_manager.domain.contract import QUOTA_SEEN
from gpu_manager.domain.pod import parse_pod
from tests.fakes.extender import FakeApi, answer, args, node, pod
from tests.fakes.ports import FakeClock

DEADLINE = 10.0


class Watch:
    """Has listed everything just now, and shows nothing more."""

    def __init__(self, clock):
        self.clock = clock

    @property
    def listed(self):
        return self.clock.monotonic()

    heard = listed

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

    def event_of_map(self, namespace, name, uid, reason, message):
        pass

    def label(self, namespace, name, key, value):
        pass

    def wait_for(self, *names):
        with self.changed:
            assert self.changed.wait_for(lambda: set(names) <= self.touched.keys(), DEADLINE), self.touched


@contextmanager
def running(nodes, pods):
    """The scheduling half of the service over a cluster on paper."""
    clock, api, writer = FakeClock(), FakeApi(), Writer()
    outside = Outside(api, writer, Alone(), lambda _wanted: Watch(clock))
    one = Scheduling(
        Settings(leadership=Leadership(LeaderMode.ALONE)), outside, Figures(CollectorRegistry()), clock
    )
    for kind, objects in ((NODES, nodes), (PODS, pods), (BUDGETS, ())):
        one.cluster.replace(kind, objects)
    for obj in pods:
        api.put(obj)
    one.quota.update(None)
    clock.pass_(10)
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
        clock.pass_(6)
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


class Touched(list):
    def __call__(self, pod, value):
        self.append((pod.name, value))


def waker(*objects):
    known = {o.uid: o for o in (occupant_of(parse_pod(obj), obj) for obj in objects)}
    touched = Touched()
    one = Waker(known.get, touched, FakeClock())
    for uid in known:
        one.refused(uid)
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
    one.refused("uid-default-a")
    one.tick(1)
    one.tick(2)
    (first, value), (second, other) = touched
    assert first == second == "a"
    assert value != other
