"""The scheduler stand-in's queue and sums: whose turn, how long a pause, whom a node's count would evict."""

from __future__ import annotations

from typing import Any

from gpu_manager.domain.contract import CORE
from sandbox.nodes import NodeRoom
from sandbox.queue import FLUSH_SECONDS, LONGEST_PAUSE, Queue


def queue(*pods: tuple[str, int]) -> Queue:
    made = Queue()
    for age, (uid, priority) in enumerate(pods):
        made.offer(uid, priority, ("2026", age), "v1")
    return made


def test_priority_goes_before_age() -> None:
    made = queue(("old", 0), ("young", 0), ("urgent", 5))
    assert [made.take(0.0) for _ in range(4)] == ["urgent", "old", "young", None]


def test_a_pod_that_found_no_place_waits_for_an_event_and_while_others_come_for_its_pause() -> None:
    made = queue(("a", 0))
    assert made.take(0.0) == "a"
    made.failed("a", 0.0)
    assert made.take(100.0) is None  # nothing has happened
    made.event()
    for age in range(2):
        made.offer(f"new-{age}", 0, ("2027", age), "v1")
    assert [made.take(0.5) for _ in range(4)] == ["new-0", "new-1", "a", None]


def test_a_pod_that_failed_by_an_error_waits_for_its_pause_even_where_nobody_else_comes() -> None:
    made = queue(("a", 0))
    made.take(0.0)
    made.failed("a", 0.0, error=True)
    assert made.take(0.5) is None
    assert made.take(1.0) == "a"


def test_an_event_during_the_try_is_not_missed() -> None:
    made = queue(("a", 0))
    made.take(0.0)
    made.event()
    made.failed("a", 0.0)
    assert made.take(1.0) == "a"


def test_pauses_double_up_to_ten_seconds() -> None:
    made, now, pauses = queue(("a", 0)), 0.0, []
    for _ in range(6):
        assert made.take(now) == "a"
        made.failed("a", now, error=True)
        made.event()
        pauses.append(made.next_due(now))
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]


def test_without_any_event_a_pod_is_tried_again_after_five_minutes_and_at_once_if_it_changes() -> None:
    made = queue(("a", 0))
    made.take(0.0)
    made.failed("a", 0.0)
    assert made.next_due(0.0) == FLUSH_SECONDS
    assert made.take(FLUSH_SECONDS) == "a"
    made.failed("a", FLUSH_SECONDS)
    made.offer("a", 0, ("2026", 0), "v2")
    assert made.take(FLUSH_SECONDS + 2.0) == "a"


def test_who_waits_no_more_is_forgotten() -> None:
    made = queue(("a", 0), ("b", 0))
    made.keep({"b"})
    assert "a" not in made
    assert made.take(0.0) == "b"


def pod(name: str, core: int, priority: int = 0, **status: Any) -> dict[str, Any]:
    one = {"name": "main", "resources": {"limits": {CORE: str(core)}}}
    meta = {"name": name, "uid": name, "creationTimestamp": f"2026-{name}"}
    return {"metadata": meta, "spec": {"containers": [one], "priority": priority}, "status": status}


def room(*here: dict[str, Any], waiting: tuple[dict[str, Any], ...] = ()) -> NodeRoom:
    node = {"metadata": {"name": "n1", "labels": {"zone": "a"}}, "status": {"allocatable": {CORE: "100"}}}
    return NodeRoom(node, here, (*here, *waiting))


def test_the_youngest_of_the_least_leave_first_and_no_more_than_the_sum_needs() -> None:
    candidate = room(pod("a", 40), pod("b", 30), pod("c", 30, priority=9)).judge(pod("new", 30, priority=5))
    assert candidate.reasons == [f"Insufficient {CORE}"]
    assert [v["metadata"]["name"] for v in candidate.victims(pod("new", 30, priority=5)) or ()] == ["b"]
    assert candidate.victims(pod("new", 80, priority=0)) is None


def test_where_the_sums_fit_the_extender_is_asked_with_an_empty_list() -> None:
    candidate = room(pod("a", 40)).judge(pod("new", 30, priority=5))
    assert (candidate.reason, candidate.victims(pod("new", 30, priority=5))) == ("", [])


def test_a_nominated_pod_counts_for_those_of_no_higher_priority() -> None:
    first = pod("first", 90, 5, nominatedNodeName="n1")
    assert room(waiting=(first,)).judge(pod("new", 30)).short == {CORE: 20}
    assert room(waiting=(first,)).judge(pod("new", 30, priority=9)).reason == ""


def test_a_selector_that_does_not_match_is_no_matter_of_eviction() -> None:
    asked = pod("new", 30)
    asked["spec"]["nodeSelector"] = {"zone": "b"}
    candidate = room().judge(asked)
    assert candidate.lasting
    assert "selector" in candidate.reason


def test_a_pod_that_fails_for_days_is_still_tried_every_ten_seconds() -> None:
    made, now = queue(("a", 0)), 0.0
    for _ in range(2000):
        assert made.take(now) == "a"
        made.failed("a", now, error=True)
        now += LONGEST_PAUSE
    assert made.next_due(now - LONGEST_PAUSE) == LONGEST_PAUSE
