"""Who holds a pod: a gate, its own older pods, a volume, another scheduler, its quota; and that nobody else does."""

import pytest
import yaml
from prometheus_client import CollectorRegistry

from admission.cluster.pod_view import pod_view, read_pod_view
from admission.cluster.trim import slim_pod
from admission.console.cluster_page import _group
from admission.explain.explain_api import as_json
from admission.explain.explanation import HELD, explain
from admission.explain.pending_events import AGAIN_SECONDS, PendingEvents
from admission.extender.cluster_metrics import ClusterFigures, ClusterMetrics
from gpu_manager.domain.kube.pod import parse_pod
from tests.fakes.extender import World, node, pod

OURS = frozenset({"gpu-scheduler"})
KUEUE = """
apiVersion: v1
kind: Pod
metadata: {name: q, namespace: default, uid: uid-q, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  schedulingGates: [{name: kueue.x-k8s.io/admission}]
  containers: [{name: c, image: x, resources: {limits: {tencent.com/vcuda-core: "800"}}}]
"""
UNBOUND = (
    "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not eligible for preemption."
)
HERE = "0/2 nodes are available: 2 node(s) had volume node affinity conflict. preemption: 0/2 nodes are available"


def explained(world, obj, schedulers=OURS):
    snapshot = world.cluster.snapshot()
    view = world.cluster.pod(obj["metadata"]["uid"]) or read_pod_view(slim_pod(obj))
    return explain(view, snapshot, world.quota.current, world.judge, schedulers=schedulers)


def said(obj, message, reason="Unschedulable"):
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {**obj, "status": {**obj["status"], "conditions": [condition]}}


def of_deployment(obj, template, workload="vllm"):
    obj["metadata"]["labels"] |= {"app": workload, "pod-template-hash": template}
    owner = {"kind": "ReplicaSet", "name": f"{workload}-{template}", "controller": True}
    obj["metadata"]["ownerReferences"] = [owner]
    return obj


def test_a_gated_pod_is_held_by_its_gate_whatever_is_free():
    world = World([node("n1", cards=8)])
    found = explained(world, yaml.safe_load(KUEUE))
    assert found.held == "gate"
    assert found.line.startswith('held by the scheduling gate "kueue.x-k8s.io/admission"')
    assert "must cover tencent.com/vcuda-core and tencent.com/vcuda-memory" in found.change
    assert found.counts == {HELD: 1}
    assert _group(found) == HELD
    assert as_json(found)["held"] == "gate"


def test_several_gates_are_named_and_counted():
    obj = pod("p", 30, 4)
    obj["spec"]["schedulingGates"] = [{"name": f"example.com/{at}"} for at in range(5)]
    found = explained(World([node("n1")]), obj)
    assert (
        'held by the scheduling gates "example.com/0", "example.com/1", "example.com/2" and 2 more'
        in found.line
    )
    assert found.change == "wait until who set it takes it off"


@pytest.mark.parametrize("gates", [None, [], {}, "x", [1], [{}], [{"name": 7}]])
def test_what_is_no_gate_holds_nothing(gates):
    obj = pod("p", 30, 4)
    obj["spec"]["schedulingGates"] = gates
    assert explained(World([node("n1")]), obj).held == ""


def test_a_rolling_update_waits_for_its_own_older_pod():
    old = of_deployment(pod("vllm-5d9-aaa", 200, None, on="n1"), "5d9")
    new = of_deployment(pod("vllm-7f2-bbb", 200, None), "7f2")
    world = World([node("n1")], [old, new])
    found = explained(world, new)
    assert found.held == "owner"
    assert found.line == (
        "held by its own Deployment/vllm: default/vllm-5d9-aaa of an older template holds the cards until this one"
        " is ready. What helps: set the strategy Recreate, or rollingUpdate with maxSurge 0 and maxUnavailable 1"
    )
    assert found.nodes[0].cards, "the nodes are said all the same"
    assert _group(found) == HELD
    assert found.change == "set the strategy Recreate, or rollingUpdate with maxSurge 0 and maxUnavailable 1"


def rolled(made, kind, name, **labels):
    made["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    made["metadata"]["labels"] |= {key.replace("__", "/"): value for key, value in labels.items()}
    return made


KNATIVE, RAY = "serving.knative.dev/", "ray.io/"


@pytest.mark.parametrize(
    ("owner", "labels", "of", "cure"),
    [
        ("ReplicaSet/v-{}", {"rollouts-pod-template-hash": "{}"}, "Rollout/v", "canary"),
        ("ReplicaSet/v-{}-deployment-9", {KNATIVE + "service": "v", KNATIVE + "revision": "v-{}"},
         "Knative Service v", "delete the older one"),
        ("RayCluster/v-{}", {RAY + "originated-from-cr-name": "v", RAY + "cluster": "v-{}"},
         "RayService v", "upgradeStrategy"),
        ("ReplicationController/v-{}", {"deploymentconfig": "v", "deployment": "v-{}"},
         "DeploymentConfig v", "Recreate"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("template", ["7f2", "5d9"])
def test_who_else_starts_newer_pods_beside_older_ones_is_told_with_its_cure(
    owner, labels, of, cure, template
):
    def made(obj, by):
        kind, _, name = owner.format(by).partition("/")
        return rolled(obj, kind, name, **{key: value.format(by) for key, value in labels.items()})

    old, new = made(pod("old", 200, None, on="n1"), "5d9"), made(pod("new", 200, None), template)
    found = explained(World([node("n1")], [old, new]), new)
    if template == "5d9":
        assert found.held == ""
    else:
        assert (found.held, f"its own {of}: default/old" in found.line) == ("owner", True)
        assert cure in found.change


@pytest.mark.parametrize("owner", ["Job/v-5d9", "ReplicaSet/v", ""])
def test_a_template_hash_alone_makes_no_rollout(owner):
    kind, _, name = owner.partition("/")
    old, new = pod("old", 200, None, on="n1"), pod("new", 200, None)
    for obj, made in ((old, "5d9"), (new, "7f2")):
        obj["metadata"]["labels"]["rollouts-pod-template-hash"] = made
        if owner:
            rolled(obj, kind, name)
    assert explained(World([node("n1")], [old, new]), new).held == ""


@pytest.mark.parametrize(
    "how", ["leaving", "room", "same template", "another workload", "of others", "too small"]
)
def test_its_own_older_pods_do_not_hold_a_pod_that_they_do_not_keep_out(how):
    old = of_deployment(pod("old", 200, None, on="n1", deleting=how == "leaving"), "5d9")
    new = of_deployment(pod("new", 200, None), "5d9" if how == "same template" else "7f2")
    nodes = [node("n1"), *([node("n2")] if how == "room" else [])]
    if how == "another workload":
        of_deployment(old, "5d9", "other")
    elif how == "of others":
        old = of_deployment(pod("old", 200, None, on="n1", namespace="others"), "5d9")
    elif how == "too small":
        new = of_deployment(pod("new", 400, None), "7f2")
    assert explained(World(nodes, [old, new]), new).held == ""


@pytest.mark.parametrize(
    "message",
    [
        UNBOUND,
        HERE,
        'running PreBind plugin "VolumeBinding": binding volumes: timed out waiting for the condition',
        '0/1 nodes are available: persistentvolumeclaim "data" not found.',
        "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.",
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-data"',
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) exceed max volume count.",
    ],
)
def test_a_volume_holds_a_pod_for_which_a_node_has_room(message):
    obj = said(pod("p", 30, 4), message)
    found = explained(World([node("n1")], [obj]), obj)
    assert (found.held, found.counts) == ("volume", {HELD: 1})
    assert message[:60] in found.line


@pytest.mark.parametrize(("message", "held"), [(UNBOUND, "volume"), (HERE, "")])
def test_where_no_node_has_room_only_a_volume_of_the_whole_pod_holds_it(message, held):
    obj = said(pod("p", 30, 4), message)
    assert explained(World([node("n1")], [pod("full", 200, None, on="n1"), obj]), obj).held == held


def test_a_pod_of_another_scheduler_is_that_ones():
    obj = pod("p", 30, 4, scheduler="volcano")
    world = World([node("n1")], [obj])
    found = explained(world, obj)
    assert found.held == "scheduler"
    assert found.line.startswith('held by scheduler "volcano", which does not ask this service')
    assert explained(world, obj, schedulers=frozenset()).held == "", "any scheduler may ask"


def test_a_draft_is_no_other_schedulers_yet():
    obj = pod("p", 30, 4, scheduler="", phase="")
    world = World([node("n1")])
    assert (
        explain(pod_view(parse_pod(obj)), world.cluster.snapshot(), None, world.judge, schedulers=OURS).held
        == ""
    )


@pytest.mark.parametrize(("cards", "held"), [(1, "quota"), (0, "quota"), (1.5, "")])
def test_a_quota_of_which_no_part_is_left_holds_the_pod_and_one_that_a_smaller_pod_passes_does_not(
    cards, held
):
    taken = [pod("taken", 100, None, on="n1")] if cards else []
    obj = pod("p", 80, 4)
    world = World([node("n1", cards=4)], [*taken, obj], quota={"default": {"quota": {"T4": cards}}})
    found = explained(world, obj)
    assert found.held == held
    if held:
        assert "ExceedsGPUQuota" in found.line
        assert found.change == "let the quota grow" + (", or pods of the namespace end" if cards else "")
        assert "0.8 asked: 0 would still fit" in found.line, "what the pod asks for"


class Voice:
    def __init__(self):
        self.told = []

    def event(self, pod, reason, message, *, warning=True):
        self.told.append((pod.name, message))


@pytest.mark.parametrize("held", ["gate", "volume", "scheduler"])
def test_no_event_is_sent_for_what_is_not_ours_to_cure(held):
    obj = pod("p", 300, None, scheduler="volcano" if held == "scheduler" else "gpu-scheduler")
    if held == "gate":
        obj["spec"]["schedulingGates"] = [{"name": "a/b"}]
    elif held == "volume":
        obj = said(obj, UNBOUND)
    world = World([node("n1")], [obj])
    voice = Voice()
    events = PendingEvents(world.cluster.pod, lambda _: explained(world, obj), voice, world.clock)
    for _ in range(2):
        events.waiting([obj["metadata"]["uid"]])
    assert events.tell()
    assert voice.told == []
    assert events.held() == {held: 1}
    world.delete(obj)
    events.waiting([])
    assert events.held() == {}


def test_the_scrape_counts_held_pods_by_holder_and_not_as_waiting():
    gated, waits = pod("gated", 30, 4), pod("waits", 300, None)
    gated["spec"]["schedulingGates"] = [{"name": "a/b"}]
    world, registry = World([node("n1")], [gated, waits]), CollectorRegistry()
    held = {"gate": 1}
    ClusterMetrics(registry).show(
        ClusterFigures(world.cluster, world.quota, lambda: True, dict, dict, held=lambda: held)
    )
    value = registry.get_sample_value
    counted = [
        value("vcuda_pods_held", {"by": by})
        for by in ("gate", "owner", "volume", "scheduler", "quota", "gang")
    ]
    assert (counted, value("vcuda_admission_waiting_pods")) == ([1, 0, 0, 0, 0, 0], 1)


def test_an_event_is_told_again_when_its_reason_changes_though_the_scheduler_asks_nobody():
    obj = pod("p", 300, None)
    world = World([node("n1")], [obj])
    voice, uid = Voice(), obj["metadata"]["uid"]
    events = PendingEvents(world.cluster.pod, lambda _: explained(world, obj), voice, world.clock)

    def look():
        events.waiting([uid])
        events.tell()

    look()
    look()
    assert len(voice.told) == 1
    world.create(pod("more", 100, None, on="n1"))
    look()
    assert len(voice.told) == 1, "not within five minutes"
    world.clock.pass_(AGAIN_SECONDS)
    look()
    assert len(voice.told) == 2
    assert voice.told[0] != voice.told[1]
    world.clock.pass_(AGAIN_SECONDS)
    look()
    assert len(voice.told) == 2, "the same again"


def test_a_pod_on_a_node_that_publishes_no_cards_is_told_where_to_look():
    world = World([node("n1", 1)])
    found = explained(world, pod("a", 30, 4, on="elsewhere"))
    assert found.line == "bound to node elsewhere, which publishes no cards: kubectl vcuda doctor says why"
