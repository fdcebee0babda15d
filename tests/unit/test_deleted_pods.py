"""A pod deleted by force counts on its node until the node has said what became of its processes."""

from __future__ import annotations

import random

import pytest

from admission.cluster.other_pods import SILENCE_SECONDS
from admission.cluster.snapshot import NODES, PODS
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.kube.pod import MIRROR
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, World, node, pod, uuid
from tests.seeds import seeds

UID = "uid-default-a"
FREE, HELD = [(0, 0)], [(60, 4)]


def forced(**said: object) -> World:
    """A node of one card that has said so, and a pod there that is deleted before it ended."""
    world = World([node("n1", 1, **{"released": (), **said})])  # type: ignore[arg-type]
    world.create(pod("a", 60, on="n1"))
    world.delete(world.api.pods["default", "a"])
    return world


def test_it_counts_until_the_node_says_that_it_holds_nothing() -> None:
    world = forced()
    assert world.booked("n1") == HELD
    refused = world.filter(pod("b", 60))
    assert "held by a pod that is gone" in str(refused["FailedNodes"])
    world.cluster.apply(NODES, "MODIFIED", node("n1", 1, released=("another",)))
    assert world.booked("n1") == HELD, "not of this one yet"
    world.cluster.apply(NODES, "MODIFIED", node("n1", 1, released=(UID,)))
    assert world.booked("n1") == FREE
    world.cluster.apply(NODES, "MODIFIED", node("n1", 1, released=()))
    assert world.booked("n1") == FREE, "once"


def test_once_the_node_tells_of_it_the_node_s_word_holds() -> None:
    world = forced()
    left = (TerminatingShare(UID, uuid("n1", 0), Amount(60, 4 * UNIT)),)
    world.cluster.apply(NODES, "MODIFIED", node("n1", 1, lingering=left, released=()))
    assert world.booked("n1") == HELD, "once, not twice"
    world.cluster.apply(NODES, "MODIFIED", node("n1", 1, released=()))
    assert world.booked("n1") == FREE


@pytest.mark.parametrize(
    "said",
    [
        {"released": (UID,)},
        {"released": None},
        {"lingering": (TerminatingShare(UID, uuid("n1", 0), Amount(60, 4 * UNIT)),)},
    ],
    ids=["released", "an agent of before", "lingering"],
)
def test_a_node_that_has_spoken_already_or_never_does_is_believed_as_it_is(said: dict[str, object]) -> None:
    world = forced(**said)
    assert world.booked("n1") == (HELD if "lingering" in said else FREE)


def test_an_agent_that_is_silent_for_a_minute_is_not_waited_for() -> None:
    world = forced()
    world.cluster.expire(1000.0)
    world.cluster.expire(1000.0 + SILENCE_SECONDS - 1)
    assert (world.booked("n1"), world.cluster.lapsed) == (HELD, 0)
    world.cluster.expire(1000.0 + SILENCE_SECONDS)
    assert (world.booked("n1"), world.cluster.lapsed) == (FREE, 1)


def test_a_pod_that_ended_first_holds_nothing_and_a_node_that_goes_takes_all_with_it() -> None:
    world = World([node("n1", 1, released=())])
    world.create(pod("a", 60, on="n1"))
    ended = {**world.api.pods["default", "a"], "status": {"phase": "Succeeded"}}
    world.cluster.apply(PODS, "DELETED", ended)
    assert world.booked("n1") == FREE, "the last that was shown of it says so"
    world = forced()
    world.cluster.apply(NODES, "DELETED", node("n1", 1, released=()))
    world.cluster.apply(NODES, "ADDED", node("n1", 1, released=()))
    assert world.booked("n1") == FREE


def listed_anew(**said: object) -> World:
    """A pod was deleted while the watch was down: the next list lacks it."""
    world = World([node("n1", 1, **{"released": (), **said})])  # type: ignore[arg-type]
    world.create(pod("a", 60, on="n1"))
    world.cluster.replace(PODS, [])
    return world


def test_one_that_was_deleted_while_the_watch_was_down_counts_until_the_node_has_told() -> None:
    world = listed_anew()
    assert world.booked("n1") == HELD
    assert "held by a pod that is gone" in str(world.filter(pod("b", 60))["FailedNodes"])
    world.cluster.replace(PODS, [])
    assert world.booked("n1") == HELD, "another list changes nothing"
    world.cluster.replace(NODES, [node("n1", 1, released=(UID,))])
    assert world.booked("n1") == FREE


def test_after_a_list_too_nobody_waits_for_a_silent_agent_or_one_that_has_told() -> None:
    world = listed_anew()
    world.cluster.expire(1000.0)
    world.cluster.expire(1000.0 + SILENCE_SECONDS)
    assert world.booked("n1") == FREE
    assert listed_anew(released=(UID,)).booked("n1") == FREE
    assert listed_anew(released=None).booked("n1") == FREE, "an agent of before says nothing of it"


@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_the_watch_misses_the_books_are_those_of_the_api_and_the_nodes_in_the_end(seed: int) -> None:
    dice, names = random.Random(seed), [f"n{at}" for at in range(4)]
    world = World([node(name, 2, released=()) for name in names])
    there: dict[str, dict[str, object]] = {}  # what the API holds
    gone: dict[str, list[str]] = {name: [] for name in names}  # whose processes run on
    for number in range(120):
        up = dice.random() < 0.5
        if there and dice.random() < 0.45:
            key = dice.choice(sorted(there))
            obj = there.pop(key)
            gone[str(obj["spec"]["nodeName"])].append(key)  # type: ignore[index]
            if up:
                world.cluster.apply(PODS, "DELETED", obj)
        else:
            obj = pod(f"p{number}", 5, 1, on=dice.choice(names))
            there[f"uid-default-p{number}"] = obj
            if up:
                world.cluster.apply(PODS, "ADDED", obj)
        if dice.random() < 0.2:
            world.cluster.replace(PODS, list(there.values()))
        if dice.random() < 0.2:  # the processes of some have ended, and the agent says so
            name = dice.choice(names)
            world.cluster.apply(NODES, "MODIFIED", node(name, 2, released=tuple(gone[name])))
    world.cluster.replace(PODS, list(there.values()))
    for name in names:
        world.cluster.apply(NODES, "MODIFIED", node(name, 2, released=tuple(gone[name])))
    fresh = World([node(name, 2, released=()) for name in names])
    fresh.cluster.replace(PODS, list(there.values()))
    assert {n: world.booked(n) for n in names} == {n: fresh.booked(n) for n in names}


def test_the_mirror_of_a_static_pod_is_no_pod_of_its_own() -> None:
    world = World([node("n1", 1, released=())])
    mirror = pod("a", 60, on="n1", annotations={MIRROR: "0" * 32})
    world.create(mirror)
    world.delete(mirror)
    assert world.booked("n1") == FREE
    world.create(mirror)
    world.cluster.replace(PODS, [])
    assert world.booked("n1") == FREE
