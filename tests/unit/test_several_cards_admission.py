"""Parts of several cards in the admission service: who may ask for them, which nodes take them, what they cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.pod_view import read_pod_view
from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.cluster.trim import ADMISSION, COMPONENT, slim_pod
from admission.config import ClusterTerms
from admission.extender.feasibility import FeasibilityJudge, Fit, Unfit
from admission.extender.fragmentation_score import shapes_of
from admission.extender.many_nodes import judge_nodes
from admission.quota.quota_book import QuotaBook, least_charge
from admission.webhook.admit import mutate, validate
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.domain.contract import (
    ALLOCATION,
    CARDS,
    FEATURES,
    MULTI_CARD,
    NAMESPACE,
    RELEASE_FEATURES,
    decode_assignment,
)
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes import reviews
from tests.fakes.extender import UNIT, World, answer, args, container, node, pod
from tests.fakes.ports import FakeClock
from tests.unit.test_extender_kinds import part_used
from tests.unit.test_extender_preempt import ask, lying

Obj = dict[str, Any]
HALVES = {CARDS: "2"}


def halves(name: str = "train", core: object = 100, memory: object = 16, **more: Any) -> Obj:
    return pod(name, core, memory, annotations={**HALVES, **more.pop("annotations", {})}, **more)


def replica(
    name: str, *, features: str | None = MULTI_CARD, namespace: str = NAMESPACE, started: bool | None = True
) -> Obj:
    """A pod of the admission service as the watch passes it on; ``started``: None before its kubelet says
    anything.
    """
    meta: Obj = {"name": name, "namespace": namespace, "uid": name, "labels": {COMPONENT: ADMISSION}}
    if features is not None:
        meta["annotations"] = {FEATURES: features}
    status: Obj = (
        {} if started is None else {"containerStatuses": [{"name": "admission", "started": started}]}
    )
    spec = {"nodeName": "n1", "containers": [{"name": "admission"}]}
    found = slim_pod({"metadata": meta, "spec": spec, "status": status})
    assert found is not None
    return dict(found)


# The webhooks.


def mutated(cluster: ClusterState, obj: Obj, **terms: Any) -> Obj:
    checks = create_time_checks(cluster, QuotaBook(), FeasibilityJudge(), FakeClock())
    return reviews.ask(
        lambda review, settings: mutate(review, settings, checks), reviews.review(obj), ClusterTerms(**terms)
    )


def known(*pods: Obj) -> ClusterState:
    cluster = ClusterState(UNIT)
    cluster.replace(NODES, [node("n1")])
    cluster.replace(PODS, pods)
    return cluster


ANNOTATED = reviews.pod(reviews.container("train", "100", "40"), annotations=HALVES)


def test_until_every_replica_can_the_annotation_is_refused_with_that_sentence() -> None:
    refused = mutated(known(replica("a"), replica("b", features=None)), ANNOTATED)
    assert not refused["allowed"]
    assert refused["status"]["message"] == (
        "annotation tencent.com/vcuda-cards is not taken yet: replica kube-system/b of the admission service has not "
        "written multi-card into annotation tencent.com/vcuda-features of its pod: it is of an earlier release, has "
        "just started, or may not write there (upgrade the chart too)"
    )
    assert refused["status"]["code"] == 403
    assert mutated(known(replica("a"), replica("b", features="other, multi-card")), ANNOTATED)["allowed"]
    assert "b" not in known(replica("a"), replica("b", features="other", namespace="mine")).without_feature(
        MULTI_CARD
    )


def test_the_annotation_waits_until_the_replicas_are_known_and_a_replica_that_went_counts_no_more() -> None:
    assert "replicas are not known yet" in mutated(ClusterState(UNIT), ANNOTATED)["status"]["message"]
    cluster = known(replica("old", features=None))
    assert cluster.without_feature(MULTI_CARD) == "kube-system/old"
    assert cluster.copy().without_feature(MULTI_CARD) == "kube-system/old"
    cluster.apply(PODS, "DELETED", replica("old", features=None))
    assert mutated(cluster, ANNOTATED)["allowed"]


@pytest.mark.parametrize("started", [None, False])
def test_a_replica_that_does_not_run_holds_nothing_up(started: bool | None) -> None:
    """Its image may never be pulled, and no API server calls it."""
    assert mutated(known(replica("a"), replica("b", features=None, started=started)), ANNOTATED)["allowed"]


def test_a_replica_counts_from_its_start_until_it_says_what_it_can() -> None:
    cluster = known(replica("a", features=None, started=False))
    for then, lacks in (
        (replica("a", features=None), "kube-system/a"),
        (replica("a"), ""),
        (replica("a", features=None, started=False), ""),
    ):
        cluster.apply(PODS, "MODIFIED", then)
        assert cluster.without_feature(MULTI_CARD) == lacks


def test_a_pod_without_the_annotation_is_admitted_beside_an_old_replica() -> None:
    plain = reviews.pod(reviews.container("train", "30", "40"))
    assert mutated(known(replica("old", features=None)), plain)["allowed"]


def test_mutate_keeps_the_memory_beside_a_hundred_and_writes_the_default_for_each_card() -> None:
    kept = reviews.patched(ANNOTATED, mutated(known(), ANNOTATED))
    assert kept["spec"]["containers"][0]["resources"] == ANNOTATED["spec"]["containers"][0]["resources"]
    without = reviews.pod(reviews.container("train", "100"), annotations=HALVES)
    response = mutated(known(), without, default_memory=8)
    limits = reviews.patched(without, response)["spec"]["containers"][0]["resources"]["limits"]
    assert limits["tencent.com/vcuda-memory"] == "16"
    assert "it gets this cluster's default, 16 units (4 GiB)" in " ".join(response["warnings"])


def test_what_api_servers_would_refuse_in_worse_words_is_refused_by_mutate() -> None:
    broken = reviews.pod(reviews.container("train", "100.5", "40"), annotations=HALVES)
    assert "use 100 or 102" in mutated(known(), broken)["status"]["message"]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("2", "4", 'is "4": it is fixed when the pod is created: leave it as it was, "2"'),
        ("2", None, 'is removed: it is fixed when the pod is created: leave it as it was, "2"'),
        (None, "2", 'is "2": it is fixed when the pod is created: leave it out'),
    ],
)
def test_it_is_fixed_at_creation(before: str | None, after: str | None, says: str) -> None:
    def annotated(cards: str | None) -> Obj:
        return reviews.pod(
            reviews.container("train", "100", "40"), annotations={CARDS: cards} if cards else None
        )

    refused = reviews.ask(validate, reviews.update(annotated(before), annotated(after)))
    assert says in refused["status"]["message"]
    assert reviews.ask(validate, reviews.update(annotated(None), annotated("1")))["allowed"], "the default"
    assert reviews.ask(validate, reviews.update(annotated(before), annotated(before)))["allowed"]


# The extender.


def test_a_node_whose_agent_cannot_is_left_out_and_the_sentence_says_why() -> None:
    world = World([node("n1"), node("n2", features=())])
    told = answer(world.extender.filter(args(halves(), ["n1", "n2"])))
    assert told["NodeNames"] == ["n1"]
    assert told["FailedAndUnresolvableNodes"]["n2"].startswith(
        "its agent gives no parts of several cards (tencent.com/vcuda-cards): it is of an earlier release"
    )
    assert world.filter(pod("plain", 30, 4))["NodeNames"] == ["n1", "n2"], "both serve all else"


def test_a_preview_of_one_node_says_it_too() -> None:
    world = World([node("n1"), node("n2", features=())])
    view = read_pod_view(halves())
    assert view is not None
    request, nodes = judged_request(view.pod), world.cluster.snapshot().nodes
    assert "gives no parts of several cards" in str(nodes["n2"].judge(request))
    assert not isinstance(nodes["n1"].judge(request), Refusal)
    check = FeasibilityJudge().ask(view, request, world.cluster.snapshot(), None)
    assert check.when_empty(nodes["n2"]) is Unfit.NODE
    assert isinstance(check.when_empty(nodes["n1"]), Fit)


def test_a_node_that_is_to_be_added_has_todays_agent() -> None:
    """An autoscaler asks about it before it exists."""
    cluster = ClusterState(UNIT)
    view = cluster.view_of(node("new", inventory=False))
    assert view.node.features == RELEASE_FEATURES
    assert not view.node.lacks(judged_request(parse_pod(halves())))


def test_nodes_of_equal_cards_and_other_agents_are_not_taken_for_alike() -> None:
    names = [f"n{at}" for at in range(80)]
    world = World([node(name, features=[MULTI_CARD] if at % 2 else []) for at, name in enumerate(names)])
    assert world.filter(halves(), names)["NodeNames"] == names[1::2]


def test_bind_writes_both_cards_and_the_books_charge_half_of_each() -> None:
    world = World([node("n1", cards=4)], [lying("a", 2, 30)])
    train = halves()
    world.create(train)
    assert world.schedule(train) == "n1"
    (written,) = [p for p in world.api.pods.values() if p["metadata"]["name"] == "train"]
    said = decode_assignment(written["metadata"]["annotations"][ALLOCATION])
    assert said is not None
    assert said.containers["main"] == tuple((f"GPU-n1-{at}", Amount(50, 8 * UNIT)) for at in (0, 2))
    assert [cores for cores, _ in world.booked("n1")] == [50, 0, 80, 0]


def test_more_cards_than_any_node_has_wait_and_the_author_is_told() -> None:
    world = World([node("n1", cards=2)])
    wide = pod("wide", 400, 16, annotations={CARDS: "4"})
    failed = world.filter(wide)["FailedAndUnresolvableNodes"]["n1"]
    assert "100 cores" in failed or "4 cards" in failed
    checks = create_time_checks(world.cluster, QuotaBook(), FeasibilityJudge(), FakeClock())
    view = read_pod_view(pod("wide", 200, 16, annotations={CARDS: "4"}))
    assert view is not None
    (told,) = checks.warn(view.pod, judged_request(view.pod))
    assert "a node has 2 cards at most" in told


def test_quota_counts_totals() -> None:
    world = World([node("n1", cards=4)])
    world.limit({"default": {"quota": {"*": 1}}})
    assert world.filter(halves("a"))["NodeNames"] == ["n1"]
    assert not world.filter(halves("b", 150))["NodeNames"]
    view = read_pod_view(halves())
    assert view is not None
    assert least_charge(judged_request(view.pod)) == Amount(100, 16 * UNIT)
    book = QuotaBook()
    book.update({"data": {"gpu_quota": json.dumps({"default": {"containerMax": {"cores": 80}}})}})
    checks = create_time_checks(world.cluster, book, FeasibilityJudge(), FakeClock())
    (refused,) = checks.refuse(view.pod, judged_request(view.pod))
    assert "asks for 100 cores, and one container may have 80" in refused


def test_one_card_of_another_model_cannot_be_the_second() -> None:
    world = World([node("n1", cards=2, model=["T4", "V100"])])
    one_model = pod("one", 100, 16, annotations={**HALVES, "tencent.com/gpu-model": "T4"})
    assert not world.filter(one_model)["NodeNames"]


def test_eviction_makes_room_on_different_cards() -> None:
    world = World(
        [node("n1", cards=2)], [lying("a", 0, 60), lying("b", 0, 40, priority=9), lying("c", 1, 60)]
    )
    assert ask(world, halves("big", 100, priority=5), {"n1": []}) == {"n1": (["a", "c"], 0)}


def test_a_member_costs_as_many_fractions_as_it_has_parts() -> None:
    view = read_pod_view(halves())
    assert view is not None
    assert [(shape.cores, shape.memory) for shape in shapes_of(view, UNIT)] == [(50, 8), (50, 8)]


def test_the_amount_that_an_agent_refused_is_the_total_that_the_kubelet_counts() -> None:
    world = World([node("n1", refused=[Amount(100, 16 * UNIT)]), node("n2")])
    assert world.filter(halves())["NodeNames"] == ["n2"]


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), st.integers(2, 3), st.integers(1, 60), st.integers(1, 30))
def test_what_is_said_of_many_nodes_at_once_is_what_is_said_of_each(
    seed: int, parts: int, cores: int, units: int
) -> None:
    cluster = part_used(60, seed)
    view = read_pod_view(pod("p", cores * parts, units * parts, annotations={CARDS: str(parts)}))
    assert view is not None
    snapshot, request = cluster.snapshot(), judged_request(view.pod)
    views = list(snapshot.nodes.values())
    together = judge_nodes(FeasibilityJudge().ask(view, request, snapshot, None), views).answers
    alone = FeasibilityJudge().ask(view, request, snapshot, None)
    for said, one in zip(together, views, strict=True):
        assert isinstance(said, Fit) is isinstance(alone.on(one), Fit)
        if not isinstance(said, Fit):
            assert said is alone.on(one)


def test_two_containers_by_name() -> None:
    world = World([node("n1", cards=3)])
    both = pod(
        "both",
        containers=[container("train", 120, 16), container("web", 10, 2)],
        annotations={CARDS: "train=2"},
    )
    world.create(both)
    assert world.schedule(both) == "n1"
    assert sorted(cores for cores, _ in world.booked("n1")) == [0, 60, 70]
