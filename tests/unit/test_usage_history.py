"""What is kept of usage, for how long, and what is blank in it."""

import json
import tracemalloc

import pytest

from gpu_manager.domain.cluster.node_past import MOST_SHARES as MOST_NODE_SHARES
from gpu_manager.domain.cluster.node_past import STEP as STEP_TOLD
from gpu_manager.domain.cluster.node_past import NodePast, named_frames, read_past
from gpu_manager.domain.cluster.usage_history import (
    MOST_SERIES,
    HistoryQuery,
    HistorySubject,
    UsageHistory,
    history_json,
    reach,
)
from gpu_manager.domain.cluster.usage_json import UsedShare
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import parse_pod

STEP = 100.0  # six figures, up to 0 seconds before the end
END = 1_000.0
ALL = HistoryQuery(HistorySubject.CLUSTER)


def use(cores=20.0, memory=1 << 30, waited=None, pod="train", namespace="team-a", uid=None):
    return {(uid or pod, "main", "GPU-1"): UsedShare(cores, memory, waited, namespace, pod)}


def recorded(*answers):
    history = UsageHistory()
    for node, at, usage in answers:
        history.record(node, at, usage)
    return history


def test_each_container_of_a_card_has_a_line_and_a_moment_without_an_answer_is_blank():
    history = recorded(
        ("n1", 490.0, use(12.5) | use(50.0, pod="other", namespace="team-b")),
        ("n1", 600.0, use(25.0, memory=None)),
        ("n1", 990.0, use(None, 5)),
    )
    one, other = history.read(HistoryQuery(HistorySubject.CARD, "GPU-1"), END, STEP)
    assert reach(STEP) == 500.0
    assert one.labels == {"namespace": "team-a", "pod": "train", "container": "main"}
    assert one.cores == [0.125, 0.25, 0.25, None, None, None]
    assert one.memory == [1 << 30, None, None, None, None, 5]
    assert other.cores == [0.5, None, None, None, None, None]


def test_who_may_see_one_namespace_gets_its_containers_alone():
    history = recorded(("n1", 990.0, use(12.5) | use(50.0, pod="other", namespace="team-b")))
    for subject, name in (
        (HistorySubject.CARD, "GPU-1"),
        (HistorySubject.NODE, "n1"),
        (HistorySubject.CLUSTER, ""),
    ):
        (one,) = history.read(HistoryQuery(subject, name, "team-b"), END, STEP)
        assert one.cores[-1] == 0.5
    assert history.read(HistoryQuery(HistorySubject.POD, "team-a/train", "team-b"), END, STEP) == []
    with pytest.raises(RequestInvalid, match="not of namespace"):
        HistoryQuery.parse("pod", "team-a/train", "team-b")


def test_a_sum_is_blank_where_a_node_that_answered_before_and_after_did_not():
    steady = [("n1", END - back, use(12.5)) for back in (500, 400, 300, 200, 100, 0)]
    silent_once = [("n2", END - back, use(37.5)) for back in (400, 100)]  # an answer counts for 149 s
    (total,) = recorded(*steady, *silent_once).read(ALL, END, STEP)
    assert total.labels == {}
    assert total.cores == [0.125, 0.5, 0.5, None, 0.5, 0.5]
    assert [
        one.labels for one in recorded(*steady).read(HistoryQuery(HistorySubject.NODE, "n1"), END, STEP)
    ] == [{"uuid": "GPU-1"}]
    assert recorded(*steady).read(HistoryQuery(HistorySubject.NODE, "n2"), END, STEP) == []


def test_waiting_is_a_rate_and_not_known_after_a_counter_that_began_anew():
    history = recorded(
        *(("n1", 600.0 + at * 100, use(waited=s)) for at, s in enumerate([5.0, 55.0, 1.0, 26.0]))
    )
    (one,) = history.read(HistoryQuery(HistorySubject.POD, "team-a/train"), END, STEP)
    assert one.waited == [None, None, 0.5, None, 0.25, 0.25]


def test_those_that_wait_for_most_of_the_time_are_named_the_longest_first():
    def told(second):
        held = use(waited=0.9 * second) | use(waited=0.6 * second, pod="other", namespace="team-b")
        return held | use(waited=0.4 * second, pod="calm") | use(waited=second, pod="")

    history = recorded(*(("n1", 900.0 + second, told(second)) for second in range(0, 100, 5)))
    assert history.waiters(950.0) == [(0.9, "team-a", "train", "main"), (0.6, "team-b", "other", "main")]
    assert history.waiters(950.0, "team-b") == [(0.6, "team-b", "other", "main")]
    assert history.waiters(2000.0) == []


def test_a_container_that_is_gone_leaves_after_a_whole_ring_and_a_silent_node_after_ten_minutes():
    history = recorded(("n1", 0.0, use(pod="gone")), *(("n1", 5.0 * at, use()) for at in range(1, 121)))
    names = {
        one.labels["pod"] for one in history.read(HistoryQuery(HistorySubject.CARD, "GPU-1"), 600.0, 5.0)
    }
    assert names == {"train"}
    history.forget(1200.0)
    assert history.read(ALL, 600.0, 5.0) != []
    history.forget(1201.0)
    assert history.read(ALL, 600.0, 5.0) == []


def test_there_is_room_for_so_many_shares_and_the_rest_is_counted():
    history = UsageHistory(most=2)
    history.record("n1", 990.0, use(pod="a") | use(pod="b") | use(pod="c"))
    assert history.left_out == 1
    assert len(history.read(HistoryQuery(HistorySubject.CARD, "GPU-1"), END, STEP)) == 2
    history.forget(END + 600)
    history.record("n2", END + 600, use(pod="d"))
    assert history.left_out == 0


def test_an_answer_has_the_most_used_and_counts_the_rest():
    many = {}
    for number in range(MOST_SERIES + 3):
        many |= use(float(number), pod=f"p{number:02}")
    series = recorded(("n1", 990.0, many)).read(HistoryQuery(HistorySubject.CARD, "GPU-1"), END, STEP)
    found = json.loads(json.dumps(history_json(series, 500.0, STEP, "agents", left_out=4)))
    assert (found["start"], found["step"], found["source"]) == (500.0, STEP, "agents")
    assert found["left_out"] == 3 + 4
    assert found["series"][0] == {
        "namespace": "team-a",
        "pod": f"p{MOST_SERIES + 2}",
        "container": "main",
        "cores": [None] * 5 + [0.14],
        "memory": [None] * 5 + [1 << 30],
        "waited": [None] * 6,
    }


@pytest.mark.parametrize(("subject", "name"), [("planet", "x"), ("node", ""), ("card", "x" * 513)])
def test_what_has_no_history_is_refused(subject, name):
    with pytest.raises(RequestInvalid):
        HistoryQuery.parse(subject, name)


def test_the_whole_cluster_needs_no_name():
    assert HistoryQuery.parse("cluster", "") == ALL


def test_what_a_share_used_counts_for_the_time_in_which_it_is_known():
    history = recorded(
        ("n1", 300.0, use(90.0)),  # more than ten minutes ago
        ("n1", 900.0, use(20.0) | use(None, pod="blank")),
        ("n1", 905.0, use(40.0) | use(None, pod="blank")),
        ("n1", 910.0, {}),
    )
    ((key, used),) = history.sums(END, 5.0).items()
    assert key == ("train", "main", "GPU-1")
    assert used == (pytest.approx(300.0), 10.0)


def past_of(seconds, cores=lambda second: 40.0, shares=1):
    past = NodePast("n1")
    for second in range(seconds):
        usage = {}
        for number in range(shares):
            usage |= use(cores(second), pod=f"p{number}")
        past.record(float(second), usage)
    return past


def test_a_usage_that_stays_the_same_object_is_remembered_each_second_all_the_same():
    at_rest, told_anew, calm = NodePast("n1"), NodePast("n1"), use(0.0, waited=3.0)
    for second in range(200):
        usage = use(40.0, waited=second) if 70 < second < 80 else calm
        at_rest.record(float(second), usage)
        told_anew.record(float(second), dict(usage))
    query = HistoryQuery(HistorySubject.NODE, "n1")
    for hour in (False, True):
        assert at_rest.read(query, 199.0, hour=hour) == told_anew.read(query, 199.0, hour=hour)
    assert at_rest.as_json(199.0, lambda _: True) == told_anew.as_json(199.0, lambda _: True)


def test_an_agent_remembers_ten_minutes_of_seconds_and_an_hour_of_minutes_unasked():
    past = past_of(1300, lambda second: 10.0 if second < 600 else 50.0)
    (card,) = past.read(HistoryQuery(HistorySubject.NODE, "n1"), 1299.0, hour=False)
    assert len(card.cores) == 120
    assert None not in card.cores, "no gap longer than the five seconds between two figures"
    assert set(card.cores) == {0.5}
    (card,) = past.read(HistoryQuery(HistorySubject.NODE, "n1"), 1299.0, hour=True)
    known = [round(value, 2) for value in card.cores if value is not None]
    assert (len(card.cores), len(known)) == (60, 21)
    assert (known[0], known[-1]) == (0.1, 0.5)
    assert past.trends(1299.0) == {"GPU-1": [50] * 20}


def test_a_console_that_begins_late_has_what_the_agent_remembers():
    told = json.loads(json.dumps(past_of(400).as_json(399.0, lambda _: True)))
    late = UsageHistory()
    late.fill("n1", 5_000.0, STEP_TOLD, read_past(told, "seconds"))
    (card,) = late.read(HistoryQuery(HistorySubject.NODE, "n1"), 5_000.0, STEP_TOLD)
    known = [value for value in card.cores if value is not None]
    assert (len(known), {round(one, 3) for one in known}) == (80, {0.4})
    assert card.cores[-1] is not None
    late.record("n1", 5_005.0, use(80.0, pod="p0"))
    (card,) = late.read(HistoryQuery(HistorySubject.NODE, "n1"), 5_005.0, STEP_TOLD)
    assert round(card.cores[-1], 3) == 0.8
    assert [round(v, 3) for v in card.cores[-3:-1]] == [0.4, 0.4]


def test_names_are_told_to_those_who_may_hear_them_alone():
    hidden = json.dumps(past_of(20).as_json(19.0, lambda _: False))
    assert "p0" not in hidden.replace('"uid": "p0"', "")
    assert '"namespace": ""' in hidden


@pytest.mark.parametrize("answer", [None, [], {"seconds": 3}, {"seconds": {"shares": "x"}}, "x"])
def test_an_agent_that_remembers_nothing_is_an_older_one(answer):
    with pytest.raises(NodeUnready, match="an older one"):
        read_past(answer, "seconds")


def test_hostile_figures_are_not_known():
    share = {"uid": "u" * 9000, "cores": [1, "x", -1, 1e300], "memory": [None] * 4, "waited": [0] * 4}
    (one,) = read_past({"seconds": {"shares": [share, {"cores": [1]}, 7]}}, "seconds")
    assert len(one.key[0]) == 512
    assert one.columns[0] == [1.0, None, None, None]


def test_an_agents_memory_of_many_containers_stays_below_four_mebibytes():
    tracemalloc.start()
    try:
        past = past_of(130, shares=MOST_NODE_SHARES + 20)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert past.left_out == 20
    assert size < 4 << 20


def test_an_agents_memory_gets_the_names_of_the_pods_that_are_known():
    told = past_of(20, shares=2).as_json(19.0, lambda _: False)
    obj = {"metadata": {"name": "train-0", "namespace": "team-b"}, "spec": {"containers": [{"name": "main"}]}}
    one, other = named_frames(read_past(told, "seconds"), {"p0": parse_pod(obj)})
    assert (one.key, one.namespace, one.pod) == (("p0", "main", "GPU-1"), "team-b", "train-0")
    assert (other.namespace, other.pod) == ("", "")
    assert other.key[1] != "main"


def test_what_an_agent_remembers_has_a_sum_for_each_share():
    (used,) = past_of(130).sums(129.0).values()
    assert used.core_seconds == pytest.approx(40 * used.seconds)
    assert used.seconds == 120.0, "two whole minutes"
    (used,) = past_of(30).sums(29.0).values()
    assert used.core_seconds == pytest.approx(40 * used.seconds)


def test_an_agent_with_more_shares_than_it_has_room_for_tells_of_the_first():
    past = past_of(10, shares=3)
    short = UsageHistory(most=2)
    short.fill("n1", 9.0, STEP_TOLD, read_past(past.as_json(9.0, lambda _: True), "seconds"))
    assert len(short.read(HistoryQuery(HistorySubject.NODE, "n1"), 9.0, STEP_TOLD)) <= 2
    assert short.left_out == 1


def test_nothing_is_known_of_a_node_that_never_answered():
    assert UsageHistory().means("n1", 0.0) == {}
    assert UsageHistory().frames("n1", 0.0, STEP_TOLD) == []
    only = recorded(("n1", 990.0, use(12.5)))
    assert only.trends(END, namespace="another") == {}
