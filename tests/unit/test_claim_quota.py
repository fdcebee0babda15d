"""The quota of ResourceClaims at their creation: exact, through the leader, at the most that they may take."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from admission.cluster.claims import CLAIMS, CLASSES, AdmittedSums, slim_claim, slim_class
from admission.cluster.snapshot import ClusterState
from admission.config import ClusterTerms
from admission.extender.claim_leadership import ClaimLeadership
from admission.extender.leader_election import Leader, PodLister, SingleReplica
from admission.quota.claims_quota import REQUEST_SECONDS, AdmittedClaims, ClaimCreations
from admission.quota.quota_book import NOT_SYNCED, QuotaBook
from admission.webhook.admission_review import Review
from admission.webhook.admit import CreateTimeChecks, validate
from admission.webhook.create_time_checks import create_time_checks
from bench.dra_quota import race
from gpu_manager.domain.contract import DRA_DRIVER, POOL_LABEL
from gpu_manager.domain.dra.parameters import API_VERSION, KIND
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, World, node, pod
from tests.fakes.waiting import PATIENCE
from tests.seeds import generator

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
        self.records = True
        self.creations = ClaimCreations(
            world.cluster, world.quota, world.clock, lambda: self.leads, lambda: self.records
        )

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
    service = Service({"team": {"quota": {"T4": 9}}})
    service.leads = False
    assert service.create(claim("a", count=9), namespace="other") == ""
    assert service.create(claim("a", count=9)).startswith("again: this replica does not lead")


def test_a_claim_of_more_than_is_granted_is_refused_for_good_without_a_leader() -> None:
    """As in a cluster that has just been installed: nobody has to wait a minute to hear what is missing."""
    service = Service({"team": {"quota": {"T4": 1}, "protected": {"T4": 0}}})
    service.leads = False
    assert service.create(claim("a", count=2)).startswith('ExceedsGPUQuota: namespace "team": 1 card of T4')
    assert service.create(claim("b", **part(60))).startswith("again: this replica does not lead")
    protected = claim("c", **part(60))
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "priority": "protected"}
    protected["spec"]["devices"]["config"] = [{"opaque": {"driver": DRA_DRIVER, "parameters": parameters}}]
    assert "0 cards of T4 protected, 0 used or being bound, 0.6 asked" in service.create(protected)
    service.world.limit({"team": {"quota": {"T4": 1}}})
    assert 'protected shares of model "Tesla-T4" are not granted to it (none are)' in service.create(
        protected
    )


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
    fresh = ClaimCreations(world.cluster, QuotaBook(), world.clock, lambda: True, lambda: True)
    found = fresh.refuse(claim("a"), "team", dry_run=False)
    assert found is not None
    assert found.again
    assert found.text == NOT_SYNCED
    early = ClaimCreations(ClusterState(UNIT), world.quota, world.clock, lambda: True, lambda: True)
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


class Record:
    """What the replicas share; another's write makes the next of this one fail."""

    def __init__(self, text: str | None = "") -> None:
        self.text = text
        self.version = 0

    def client(self) -> RecordClient:
        return RecordClient(self)


class RecordClient:
    """The record as one replica reads and writes it; ``silent``: no answer comes."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._seen = -1
        self.silent = False
        self.writes = 0

    def read(self) -> str | None:
        self._answer()
        self._seen = self._record.version
        return self._record.text

    def write(self, text: str) -> bool:
        self._answer()
        if self._seen != self._record.version:
            return False
        self._record.version += 1
        self.writes += 1
        self._seen, self._record.text = self._record.version, text
        return True

    def _answer(self) -> None:
        if self.silent:
            raise NodeUnready("no answer")


class Replica:
    """A replica that leads wherever it is asked to; its watch of claims shows what :meth:`Service.stored` does."""

    def __init__(self, record: Record, quota: dict[str, Any] | None = None) -> None:
        self.service = Service(quota or {"team": {"quota": {"T4": 1}}})
        self.world = self.service.world
        self.clock = self.world.clock
        self.watch = Watch(self.clock)
        self.client = record.client()
        self.admitted = AdmittedClaims(self.client, self.world.cluster, self.clock)
        lister = PodLister(lambda: self.clock.time, lambda: None, lambda: None, lambda: False)
        self.leader = Leader(SingleReplica(), lister, self.clock, 5.0)
        self.leadership = ClaimLeadership(self.leader, self.watch, self.world.cluster, self.admitted)
        self.service.creations = ClaimCreations(
            self.world.cluster, self.world.quota, self.clock, self.leadership.leads, self.admitted.keep
        )
        self.watch.relist()

    def look(self, seconds: float = 1.0) -> None:
        self.clock.pass_(seconds)
        self.leader.tick()
        self.leadership.look(self.clock.time)


def test_a_new_leader_counts_at_once_what_the_one_before_let_pass() -> None:
    record = Record()
    first, second = Replica(record), Replica(record)
    first.look()
    assert first.service.create(claim("a", **part(60))) == ""
    second.look()
    assert "0.6 used or being bound" in second.service.create(claim("b", **part(50)))
    assert second.service.create(claim("c", **part(40))) == ""
    assert second.watch.lists == 2, "a list that was asked for before may lack what is no more in the record"


def versioned(name: str, version: int, namespace: str = "team", **more: Any) -> dict[str, Any]:
    made = claim(name, **more)
    meta = {**made["metadata"], "namespace": namespace, "resourceVersion": str(version)}
    return {**made, "metadata": meta}


def handed_over(seen: int) -> tuple[Record, Replica]:
    """A claim of version 7 has left the record of a leader; another takes over whose watch is at ``seen``."""
    record = Record()
    first, second = Replica(record), Replica(record)
    first.look()
    assert first.service.create(claim("a", **part(60))) == ""
    first.service.stored(versioned("a", 7, **part(60)))
    first.look(6)
    assert record.text == '{"/shown/7":["",{}]}'
    if seen >= 7:
        second.service.stored(versioned("a", 7, **part(60)))
    second.service.stored(versioned("old", seen, "other"))
    second.look()
    return record, second


def test_a_new_leader_whose_watch_has_come_as_far_lists_no_claims() -> None:
    _, second = handed_over(8)
    assert "0.6 used or being bound" in second.service.create(claim("b", **part(50)))
    second.look(9)
    assert second.service.create(claim("c", **part(40))) == ""
    assert second.watch.lists == 1


def test_a_new_leader_whose_watch_is_behind_lets_nothing_pass_until_it_shows_that_or_a_list_does() -> None:
    _, second = handed_over(5)
    assert second.service.create(claim("b", **part(50))).startswith("again: this replica does not lead")
    second.service.stored(versioned("a", 7, **part(60)))
    assert "0.6 used or being bound" in second.service.create(claim("b", **part(50)))
    _, other = handed_over(5)
    other.look(4)
    assert other.watch.lists == 2


def test_a_leader_that_is_behind_does_not_mislead_the_next() -> None:
    record, _ = handed_over(5)
    third = Replica(record)
    third.service.stored(versioned("old", 6, "other"))
    third.look()
    assert third.service.create(claim("b", **part(50))).startswith("again: this replica does not lead")


def test_a_replica_whose_record_another_took_over_lets_nothing_pass_until_it_has_it_again() -> None:
    record = Record()
    first, second = Replica(record), Replica(record)
    first.look()
    second.look()
    assert first.service.create(claim("a", **part(60))).startswith("again: what counts could not be recorded")
    assert first.service.create(claim("a", **part(60))).startswith("again: this replica does not lead")
    assert second.service.create(claim("b", **part(30))) == ""
    first.look()
    assert "0.3 used or being bound" in first.service.create(claim("c", **part(80)))
    assert first.service.create(claim("d", **part(70))) == ""


def test_what_was_not_recorded_is_not_let_pass_and_does_not_count() -> None:
    one = Replica(Record())
    one.look()
    one.client.silent = True
    assert one.service.create(claim("a", **part(60))).startswith("again: ")
    one.look()
    assert one.service.create(claim("a", **part(60))).startswith("again: this replica does not lead")
    one.client.silent = False
    one.look()
    assert one.service.create(claim("b", **part(100))) == "", "nothing of the first is left"


def test_without_a_record_a_new_leader_waits_until_all_that_was_let_pass_is_stored() -> None:
    one = Replica(Record(None))
    one.look()
    assert one.service.create(claim("a", **part(10))).startswith("again: ")
    one.look(REQUEST_SECONDS - 2)
    assert one.service.create(claim("a", **part(10))).startswith("again: ")
    one.look(3)
    assert one.service.create(claim("a", **part(10))) == ""


def test_what_the_watch_has_shown_leaves_the_record_and_a_replica_that_leads_no_more_writes_nothing() -> None:
    record = Record()
    one = Replica(record)
    one.look()
    assert one.service.create(claim("a", **part(60))) == ""
    assert record.text == '{"uid-a":["team",{"Tesla-T4":[60,4294967296]}]}'
    one.service.stored(claim("a", **part(60)))
    one.look(6)
    assert record.text == "{}"
    writes = one.client.writes
    one.look(6)
    assert one.client.writes == writes, "nothing has changed"
    one.service.stored(claim("b"))
    one.leader.resign()
    one.look(6)
    assert one.client.writes == writes


def test_a_record_that_somebody_spoilt_is_read_as_far_as_it_goes() -> None:
    text = (
        '{"uid-a":["team",{"Tesla-T4":[60,1]}],"uid-b":7,"uid-c":["team",{"x":["a",1]}],"uid-d":["team",[1]]}'
    )
    one = Replica(Record(text))
    one.look()
    assert "0.6 used" in one.service.create(claim("e", **part(50)))
    assert Replica(Record("[")).admitted.take()


def test_a_record_that_no_object_could_hold_is_not_written() -> None:
    one = Replica(Record(), {"team": {"quota": {"T4": 10_000}}})
    one.look()
    many = {f"uid-{n:0>64}": ["team", {"Tesla-T4": [1, 1]}] for n in range(2_200)}
    one.world.cluster.change_claims(
        lambda claims: claims.inherit(
            [(PodUid(uid), AdmittedSums("team", {"T4": Amount(1, 1)})) for uid in many],
            one.clock.time + 60,
        )
    )
    assert one.service.create(claim("a", **part(10))).startswith("again: what counts could not be recorded")


def test_claims_that_come_together_are_recorded_by_few_writes() -> None:
    one = Replica(Record(), {"team": {"quota": {"T4": 100}}})
    one.look()
    writes = one.client.writes
    began, go = threading.Barrier(17), threading.Event()
    original = one.client.write

    def slow(text: str) -> bool:
        go.wait(PATIENCE)
        return original(text)

    one.client.write = slow  # type: ignore[method-assign]  # a fake's own method

    def create(n: int) -> str:
        began.wait(PATIENCE)
        return one.service.create(claim(f"c{n}", **part(10)))

    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(create, n) for n in range(16)]
        began.wait(PATIENCE)
        while one.world.cluster.claims.admitted < 16:
            threading.Event().wait(0.001)
        go.set()
        assert [one.result() for one in answers] == [""] * 16
    assert one.client.writes - writes <= 3


def test_claims_that_nobody_created_are_counted_no_more_while_the_watch_is_up() -> None:
    one = Replica(Record())
    one.look()
    assert one.service.create(claim("a", **part(60))) == ""
    one.clock.pass_(REQUEST_SECONDS + 20)
    one.watch.error = "down"
    one.look()
    assert "0.6 used" in one.service.create(claim("b", **part(60)))
    one.watch.error = None
    one.look()
    assert one.service.create(claim("b", **part(60))) == ""


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
    odd = claim("c", **part(10))
    told = {"apiVersion": "vcuda.tencent.com/v1", "kind": "ShareParameters", "priority": "best_effort"}
    odd["spec"]["devices"]["config"] = [{"opaque": {"driver": "vcuda.tencent.com", "parameters": told}}]
    refused = validate(_review(odd), ClusterTerms(), checks)
    assert (refused.code, refused.rules) == (422, ("claim-parameters",))
    assert refused.message.endswith('priority is "best_effort": use best-effort')
    service.leads = False
    again = validate(_review(claim("b", **part(10))), ClusterTerms(), checks)
    assert (again.allowed, again.code, again.reason) == (False, 503, "ServiceUnavailable")
    silent = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    assert validate(replace(_review(claim("b", count=9)), namespace="other"), ClusterTerms(), silent).allowed
    assert validate(_review(claim("b", count=9)), ClusterTerms(), CreateTimeChecks()).allowed


def test_a_race_through_two_replicas_never_passes_the_quota_though_leaders_are_killed() -> None:
    killed = runs = 0
    while not killed:  # four of five runs kill one
        runs += 1
        counts = race(generator(f"unit/{runs}"), creates=400)
        assert counts["over"] == 0
        assert min(counts["let pass"], counts["refused"], counts["again"]) > 50
        killed = counts["killed"]


def test_the_race_s_judge_notices_a_leader_that_does_not_know_what_was_let_pass() -> None:
    runs = (race(generator(f"unit/{n}"), creates=400, forgets=True) for n in range(60))
    assert any(counts["over"] for counts in runs), "one of five runs passes the quota"
