"""Gangs beside a modelled scheduler: the six cases that HAMi's users reported, and the bars at a small size."""

import pytest

from bench.gang_load import SCHEDULERS, Gang, Load
from bench.gang_scheduler import Model
from bench.gangs import PARTIAL_SECONDS

TWO_NODES = 2


def run(scheduler, *gangs, nodes=TWO_NODES, seconds=900.0, missing=0, judged=True):
    """The gangs come at once, ``missing`` members of the first only ten minutes later; what became of them."""
    model = Model(SCHEDULERS[scheduler], Load(0, nodes, disturbances=False, judged=judged), seed=1)
    model.bring(gangs, late=missing, late_seconds=600.0)
    model.run(seconds)
    return gangs


def gang(name, size, core=100, came=0.0):
    return Gang(name, size, core, 0, seconds=60.0, came=came)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_two_members_on_two_nodes_run(scheduler):
    (one,) = run(scheduler, gang("a", 2, core=800))
    assert one.done is not None
    assert one.done < 120


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_two_members_on_one_node_run(scheduler):
    """HAMi's lock of the node let one bind, and the other waited five minutes."""
    (one,) = run(scheduler, gang("a", 2), nodes=1)
    assert one.done is not None
    assert one.done < 120
    assert one.worst < PARTIAL_SECONDS


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_two_of_four_members_wait_for_the_others(scheduler):
    (one,) = run(scheduler, gang("a", 4), seconds=500.0, missing=2)
    assert one.done is None
    assert not any(each.bound for each in one.pods.values())


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_member_that_comes_late_completes_its_gang(scheduler):
    (one,) = run(scheduler, gang("a", 4), missing=1)
    assert one.done is not None
    assert 660 < one.done < 780


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_gang_over_two_nodes_runs(scheduler):
    (one,) = run(scheduler, gang("a", 6, core=200))
    assert one.done is not None
    assert one.done < 120


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_gangs_that_come_at_once_for_one_node_run_one_after_the_other(scheduler):
    """On HAMi a part of each ran, for up to five minutes times the number of gangs."""
    gangs = run(scheduler, *(gang(f"g{i}", 4, core=200) for i in range(6)), nodes=1)
    assert all(one.done is not None for one in gangs)
    assert max(one.worst for one in gangs) < PARTIAL_SECONDS


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_gang_holds_cards_in_part_beside_deletions_preemption_and_changes_of_leader(scheduler):
    model = Model(SCHEDULERS[scheduler], Load(8, 1), seed=3)
    model.run(3600.0)
    assert max(one.worst for one in model.gangs) <= PARTIAL_SECONDS
    assert all(one.done is not None for one in model.gangs)
    assert model.changes > 1


def test_judged_pod_by_pod_gangs_that_are_bound_at_once_hold_cards_in_part():
    """What the bar can tell: without the judgement it is missed."""
    gangs = run("kueue", *(gang(f"g{i}", 4, core=200) for i in range(6)), nodes=1, judged=False)
    waiting = [one for one in gangs if one.done is None]
    assert sum(any(each.bound for each in one.pods.values()) for one in waiting) > 1
