"""PodGroups are watched of the APIs that are named, and no others; until they are listed their gangs wait."""

import pytest
from prometheus_client import CollectorRegistry

from admission.__main__ import run
from admission.cluster.snapshot import BUDGETS, NODES, PODS
from admission.config import AdmissionSettings, LeaderMode, Leadership
from admission.controller import SchedulingController
from admission.extender.cluster_metrics import ClusterMetrics
from admission.extender.leader_election import SingleReplica
from admission.ports import ClusterAccess
from tests.fakes.extender import FakeApi, answer, args, node, pod
from tests.fakes.ports import FakeClock
from tests.unit.test_requeue import NoRecord, Watch, Writer

COSCHEDULING = "scheduling.x-k8s.io"
MARK = {"labels": {f"{COSCHEDULING}/pod-group": "g"}}


def group(minimum):
    return {"metadata": {"namespace": "default", "name": "g"}, "spec": {"minMember": minimum}}


class Unlisted(Watch):
    """Of PodGroups: nothing is listed yet."""

    listed = None


class Service:
    """The scheduling half of the service, and what its watches call."""

    def __init__(self, *groups):
        self.clock = FakeClock()
        self.wanted, self.watches = {}, {}
        access = ClusterAccess(
            FakeApi(), Writer(), SingleReplica(), NoRecord(), self._watch, lambda _term: "1"
        )
        settings = AdmissionSettings(leadership=Leadership(LeaderMode.ALONE), pod_groups=groups)
        self.one = SchedulingController(settings, access, ClusterMetrics(CollectorRegistry()), self.clock)
        for kind, objects in ((NODES, [node("n1")]), (PODS, ()), (BUDGETS, ())):
            self.one.cluster.replace(kind, objects)
        self.one.quota.update(None)
        self.clock.pass_(10)
        self.one.leader.tick()

    def _watch(self, wanted):
        self.wanted[wanted.resource] = wanted
        kind = Unlisted if wanted.resource.startswith("scheduling.") else Watch
        self.watches[wanted.resource] = kind(self.clock)
        return self.watches[wanted.resource]

    def show(self, *pods):
        for obj in pods:
            self.wanted[PODS].changed(obj, False)

    def ask(self, obj):
        return answer(self.one.extender.filter(args(obj, ["n1"])))


def test_no_pod_group_is_watched_unless_its_api_is_named():
    assert not [name for name in Service().wanted if name.startswith("scheduling.")]
    named = Service((COSCHEDULING, "v1alpha1"), ("scheduling.k8s.io", "v1beta1"))
    assert {name for name in named.wanted if name.startswith("scheduling.")} == {
        COSCHEDULING,
        "scheduling.k8s.io",
    }


def test_what_the_watches_bring_is_judged_together():
    service = Service((COSCHEDULING, "v1alpha1"))
    first, second = (pod(f"g-{i}", 100, None, **MARK) for i in range(2))
    service.show(first)
    assert "have not been listed yet" in service.ask(first)["Error"]
    groups = service.wanted[COSCHEDULING]
    groups.replaced(iter([group(2)]), lambda obj: groups.changed(obj, False))
    service.watches[COSCHEDULING].listed = service.clock.time
    assert "has 1 of the 2 members" in service.ask(first)["FailedAndUnresolvableNodes"]["n1"]
    service.show(second)
    assert service.ask(first)["NodeNames"] == ["n1"]
    assert len(service.one.cluster.snapshot().reserved) == 2
    service.wanted[PODS].changed(second, True)
    service.one.gangs.settle()
    assert not service.one.cluster.snapshot().reserved


def test_where_nobody_serves_pod_groups_pods_are_judged_alone_after_a_minute():
    service = Service((COSCHEDULING, "v1alpha1"))
    first = pod("g-0", 100, None, **MARK)
    service.show(first)
    service.clock.pass_(60)
    assert service.ask(first)["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    "word",
    ["apps/v1", "scheduling.k8s.io", "scheduling.k8s.io/", "scheduling.x-k8s.io/v1/podgroups", "/v1", ""],
)
def test_an_api_without_pod_groups_is_refused(word, capsys):
    assert run(["--pod-groups", word]) == 2
    assert "use one of scheduling.k8s.io/VERSION" in capsys.readouterr().err


def test_one_api_has_one_version(capsys):
    assert run(["--pod-groups=scheduling.k8s.io/v1alpha2", "--pod-groups=scheduling.k8s.io/v1beta1"]) == 2
    assert "names scheduling.k8s.io twice" in capsys.readouterr().err
