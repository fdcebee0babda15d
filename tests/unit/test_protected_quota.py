"""The right to protected shares: granted by namespace and model, judged when a pod is created, exact when it is bound."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.pod_view import read_pod_view
from admission.explain.explain_api import quota_text
from admission.explain.explanation import explain
from admission.quota.quota_book import QuotaBook, refuse_at_create
from gpu_manager.adapters.kube.reading import cluster_of
from gpu_manager.domain.cluster.quota import NO_QUOTA
from gpu_manager.domain.cluster.quota_map import parse_quota
from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB, Amount
from tests.fakes.extender import World, config_map, node, pod

PROTECTED = Priority.PROTECTED
T4, V100 = "Tesla-T4", "Tesla-V100-SXM2-32GB"
NO_RIGHT = (
    'protected shares of model "Tesla-T4" are not granted to it (none are): '
    'an operator grants them in its quota (ConfigMap kube-system/gpuquota), under "protected"'
)


def protected(name: str, core: int = 30, **more: Any) -> dict[str, Any]:
    return pod(name, core, 4, namespace="a", annotations={PRIORITY: "protected"}, **more)


def refused(world: World, obj: dict[str, Any]) -> str:
    said = world.filter(obj)
    return "; ".join(said["FailedAndUnresolvableNodes"].values())


@pytest.mark.parametrize(
    "quota", [{}, {"a": {"quota": {"T4": 4}}}, {"a": {"quota": {"*": 9}}, "*": {"protected": {"*": 1}}}]
)
def test_without_the_right_no_pod_is_protected_whatever_else_it_may_have(quota: dict[str, Any]) -> None:
    world = World([node("n1")], quota=quota)
    assert NO_RIGHT in refused(world, protected("p"))
    assert world.filter(pod("n", namespace="a"))["NodeNames"] == ["n1"]
    assert world.filter(pod("b", namespace="a", annotations={PRIORITY: "best-effort"}))["NodeNames"] == ["n1"]


def test_the_right_is_counted_apart_from_what_else_a_namespace_holds() -> None:
    world = World([node("n1", cards=4)], [
        pod("plain", 90, 4, on="n1", namespace="a"), protected("p", 30, on="n1"),
    ], quota={"a": {"quota": {"T4": 2}, "protected": {"T4": 0.5}}})  # fmt: skip
    assert world.filter(protected("q", 20))["NodeNames"] == ["n1"]
    assert refused(world, protected("q", 30)) == (
        'ExceedsGPUQuota: namespace "a": 0.5 cards of T4 protected, 0.3 used or being bound, 0.3 asked: 0.2 would still fit'
    )
    assert world.filter(pod("more", 50, 4, namespace="a"))["NodeNames"] == ["n1"]
    assert "2 cards of T4, 1.2 used or being bound" in refused(world, pod("more", 90, 4, namespace="a"))


def test_the_right_names_models_and_closes_the_cards_of_others() -> None:
    world = World([node("n1", model=[T4, V100])], quota={"a": {"protected": {"V100": 1}}})
    world.create(protected("p"))
    assert world.schedule(protected("p")) == "n1"
    assert world.booked("n1") == [(0, 0), (30, 4)]


def test_an_entry_with_the_right_alone_leaves_all_else_as_the_star_says() -> None:
    quota = parse_quota('{"a": {"protected": {"*": 1}}, "*": {"quota": {"T4": 2}}}')
    assert quota.of("a") == quota.of("whoever")
    assert (quota.right("a"), quota.right("whoever")) == ({"*": 100}, {})
    free = parse_quota('{"a": {"protected": {"*": 1}}}')
    assert free.of("a") is None
    granted = free.of("a", PROTECTED)
    assert granted is not None
    assert granted.admits(T4)
    assert granted.passed({}, {T4: Amount(100, GIB)}) == {}
    assert "1 card of all models protected, 0 used" in granted.passed({}, {T4: Amount(101, GIB)})[T4]


def test_the_stars_right_is_everyones_who_has_no_entry() -> None:
    quota = parse_quota('{"a": {"quota": {"*": 1}}, "*": {"protected": {"T4": 0.3}}}')
    assert (quota.right("a"), quota.right("b")) == ({}, {"T4": 30})
    assert quota.only("b").right("b") == {"T4": 30}
    assert quota.only("a").right("a") == {}


@pytest.mark.parametrize(("text", "words"), [
    ('{"a": {"protected": 1}}', 'namespace "a": protected is 1, not a map of models to cards'),
    ('{"a": {"protected": {"T4": -1}}}', 'protected of "T4" is no count'),
    ('{"a": 1}', "not a map of quota, memory, pool and protected"),
])  # fmt: skip
def test_a_right_that_cannot_be_read_keeps_the_last_good_quota(text: str, words: str) -> None:
    book = QuotaBook()
    book.update(config_map("{}"))
    assert words in book.update(config_map(text)).complaint
    assert book.current is not None


def test_a_change_of_the_right_alone_wakes_the_namespaces_pods() -> None:
    book = QuotaBook()
    book.update(config_map('{"a": {"protected": {"*": 1}}, "b": {"quota": {"*": 1}}}'))
    assert book.update(config_map('{"a": {"protected": {"*": 2}}, "b": {"quota": {"*": 1}}}')).namespaces == {
        "a"
    }


def test_at_creation_it_is_refused_only_if_the_right_can_never_hold_it() -> None:
    quota, ask = parse_quota('{"a": {"protected": {"T4": 0.5}}}'), Amount(30, GIB)
    used = {"a": {T4: Amount(50, GIB)}}
    assert refuse_at_create(quota, used, "a", ask, [T4], used) is None, "it may wait"
    assert refuse_at_create(quota, used, "a", ask, [V100, T4], used) is None
    too_much = refuse_at_create(quota, used, "a", Amount(60, GIB), [T4], used)
    assert too_much is not None
    assert "0.5 cards of T4 protected, 0.5 used or being bound, 0.6 asked: 0 would still fit" in too_much
    assert 'model "Tesla-V100-SXM2-32GB" are not granted to it (T4)' in str(
        refuse_at_create(quota, {}, "a", ask, [V100], {})
    )
    assert NO_RIGHT in str(refuse_at_create(NO_QUOTA, {}, "b", ask, [T4], {}))


def test_what_is_being_bound_counts_before_the_watch_shows_it() -> None:
    world = World([node("n1"), node("n2")], quota={"a": {"protected": {"T4": 1}}}, watching=False)
    first, second = protected("p", 60), protected("q", 60)
    for obj in (first, second):
        world.create(obj)
        world.filter(obj)
    assert world.bind(first, "n1") == ""
    assert "1 card of T4 protected, 0.6 used or being bound, 0.6 asked: 0.4 would still fit" in world.bind(
        second, "n2"
    )


def test_quota_shows_the_right_and_its_use_to_people_and_programs() -> None:
    quota = {"a": {"quota": {"T4": 2}, "protected": {"T4": 0.5, "V100": 1}}, "b": {"quota": {"*": 1}}}
    world = World([node("n1")], [protected("p", 30, on="n1")], quota=quota)
    current, snapshot = world.quota.current, world.cluster.snapshot()
    assert current is not None
    rows = current.rows(snapshot.used, snapshot.protected)
    assert [(r["model"], r["cores"], r["protected"], r["protected_used"]) for r in rows] == [
        ("T4", 200, 50, 30), ("V100", None, 100, 0), ("*", 100, None, 0),
    ]  # fmt: skip
    assert quota_text(current, snapshot).splitlines() == [
        "NAMESPACE  MODEL  CARDS  USED  MEMORY  USED   PROTECTED  USED",
        "a          T4     2      0.3   -       1 GiB  0.5        0.3",
        "a          V100   -      0     -       0 B    1          0",
        "b          *      1      0     -       0 B    -          0",
    ]
    assert [str(line) for line in current.lines("a", snapshot.used, snapshot.protected)] == [
        "2 cards of T4, 0.3 used or being bound; 0.5 cards of T4 protected, 0.3 used or being bound",
        "1 card of V100 protected, 0 used or being bound",
    ]


@pytest.mark.parametrize(("quota", "rows"), [
    ({}, [("*", None, 0, 30)]),
    ({"b": {"protected": {"*": 1}}}, [("*", None, 0, 30)]),
    ({"a": {"quota": {"T4": 2}}}, [("T4", 200, None, 30), ("*", None, 0, 30)]),
    ({"a": {"quota": {"*": 2}}}, [("*", 200, 0, 30)]),
])  # fmt: skip
def test_protected_shares_whose_right_was_taken_back_are_shown_as_past_it(
    quota: dict[str, Any], rows: list[tuple[str, int | None, int | None, int]]
) -> None:
    world = World([node("n1")], [protected("p", 30, on="n1"), pod("n", on="n1", namespace="c")], quota=quota)
    current, snapshot = world.quota.current, world.cluster.snapshot()
    assert current is not None
    shown = [
        (r["model"], r["cores"], r["protected"], r["protected_used"])
        for r in current.rows(snapshot.used, snapshot.protected)
        if r["namespace"] != "b"
    ]
    assert shown == rows
    assert current.only("c").rows(snapshot.used, snapshot.protected) == [], "that is not c's"
    assert "0 cards of all models protected, 0.3 used or being bound" in "; ".join(
        str(line) for line in current.lines("a", snapshot.used, snapshot.protected)
    )


def test_kubectl_counts_protected_shares_as_the_extender_does() -> None:
    nodes, pods = (
        [node("n1"), node("n2", inventory=False)],
        [protected("p", 30, on="n1"), protected("q", 20, on="n2")],
    )
    world = World(nodes, pods)
    assert (
        cluster_of(nodes, pods).protected
        == world.cluster.snapshot().protected
        == {"a": {T4: Amount(30, GIB), "": Amount(20, GIB)}}
    )


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.sampled_from([10, 30, 50]), st.sampled_from(Priority), st.booleans()
        ),
        max_size=14,
    ),
    st.integers(0, 150),
)
def test_no_order_of_pods_passes_a_right(steps: list[tuple[str, int, Priority, bool]], limit: int) -> None:
    quota = json.loads(f'{{"a": {{"protected": {{"*": {limit / 100}, "V100": 0.5}}}}}}')
    world = World([node("n1", 3), node("n2", 3, model=V100)], quota=quota)
    for i, (namespace, core, priority, ends) in enumerate(steps):
        obj = pod(f"p{i}", core, 1, namespace=namespace, annotations={PRIORITY: priority.value})
        world.create(obj)
        where = world.schedule(obj)
        assert not (where and namespace == "b" and priority is PROTECTED)
        if where and ends:
            world.delete(world.api.pods[namespace, f"p{i}"])
        held = world.cluster.snapshot().protected.get("a", {})
        assert sum(a.cores for a in held.values()) <= limit
        assert held.get(V100, Amount(0, 0)).cores <= 50
    assert world.cluster.copy().snapshot().protected == world.cluster.snapshot().protected


def change(world: World, obj: dict[str, Any]) -> str:
    return explain(read_pod_view(obj), world.cluster.snapshot(), world.quota.current, world.judge).change


def test_who_has_no_right_is_told_what_would_help() -> None:
    world = World([node("n1", cards=1)], [pod("x", 60, 4, on="n1")], quota={"a": {"quota": {"T4": 4}}})
    assert change(world, protected("p")) == (
        f"leave out annotation {PRIORITY} (then node n1 takes it: 30 cores, 1 GiB of card 0)"
    )
    some = World([node("n1", cards=1)], [pod("x", 60, 4, on="n1")], quota={"a": {"protected": {"T4": 0.2}}})
    assert change(some, protected("p")).startswith("ask 20 cores, 1 GiB instead of 30 cores"), "a third less"
    little = World([node("n1")], quota={"a": {"protected": {"T4": 0.1}}})
    assert change(little, protected("p")).startswith(f"leave out annotation {PRIORITY}"), "two thirds less"


def test_pods_that_end_help_only_who_has_a_right() -> None:
    full = {"quota": {"T4": 0.3}}
    without = World([node("n1")], [pod("x", 30, 4, on="n1", namespace="a")], quota={"a": full})
    granted = (
        "have the right granted, and let the quota grow, or pods of the namespace end: ExceedsGPUQuota: "
    )
    assert change(without, protected("p")).startswith(granted)
    right = World(
        [node("n1")], [protected("x", 30, on="n1")], quota={"a": {**full, "protected": {"T4": 0.3}}}
    )
    assert change(right, protected("p")).startswith("let the quota grow, or pods of the namespace end: ")
