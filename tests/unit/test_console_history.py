"""Hours and days of the console: what Prometheus is asked, by whom, and what becomes of its answer."""

import threading

import pytest

from admission.console.agents_usage import AgentsUsage
from admission.console.history import RANGES, ConsoleHistory, promql
from gpu_manager.domain.cluster.usage_history import HOUR, MINUTES, HistoryQuery, HistorySubject
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from tests.fakes.ports import FakeClock
from tests.fakes.waiting import PATIENCE
from tests.unit.test_agents_usage import Agents

CLUSTER = HistoryQuery(HistorySubject.CLUSTER)


class Prometheus:
    """Answers each query with one series; knows what it was asked."""

    def __init__(self):
        self.asked = []
        self.silent = False
        self.asking = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, text, start, end, step):
        self.asked.append((text, start, end, step))
        self.asking.set()
        self.go_on.wait(PATIENCE)
        if self.silent:
            raise NodeUnready("Prometheus does not answer: it did not answer in time")
        return [({"uuid": "GPU-1"}, {0: 0.25, 60: float(len(self.asked))})]


def desk(prometheus=None, cards=("GPU-1",)):
    clock = FakeClock(1_000_000.0)
    usage = AgentsUsage(Agents("a"), clock)
    usage.ask_due(lambda jobs: [job() for job in jobs])
    return ConsoleHistory(usage, lambda _: cards, clock, prometheus), clock


def test_without_prometheus_there_is_an_hour_and_nothing_else():
    history, _ = desk()
    assert history.ranges == [MINUTES, HOUR]
    (one,) = history.answer(CLUSTER, MINUTES)["series"]
    assert one["cores"][-1] == 0.01
    assert one["cores"][:-1] == [None] * 59, "every ten seconds"
    with pytest.raises(RequestInvalid, match='no range "6h": ask for 10m, 1h'):
        history.answer(CLUSTER, "6h")
    assert len(history.answer(CLUSTER, HOUR)["series"]) <= 1


def test_what_the_agents_have_not_said_yet_is_not_kept_for_long():
    clock = FakeClock(1_000_000.0)
    usage = AgentsUsage(Agents("a"), clock)
    history = ConsoleHistory(usage, lambda _: (), clock)
    assert history.trends("")["cards"] == {}
    assert history.answer(CLUSTER, MINUTES)["series"] == []
    usage.ask_due(lambda jobs: [job() for job in jobs])
    clock.pass_(1.0)
    assert list(history.trends("")["cards"]) == ["GPU-1"]
    assert len(history.answer(CLUSTER, MINUTES)["series"]) == 1


def test_an_hour_is_asked_of_prometheus_once_for_all_who_look():
    prometheus = Prometheus()
    history, clock = desk(prometheus)
    assert history.ranges == [MINUTES, *RANGES]
    found = history.answer(HistoryQuery(HistorySubject.NODE, "a"), "1h")
    assert (found["source"], found["step"], found["start"]) == ("prometheus", 60, 1_000_000.0 - 3600)
    (one,) = found["series"]
    assert one["uuid"] == "GPU-1"
    assert len(one["cores"]) == 61
    assert (one["cores"][0], one["cores"][1], one["cores"][60]) == (0.25, None, 1.0)
    assert (one["memory"][60], one["waited"][60]) == (2, 3.0)
    assert history.answer(HistoryQuery(HistorySubject.NODE, "a"), "1h") is found
    clock.pass_(31)
    history.answer(HistoryQuery(HistorySubject.NODE, "a"), "1h")
    assert len(prometheus.asked) == 6
    assert prometheus.asked[0][1:] == (996_400.0, 1_000_000.0, 60)


def test_a_node_without_cards_has_no_history_and_a_silent_prometheus_says_so():
    prometheus = Prometheus()
    history, _ = desk(prometheus, cards=())
    assert history.answer(HistoryQuery(HistorySubject.NODE, "a"), "1h")["series"] == []
    assert prometheus.asked == []
    prometheus.silent = True
    for _ in range(3):  # nothing is kept of a failure, and no turn is lost by it
        with pytest.raises(NodeUnready, match="in time"):
            history.answer(CLUSTER, "1h")


def test_two_questions_wait_for_prometheus_and_no_more():
    prometheus = Prometheus()
    prometheus.go_on.clear()
    history, _ = desk(prometheus)
    waiting = []
    for number in range(2):
        query = HistoryQuery(HistorySubject.CARD, f"GPU-{number}")
        waiting.append(threading.Thread(target=history.answer, args=(query, "1h")))
        prometheus.asking.clear()
        waiting[-1].start()
        assert prometheus.asking.wait(PATIENCE)
    with pytest.raises(NodeUnready, match="try again"):
        history.answer(CLUSTER, "1h")
    prometheus.go_on.set()
    for thread in waiting:
        thread.join(PATIENCE)
    assert history.answer(CLUSTER, "1h")["series"]


def test_only_so_many_answers_are_kept():
    prometheus = Prometheus()
    history, _ = desk(prometheus)
    for number in range(70):
        history.answer(HistoryQuery(HistorySubject.CARD, f"GPU-{number}"), "1h")
    assert len(history._kept) == 64


@pytest.mark.parametrize(
    ("query", "selector", "total"),
    [
        (CLUSTER, "", "sum "),
        (HistoryQuery(HistorySubject.CLUSTER, "", "team-a"), '{namespace="team-a"}', "sum "),
        (HistoryQuery(HistorySubject.CARD, "GPU-1"), '{uuid="GPU-1"}', "sum by (namespace, pod, container) "),
        (
            HistoryQuery(HistorySubject.CARD, 'x"} or up{a="', "team-a"),
            r'{namespace="team-a", uuid="x\"} or up{a=\""}',
            "sum by (namespace, pod, container) ",
        ),
        (
            HistoryQuery(HistorySubject.POD, 'team-a/b\\"\n', "team-a"),
            r'{namespace="team-a", pod="b\\\"\n"}',
            "sum by (container, uuid) ",
        ),
        (
            HistoryQuery(HistorySubject.NODE, "n1", "team-a"),
            r'{namespace="team-a", uuid=~"GPU-1|\\x{2e}\\x{2a}"}',
            "sum by (uuid) ",
        ),
    ],
)
def test_the_callers_namespace_is_in_every_selector_and_no_name_gets_out_of_its_string(
    query, selector, total
):
    cores, memory, waited = promql(query, 60, ["GPU-1", ".*"])
    assert cores == f"{total}(vcuda_container_core_usage_ratio{selector})"
    assert memory == f"{total}(vcuda_container_memory_used_bytes{selector})"
    assert waited == f"{total}(rate(vcuda_container_throttled_seconds_total{selector}[300s]))"
