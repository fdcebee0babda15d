"""The Events of a pod as the console shows them: both forms of their times, foreign text, the newest first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.cluster.pod_events import SHOWN, PodEvent, pod_events_json, read_pod_event

OLD = {
    "type": "Warning",
    "reason": "FailedScheduling",
    "message": "no room",
    "source": {"component": "default-scheduler"},
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "lastTimestamp": "2026-01-01T00:10:00Z",
    "count": 7,
}
NEW = {
    "type": "Normal",
    "reason": "Scheduled",
    "message": "to n1",
    "reportingComponent": "default-scheduler",
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": "2026-01-01T00:00:00.500000Z",
}
START = 1_767_225_600.0


def test_an_event_of_either_form_has_its_times_and_its_count() -> None:
    assert read_pod_event(OLD) == PodEvent(
        "Warning", "FailedScheduling", "no room", "default-scheduler", START, START + 600, 7
    )
    assert read_pod_event(NEW) == PodEvent(
        "Normal", "Scheduled", "to n1", "default-scheduler", START + 0.5, START + 0.5, 1
    )
    series = {"series": {"count": 4, "lastObservedTime": "2026-01-01T01:00:00.000000Z"}}
    again = read_pod_event({**NEW, **series})
    assert (again.count, again.last) == (4, START + 3600)


def test_what_whoever_wrote_it_put_into_it_stays_one_line_within_bounds() -> None:
    found = read_pod_event(
        {**OLD, "message": "a\n b\x1b[2J" + "c" * 9999, "reason": 7, "count": -1, "source": []}
    )
    assert found.message.startswith("a b\\x1b[2Jccc")
    assert len(found.message) < 1100
    assert (found.reason, found.source, found.count) == ("", "", 1)


def test_the_newest_come_first_and_the_rest_is_counted() -> None:
    many = [PodEvent("Normal", f"r{at}", "", "", None, float(at), 1) for at in range(SHOWN + 5)]
    answer = pod_events_json([PodEvent("Normal", "timeless", "", "", None, None, 1), *many])
    assert [one["reason"] for one in answer["events"][:2]] == [f"r{SHOWN + 4}", f"r{SHOWN + 3}"]
    assert (len(answer["events"]), answer["left_out"], answer["more"]) == (SHOWN, 6, False)
    assert pod_events_json([], more=True) == {"events": [], "left_out": 0, "more": True}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys([*OLD, *NEW, "series"], JSON)))
def test_no_object_is_too_odd_to_be_shown(obj: dict[str, Any]) -> None:
    found = read_pod_event(obj)
    assert found.count >= 1
    assert all(word.isprintable() for word in (found.kind, found.reason, found.message, found.source))
    assert pod_events_json([found, read_pod_event({})])["events"]


@pytest.mark.parametrize("count", [True, "3", 1 << 80])
def test_an_odd_count_is_bounded(count: object) -> None:
    assert 1 <= read_pod_event({"count": count}).count <= 1 << 31
