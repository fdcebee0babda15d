"""How the stand-in picks ids, by the paragraphs of the device plugin API's description (1.7, 1.8, 1.10)."""

from collections.abc import Iterator

import pytest

from sandbox.kubelet import NumaPolicy
from tests.fakes.kubelet_node import Node, lowest, pod
from tests.fakes.plugin import CORE, MEMORY, device, devices


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


def on(nodes: tuple[int, ...], prefix: str, count: int) -> list:
    return [device(f"{prefix}{i:02}", nodes=nodes) for i in range(count)]


def test_1_7_without_a_preference_ids_are_scattered(node):
    core = node.plugin(CORE, devices("c", 800))
    ids = node.kubelet.admit(pod("u", {"main": {CORE: 40}})).ids["main"][CORE]
    assert core.asked("P")[0].allocation_size == 40
    assert len(core.asked("P")[0].available_deviceIDs) == 800
    assert len({int(one[1:]) // 100 for one in ids}) >= 5


def test_1_7_a_preference_decides_wholly_when_it_names_enough(node):
    core = node.plugin(CORE, devices("c", 800))
    core.prefer = lowest
    assert node.kubelet.admit(pod("u", {"main": {CORE: 3}})).ids["main"][CORE] == {"c0000", "c0001", "c0002"}
    assert node.kubelet.admit(pod("v", {"main": {CORE: 2}})).ids["main"][CORE] == {"c0003", "c0004"}


def test_1_7_of_a_preference_the_unoffered_is_ignored_and_the_missing_filled_at_random(node):
    core = node.plugin(CORE, devices("c", 800))
    core.prefer = lambda _request: ["c0005", "c0005", "unknown"]
    ids = node.kubelet.admit(pod("u", {"main": {CORE: 4}})).ids["main"][CORE]
    assert "c0005" in ids
    assert len(ids) == 4
    assert "c0005" not in node.kubelet.admit(pod("v", {"main": {CORE: 4}})).ids["main"][CORE]


def test_1_7_more_than_asked_for_is_cut_at_random(node):
    core = node.plugin(CORE, devices("c", 800))
    core.prefer = lambda request: sorted(request.available_deviceIDs)[:100]
    ids = node.kubelet.admit(pod("u", {"main": {CORE: 10}})).ids["main"][CORE]
    assert len(ids) == 10
    assert max(ids) < "c0100"


def test_1_7_the_plugin_is_asked_even_when_everything_is_needed(node):
    core = node.plugin(CORE, devices("c", 8))
    node.kubelet.admit(pod("u", {"main": {CORE: 8}}))
    assert len(core.asked("P")) == 1


def test_1_7_ids_are_offered_in_no_order(node):
    core = node.plugin(CORE, devices("c", 100))
    node.kubelet.admit(pod("u", {"main": {CORE: 8}}))
    offered = list(core.asked("P")[0].available_deviceIDs)
    assert offered != sorted(offered)
    assert len(set(offered)) == 100


def test_1_8_an_app_container_gets_a_random_part_of_its_init_containers_ids_and_nobody_is_asked(node):
    core = node.plugin(CORE, devices("c", 100))
    core.prefer = lowest
    seen = set()
    for i in range(6):
        result = node.kubelet.admit(pod(f"u{i}", {"main": {CORE: 3}}, init={"init": {CORE: 10}}))
        assert result.ids["main"][CORE] < result.ids["init"][CORE]
        seen.add(tuple(sorted(one[-1] for one in result.ids["main"][CORE])))
    assert len(core.asked("P")) == 6
    assert len(core.asked("A")) == 12
    assert len(seen) > 1


def test_1_8_what_the_init_container_does_not_cover_is_asked_for_with_its_ids_included(node):
    core = node.plugin(CORE, devices("c", 100))
    core.prefer = lowest
    result = node.kubelet.admit(pod("u", {"main": {CORE: 8}}, init={"init": {CORE: 5}}))
    request = core.asked("P")[1]
    assert set(request.must_include_deviceIDs) == result.ids["init"][CORE] < result.ids["main"][CORE]
    assert request.allocation_size == 8
    assert set(request.must_include_deviceIDs) < set(request.available_deviceIDs)


def test_1_8_init_containers_reuse_among_themselves_and_apps_never_share(node):
    node.plugin(CORE, devices("c", 20)).prefer = lowest
    limits = {CORE: 5}
    result = node.kubelet.admit(pod("u", {"a": limits, "b": limits}, init={"i": {CORE: 10}, "j": {CORE: 10}}))
    assert result.ids["i"] == result.ids["j"]
    assert not result.ids["a"][CORE] & result.ids["b"][CORE]
    assert result.ids["a"][CORE] | result.ids["b"][CORE] == result.ids["i"][CORE]


def test_1_8_a_sidecar_keeps_the_ids_it_took_from_an_init_container(node):
    node.plugin(CORE, devices("c", 20)).prefer = lowest
    result = node.kubelet.admit(
        pod("u", {"a": {CORE: 5}}, init={"i": {CORE: 6}}, sidecars={"side": {CORE: 4}})
    )
    assert result.ids["side"][CORE] < result.ids["i"][CORE]
    assert not result.ids["side"][CORE] & result.ids["a"][CORE]
    assert result.ids["i"][CORE] - result.ids["side"][CORE] < result.ids["a"][CORE]


def test_3_5_an_init_container_over_two_cards_gives_the_app_a_random_mixture(node):
    core = node.plugin(CORE, [*devices("x", 5), *devices("y", 15)])
    core.prefer = lambda request: list(request.available_deviceIDs)
    mixtures = set()
    for i in range(8):
        result = node.kubelet.admit(pod(f"u{i}", {"main": {CORE: 10}}, init={"init": {CORE: 20}}))
        mixtures.add(sum(one.startswith("x") for one in result.ids["main"][CORE]))
        node.kubelet.delete(f"u{i}")
    assert len(mixtures) > 1


def test_1_7_4_enough_aligned_ids_are_offered_alone():
    with Node(numa=NumaPolicy.BEST_EFFORT) as node:
        core = node.plugin(CORE, [*on((0,), "a", 10), *on((1,), "b", 20)])
        ids = node.kubelet.admit(pod("u", {"main": {CORE: 12}})).ids["main"][CORE]
        assert {one[0] for one in ids} == {"b"}
        assert {one[0] for one in core.asked("P")[0].available_deviceIDs} == {"b"}


def test_1_7_5_too_few_aligned_ids_are_taken_all_and_the_rest_is_asked_for():
    with Node(numa=NumaPolicy.BEST_EFFORT) as node:
        core = node.plugin(CORE, [*on((0,), "a", 10), *on((1,), "b", 10), *devices("n", 4)])
        memory = node.plugin(MEMORY, on((0,), "m", 10))  # pulls the container to node 0
        core.prefer = lambda request: [one for one in request.available_deviceIDs if one.startswith("b")]
        node.kubelet.hooks.order = sorted
        result = node.kubelet.admit(pod("u", {"main": {CORE: 14, MEMORY: 2}}))
        request = core.asked("P")[0]
        assert set(request.must_include_deviceIDs) == {f"a{i:02}" for i in range(10)}
        assert len(request.available_deviceIDs) == 24
        assert sum(one.startswith("b") for one in result.ids["main"][CORE]) == 4
        assert memory.asked("A")


@pytest.mark.parametrize(
    ("policy", "admitted"),
    [
        (NumaPolicy.NONE, True),
        (NumaPolicy.BEST_EFFORT, True),
        (NumaPolicy.RESTRICTED, True),  # 12 of 20 need both nodes anyway: still preferred
        (NumaPolicy.SINGLE, False),
    ],
)
def test_1_10_each_policy_admits_what_spans_nodes_or_not(policy, admitted):
    with Node(numa=policy) as node:
        node.plugin(CORE, [*on((0,), "a", 10), *on((1,), "b", 10)])
        result = node.kubelet.admit(pod("u", {"main": {CORE: 12}}))
        assert result.admitted is admitted
        if not admitted:
            assert result.reason == "TopologyAffinityError"
            assert result.message == "Resources cannot be allocated with Topology locality"


def test_1_10_restricted_refuses_when_only_the_free_ids_are_scattered():
    with Node(numa=NumaPolicy.RESTRICTED) as node:
        core = node.plugin(CORE, [*on((0,), "a", 10), *on((1,), "b", 10)])
        core.prefer = lowest
        for i in range(2):
            assert node.kubelet.admit(pod(f"u{i}", {"main": {CORE: 6}})).admitted
        assert node.kubelet.admit(pod("small", {"main": {CORE: 4}})).admitted
        assert node.kubelet.admit(pod("more", {"main": {CORE: 3}})).admitted
        assert node.kubelet.admit(pod("wide", {"main": {CORE: 1}})).admitted
        node.kubelet.delete("small")
        node.kubelet.delete("more")
        assert node.kubelet.admit(pod("last", {"main": {CORE: 8}})).reason == "TopologyAffinityError"


def test_1_10_two_resources_on_different_nodes_do_not_fit_one_node():
    with Node(numa=NumaPolicy.SINGLE) as node:
        node.plugin(CORE, on((0,), "a", 10))
        node.plugin(MEMORY, on((1,), "m", 10))
        assert node.kubelet.admit(pod("u", {"main": {CORE: 1, MEMORY: 1}})).reason == "TopologyAffinityError"
        assert node.kubelet.admit(pod("v", {"main": {CORE: 1}})).admitted
