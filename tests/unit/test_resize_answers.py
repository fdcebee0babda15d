"""The scheduler answers requests for another size: room and quota, reserved before the answer is written."""

from __future__ import annotations

import json

import pytest

from admission.cluster.snapshot import NODES
from admission.extender.resizing import RETRY_SECONDS
from gpu_manager.domain.contract import EVENT_RESIZE_REFUSED, INVENTORY, PRIORITY, RESIZE
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resize.judgement import NamespaceLimits
from gpu_manager.domain.resize.sizes import ResizeAnswer, answer_of
from gpu_manager.domain.resources import Amount
from tests.fakes import resize_answers
from tests.fakes.extender import node, pod
from tests.fakes.resize_answers import UNIT, Cluster

world = resize_answers.world


def test_what_fits_is_reserved_and_written(world: Cluster) -> None:
    world.run("one")
    answer = world.ask("one", cores=50, memory="2Gi")
    assert answer is not None
    assert (answer.sizes, answer.refused) == ({"main": Amount(50, 8 * UNIT)}, "")
    assert world.booked("n1") == [(50, 8)]
    world.agent("one", 50, 8)
    assert world.booked("n1") == [(50, 8)]
    before = world.there("one")
    world.answers.tick()
    assert world.there("one") is before, "it is answered once"


def test_what_is_more_is_nobody_elses_from_the_judgement_on(world: Cluster) -> None:
    """Before the API server has the answer, and before the watch shows it."""
    world.run("one")
    world.annotate("one", {RESIZE: '{"v":1,"containers":{"main":{"cores":80}}}'})
    seen: list[list[tuple[int, int]]] = []
    world.api.before = lambda: seen.append(world.booked("n1"))
    world.api.shown = lambda _obj: None
    world.answers.tick()
    assert seen == [[(80, 4)]]
    assert world.booked("n1") == [(80, 4)]
    late = pod("late", 30, 4)
    world.create(late)
    assert world.schedule(late) == ""
    world.show(world.there("one"))
    assert world.booked("n1") == [(80, 4)]


def test_what_does_not_fit_is_refused_with_the_largest_that_does(world: Cluster) -> None:
    world.run("one")
    world.run("two", 60, 8)
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert answer.refused == (
        'container "main": 50 cores, 1 GiB on card 0 does not fit: it holds 30 cores, 1 GiB and the card has '
        "10 cores, 13 GiB free, so at most 40 cores, 14 GiB"
    )
    assert (answer.sizes, world.booked("n1")) == ({}, [(90, 12)])
    assert world.events == [(EVENT_RESIZE_REFUSED, answer.refused)]


def test_a_refused_request_is_granted_once_there_is_room(world: Cluster) -> None:
    world.run("one")
    two = world.run("two", 60, 8)
    world.ask("one", cores=50)
    world.delete(two)
    world.answers.tick()
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert answer.refused == ""
    assert len(world.events) == 1


def test_a_refusal_that_stays_the_same_is_written_once(world: Cluster) -> None:
    world.run("one")
    world.run("two", 60, 8)
    world.ask("one", cores=50)
    before = world.there("one")
    for _ in range(3):
        world.clock.pass_(RETRY_SECONDS)
        world.answers.tick()
    assert world.there("one") is before
    assert len(world.events) == 1


def test_the_quota_counts_what_is_more(world: Cluster) -> None:
    world.limit({"default": {"quota": {"Tesla-T4": 0.5}}})
    world.run("one")
    assert world.ask("one", cores=50) == ResizeAnswer(
        "uid-default-one", answer_digest(world), {"main": Amount(50, 4 * UNIT)}
    )
    world.agent("one", 50, 4)
    answer = world.ask("one", cores=51)
    assert answer is not None
    assert "ExceedsGPUQuota" in answer.refused
    assert "0.5 cards of Tesla-T4, 0.5 used or being bound, 0.01 asked: 0 would still fit" in answer.refused
    assert answer.sizes == {"main": Amount(50, 4 * UNIT)}, "what it has it keeps"


def test_no_container_grows_past_what_one_may_have_and_any_may_shrink(world: Cluster) -> None:
    world.run("one", 60, 8)
    world.limit({"default": {"containerMax": {"cores": 50, "memory": 1024}}})
    answer = world.ask("one", cores=70)
    assert answer is not None
    assert 'container "main" asks for 70 cores, and one container may have 50' in answer.refused
    assert "memory" not in answer.refused
    smaller = world.ask("one", cores=55, memory="1536Mi")
    assert smaller is not None
    assert (smaller.refused, smaller.sizes) == ("", {"main": Amount(55, 6 * UNIT)})


def test_where_card_and_quota_both_refuse_both_are_said(world: Cluster) -> None:
    world.limit({"default": {"quota": {"Tesla-T4": 0.95}}})
    world.run("one")
    world.run("two", 60, 8)
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert answer.refused.endswith(
        'free, so at most 40 cores, 14 GiB. ExceedsGPUQuota: namespace "default": 0.95 cards of Tesla-T4, '
        "0.9 used or being bound, 0.2 asked: 0.05 would still fit"
    )


def test_what_a_protected_pod_has_more_is_within_its_namespaces_right(world: Cluster) -> None:
    world.limit({"default": {"protected": {"Tesla-T4": 0.5}}})
    world.run("one", annotations={PRIORITY: Priority.PROTECTED.value})
    answer = world.ask("one", cores=51)
    assert answer is not None
    assert "protected, 0.3 used or being bound, 0.21 asked: 0.2 would still fit" in answer.refused
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert (answer.refused, answer.sizes) == ("", {"main": Amount(50, 4 * UNIT)})
    world.run("other")
    other = world.ask("other", cores=40)
    assert other is not None
    assert other.refused == "", "a normal pod needs no right"


def answer_digest(world: Cluster) -> str:
    answer = world.answered("one")
    assert answer is not None
    return answer.asked


def test_what_is_less_counts_until_the_agent_has_given_it_back(world: Cluster) -> None:
    world.run("one", 80, 20)
    world.ask("one", cores=90)
    world.agent("one", 90, 20)
    answer = world.ask("one", cores=85, memory=30 * UNIT)
    assert answer is not None
    assert world.booked("n1") == [(90, 30)]
    world.agent("one", 85, 30)
    assert world.booked("n1") == [(85, 30)]
    world.ask("one")
    assert world.booked("n1") == [(85, 30)]
    world.agent("one", 80, 20)
    assert world.booked("n1") == [(80, 20)]


def test_below_its_spec_a_pod_is_charged_its_spec_until_the_agent_has_booked_less(world: Cluster) -> None:
    world.run("one", 80, 20)
    world.ask("one", cores=10)
    assert world.booked("n1") == [(80, 20)]
    world.agent("one", 10, 20)
    assert world.booked("n1") == [(10, 20)]


def test_the_next_request_waits_until_the_agent_has_followed_the_last(world: Cluster) -> None:
    """A smaller answer would free what the agent may be booking at that moment."""
    world.run("one")
    first = world.ask("one", cores=80)
    assert world.ask("one", cores=30) == first
    assert world.booked("n1") == [(80, 4)]
    world.agent("one", 80, 4)
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert answer.sizes == {"main": Amount(30, 4 * UNIT)}


def test_on_a_node_with_an_older_agent_nothing_is_reserved_until_it_is_upgraded() -> None:
    newer = node("n1", cards=1)
    said = json.loads(newer["metadata"]["annotations"][INVENTORY])
    assert said.pop("resizes") is True
    annotations = {**newer["metadata"]["annotations"], INVENTORY: json.dumps(said)}
    world = Cluster(node={**newer, "metadata": {**newer["metadata"], "annotations": annotations}})
    world.run("one")
    answer = world.ask("one", cores=80)
    assert answer is not None
    assert answer.refused == (
        "the agent of node n1 is of an earlier release and changes no sizes: upgrade it, and the request is "
        "judged again"
    )
    assert world.booked("n1") == [(30, 4)]
    world.cluster.apply(NODES, "MODIFIED", newer)
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert answer.sizes == {"main": Amount(80, 4 * UNIT)}


@pytest.mark.parametrize(
    "wanted",
    ["nonsense", '{"v":1,"containers":{"main":{"cores":100}}}', '{"v":1,"containers":{"x":{"cores":5}}}'],
)
def test_what_is_illegal_is_not_answered(world: Cluster, wanted: str) -> None:
    """The webhook refuses it; where that was down, nothing happens."""
    world.run("one")
    world.annotate("one", {RESIZE: wanted})
    world.answers.tick()
    assert world.answered("one") is None


def test_pods_that_wait_or_end_are_not_answered(world: Cluster) -> None:
    waits = pod("waits", annotations={RESIZE: '{"v":1,"containers":{"main":{"cores":5}}}'})
    world.create(waits)
    world.answers.tick()
    assert answer_of(parse_pod(world.there("waits"))) is None
    world.delete(waits)
    world.answers.tick()
    assert world.cluster.resizing() == ()


def test_a_card_that_is_closed_gives_no_more() -> None:
    world = Cluster(node=node("n1", cards=1))
    world.run("one")
    world.cluster.apply("nodes", "MODIFIED", node("n1", cards=1, closed=[0]))
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert "the card takes nothing new (cordoned); it keeps 30 cores" in answer.refused


def test_a_pod_whose_cards_are_guessed_waits_for_its_annotation(world: Cluster) -> None:
    obj = pod("one", on="n1", annotations={RESIZE: '{"v":1,"containers":{"main":{"cores":50}}}'})
    world.create(obj)
    world.answers.tick()
    assert world.answered("one") is None


def test_of_a_deleted_node_a_pod_is_charged_what_its_agent_booked_last(world: Cluster) -> None:
    world.run("one", 30, 4)
    world.ask("one", cores=10, memory="512Mi")
    world.agent("one", 10, 2)
    world.cluster.apply(NODES, "DELETED", node("n1", cards=1))
    assert world.cluster.snapshot().used["default"] == {"": Amount(10, 2 * UNIT)}


def test_a_resize_is_held_to_kubernetes_own_quota_where_that_is_asked_for(world: Cluster) -> None:
    counted = "requests.tencent.com/vcuda-core"
    world.run("one")
    world.run("two")
    world.limits = NamespaceLimits()
    world.ask("one", cores=40)
    assert world.results == [], "no answer while the quotas are not known"
    quota = {
        "metadata": {"name": "q"},
        "spec": {"hard": {counted: "70"}},
        "status": {"used": {counted: "60"}},
    }
    world.limits = NamespaceLimits([quota])
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    assert world.results == ["reserved"]
    world.ask("two", cores=40)
    assert world.results == ["reserved", "refused"]
    assert (
        'ResourceQuota "q" grants 70 of requests.tencent.com/vcuda-core, and pods come to 80'
        in world.events[-1][1]
    )
    world.ask("two", cores=20)
    assert world.results[-1] == "reserved", "less passes"
