"""The quota of ResourceClaims at their creation: exact, through the leader, at the most that they may take."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from admission.cluster.claims import CLAIMS, CLASSES, slim_claim, slim_class
from admission.cluster.snapshot import ClusterState
from admission.config import ClusterTerms
from admission.extender.claim_leadership import ClaimLeadership
from admission.extender.leader_election import Leader, PodLister, SingleReplica
from admission.quota.claim_creations import REQUEST_SECONDS, ClaimCreations
from admission.quota.quota_book import NOT_SYNCED, QuotaBook
from admission.webhook.admission_review import Review
from admission.webhook.admit import CreateTimeChecks, validate
from admission.webhook.create_time_checks import create_time_checks
from bench.dra_quota import race
from gpu_manager.domain.contract import POOL_LABEL
from tests.fakes.extender import UNIT, World, node, pod

CLASS = {
    "metadata": {"name": "vcuda.tencent.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'vcuda.tencent.com'"}}]},
}
NVIDIA_S = {
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}
T4, V100 = "Tesla-T4", "Tesla-V100"


def claim(name: str, model: str = "", cls: str = "vcuda.tencent.com", **exactly: Any) -> dict[str, Any]:
    if model:
        text = f"device.attributes['vcuda.tencent.com'].productName == '{model}'"
        exactly["selectors"] = [{"cel": {"expression": text}}]
    request = {"name": "gpu", "exactly": {"deviceClassName": cls, **exactly}}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [request]}},
    }


def part(cores: int, memory: str = "4Gi") -> dict[str, Any]:
    return {"capacity": {"requests": {"cores": str(cores), "memory": memory}}}


class Service:
    """One replica; ``leads`` is whether it is the leader that knows all."""

    def __init__(self, quota: dict[str, Any] | None, *nodes: dict[str, Any]) -> None:
        self.world = World(nodes or [node("n1", claimed=[0, 1])], quota=quota)
        self.world.cluster.replace(CLASSES, [slim_class(CLASS), slim_class(NVIDIA_S)])
        self.world.cluster.replace(CLAIMS, [])
        self.leads = True
        world = self.world
        self.creations = ClaimCreations(world.cluster, world.quota, world.clock, lambda: self.leads)

    def create(self, obj: dict[str, Any], *, dry_run: bool = False, namespace: str = "team") -> str:
        found = self.creations.refuse(obj, namespace, dry_run=dry_run)
        return f"{'again: ' if found.again else ''}{found.text}" if found else ""

    def stored(self, obj: dict[str, Any]) -> None:
        self.world.cluster.apply(CLAIMS, "ADDED", slim_claim(obj))


def test_a_claim_counts_from_its_creation_and_the_next_is_refused_with_the_sums() -> None:
    service = Service({"team": {"quota": {"T4": 1}}})
    assert service.create(claim("a", **part(60))) == ""
    assert service.create(claim("b", **part(50))) == (
        'ExceedsGPUQuota: namespace "team": 1 card of T4, 0.6 used or being bound, 0.5 asked: 0.4 would still '
        "fit. A claim counts from its creation, at the most that it may take"
    )
    assert service.create(claim("c", **part(40))) == ""


def test_what_the_watch_shows_counts_once() -> None:
    service = Service({"team": {"quota": {"T4": 1}}})
    assert service.create(claim("a", **part(60))) == ""
    service.stored(claim("a", **part(60)))
    assert service.create(claim("b", **part(40))) == ""


def test_a_claim_that_leaves_models_open_counts_under_each_and_is_told_how_to_choose() -> None:
    nodes = [node("n1", claimed=[0]), node("n2", claimed=[0], model=V100)]
    service = Service({"team": {"quota": {"T4": 4, "V100": 1}}}, *nodes)
    assert service.create(claim("a", **part(60))) == ""
    answer = service.create(claim("b", **part(60)))
    assert "1 card of V100, 0.6 used or being bound, 0.6 asked" in answer
    assert (
        "(Tesla-T4, Tesla-V100): select one by device.attributes['vcuda.tencent.com'].productName" in answer
    )
    assert service.create(claim("c", T4, **part(60))) == ""
    closed = Service({"team": {"quota": {"T4": 4}}}, *nodes)
    assert 'model "Tesla-V100" is not among its models (T4)' in closed.create(claim("a", **part(60)))


def test_pods_and_claims_are_held_to_one_quota() -> None:
    service = Service({"team": {"quota": {"T4": 1}}}, node("n1", 1, claimed=[0]), node("n2"))
    assert service.create(claim("a", **part(60))) == ""
    asked = pod("p", 50, 4, namespace="team")
    service.world.create(asked)
    assert "0.6 used or being bound" in str(service.world.filter(asked))
    smaller = pod("q", 40, 4, namespace="team")
    service.world.create(smaller)
    assert service.world.schedule(smaller) == "n2"
    assert "1 used or being bound" in service.create(claim("b", **part(10)))


def test_a_whole_card_counts_whole_and_all_is_every_card_of_the_largest_node() -> None:
    service = Service({"team": {"quota": {"*": 8}, "memory": {"*": 16384}}})
    assert "32 GiB asked" in service.create(claim("a", count=2))
    assert "2 asked" not in service.create(claim("a"))
    assert "16 GiB used" in service.create(claim("b", allocationMode="All"))


@pytest.mark.parametrize(
    "obj", [claim("a", cls="gpu.nvidia.com", count=9), claim("b", adminAccess=True), {"metadata": {}}]
)
def test_claims_of_other_drivers_and_admin_access_pass_even_without_a_leader(obj: dict[str, Any]) -> None:
    service = Service({"team": {"quota": {"T4": 0}}})
    service.leads = False
    assert service.create(obj) == ""


def test_a_namespace_without_a_quota_needs_no_leader() -> None:
    service = Service({"team": {"quota": {"T4": 0}}})
    service.leads = False
    assert service.create(claim("a", count=9), namespace="other") == ""
    assert service.create(claim("a", count=9)).startswith("again: this replica does not lead")


def test_a_replica_that_holds_no_claims_to_quotas_lets_none_pass_where_there_is_one() -> None:
    """While a cluster's front changes, replicas of before are asked, too."""
    world = World([node("n1")], quota={"team": {"quota": {"T4": 9}}})
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    text, again = checks.claim(claim("a", **part(60)), "team", False)
    assert again
    assert "about to be replaced: create the claim again" in text
    assert checks.claim(claim("a", **part(60)), "other", False) == ("", False)


def test_a_dry_run_is_judged_and_counts_nothing() -> None:
    service = Service({"team": {"quota": {"T4": 1}}})
    assert service.create(claim("a", **part(60)), dry_run=True) == ""
    assert service.create(claim("b", **part(60))) == ""
    assert "ExceedsGPUQuota" in service.create(claim("c", **part(60)), dry_run=True)


def test_a_namespace_with_pools_needs_claims_that_stay_in_them() -> None:
    nodes = [
        node("n1", claimed=[0], labels={POOL_LABEL: "blue"}),
        node("n2", claimed=[0], model=V100, labels={POOL_LABEL: "red"}),
    ]
    service = Service({"team": {"quota": {"*": 4}, "pool": ["blue"]}}, *nodes)
    assert (
        'it may use nodes of the pools blue, and the claim may be given cards in pools "red": select cards by '
        "uuid or productName that are in its own"
    ) in service.create(claim("a", **part(10)))
    assert service.create(claim("b", T4, **part(10))) == ""


def test_nothing_passes_before_quota_and_claims_are_known() -> None:
    service = Service({"team": {"quota": {"T4": 1}}})
    world = service.world
    fresh = ClaimCreations(world.cluster, QuotaBook(), world.clock, lambda: True)
    found = fresh.refuse(claim("a"), "team", dry_run=False)
    assert found is not None
    assert found.again
    assert found.text == NOT_SYNCED
    early = ClaimCreations(ClusterState(UNIT), world.quota, world.clock, lambda: True)
    found = early.refuse(claim("a"), "team", dry_run=False)
    assert found is not None
    assert found.again
    assert "not known here yet" in found.text


class Watch:
    """The watch of claims; a list comes at once."""

    def __init__(self, clock: Any) -> None:
        self.listed: float | None = None
        self.error: str | None = None
        self.lists = 0
        self._clock = clock

    def relist(self) -> None:
        self.lists += 1
        self.listed = self._clock.time


def test_a_new_leader_waits_for_what_the_one_before_may_have_let_pass() -> None:
    world = World([node("n1")])
    clock, watch = world.clock, Watch(world.clock)
    lister = PodLister(lambda: clock.time, lambda: None, lambda: False)
    leader = Leader(SingleReplica(), lister, clock, 5.0)
    leadership = ClaimLeadership(leader, watch, world.cluster, own=True)
    watch.relist()
    assert not leadership.leads()
    leader.tick()
    leadership.look(clock.time)
    assert not leadership.leads()
    clock.pass_(REQUEST_SECONDS)
    leadership.look(clock.time)
    leadership.look(clock.time)
    assert leadership.leads()
    assert watch.lists == 2


def test_after_a_lease_that_was_given_back_a_list_from_then_on_will_do() -> None:
    """What the one before let pass is stored, but this replica's watch may not have shown it yet."""
    world = World([node("n1")])
    clock, watch = world.clock, Watch(world.clock)
    lister = PodLister(lambda: clock.time, lambda: None, lambda: False)
    leader = Leader(SingleReplica(), lister, clock, 5.0)
    leadership = ClaimLeadership(leader, watch, world.cluster, own=False)
    watch.relist()
    clock.pass_(1)
    leader.tick()
    assert not leadership.leads()
    leadership.look(clock.time)
    assert leadership.leads()


def test_claims_that_nobody_created_are_counted_no_more_while_the_watch_is_up() -> None:
    service = Service({"team": {"quota": {"T4": 1}}})
    world, watch = service.world, Watch(service.world.clock)
    lister = PodLister(lambda: world.clock.time, lambda: None, lambda: False)
    leader = Leader(SingleReplica(), lister, world.clock, 5.0)
    leadership = ClaimLeadership(leader, watch, world.cluster, own=False)
    leader.tick()
    watch.relist()
    assert service.create(claim("a", **part(60))) == ""
    world.clock.pass_(REQUEST_SECONDS + 20)
    watch.error = "down"
    leadership.look(world.clock.time)
    assert "0.6 used" in service.create(claim("b", **part(60)))
    watch.error = None
    leadership.look(world.clock.time)
    assert service.create(claim("b", **part(60))) == ""


def _review(obj: dict[str, Any], *, dry_run: bool = False) -> Review:
    return Review(
        "r", "CREATE", "resource.k8s.io", "resourceclaims", "ResourceClaim", "team", obj=obj, dry_run=dry_run
    )


def test_the_webhook_says_no_or_ask_again() -> None:
    service = Service({"team": {"quota": {"T4": 1}}})
    world = service.world
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock, service.creations)
    assert validate(_review(claim("a", **part(60))), ClusterTerms(), checks).allowed
    refused = validate(_review(claim("b", **part(60))), ClusterTerms(), checks)
    assert (refused.code, refused.reason, refused.rules) == (403, "Forbidden", ("quota-exceeded",))
    assert refused.message.startswith('ExceedsGPUQuota: namespace "team": 1 card of T4, 0.6 used')
    service.leads = False
    again = validate(_review(claim("b", **part(10))), ClusterTerms(), checks)
    assert (again.allowed, again.code, again.reason) == (False, 503, "ServiceUnavailable")
    silent = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    assert validate(replace(_review(claim("b", count=9)), namespace="other"), ClusterTerms(), silent).allowed
    assert validate(_review(claim("b", count=9)), ClusterTerms(), CreateTimeChecks()).allowed


def test_a_race_through_two_replicas_never_passes_the_quota_though_leaders_are_killed() -> None:
    counts = race(Random("unit/1"), creates=400)
    assert counts["over"] == 0
    assert counts["killed"]
    assert min(counts["let pass"], counts["refused"], counts["again"]) > 50


def test_the_race_s_judge_notices_a_leader_that_does_not_wait() -> None:
    assert sum(race(Random(f"unit/{n}"), creates=400, wait=0)["over"] for n in (0, 7)) > 0
