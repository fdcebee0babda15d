"""Access, checks, bypasses, explanations told: the parts beside the extender, over fakes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from admission.cluster.bypass import FOREIGN, ILLEGAL, UNBOUND, Bypasses, BypassFinding
from admission.cluster.pod_view import PodView, read_pod_view
from admission.cluster.trim import slim_node, slim_pod
from admission.explain.explanation import Explanation
from admission.explain.pending_events import AGAIN_SECONDS, SETTLE_SECONDS, PendingEvents
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import ALLOCATION, PREDICATE_NODE
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.runtime.inbound import (
    _ROOM,
    LIST_EVENTS,
    NO_SECONDS,
    YES_SECONDS,
    AccessCheck,
    AccessVerdict,
    Right,
)
from tests.fakes.extender import World, container, node, on_numa_nodes, pod, uuid
from tests.fakes.ports import FakeClock

# Who may ask.


class Reviews:
    def __init__(self) -> None:
        self.users = {"good": {"username": "jane"}}
        self.asked = 0
        self.down = False

    def who(self, token: str) -> Mapping[str, Any] | None:
        self.asked += 1
        if self.down:
            raise NodeUnready("no answer")
        return self.users.get(token)

    def may(self, user: Mapping[str, Any], right: Right, namespace: str) -> bool:
        return namespace == "hers" and right.resource == "pods"


def test_a_right_is_asked_for_once_in_a_while_and_a_refusal_sooner_again() -> None:
    reviews, clock = Reviews(), FakeClock()
    access = AccessCheck(reviews, clock)
    for _ in range(3):
        assert access.may("Bearer good", "hers") is AccessVerdict.YES
    assert access.may("bearer  good", "theirs") is AccessVerdict.NO
    assert reviews.asked == 2
    clock.pass_(NO_SECONDS)
    assert access.may("Bearer good", "theirs") is AccessVerdict.NO
    assert access.may("Bearer good", "hers") is AccessVerdict.YES
    assert reviews.asked == 3
    assert access.may("Bearer good", "hers", LIST_EVENTS) is AccessVerdict.NO, (
        "another right is another question"
    )
    reviews.users.clear()
    clock.pass_(YES_SECONDS)
    assert access.may("Bearer good", "hers") is AccessVerdict.NOBODY


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic good", "good", f"Bearer {'x' * 20_000}"])
def test_what_is_no_token_is_not_even_asked_about(header: str) -> None:
    reviews = Reviews()
    assert AccessCheck(reviews, FakeClock()).may(header, "hers") is AccessVerdict.NOBODY
    assert reviews.asked == 0


def test_an_api_server_that_is_away_is_not_taken_for_an_answer() -> None:
    reviews = Reviews()
    access = AccessCheck(reviews, FakeClock())
    reviews.down = True
    with pytest.raises(NodeUnready):
        access.may("Bearer good", "hers")
    reviews.down = False
    assert access.may("Bearer good", "hers") is AccessVerdict.YES


def test_a_flood_of_tokens_is_forgotten() -> None:
    access = AccessCheck(Reviews(), FakeClock())
    for number in range(_ROOM + 100):
        access.may(f"Bearer t{number}", "hers")
    assert len(access._known) == _ROOM


@pytest.mark.parametrize("namespace", ["n" * 64, "n" * 3_000_000, "a/b", "ä"])
def test_what_is_no_name_of_a_namespace_is_neither_asked_about_nor_remembered(namespace: str) -> None:
    reviews = Reviews()
    access = AccessCheck(reviews, FakeClock())
    with pytest.raises(RequestInvalid, match="no name of a namespace"):
        access.may("Bearer anybody", namespace)
    assert (reviews.asked, len(access._known)) == (0, 0)


# What a pod that is being created is told.


def words(world: World, obj: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    look = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    parsed = parse_pod(obj)
    request = judged_request(parsed, DEFAULT_UNIT)
    return tuple(look.refuse(parsed, request)), tuple(look.warn(parsed, request))


def test_a_pod_that_no_card_can_ever_hold_is_warned_with_the_largest_there_is() -> None:
    world = World([node("n1", 2, memory=16 * GIB), node("n2", 4, memory=24 * GIB, model="Tesla-P40")])
    refused, warned = words(world, pod("a", 30, 200))
    assert refused == ()
    assert len(warned) == 1
    assert "the largest card has 24 GiB (Tesla-P40)" in warned[0]
    assert words(world, pod("a", 30, 80)) == ((), ())
    assert "a node has 4 cards at most" in words(world, pod("a", 500, None))[1][0]
    assert words(world, pod("a", 400, None)) == ((), ())


def test_a_pod_of_more_cards_than_the_kubelet_lets_one_container_have_is_warned_with_how_many_that_is() -> (
    None
):
    world = World([on_numa_nodes(node("n1", 4), NumaPolicy.SINGLE, 0, 0, 1, 1)])
    (warned,) = words(world, pod("a", 300, None))[1]
    assert warned.endswith(
        "a node has 4 cards at most; one container gets 2 of them at most (the kubelet's policy single-numa-node)"
    )
    assert words(world, pod("a", 200, None)) == ((), ())


def test_a_pod_that_needs_a_card_which_is_closed_now_is_told_so() -> None:
    for closed, where in (((), ""), ((1,), "; cards that are unhealthy or cordoned now are not counted on")):
        world = World([node("n1", 2, unhealthy=closed)])
        (warned,) = words(world, pod("a", 200 + 100 * (not closed), None))[1]
        assert warned.endswith(f"a node has 2 cards at most{where}")


def test_wishes_that_nothing_meets_are_warned_of() -> None:
    world = World([node("n1", 2)])
    asks = pod("a", annotations={"tencent.com/gpu-model": "A100"})
    assert "models are Tesla-T4" in words(world, asks)[1][0]
    parsed = parse_pod(pod("a"))
    warn = create_time_checks(world.cluster, world.quota, world.judge, world.clock).warn
    for card, says in (("GPU-elsewhere", "by UUID"), (uuid("n1", 1), "")):
        request = replace(judged_request(parsed, DEFAULT_UNIT), uuids=frozenset({CardUuid(card)}))
        assert says in "".join(warn(parsed, request))
        assert bool(warn(parsed, request)) is bool(says)


def test_a_full_cluster_and_one_without_cards_yet_warn_of_nothing() -> None:
    full = World([node("n1", 1)], [pod("x", 100, None, on="n1")])
    assert words(full, pod("a", 100, None))[1] == ()
    assert words(World([node("n1", 1, inventory=False)]), pod("a"))[1] == ()
    assert words(World(), pod("a"))[1] == ()


def test_a_container_past_what_one_may_have_is_refused_at_create_whatever_is_left() -> None:
    world = World([node("n1", 2)], quota={"default": {"containerMax": {"cores": 50}}})
    (said,) = words(world, pod("a", 51, 4))[0]
    assert said == (
        'ExceedsGPUQuota: namespace "default": container "main" asks for 51 cores, and one container may have 50'
    )
    assert words(world, pod("a", 50, 4)) == ((), ())
    assert words(world, pod("a", 100, None))[0] != ()
    assert words(world, pod("a", 51, 4, namespace="other")) == ((), ())


def test_the_quota_refuses_at_create_only_what_every_model_refuses() -> None:
    nodes = [node("n1", 2), node("n2", 2, model="Tesla-P40")]
    quota = {"default": {"quota": {"T4": 0.2, "P40": 1}}}
    world = World(nodes, quota=quota)
    assert words(world, pod("a", 30))[0] == ()
    (text,) = words(world, pod("a", 30, annotations={"tencent.com/gpu-model": "T4"}))[0]
    assert text.startswith("ExceedsGPUQuota")
    assert "0.3 asked: 0.2 would still fit" in text
    assert words(world, pod("a", 200, None))[0] != ()
    assert words(world, pod("a", 200, None, namespace="free"))[0] == ()
    phases = pod("a", containers=[container("b", 20, 1)], init=[container("i", 20, 1)])
    only = World(nodes[:1], quota={"default": {"quota": {"T4": 0.2}}})
    assert words(only, phases)[0] == ()  # one after the other


# Who got past.


def seen(*objs: dict[str, Any], unseen: tuple[str, ...] = ()) -> list[BypassFinding]:
    found: list[BypassFinding] = []
    bypasses = Bypasses(DEFAULT_UNIT, 1, unseen, found.append)
    for obj in objs:
        occupant = read_pod_view(obj)
        assert occupant is not None
        bypasses.look(occupant)
    assert sum(bypasses.counts().values()) == len(found)
    return found


def noted(name: str, node: str = "n1", owner: str | None = None) -> str:
    shares = {"main": [{"uuid": "GPU-n1-0", "cores": 30, "memory": 1 << 30}]}
    return json.dumps({"v": 1, "node": node, "pod": owner or f"uid-default-{name}", "containers": shares})


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (pod("a"), ""),
        (pod("a", 150, None), ""),  # it waits: the extender refuses it
        (pod("a", on="n1", annotations={ALLOCATION: noted("a")}), ""),
        (pod("a", on="n1", annotations={PREDICATE_NODE: "n1"}), ""),
        (pod("a", on="n1", phase="Succeeded"), ""),
        (pod("a", on="n1"), UNBOUND),
        (pod("a", on="n1", annotations={PREDICATE_NODE: "n2"}), UNBOUND),
        (pod("a", on="n1", annotations={ALLOCATION: noted("a", "n2")}), FOREIGN),
        (pod("a", on="n1", annotations={ALLOCATION: noted("a", owner="other")}), FOREIGN),
        (pod("a", on="n1", annotations={ALLOCATION: "{"}), FOREIGN),
        (pod("a", 150, None, on="n1"), ILLEGAL),
        (pod("a", 150, None, on="n1", namespace="kube-system"), UNBOUND),
    ],
)
def test_a_pod_on_a_node_without_our_word_is_named_with_the_reason(obj: dict[str, Any], reason: str) -> None:
    found = seen(obj, unseen=("kube-system",))
    assert [f.reason for f in found] == ([reason] if reason else [])
    assert all("node n1" in f.text for f in found)


def test_a_pod_is_named_once_though_the_agent_notes_its_cards_later() -> None:
    later = pod("a", on="n1", annotations={ALLOCATION: noted("a")})
    assert len(seen(pod("a", on="n1"), pod("a", on="n1"), later)) == 1
    assert len(seen(later, pod("a", on="n1"))) == 0  # a tenant that removes the note changes nothing


# What is told of a pod that waits.


class Said:
    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        self.said.append(message)


def test_a_refusal_is_told_a_little_later_once_and_again_only_when_it_changed() -> None:
    world, said, lines = World(), Said(), ["waits: one"]
    world.create(pod("a"))
    clock, uid = FakeClock(), PodUid("uid-default-a")
    explained = lambda _: Explanation("default/a", "", lines[-1], "", {"room": 1}, 1)  # noqa: E731
    teller = PendingEvents(world.cluster.pod, explained, said, clock)
    teller.refused(uid)
    assert not teller.tell()
    clock.pass_(SETTLE_SECONDS)
    assert teller.tell()
    for _ in range(5):
        teller.refused(uid)
        clock.pass_(SETTLE_SECONDS)
        teller.tell()
    lines.append("waits: two")
    clock.pass_(AGAIN_SECONDS)
    assert teller.tell()
    assert said.said == ["waits: one", "waits: two"]
    teller.refused(uid)
    clock.pass_(AGAIN_SECONDS)
    teller.tell()
    assert len(said.said) == 2  # the same words again


def test_a_pod_that_no_extender_was_asked_about_is_told_of_when_it_has_waited_for_a_while() -> None:
    """Its scheduler found too little in the sum of each node."""
    world, said, clock = World(), Said(), FakeClock()
    world.create(pod("a"), pod("b"))
    asked: list[str] = []

    def explained(occupant: PodView) -> Explanation:
        asked.append(occupant.pod.name)
        return Explanation("", "", f"waits: {occupant.pod.name}", "", {"room": 1}, 1)

    teller = PendingEvents(world.cluster.pod, explained, said, clock)
    teller.waiting([PodUid("uid-default-a")])
    assert not teller.tell()
    both = [PodUid(f"uid-default-{name}") for name in ("a", "b")]
    for _ in range(3):
        teller.waiting(both)
        while teller.tell():
            pass
    assert said.said == ["waits: a", "waits: b"]
    clock.pass_(AGAIN_SECONDS)
    teller.waiting(both)
    while teller.tell():  # looked at again, for the reason may be another by now
        pass
    assert asked == ["a", "b", "a", "b"]
    assert said.said == ["waits: a", "waits: b"]


def test_a_pod_that_has_been_placed_or_fits_meanwhile_is_not_told_of() -> None:
    world, said, clock = World(), Said(), FakeClock()
    world.create(pod("a"), pod("b"))
    teller = PendingEvents(
        world.cluster.pod, lambda _: Explanation("", "", "fits", "", {"fits": 1}, 1), said, clock
    )
    for name in ("a", "b", "gone"):
        teller.refused(PodUid(f"uid-default-{name}"))
    world.show(pod("a", on="n1"))
    clock.pass_(SETTLE_SECONDS)
    while teller.tell():
        pass
    assert said.said == []


# What is kept of objects.


def test_what_is_kept_of_a_pod_reads_as_the_whole() -> None:
    obj = pod(
        "a",
        40,
        8,
        on="n1",
        annotations={ALLOCATION: noted("a"), "other": "x" * 100},
        labels={"app": "web"},
        init=[container("side", 10, 2, restartPolicy="Always")],
        priority=7,
        deleting=True,
    )
    obj["metadata"]["managedFields"] = [{"manager": "x"}]
    slim = slim_pod(obj)
    assert slim is not None
    whole, kept = read_pod_view(obj), read_pod_view(slim)
    assert whole is not None
    assert kept is not None
    assert (kept.pod.containers, kept.assigned, kept.pod.labels, kept.pod.priority, kept.pod.deleting) == (
        whole.pod.containers,
        whole.assigned,
        whole.pod.labels,
        7,
        True,
    )
    assert "managedFields" not in str(slim)
    assert "other" not in str(slim)


def test_of_a_pod_without_cards_little_is_kept_and_nothing_before_it_has_a_node() -> None:
    plain = pod("a", None, None)
    assert slim_pod(plain) is None
    plain["spec"]["nodeName"] = "n1"
    slim = slim_pod(plain)
    assert slim is not None
    assert set(slim["metadata"]) == {"name", "namespace", "uid"}
    assert read_pod_view(slim) is None


@pytest.mark.parametrize(
    "obj", [{}, {"spec": None}, {"spec": {"containers": [None, 3]}}, {"metadata": 3, "spec": "x"}]
)
def test_objects_of_no_shape_are_passed_over(obj: dict[str, Any]) -> None:
    assert slim_pod(obj) is None
    assert slim_node(obj)["metadata"].get("name") is None
