"""Placeholder pods: asked for where sums hide that cards are missing, never placed, gone once a node has come."""

import json
import random

import pytest
from prometheus_client import CollectorRegistry

from admission.cluster.snapshot import BUDGETS, NODES, PODS
from admission.config import AdmissionSettings, LeaderMode, Leadership
from admission.controller import SchedulingController
from admission.extender.cluster_metrics import ClusterMetrics
from admission.extender.leader_election import SingleReplica
from admission.placeholders.keeper import PERIOD_SECONDS, REASON
from admission.ports import ClusterAccess
from bench.placeholders import Autoscaled
from gpu_manager.domain.contract import CARDS, CORE, PLACEHOLDER
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.constraints import pod_constraints
from tests.fakes.extender import FakeApi, answer, args, config_map, container, node, pod
from tests.fakes.ports import FakeClock
from tests.unit.test_requeue import NoRecord, Watch, Writer

SPACE = "placeholders"
WAITS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
HOSTNAME = "kubernetes.io/hostname"


class Service:
    """The scheduling half of the service beside an API server that stores placeholders."""

    def __init__(self, *nodes, leads=True, quota=None):
        self.clock, self.there, self.down, self.wanted, self.number = FakeClock(), {}, False, {}, 0
        lease = SingleReplica()
        lease.until = float("inf") if leads else float("-inf")
        access = ClusterAccess(
            FakeApi(), Writer(), lease, NoRecord(), self._watch, lambda: "1", placeholders=self
        )
        settings = AdmissionSettings(leadership=Leadership(LeaderMode.ALONE), placeholders=SPACE)
        self.one = SchedulingController(settings, access, ClusterMetrics(CollectorRegistry()), self.clock)
        for kind, objects in ((NODES, nodes), (PODS, ()), (BUDGETS, ())):
            self.one.cluster.replace(kind, objects)
        self.one.quota.update(quota)
        self.clock.pass_(10)
        self.lease = lease
        self.one.leader.tick()

    def _watch(self, wanted):
        self.wanted[wanted.resource] = wanted
        return Watch(self.clock)

    def create(self, body):
        if self.down:
            raise NodeUnready("the API server is away")
        name = body["metadata"]["name"]
        if name not in self.there:
            self.number += 1
            self.there[name] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.number}"}}
            self.show(self.there[name])

    def delete(self, name, uid):
        if self.down:
            raise NodeUnready("the API server is away")
        if self.there.get(name, {}).get("metadata", {}).get("uid") == uid:
            self.show(self.there.pop(name), gone=True)

    def show(self, *pods, gone=False):
        for obj in pods:
            self.wanted[PODS].changed(obj, gone)

    def join(self, obj):
        self.wanted[NODES].changed(obj, False)

    def round(self):
        self.one._keep_placeholders()
        return sorted(self.there.values(), key=lambda obj: obj["metadata"]["name"])

    def cards(self):
        return sorted(int(obj["spec"]["containers"][0]["resources"]["limits"][CORE]) for obj in self.round())


def halves(*names, on="n1", core=60, **more):
    """Running pods, each of which leaves 40 of a card."""
    return [pod(name, core, 8, on=on, phase="Running", **more) for name in names]


def waiting(name, core=60, memory=8, **more):
    spec = {key: more.pop(key) for key in ("nodeSelector", "affinity", "tolerations") if key in more}
    obj = pod(name, core, memory, **more)
    return {**obj, "spec": {**obj["spec"], **spec}, "status": {"phase": "Pending", "conditions": [WAITS]}}


def named(name, cards=2, **labels):
    return node(name, cards, labels={HOSTNAME: name, **labels})


def test_a_pod_that_fits_in_sum_and_on_no_card_gets_a_card_asked_for():
    service = Service(named("n1"))
    service.show(*halves("a", "b"), waiting("p"))
    (one,) = service.round()
    assert one["metadata"]["namespace"] == SPACE
    assert one["spec"]["containers"][0]["resources"]["limits"] == {CORE: "100"}
    assert service.round() == [one]


@pytest.mark.parametrize(
    ("core", "memory", "wanted"),
    [
        ((60,), 8, [100]),
        ((60, 60), 8, [100]),  # the second does not fit in sum: it brings a node itself, which holds both
        ((10, 60), 8, [100]),  # the first fits
        ((90,), 8, []),  # not in sum either: the autoscaler sees it
        ((30,), 60, [100]),  # by memory
        ((30,), 64, [100]),  # a whole card of it
    ],
)
def test_what_the_autoscaler_sees_itself_is_not_asked_for(core, memory, wanted):
    service = Service(named("n1"))
    service.show(*halves("a", "b"), *(waiting(f"p{i}", cores, memory) for i, cores in enumerate(core)))
    assert service.cards() == wanted


def test_cards_that_one_pod_needs_together_are_asked_for_together():
    service = Service(named("n1", 8))
    service.show(*halves(*"abcdefgh"), waiting("p", 300, None))
    assert service.cards() == [300]


def test_cards_that_one_container_has_parts_of_are_asked_for_together():
    service = Service(named("n1", 4))
    service.show(*halves(*"abcd"), waiting("p", 120, 8, annotations={CARDS: "2"}))
    assert service.cards() == [200]


def test_a_pod_with_whole_cards_leaves_their_memory_in_kubernetes_sum():
    """Else the autoscaler would take for placed what is counted here as seen."""
    service = Service(named("n1", 3))
    service.show(pod("whole", 100, None, on="n1", phase="Running"), *halves("a", "b"), waiting("p", 60, 60))
    assert service.cards() == [100]


@pytest.mark.parametrize(
    "change",
    [
        lambda obj: obj["status"].pop("conditions"),
        lambda obj: obj["spec"].update(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
        lambda obj: obj["status"].update(nominatedNodeName="n1"),
        lambda obj: obj["spec"].update(nodeSelector={"pool": "elsewhere"}),
        lambda obj: obj["spec"].update(nodeSelector={HOSTNAME: "n1"}),
        lambda obj: obj["spec"]["containers"][0].update(container("main", 30, 100)),
        lambda obj: obj["metadata"]["annotations"].update({"tencent.com/gpu-model": "H100"}),
        lambda obj: obj["spec"]["containers"][0].update(container("main", 150, 8)),
    ],
    ids=["not-tried", "gated", "nominated", "no-node", "by-name", "too-large", "model", "illegal"],
)
def test_no_card_is_asked_for_that_would_not_help(change):
    service = Service(named("n1"))
    obj = waiting("p")
    change(obj)
    service.show(*halves("a", "b"), obj)
    assert service.round() == []


@pytest.mark.parametrize(("cards", "wanted"), [(0.5, []), (1, [100]), (9, [100, 100])])
def test_no_card_is_asked_for_that_the_quota_forbids(cards, wanted):
    service = Service(named("n1", 4))
    service.one.quota.update(config_map(json.dumps({"default": {"quota": {"Tesla-T4": cards}}})))
    service.show(
        *halves(*"abcd", namespace="other"),
        *(waiting(f"p{i}", created=f"2026-01-0{i}T00:00:00Z") for i in (1, 2)),
    )
    assert service.cards() == wanted


def test_it_goes_where_the_pod_may_go_and_to_no_node_that_has_room_for_it_in_sum():
    service = Service(named("n1", 4, pool="a"), named("n2", 2, pool="a"), named("n3", 4, pool="b"))
    taint = {"key": "x", "operator": "Exists", "effect": "NoSchedule"}
    service.show(
        *halves(*"abcd"), *halves("e", "f", on="n2"), *halves(*"ghij", on="n3"),
        waiting("p", nodeSelector={"pool": "a"}, tolerations=[taint]),
    )  # fmt: skip
    (one,) = service.round()
    asked = pod_constraints(one["spec"])
    assert asked.tolerations == (("x", "Exists", "", "NoSchedule"),)
    bars = {name: view.constraints.bars(asked) for name, view in service.one.cluster.snapshot().nodes.items()}
    assert bars["n1"]
    assert not bars["n2"]  # 80 in sum: the autoscaler does not take it for placed there
    assert "pool" in bars["n3"]


def test_a_node_that_comes_to_have_room_in_sum_is_kept_off_by_a_new_one():
    service = Service(named("n1", 4))
    first = halves("a", core=80)
    service.show(*first, *halves(*"bcd", core=70), waiting("p", 40))
    (before,) = service.round()
    service.show(*halves("a", core=65))  # 145 in sum
    (after,) = service.round()
    assert before["metadata"]["uid"] != after["metadata"]["uid"] or before == after
    view = service.one.cluster.snapshot().nodes["n1"]
    assert view.constraints.bars(pod_constraints(after["spec"]))


def test_every_alternative_of_an_affinity_keeps_off():
    service = Service(named("n1", 4, zone="a"))
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]} for z in "ab"]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    service.show(*halves(*"abcd"), waiting("p", affinity={"nodeAffinity": required}))
    (one,) = service.round()
    found = one["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchExpressions"][-1] for term in found["nodeSelectorTerms"]] == [
        {"key": HOSTNAME, "operator": "NotIn", "values": ["n1"]}
    ] * 2


def test_it_is_refused_whatever_is_free_and_counts_nowhere():
    service = Service(named("n1"))
    service.show(*halves("a", "b"), waiting("p"))
    (one,) = service.round()
    service.join(named("n2"))
    one = {**one, "spec": {**one["spec"], "schedulerName": "gpu-scheduler"}}
    service.show(one)
    said = answer(service.one.extender.filter(args(one, ["n1", "n2"])))
    assert said["NodeNames"] == []
    assert said["FailedAndUnresolvableNodes"] == {"n1": REASON, "n2": REASON}
    assert one["metadata"]["uid"] not in {view.uid for view in service.one.cluster.waiting()}
    # An autoscaler that asks the extender is told the truth about its template.
    assert answer(service.one.extender.dry_run(args(one, ["n1", "n2"])))["NodeNames"] == ["n2"]


def test_one_that_got_onto_a_node_all_the_same_is_counted_there():
    service = Service(named("n1"))
    service.show(pod("p", 100, None, namespace=SPACE, labels={PLACEHOLDER: "x"}, on="n1", phase="Running"))
    ledger = service.one.cluster.snapshot().nodes["n1"].ledger
    assert len(ledger.pods) == 1


def test_it_is_gone_with_the_first_round_after_the_node():
    service = Service(named("n1"))
    service.show(*halves("a", "b"), waiting("p"))
    assert len(service.round()) == 1
    service.join(named("n2"))
    assert service.round() == []
    assert PERIOD_SECONDS < 5  # so within ten seconds, a late round included


def test_it_is_gone_with_its_pod():
    service = Service(named("n1"))
    service.show(*halves("a", "b"), waiting("p"))
    assert len(service.round()) == 1
    service.show(waiting("p"), gone=True)
    assert service.round() == []


def test_what_the_api_server_did_not_take_is_made_by_a_later_round():
    service = Service(named("n1"))
    service.show(*halves("a", "b"), waiting("p"))
    service.down = True
    assert service.round() == []
    service.down = False
    assert len(service.round()) == 1
    service.show(waiting("p"), gone=True)
    service.down = True
    assert len(service.round()) == 1
    service.down = False
    assert service.round() == []


def test_only_the_leader_makes_any_and_a_new_one_goes_on_with_those_there_are():
    service = Service(named("n1"), leads=False)
    service.show(*halves("a", "b"), waiting("p"))
    assert service.round() == []
    service.lease.until = float("inf")
    service.one.leader.tick()
    (made,) = service.round()
    other = Service(named("n1"))
    other.there = dict(service.there)
    other.show(*halves("a", "b"), waiting("p"), made)
    assert other.round() == [made]


def test_a_full_list_ends_those_it_does_not_have():
    service = Service(named("n1"))
    service.show(*halves("a", "b"), waiting("p"))
    (made,) = service.round()
    service.there.clear()
    objects = [*halves("a", "b"), waiting("p")]
    service.wanted[PODS].replaced(iter(objects), service.show)
    assert service.round() != []
    assert made["metadata"]["uid"] not in {obj["metadata"]["uid"] for obj in service.there.values()}


@pytest.mark.parametrize("seed", range(12))
def test_with_an_autoscaler_that_counts_sums_every_pod_runs_in_the_end(seed):
    cluster = Autoscaled(random.Random(seed))
    cluster.run()
    assert cluster.left == []
    assert cluster.api.there == {}
    assert cluster.world.over_committed() == []
