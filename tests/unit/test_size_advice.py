"""The agent's watch over what its containers need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gpu_manager.domain.advice.demand import DAY, HOUR
from gpu_manager.domain.advice.size import AdvicePolicy
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, MIB, Amount
from gpu_manager.services import size_advice
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse
from gpu_manager.services.metrics import ServiceMetrics
from gpu_manager.services.size_advice import FIRST_SECONDS, SAVE_SECONDS, WALK_SECONDS, SizeAdviser
from tests.fakes.ports import FakeClock, FakePods, FakeStore

SHARE = Share(CardUuid("GPU-1"), Amount(50, 8 * GIB))
UNIT = 256 * MIB


class Node:
    """Pods of one container each on one card."""

    def __init__(self, store: FakeStore | None = None) -> None:
        self.store = store or FakeStore()
        self.clock, self.pods = FakeClock(), FakePods()
        self.metrics = ServiceMetrics(CollectorRegistry())
        self.shares = [SHARE]
        self.uses: dict[str, ShareUse] = {}
        self.begin()

    def begin(self) -> None:
        self.adviser = SizeAdviser(
            self.pods, self.store, self.clock, self.metrics, AdvicePolicy(), half_life=DAY
        )
        self.adviser.restore()

    def run(self, name: str, owner: str = "", start: int = 1, hash: str = "") -> None:  # noqa: A002
        container = Container("c", ContainerKind.APP, runtime_id=f"{name}-{start}")
        labels = {"pod-template-hash": hash} if hash else {}
        self.pods.bind(Pod(PodUid(f"uid-{name}"), "team", name, (container,), owner=owner, labels=labels))
        self.use(name)

    def use(self, name: str, memory: int | None = GIB, **figures: float) -> None:
        held = self.held(name)
        self.uses[name] = replace(ShareUse(held.key, SHARE, "active", memory=memory), **figures)

    def held(self, name: str) -> Allocation:
        return Allocation(
            PodUid(f"uid-{name}"), "c", ContainerKind.APP, 0, tuple(self.shares), "team", name, granted=True
        )

    def pass_(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(int(seconds / step)):
            self.clock.pass_(step)
            grants = {self.held(name).key: Grant(self.held(name), name) for name in self.uses}
            self.adviser.add(Sample(self.clock.monotonic(), grants, shares=tuple(self.uses.values())), UNIT)


def test_replicas_of_a_deployment_are_one_template_and_their_starts_add_up() -> None:
    node = Node()
    for name in ("web-1", "web-2"):
        node.run(name, owner="ReplicaSet/web-5d9", hash="5d9")
    node.run("alone")
    node.pass_(2 * WALK_SECONDS)
    node.run("web-2", owner="ReplicaSet/web-5d9", hash="5d9", start=2)
    node.pass_(2 * WALK_SECONDS)
    found = {one.workload[1]: one for one in node.adviser.told}
    assert set(found) == {"Deployment/web", "Pod/alone"}
    assert found["Deployment/web"].pods == ("web-1", "web-2")
    assert found["Deployment/web"].need.starts == 3


def test_no_size_is_advised_for_parts_of_several_cards() -> None:
    node = Node()
    node.shares = [SHARE, replace(SHARE, card=CardUuid("GPU-2"))]
    node.run("both")
    node.pass_(2 * WALK_SECONDS)
    assert node.adviser.told == ()


def test_after_a_start_advice_is_told_within_seconds() -> None:
    node = Node()
    node.pass_(WALK_SECONDS)
    node.run("p")
    node.pass_(FIRST_SECONDS)
    assert [one.workload[1] for one in node.adviser.told] == ["Pod/p"]


def test_another_size_is_told_at_once() -> None:
    node = Node()
    node.run("p")
    node.pass_(2 * WALK_SECONDS)
    node.shares = [replace(SHARE, amount=Amount(25, 4 * GIB))]
    node.pass_(1)
    assert [one.given for one in node.adviser.told] == [Amount(25, 4 * GIB)]


def test_time_in_flight_that_neighbours_stretch_is_no_pause() -> None:
    node = Node()
    node.run("p")
    node.pass_(2 * WALK_SECONDS)
    for second in range(1, 61):
        node.use("p", core=0.2, held_idle=0.5 * second, in_flight=0.5 * second)
        node.pass_(1)
    node.pass_(2 * WALK_SECONDS)
    [one] = node.adviser.told
    assert one.need.cores is not None
    assert one.need.cores > 90


def test_demand_is_added_up_over_ten_seconds_of_work_and_idling_is_none() -> None:
    node = Node()
    node.run("p")
    node.pass_(2 * WALK_SECONDS)
    held_idle = 0.0
    for _ in range(60):
        held_idle += 0.5
        node.use("p", core=0.25, held_idle=held_idle)
        node.pass_(1)
    node.use("p", core=0.0, held_idle=held_idle)
    node.pass_(2 * WALK_SECONDS)
    [one] = node.adviser.told
    assert one.need.cores == 50
    assert 50 < one.need.worked < 75, "seconds; the stretch that goes on at the end counts its idle rest"


def test_memory_that_rests_is_seen_in_each_hour() -> None:
    node = Node()
    node.run("p")
    node.pass_(3 * HOUR, step=10)
    [one] = node.adviser.told
    assert set(one.need.hours) == {GIB}
    assert len(one.need.hours) in (3, 4)


def test_a_refusal_is_what_it_held_and_what_it_asked() -> None:
    node = Node()
    node.run("p")
    node.pass_(2 * WALK_SECONDS)
    node.use("p", memory=7 * GIB, refusals=1, refused_bytes=2 * GIB)
    node.pass_(2 * WALK_SECONDS)
    [one] = node.adviser.told
    assert one.need.refused == 9 * GIB
    assert one.advice.memory.value == 9 * GIB


def test_what_was_seen_outlives_the_agent_and_a_damaged_file_is_said() -> None:
    node = Node()
    node.run("p")
    node.use("p", memory=5 * GIB)
    node.pass_(SAVE_SECONDS + WALK_SECONDS)
    node.use("p", memory=GIB)
    node.begin()
    node.pass_(2 * WALK_SECONDS)
    [one] = node.adviser.told
    assert max(one.need.hours) == 5 * GIB
    assert one.need.starts == 1, "the agent started again, the container did not"
    for damaged in (
        b"[1]",
        b"{",
        b'[["team", "Pod/p", "c", "x", [], []]]',
        b'[["team", "Pod/p", "c", 1, [], [1]]]',
    ):
        lost = Node(FakeStore(damaged))
        assert lost.metrics.scrape_errors.labels("demands")._value.get() == 1
        lost.run("p")
        lost.pass_(2 * WALK_SECONDS)
        assert len(lost.adviser.told) == 1


def test_a_disk_that_refuses_costs_nothing_but_the_count() -> None:
    node = Node()
    node.run("p")
    node.store.broken = True
    node.pass_(SAVE_SECONDS + 2 * WALK_SECONDS)
    assert node.metrics.scrape_errors.labels("demands")._value.get() >= 1
    assert len(node.adviser.told) == 1


def test_a_workload_that_has_gone_is_forgotten_after_a_week() -> None:
    node = Node()
    node.run("gone")
    node.pass_(2 * WALK_SECONDS)
    node.uses.clear()
    node.run("here")
    node.pass_(9 * DAY, step=HOUR)
    node.uses.clear()
    node.run("gone")
    node.pass_(2 * WALK_SECONDS)
    found = {one.workload[1]: one for one in node.adviser.told}
    assert found["Pod/gone"].need.seconds < HOUR


def test_of_too_many_workloads_the_one_unseen_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_advice, "WORKLOADS_MOST", 2)
    node = Node()
    for name in ("first", "second", "third"):
        node.uses.clear()
        node.run(name)
        node.pass_(2 * WALK_SECONDS)
    node.uses.clear()
    node.run("first")
    node.run("third")
    node.pass_(2 * WALK_SECONDS)
    watched = {one.workload[1]: one.need.seconds for one in node.adviser.told}
    assert watched["Pod/third"] > 2 * WALK_SECONDS > watched["Pod/first"], "the first began anew"


def test_several_cards_an_unknown_pod_and_unknown_memory_are_not_judged() -> None:
    node = Node()
    node.run("p")
    node.use("p", memory=None)
    node.pass_(2 * WALK_SECONDS)
    assert node.adviser.told == ()
    node.use("p")
    node.shares = [SHARE, replace(SHARE, card=CardUuid("GPU-2"))]
    node.pass_(2 * WALK_SECONDS)
    assert node.adviser.told == ()
    node.shares = [SHARE]
    node.pods.forget("team/p")
    node.pods.known.clear()
    node.pass_(2 * WALK_SECONDS)
    assert node.adviser.told == ()
