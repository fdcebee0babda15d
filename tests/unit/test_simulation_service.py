"""``POST /simulate``: pods go where the extender sends them afterwards, and nothing of the live books changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from admission.cluster.pod_view import read_pod_view
from admission.config import ClusterTerms
from admission.explain.drafts import simulate
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.node_choice import ExtenderSimulation
from bench.simulated_pods import agreement
from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.whatif.simulation import MOST_ASKED
from tests.fakes.extender import World, node, pod


def group(name: str, *nodes: str, cores: int = 60, count: int = 1, host: Sequence[int] = (0, 0, 1)) -> Any:
    manifest = pod(name, cores, None if cores >= 100 else 4)
    names = [f"{name}-{n}" for n in range(count)]
    return {"manifest": manifest, "names": names, "nodes": list(nodes), "host": list(host)}


def ask(world: World, *groups: Any, free: Any = None, ends: Sequence[float] = ()) -> dict[str, Any]:
    times = iter(ends)
    return simulate(
        json.dumps({"pods": groups, "free": free or {}}).encode(),
        LeastFragmentation(world.cluster),
        world.quota,
        ClusterTerms(),
        lambda: next(times, 0.0),
    )


def places(answer: dict[str, Any]) -> list[tuple[str, str, list[int]]]:
    return [(row["pod"], row["node"], row["cards"]) for row in answer["placements"]]


def test_pods_go_where_the_service_had_said() -> None:
    found = agreement([*range(4), 49, 103, 128])
    assert found.same_node == found.pods > 100
    assert found.same_count == 7


def test_no_question_is_counted_for_a_pod_that_no_node_or_one_takes_since_no_scheduler_asks_which_is_best() -> (
    None
):
    world = World([node("n1", 1), node("n2", 4)])
    trial = ExtenderSimulation(LeastFragmentation(world.cluster), None, 1)
    asked = []
    for number, (cores, where) in enumerate(((500, None), (400, "n2"), (30, "n1"))):
        found = trial.place(read_pod_view(pod(f"p{number}", cores, 4 if cores < 100 else None)), world.nodes)
        assert (found and found.node) == where
        asked.append(trial._policy._asked)
    assert asked == [0, 0, 0]
    world = World([node("n1", 2), node("n2", 2)])
    trial = ExtenderSimulation(LeastFragmentation(world.cluster), None, 1)
    assert trial.place(read_pod_view(pod("p", 30, 4)), world.nodes)
    assert trial._policy._asked == 1


def test_each_pod_stays_for_those_after_it_and_the_live_books_do_not_change() -> None:
    world = World([node("n1", 2)], [pod("old", 60, 4, on="n1")])
    world.create(pod("waits", 60, 4))
    before = world.cluster.snapshot()
    answer = ask(world, group("a", "n1", count=2))
    assert places(answer) == [("default/a-0", "n1", [1])]
    (refused,) = answer["refused"]
    assert refused["pod"] == "default/a-1"
    assert "no room" in refused["reason"]
    assert answer["free_cores"] == 80
    assert world.cluster.snapshot() is before
    assert [one.pod.name for one in world.cluster.fresh()] == ["old", "waits"], "nobody has counted them yet"


def test_a_pod_deleted_by_force_counts_in_the_copy_too() -> None:
    world = World([node("n1", 1, released=())])
    world.create(pod("a", 60, on="n1"))
    world.delete(world.api.pods["default", "a"])
    assert places(ask(world, group("b", "n1"))) == []


def test_only_the_nodes_named_are_asked_and_each_host_has_only_what_it_has() -> None:
    world = World([node("n1", 2), node("n2", 2), node("full", 8)])
    free = {"n1": [1000, 1, 1], "n2": [3000, 1, 110], "full": [0, 0, 0]}
    answer = ask(world, group("a", "n1", "n2", "gone", cores=10, count=5, host=(1000, 0, 1)), free=free)
    assert sorted(where for _, where, _ in places(answer)) == ["n1", "n2", "n2", "n2"]
    (refused,) = answer["refused"]
    assert refused["reason"] == (
        'no node takes it: "n1" has less host CPU free than the 1 that the pod asks for (and 1 more node)'
    )


def test_a_quota_is_a_quota_here_too() -> None:
    world = World([node("n1", 8)], quota={"default": {"quota": {"T4": 1}}})
    answer = ask(world, group("a", "n1", cores=100, count=3))
    assert len(answer["placements"]) == 1
    assert "ExceedsGPUQuota" in answer["refused"][0]["reason"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "no list of pods"),
        (b"[]", "no list of pods"),
        (b'{"pods": [1]}', "no list of pods"),
        (b'{"pods": [], "free": {"n": [1]}}', "no list of pods"),
        (b'{"pods": [], "free": {"n": [1e400, 1, 1]}}', "no list of pods"),
        (json.dumps({"pods": [group("a", count=MOST_ASKED + 1)]}).encode(), f"at most {MOST_ASKED}"),
        (json.dumps({"pods": [group("a", "n1", cores=150)]}).encode(), "150"),
        (
            json.dumps({"pods": [{**group("a"), "manifest": {"metadata": {"namespace": ""}}}]}).encode(),
            "namesp",
        ),
    ],
    ids=["torn", "list", "number", "host", "infinite", "many", "illegal", "nowhere"],
)
def test_a_malformed_question_says_what_is_wrong(body: bytes, why: str) -> None:
    world = World([node("n1", 2)])
    with pytest.raises(RequestInvalid, match=why):
        simulate(body, LeastFragmentation(world.cluster), world.quota, ClusterTerms())


def test_a_question_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(RequestInvalid, match="fewer pods"):
        ask(World([node("n1", 2)]), group("a", "n1", count=2), ends=(0.0, 1.0, 21.0))


def test_simulated_pods_are_placed_by_priority() -> None:
    held = pod("old", 60, 4, on="n1", annotations={PRIORITY: "best-effort"})
    world = World([node("n1", 2)], [held], quota={"default": {"protected": {"*": 1}}})
    asked = [group("p", "n1", cores=30), group("n", "n1", cores=20), group("q", "n1", cores=30)]
    for one, priority in zip(asked, ("protected", "normal", "protected"), strict=True):
        one["manifest"]["metadata"]["annotations"][PRIORITY] = priority
    assert places(ask(world, *asked)) == [
        ("default/p-0", "n1", [0]),  # beside the best-effort one
        ("default/n-0", "n1", [1]),  # not beside the protected one, which would be the fuller card
        ("default/q-0", "n1", [1]),  # the other card has no room for it
    ]


def test_a_pod_that_would_not_be_created_is_said_to_be_refused_and_not_to_wait() -> None:
    world = World([node("n1", 2)], quota={"*": {"quota": {"T4": 1}}})
    asked, large = group("service", "n1", cores=30), group("large", "n1", cores=200)
    asked["manifest"]["metadata"]["annotations"] = {PRIORITY: "protected"}
    waits = [group("first", "n1", cores=80), group("second", "n1", cores=80)]
    answer = ask(world, asked, large, *waits)
    said = {one["pod"]: one["reason"] for one in answer["refused"]}
    assert said["default/service-0"] == (
        'would not be created: ExceedsGPUQuota: namespace "default": protected shares of model "Tesla-T4" are not granted to it (none are): '
        'an operator grants them in its quota (ConfigMap kube-system/gpuquota), under "protected"'
    )
    assert said["default/large-0"].startswith("would not be created: ")
    assert said["default/second-0"].startswith("waits: "), "its turn may come"
