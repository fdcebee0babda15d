"""Whom the evictor evicts, how fast, and in which order: by a modelled clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from gpu_manager.domain.contract import CORE, EVENT_EVICTED, EVICT, EvictionMark, encode_eviction_mark
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.evictions import OBEYED_SECONDS, RENEW_SECONDS, why_not_evicted
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.services.evictor import Evictor
from tests.fakes.ports import FakeClock


@dataclass
class FakeEvictions:
    """``budget`` are the pods that the API server does not let go."""

    pods: dict[PodUid, Pod] = field(default_factory=dict)
    budget: dict[PodUid, float] = field(default_factory=dict)
    away: bool = False
    asked: list[PodUid] = field(default_factory=list)
    events: list[tuple[str, str, str]] = field(default_factory=list)

    def marked(self) -> tuple[Pod, ...]:
        return tuple(self.pods.values())

    def evict(self, pod: Pod) -> float | None:
        self.asked.append(pod.uid)
        if self.away:
            raise NodeUnready("the API server does not answer")
        return self.budget.get(pod.uid)

    def event(self, pod: Pod, reason: str, message: str) -> None:
        self.events.append((pod.key, reason, message))


class Rig:
    def __init__(self) -> None:
        self.clock, self.there = FakeClock(), FakeEvictions()
        self.evictor = Evictor(self.there, self.clock, per_minute=10, node_per_minute=3)

    def mark(self, name: str, node: str = "n1", at: float | None = None) -> PodUid:
        pod = marked(name, node, self.clock.now() if at is None else at)
        self.there.pods[pod.uid] = pod
        return pod.uid

    def look(self, seconds: float = 0.0) -> list[PodUid]:
        """Whom it asked for within so many seconds, a look a second, while all marks are renewed."""
        before = len(self.there.asked)
        for second in range(int(seconds) or 1):
            self.clock.pass_(1.0 if seconds else 0.0)
            for uid, pod in self.there.pods.items() if second % 200 == 0 else ():
                self.there.pods[uid] = marked(pod.name, pod.node, self.clock.now())
            self.evictor.look()
        return self.there.asked[before:]


def pod(name: str = "train", node: str = "n1", **meta: object) -> Pod:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": True}
    container = {"name": "main", "image": "i", "resources": {"limits": {CORE: "100"}}}
    return parse_pod(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": f"uid-{name}",
                "ownerReferences": [owner],
                **meta,
            },
            "spec": {"nodeName": node, "containers": [container]},
        }
    )


def marked(name: str, node: str, at: float) -> Pod:
    one = pod(name, node)
    return replace(
        one, annotations={EVICT: encode_eviction_mark(EvictionMark(one.uid, "its card is lost", at))}
    )


@pytest.fixture
def rig() -> Rig:
    return Rig()


NOW = 10_000.0


def mark(uid: str = "uid-train", at: float = NOW) -> EvictionMark:
    return EvictionMark(uid, "why", at)


@pytest.mark.parametrize(
    ("one", "of", "why"),
    [
        (pod(), mark(), ""),
        (pod(), mark(at=NOW - OBEYED_SECONDS), ""),
        (pod(), mark(at=NOW + 100), ""),
        (pod(), None, "the mark cannot be read"),
        (pod(), mark("uid-other"), "the mark is about another pod of that name"),
        (pod(), mark(at=NOW - 601), "the mark is 601 s old: it counts for 600 s"),
        (pod(), mark(at=NOW + 121), "the mark is -121 s old: it counts for 600 s"),
        (pod(ownerReferences=[]), mark(), "no controller would replace the pod"),
        (replace(pod(), twin=PodUid("0" * 32)), mark(), "no controller would replace the pod"),
        (
            replace(pod(), containers=()),
            mark(),
            "",
        ),  # of a card by DRA a container need not name a request
    ],
)
def test_a_mark_is_believed_no_more_than_an_agent_may_do(one: Pod, of: EvictionMark | None, why: str) -> None:
    assert why_not_evicted(one, of, NOW) == why


def test_an_agent_renews_a_mark_before_it_counts_for_nothing() -> None:
    assert RENEW_SECONDS < OBEYED_SECONDS / 2


def test_a_marked_pod_is_evicted_once_and_an_event_says_why(rig: Rig) -> None:
    uid = rig.mark("train")
    assert rig.look(120) == [uid]
    assert rig.there.events == [
        ("team/train", EVENT_EVICTED, "evicted, as the agent of node n1 asked: its card is lost")
    ]


def test_a_pod_that_ends_by_itself_is_left_alone(rig: Rig) -> None:
    for name, change in (("a", {"deleting": True}), ("b", {"phase": "Succeeded"})):
        uid = rig.mark(name)
        rig.there.pods[uid] = replace(rig.there.pods[uid], **change)
    rig.evictor.look()
    assert rig.there.asked == []


def test_a_node_that_marks_all_its_pods_loses_three_a_minute(rig: Rig) -> None:
    for i in range(110):
        rig.mark(f"p{i}")
    assert len(rig.look()) == 3
    assert len(rig.look(59)) == 0
    assert len(rig.look(180)) == 9
    assert len(set(rig.there.asked)) == 12


def test_forty_nodes_that_mark_theirs_lose_ten_a_minute_and_each_has_its_turn(rig: Rig) -> None:
    for node in range(40):
        for i in range(3):
            rig.mark(f"n{node}-p{i}", f"n{node}")
    assert len(rig.look()) == 10
    honest = rig.mark("honest", "other")
    assert honest in rig.look(61)
    assert len(rig.look(180)) == 30


def test_a_budget_is_asked_again_within_the_rate_and_keeps_nobody_else_waiting(rig: Rig) -> None:
    held = [rig.mark(f"held{i}") for i in range(10)]
    rig.there.budget = dict.fromkeys(held, 10.0)
    rig.look(60)
    free = rig.mark("free")
    asked = rig.look(120)
    assert free in asked
    assert all(len(rig.look(60)) <= 3 for _ in range(5))
    rig.there.budget = {}
    rig.look(600)
    assert sorted(key for key, _, _ in rig.there.events) == [
        "team/free",
        *(f"team/held{i}" for i in range(10)),
    ]


def test_a_refused_eviction_is_tried_again_later_and_later(rig: Rig) -> None:
    uid = rig.mark("held")
    rig.there.budget[uid] = 0.0
    times = []
    for second in range(1200):
        times += [second] * len(rig.look(1))
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses == [15, 30, 60, 120, 240, 300, 300]


def test_an_api_server_that_does_not_answer_is_not_asked_for_the_next_pod(rig: Rig) -> None:
    for name in "abc":
        rig.mark(name)
    rig.there.away = True
    assert len(rig.look()) == 1
    rig.there.away = False
    assert len(rig.look(120)) == 3


def test_a_mark_of_which_nobody_hears_any_more_is_not_obeyed(rig: Rig) -> None:
    rig.mark("old", at=rig.clock.now() - 601)
    rig.evictor.look()
    assert rig.there.asked == []


def test_a_mark_that_is_taken_away_while_it_waits_is_forgotten(rig: Rig) -> None:
    uid = rig.mark("held")
    rig.there.budget[uid] = 0.0
    rig.look()
    rig.there.pods.clear()
    assert rig.look(60) == []
    rig.there.budget.clear()
    rig.mark("held")
    assert rig.look() == [uid], "it is a new request, so nothing is remembered against it"
