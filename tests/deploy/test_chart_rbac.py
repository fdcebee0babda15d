"""The chart's rights are those that the programs use, each of them and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from admission.app import compose
from admission.config import AdmissionSettings, ExtenderEndpoint, LeaderMode, Leadership, OwnCertificates
from gpu_manager.adapters.http import HttpClient
from gpu_manager.adapters.kube.changes import cordon
from gpu_manager.adapters.kube.cluster_pods import ClusterPods, KubePodEvents
from gpu_manager.adapters.kube.connection import KubeReviews, connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kube.leases import KubeCertificates
from gpu_manager.adapters.kube.tasks import KubeEvictions
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.agent.composition import Agent
from gpu_manager.agent.config import Config
from gpu_manager.cli.kubectl.main import run as kubectl
from gpu_manager.domain.contract import (
    CORE,
    CORE_LIMIT,
    EVENT_EVICTED,
    EVICT,
    EVICTOR_NAME,
    LEADER_LABEL,
    MEMORY,
)
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.runtime.inbound import GET_PODS
from sandbox.api import StandInApi
from sandbox.api.access import User, service_account
from sandbox.kubelet import StandInKubelet
from tests.deploy.chart import CHART, SETS, agent_pod, container, helm, objects, the
from tests.deploy.rbac import Judge, Right, granted, used
from tests.fakes.sandbox import short_directory, until

NODE = "n1"
NAMES = ("gpu-manager", "gpu-quota-admission", "gpu-manager-evictor")
AGENT, ADMISSION, EVICTOR = (service_account("kube-system", name) for name in NAMES)
ACCOUNTS = {user.name: name for user, name in zip((AGENT, ADMISSION, EVICTOR), NAMES, strict=True)}
PERSON = User("person", ("gpu-users",))


@pytest.mark.parametrize("name", SETS)
def test_no_wildcard_no_cluster_admin_no_secrets_at_large(name: str) -> None:
    for obj in objects(name):
        for rule in obj.get("rules", []) if obj["kind"] in ("ClusterRole", "Role") else []:
            for words in (rule["apiGroups"], rule["resources"], rule["verbs"]):
                assert not [w for w in words if "*" in w], rule
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
            assert "nodes/proxy" not in rule["resources"]
            if "secrets" in rule["resources"]:
                assert obj["kind"] == "Role"
                assert rule["resourceNames"] == ["gpu-quota-admission-certs"]
            if "webhookconfigurations" in "".join(rule["resources"]) and rule["verbs"] != ["list"]:
                assert rule["resourceNames"] == ["gpu-quota-admission"]
        if obj["kind"].endswith("RoleBinding") or obj["kind"].endswith("ClusterRoleBinding"):
            assert obj["roleRef"]["name"] != "cluster-admin"
            kinds = {s["kind"] for s in obj["subjects"]}
            of_people = obj["metadata"]["name"].startswith("gpu-manager-view")
            assert kinds == ({"Group"} if of_people else {"ServiceAccount"})


class World:
    """An API server that judges by the chart's roles, and who asks it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.judge = Judge("viewed", {**ACCOUNTS, PERSON.name: "gpu-users"})
        tokens = {"agent": AGENT, "admission": ADMISSION, "evictor": EVICTOR, "person": PERSON}
        self.api = StandInApi(tokens=tokens, authorize=self.judge)
        self.clock = SystemClock()

    def connection(self, token: str):
        return connect(kubeconfig=self.api.kubeconfig(self.directory / token, token))

    def pod(self, name: str, node: str | None = NODE) -> dict:
        spec = {
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {CORE: "30", MEMORY: "4"}}}]
        }
        return self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {**spec, **({"nodeName": node} if node else {})},
            }
        )

    def seen(self, user: str, right: Right) -> bool:
        return right in used(self.api.verbs_used(), user, {right})


@pytest.fixture
def world() -> Iterator[World]:
    with short_directory() as directory:
        world = World(directory)
        with world.api:
            world.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            yield world


def judged(world: World, user: str, elsewhere: set[Right]) -> None:
    rights = granted("defaults", ACCOUNTS[user])
    assert world.judge.refused == set()
    assert used(world.api.verbs_used(), user, rights) == rights - elsewhere


def test_the_agent_uses_what_it_is_given_and_needs_no_more(world: World) -> None:
    kubelet = StandInKubelet(world.directory / "kubelet")
    kubelet.start()
    agent = Agent(
        Config(
            node=NODE,
            kubeconfig=world.api.kubeconfig(world.directory / "agent", "agent"),
            device_plugins=kubelet.device_plugins,
            pod_resources=kubelet.pod_resources,
            state=world.directory / "state",
            pages=world.directory / "pages",
            http_address="127.0.0.1",
            http_port=0,
            cards="simulated:t4x4",
            injection="simulated",
            mark_evictions=True,
        )
    )
    agent.start()
    try:
        until(lambda: kubelet.allocatable().get(CORE, 0) and kubelet.allocatable().get(MEMORY, 0))
        kubelet.publish_node()
        run = world.pod("run")
        assert kubelet.admit(run).admitted
        kubelet.start_container(run["metadata"]["uid"], "c")
        until(lambda: world.seen(AGENT.name, Right("patch", "", "pods")))
        until(lambda: world.seen(AGENT.name, Right("patch", "", "nodes")))
        until(lambda: world.seen(AGENT.name, Right("create", "", "events")))
        agent._kube.pods.evict(parse_pod(run), "for this test")
        until(lambda: EVICT in world.api.get("pods", "run")["metadata"].get("annotations", {}))
        headers = {"Authorization": "Bearer person", "Accept": "application/json"}
        graph = HttpClient(f"http://127.0.0.1:{agent.http.port}").ask("GET", "/graph", headers=headers)
        assert b'"run"' in graph.body
    finally:
        agent.stop()
        kubelet.stop()
    # What it does rarely: the same event again, a pod that the watch has not shown yet.
    kube = Kube(world.connection("agent"), NODE, clock=world.clock)
    kube.start()
    try:
        pod = parse_pod(world.pod("rare"))
        assert kube.pods.fetch("default", "rare") is not None
        kube.pods.event(pod, "Told", "once")
        until(lambda: world.api.list("events", fields="reason=Told"))
        kube.pods.event(pod, "Told", "once")
        until(lambda: world.seen(AGENT.name, Right("patch", "", "events")))
    finally:
        kube.close()
    # `kubectl exec … gpu-manager cordon` runs with the agent's token.
    connection = world.connection("agent")
    cordon(connection, NODE, [], close=True)
    connection.close()
    judged(world, AGENT.name, {Right("get", "", "nodes/pods")})  # asked of the kubelet, not of the API server


def test_the_evictor_uses_what_it_is_given_and_needs_no_more(world: World) -> None:
    connection = world.connection("evictor")
    evictions = KubeEvictions(connection, world.clock, "test")
    evictions.start()
    try:
        pod = parse_pod(world.pod("goes"))
        for _ in range(2):
            evictions.event(pod, EVENT_EVICTED, "why")
            until(lambda: world.api.list("events", fields=f"reason={EVENT_EVICTED}"))
        assert evictions.evict(pod) is None
        until(lambda: world.seen(EVICTOR.name, Right("patch", "", "events")))
        until(lambda: world.seen(EVICTOR.name, Right("watch", "", "pods")))
    finally:
        evictions.close()
        connection.close()
    judged(world, EVICTOR.name, set())


EVICTS = Right("create", "", "pods/eviction")


@pytest.mark.parametrize("name", SETS)
def test_one_account_evicts_and_where_it_is_not_the_agents_the_agent_marks(name: str) -> None:
    evicting = {account for account in NAMES if EVICTS in granted(name, account)}
    marks = "--mark-evictions" in container(agent_pod(name), "gpu-manager")["args"]
    assert marks == (evicting == {EVICTOR_NAME}) == (name != "least")
    assert len(evicting) == (name != "least"), "that one neither has admission nor evicts"


def test_an_agent_without_admission_evicts_by_itself() -> None:
    alone = ("--set=admission.enabled=false",)
    text = helm("template", "gpu-manager", str(CHART), "-n", "kube-system", *alone).stdout
    assert "pods/eviction" in text
    assert "--mark-evictions" not in text
    assert "gpu-manager-evictor" not in text


def test_admission_uses_what_it_is_given_and_needs_no_more(world: World) -> None:
    for kind in ("Mutating", "Validating"):
        world.api.create(next(o for o in objects("defaults") if o["kind"] == f"{kind}WebhookConfiguration"))
    world.api.create(the("defaults", "Secret", "gpu-quota-admission-certs"))
    me = world.pod("gpu-quota-admission-x")
    program = compose(
        AdmissionSettings(
            kubeconfig=world.api.kubeconfig(world.directory / "admission", "admission"),
            address="127.0.0.1",
            port=0,
            extender=ExtenderEndpoint(port=0),
            own_certificates=OwnCertificates(settle_seconds=0.0),
            leadership=Leadership(mode=LeaderMode.LEASE, pod=me["metadata"]["name"]),
            drain_seconds=0.0,
        )
    )
    program.start()
    try:
        until(lambda: all(program.ready().values()))
        until(
            lambda: world.seen(
                ADMISSION.name, Right("create", "coordination.k8s.io", "leases", "kube-system")
            )
        )
        until(
            lambda: world.seen(
                ADMISSION.name, Right("update", "coordination.k8s.io", "leases", "kube-system")
            )
        )
    finally:
        program.stop()
    # What it does when somebody asks, or rarely.
    connection = world.connection("admission")
    pods = ClusterPods(connection, world.clock, component="gpu-quota-admission", host="test")
    pods.start()
    try:
        pod = parse_pod(world.pod("new", node=None))
        assert pods.fetch("default", "new") is not None
        pods.event(pod, "Told", "once")
        until(lambda: world.api.list("events", fields="reason=Told"))
        pods.event(pod, "Told", "once")
        until(lambda: world.seen(ADMISSION.name, Right("patch", "", "events")))
        told, more = KubePodEvents(connection).read("default", pod.uid)
        assert ([one.reason for one in told], more) == (["Told"], False)
        pods.annotate(pod, {CORE_LIMIT: "50"})
        pods.label("default", "new", LEADER_LABEL, "true")
        until(lambda: world.seen(ADMISSION.name, Right("patch", "", "pods")))
        assert pods.bind(pod, NODE, {}, 5.0) == ""
        reviews = KubeReviews(connection)
        who = reviews.who("agent")
        assert who is not None
        reviews.may(who, GET_PODS, "default")
        certificates = KubeCertificates(
            connection, "kube-system", "gpu-quota-admission-certs", ("gpu-quota-admission",)
        )
        found = certificates.load()
        assert found is not None
        assert certificates.save({"tls.crt": b"y"}, found[1])
        for name, version, bundles in certificates.anchors():
            assert certificates.anchor(name, version, dict.fromkeys(bundles, b"ca"))
    finally:
        pods.close()
        connection.close()
    judged(world, ADMISSION.name, set())


def test_people_can_do_with_the_role_for_them_what_the_plugin_does_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("DaemonSet", "ValidatingWebhookConfiguration"):
        world.api.create(next(o for o in objects("defaults") if o["kind"] == kind))
    quota = {"metadata": {"name": "gpuquota", "namespace": "kube-system"}, "data": {"gpu_quota": "{}"}}
    world.api.create({"apiVersion": "v1", "kind": "ConfigMap", **quota})
    world.pod("train", node=None)
    kubeconfig = str(world.api.kubeconfig(world.directory / "person", "person"))
    for command in (
        ["top"],
        ["graph"],
        ["quota"],
        ["explain", "train"],
        ["simulate", "--drain", NODE],
        ["doctor"],
    ):
        kubectl([*command, "--kubeconfig", kubeconfig])
    assert "refused" not in capsys.readouterr().err
    # The console asks the API server whether the caller may list the Events that it shows.
    connection = world.connection("person")
    KubePodEvents(connection).read("default", PodUid("x"))
    connection.close()
    # The proxies are no objects of the stand-in: a real API server judges them in test_chart_on_api_server.
    proxies = {
        Right(verb, "", resource, "kube-system")
        for verb, resource in (("get", "services/proxy"), ("create", "services/proxy"), ("get", "pods/proxy"))
    }
    rights = granted("viewed", "gpu-users")
    # Where the cluster's scheduler is configured, and the webhook's certificate with its key: not for everyone.
    kept = {("list", "configmaps"), ("get", "secrets")}
    assert {(a.verb, a.resource) for a in world.judge.refused} <= kept
    assert used(world.api.verbs_used(), PERSON.name, rights) - rights <= {
        Right(verb, "", resource, namespace) for verb, resource in kept for namespace in ("", "kube-system")
    }
    assert rights - used(world.api.verbs_used(), PERSON.name, rights) == proxies
