"""The rows of the group ``pods``, in the small: what they count is what they say."""

import pytest

from admission.config import SHORTEST_KEEP_SECONDS
from bench import pods_bound_late, pods_changes, pods_closed, pods_held


def test_no_late_bind_is_lost_where_places_are_kept_and_some_are_where_they_are_not():
    found = pods_bound_late.run(1, 60)
    assert (found.lost, found.halves) == (0, 0)
    assert found.late >= 60
    assert pods_bound_late.run(1, 300, keep_seconds=SHORTEST_KEEP_SECONDS).lost > 0


@pytest.mark.parametrize("seed", [4, 8, 11])
def test_tenants_that_work_together_close_nodes_for_pods_with_room_for_minutes_alone(seed):
    found = pods_closed.run(seed)
    assert 0 < found.a_day <= pods_closed.MOST_A_DAY
    assert found.in_all <= pods_closed.MOST_IN_ALL


@pytest.mark.parametrize("holder", pods_held.CASES)
def test_who_holds_a_pod_is_told_right(holder):
    assert not any(pods_held.told_wrong(holder, seed) for seed in range(12))


@pytest.mark.parametrize("seed", [*range(24), 60, 122, 164, 193, 345, 822])
def test_each_smallest_change_is_made_and_the_pod_then_runs(seed):
    assert [fault for _, fault in pods_changes.tried(seed) if fault] == []
