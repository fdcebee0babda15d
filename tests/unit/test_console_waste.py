"""The list of wasters: whose figures it is made of, its order, its bounds, and what is not known."""

import pytest

from admission.console.agents_usage import AgentsUsage
from admission.console.history import ConsoleHistory, held_shares, waste_promql
from gpu_manager.domain.cluster.node_past import SHOWN, HeldShare, PodWaste, waste_json, waste_of_shares
from gpu_manager.domain.cluster.usage_history import ShareSum
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.extender import World, node, pod
from tests.fakes.ports import FakeClock
from tests.unit.test_agents_usage import Agents


def held(name, cores, card="GPU-1", namespace="team-a"):
    return HeldShare(namespace, name, (name, "main", card), cores)


def test_a_pod_wastes_what_it_held_and_did_not_use_while_that_is_known():
    used = {
        ("train", "main", "GPU-1"): ShareSum(1000.0, 100.0),
        ("train", "main", "GPU-2"): ShareSum(9000.0, 100.0),  # more than its share: nobody else wanted it
    }
    shares = [held("train", 50), held("train", 50, "GPU-2"), held("silent", 100)]
    assert waste_of_shares(shares, used) == [PodWaste("team-a", "train", 4000.0, 10000.0, 10000.0)]


def test_what_pods_hold_is_what_the_books_say():
    world = World([node("n1")], [pod("a", 60, 4, on="n1"), pod("waits", 20, 4)])
    (share,) = held_shares(world.cluster.snapshot())
    assert (share.namespace, share.pod, share.cores) == ("default", "a", 60)


def test_the_list_is_bounded_and_the_greatest_is_first():
    pods = [PodWaste("n", f"p{i:02}", float(i), None, None) for i in range(SHOWN + 5)]
    answer = waste_json(pods, 600, "agents")
    assert [one["wasted"] for one in answer["pods"]] == [float(i) for i in range(SHOWN + 4, 4, -1)]
    assert answer["left_out"] == 4, "who wasted nothing is not counted"


def test_the_callers_namespace_is_in_every_selector():
    asked = waste_promql('a"} or up{b="', 3600)
    assert len(asked) == 3
    for text in asked:
        assert text.count("increase(") == text.count(r'_total{namespace="a\"} or up{b=\""}[3600s]')
    assert 'namespace="' not in "".join(waste_promql("", 3600))


class Prometheus:
    """Has sums of two pods, one of which nobody measured."""

    def __init__(self):
        self.asked = []

    def __call__(self, text, start, end, step):
        self.asked.append((text, start, end))
        rows = [({"namespace": "a", "pod": "x"}, {0: 100.0 * len(self.asked)})]
        return [*rows, ({"namespace": "a", "pod": "y"}, {0: 500.0})] if len(self.asked) == 1 else rows


def test_with_prometheus_it_is_of_the_last_hour_and_asked_once_for_all_who_look():
    prometheus, clock = Prometheus(), FakeClock(1_000_000.0)
    history = ConsoleHistory(AgentsUsage(Agents(), clock), lambda _: (), clock, prometheus)
    answer = history.waste("a", lambda: pytest.fail("the books are not asked"))
    assert (answer["source"], answer["seconds"]) == ("prometheus", 3600)
    assert answer["pods"] == [
        {"namespace": "a", "pod": "y", "wasted": 500.0, "used": None, "booked": None},
        {"namespace": "a", "pod": "x", "wasted": 100.0, "used": 200.0, "booked": 300.0},
    ]
    assert {(start, end) for _, start, end in prometheus.asked} == {(1_000_000.0, 1_000_000.0)}
    assert history.waste("a", list) is answer
    assert len(prometheus.asked) == 3


def test_without_prometheus_it_is_of_what_agents_said_and_of_the_callers_namespace():
    clock = FakeClock(1_000_000.0)
    usage = AgentsUsage(Agents("n1"), clock)
    usage.ask_due(lambda jobs: [job() for job in jobs])
    history = ConsoleHistory(usage, lambda _: (), clock)
    key = ("u", "c", "GPU-1")  # uses one core
    shares = [HeldShare("team-a", "x", key, 51), HeldShare("team-b", "y", key, 31)]
    answer = history.waste("team-a", lambda: shares)
    assert (answer["source"], answer["seconds"]) == ("agents", 3600)
    assert answer["pods"] == [
        {"namespace": "team-a", "pod": "x", "wasted": 250.0, "used": 5.0, "booked": 255.0}
    ]
    assert [one["pod"] for one in history.waste("", lambda: shares)["pods"]] == ["x", "y"]


def test_a_prometheus_that_is_silent_says_so():
    def silent(*_):
        raise NodeUnready("Prometheus does not answer")

    clock = FakeClock()
    history = ConsoleHistory(AgentsUsage(Agents(), clock), lambda _: (), clock, silent)
    with pytest.raises(NodeUnready, match="does not answer"):
        history.waste("", list)
