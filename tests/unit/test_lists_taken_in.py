"""Full lists as they are taken in: nobody waits for one, and what is known of it costs nothing."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from admission.cluster.claims import (
    CLAIMS,
    CLASSES,
    TEMPLATES,
    AdmittedSums,
    slim_claim,
    slim_class,
    slim_template,
)
from admission.cluster.snapshot import BUDGETS, NODES, PODS, ClusterState
from admission.cluster.trim import slim_node, slim_pod
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, World, node, pod
from tests.fakes.waiting import PATIENCE

Obj = Mapping[str, Any]


def at(obj: Obj, version: int) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}


def test_questions_are_answered_while_a_list_is_read() -> None:
    world = World([node("n1")])
    answered: list[int] = []

    def slow() -> Iterator[Obj]:
        for name in ("a", "b", "c"):
            asker = threading.Thread(target=lambda: answered.append(len(world.cluster.snapshot().nodes)))
            asker.start()
            asker.join(PATIENCE)
            assert not asker.is_alive(), "the books are locked for the whole list"
            yield pod(name, on="n1")

    world.cluster.replace(PODS, slow())
    assert answered == [1, 1, 1]


def test_what_is_known_in_its_version_is_passed_over() -> None:
    world = World([node("n1")])
    taken: list[str] = []

    def take(obj: Obj) -> None:
        taken.append(obj["metadata"]["name"])
        world.cluster.apply(PODS, "ADDED", obj)

    world.cluster.replace(PODS, [at(pod("a", on="n1"), 1), at(pod("b", on="n1"), 2)], take)
    world.cluster.apply(PODS, "MODIFIED", at(pod("b", on="n1"), 3))
    turn = world.cluster.snapshot().turn
    world.cluster.replace(PODS, [at(pod("a", on="n1"), 1), at(pod("b", on="n1"), 3)], take)
    assert (taken, world.cluster.snapshot().turn) == (["a", "b"], turn)
    world.cluster.replace(PODS, [at(pod("a", on="n1"), 4), at(pod("c"), 5), pod("d")], take)
    assert taken == ["a", "b", "a", "c", "d"]
    assert world.cluster.named("default", "b") is None


def test_what_was_deleted_is_taken_in_when_it_is_there_again() -> None:
    world = World([node("n1")])
    world.cluster.apply(PODS, "ADDED", at(pod("a", on="n1"), 1))
    world.cluster.apply(PODS, "DELETED", at(pod("a", on="n1"), 2))
    world.cluster.replace(PODS, [at(pod("a", on="n1"), 1)])
    assert world.cluster.named("default", "a") is not None
    world.cluster.replace(PODS, [])
    world.cluster.replace(PODS, [at(pod("a", on="n1"), 1)])
    assert world.cluster.named("default", "a") is not None


def test_what_failed_to_be_taken_in_is_tried_again() -> None:
    world = World([node("n1")])
    world.cluster.replace(PODS, [at(pod("a", on="n1"), 1)], lambda _: None)
    world.cluster.replace(PODS, [at(pod("a", on="n1"), 1)])
    assert world.cluster.named("default", "a") is not None


def test_a_list_that_breaks_forgets_nothing() -> None:
    world = World([node("n1")], [pod("a", on="n1"), pod("b", on="n1")])

    def broken() -> Iterator[Obj]:
        yield pod("b", on="n1")
        raise ConnectionError

    with pytest.raises(ConnectionError):
        world.cluster.replace(PODS, broken())
    assert world.cluster.named("default", "a") is not None


NAMED = {"name": "x", "namespace": "team", "uid": "u"}
CLAIM = {
    "metadata": NAMED,
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
}
OTHERS = {
    NODES: node("x"),
    BUDGETS: {"metadata": NAMED, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 1}},
    CLAIMS: CLAIM,
    CLASSES: {"metadata": NAMED, "spec": {"selectors": [{"cel": {"expression": "true"}}]}},
    TEMPLATES: {"metadata": NAMED, "spec": {"spec": CLAIM["spec"]}},
}
KNOWS = {
    NODES: lambda state: bool(state.snapshot().nodes),
    BUDGETS: lambda state: bool(state.snapshot().budgets),
    CLAIMS: lambda state: state.claims.named("team", "x") is not None,
    CLASSES: lambda state: "x" in state.claims.classes,
    TEMPLATES: lambda state: state.claims.spec_of("team", {"resourceClaimTemplateName": "x"}) is not None,
}


@pytest.mark.parametrize("kind", list(OTHERS))
def test_of_every_kind_what_is_listed_again_stays_and_what_is_not_goes(kind: str) -> None:
    state = ClusterState(UNIT)
    for _ in range(2):
        state.replace(kind, [at(OTHERS[kind], 1)])
        assert KNOWS[kind](state)
    state.replace(kind, [])
    assert not KNOWS[kind](state)
    state.replace(kind, [at(OTHERS[kind], 1)])
    assert KNOWS[kind](state)


def test_a_claim_that_was_let_pass_counts_no_more_once_a_list_has_it() -> None:
    state = ClusterState(UNIT)
    allocated = {**CLAIM, "status": {"allocation": {"devices": {"results": []}}}}
    state.replace(CLAIMS, [at(allocated, 1)])
    said = AdmittedSums("team", {"T4": Amount(10, 1)})
    state.change_claims(lambda claims: claims.inherit([(PodUid("u"), said)], 60.0))
    state.replace(CLAIMS, [at(allocated, 1)])
    assert state.claims.admitted == 0


def test_trimmed_objects_have_their_version_still() -> None:
    waiting_by_claim = {"metadata": NAMED, "spec": {"resourceClaims": [{"name": "c"}], "containers": []}}
    without_cards = {"metadata": NAMED, "spec": {"nodeName": "n1", "containers": []}}
    for obj in (pod("b", on="n1"), pod("a"), waiting_by_claim, without_cards):
        slim = slim_pod(at(obj, 7))
        assert slim is not None
        assert slim["metadata"]["resourceVersion"] == "7"
    slims = {NODES: slim_node, CLAIMS: slim_claim, CLASSES: slim_class, TEMPLATES: slim_template}
    for kind, trim in slims.items():
        assert trim(at(OTHERS[kind], 7))["metadata"]["resourceVersion"] == "7"


def test_annotations_that_only_contain_our_name_are_not_kept() -> None:
    slim = slim_pod(pod("a", annotations={"x.tencent.com/y": "x" * 1000, "tencent.com/gpu-model": "T4"}))
    assert slim is not None
    assert slim["metadata"]["annotations"] == {"tencent.com/gpu-model": "T4"}


def selecting(name: str, *hosts: str) -> Obj:
    made = pod(name)
    term = {"matchExpressions": [{"key": "host", "operator": "In", "values": list(hosts)}]}
    node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {**made, "spec": {**made["spec"], "affinity": {"nodeAffinity": node_affinity}}}


def test_equal_node_affinities_are_held_once_and_go_with_the_last_pod() -> None:
    world = World([node("n1")])
    for name in ("a", "b", "c"):
        world.show(selecting(name, "h1", "h2") if name != "c" else selecting(name, "h1"))
    held = [view.constraints for name in "abc" if (view := world.cluster.named("default", name))]
    assert held[0] is held[1]
    assert held[2] != held[0]
    gone = weakref.ref(held[0])
    del held
    world.cluster.replace(PODS, [])
    world.cluster.fresh()  # whoever counts arrivals and departures has seen them
    world.cluster.gone()
    gc.collect()
    assert gone() is None


def test_a_node_affinity_that_came_past_the_rule_is_not_kept() -> None:
    slim = slim_pod(selecting("a", *(f"host-{at}" for at in range(20_000))))
    assert slim is not None
    assert "affinity" not in slim["spec"]
    assert "affinity" in (slim_pod(selecting("a", "host-1")) or {})["spec"]
