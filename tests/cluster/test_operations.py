"""What people do with it: ask why, let the urgent go first, watch, upgrade, take it away again."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_manager.domain.contract import INVENTORY, MODEL_LABEL, MODEL_LABEL_GAIA
from tests.cluster import auditor, foreign_plugin, layout, product
from tests.cluster.cluster import Cluster
from tests.cluster.periods import chosen
from tests.cluster.pods import Pods, cards_of, container, pod
from tests.fakes.prometheus import needs_prometheus

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def explain(cluster: Cluster, name: str) -> tuple[int, dict[str, Any]]:
    """``kubectl vcuda explain``: its exit code, and what it says of the pod."""
    command = [str(Path(sys.executable).with_name("kubectl-vcuda")), "explain", name, "-o", "json"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    [answer] = json.loads(done.stdout)["pods"]
    return done.returncode, answer


def test_explain_says_why_a_pod_waits_and_that_it_runs(cluster: Cluster, pods: Pods) -> None:
    """The admission service answers, through the API server."""
    pods.run(*(pod(f"full-{i}", container("c", 90, 10)) for i in range(8)))
    pods.create(pod("late", container("c", 20, 4)))
    code, answer = explain(cluster, "late")
    assert code == 1
    assert answer["answeredBy"].startswith("the admission service"), answer
    assert "20 cores" in json.dumps(answer), answer
    pods.delete("full-0")
    pods.wait_running("late")
    code, answer = explain(cluster, "late")
    assert code == 0, answer


@pytest.fixture
def urgent(cluster: Cluster) -> Iterator[str]:
    meta = {"name": "cluster-test-urgent"}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.api.post(CLASSES, {**kind, "metadata": meta, "value": 1000})
    yield meta["name"]
    cluster.api.delete(f"{CLASSES}/{meta['name']}")


@pytest.mark.case(61)
def test_an_urgent_pod_takes_one_card_from_the_others_and_no_more(
    cluster: Cluster, pods: Pods, urgent: str
) -> None:
    """Case 61. The node's sum must lack it too: kube-scheduler asks the extender only about victims of its own.

    What lacks room on every card alone, while the node's sum has it, makes nobody leave.
    """
    low = [f"low-{i}" for i in range(8)]
    found = pods.run(*(pod(name, container("c", 90, 10)) for name in low))
    cards = {p["metadata"]["name"]: cards_of(p, "c") for p in found}
    pods.create(pod("urgent", container("c", 90, 10), priorityClassName=urgent))
    running = pods.wait_running("urgent", 90)
    # Its card is free once its containers have ended; the API forgets the pod a moment later.
    listed = [p["metadata"] for p in cluster.api.get("/api/v1/namespaces/default/pods")["items"]]
    [victim] = set(low) - {meta["name"] for meta in listed if "deletionTimestamp" not in meta}
    assert cards_of(running, "c") == cards[victim]
    auditor.settled(cluster)


@needs_prometheus
def test_a_real_prometheus_scrapes_agent_and_pods(cluster: Cluster, pods: Pods) -> None:
    [found] = pods.run(pod("seen", container("c", 30, 20)))
    agent = product.agent_pod(cluster)
    assert agent is not None
    target = f"{agent['status']['podIP']}:5678"
    job = {"job_name": "agent", "static_configs": [{"targets": [target]}]}
    directory = cluster.scratch / "prometheus"
    directory.mkdir(exist_ok=True)
    config = directory / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}), "utf-8")
    flags = [f"--config.file={config}", f"--storage.tsdb.path={directory}/data"]
    cluster.run("prometheus", ["prometheus", *flags, "--web.listen-address=127.0.0.1:9090"])
    try:
        memory = 'vcuda_container_memory_limit_bytes{pod="seen"}'
        cluster.wait(lambda: len(query(cluster, 'up{job="agent"} == 1')) == 1, 30, "the agent is not scraped")
        cluster.wait(lambda: query(cluster, memory), 30, "the pod is not seen")
        [sample] = query(cluster, memory)
        assert int(sample["value"][1]) == 20 << 28
        assert sample["metric"]["uuid"] in cards_of(found, "c")
    finally:
        cluster.kill("prometheus")


def query(cluster: Cluster, text: str) -> list[Any]:
    """What the cluster's Prometheus has now; nothing while it starts."""
    code = (
        "import sys, urllib.parse, urllib.request as r; "
        "print(r.urlopen('http://127.0.0.1:9090/api/v1/query?' + "
        "urllib.parse.urlencode({'query': sys.argv[1]}), timeout=5).read().decode())"
    )
    done = cluster.inside(sys.executable, "-c", code, text)
    return list(json.loads(done.stdout)["data"]["result"]) if done.returncode == 0 else []


def test_containers_run_on_while_the_chart_is_upgraded(cluster: Cluster, pods: Pods) -> None:
    """Another flag rolls the DaemonSet: another agent's pod, the same books and limits."""
    pods.run(pod("kept", container("c", 30, 10)))
    auditor.settled(cluster)
    [held], before = auditor.containers(cluster), auditor.ledger_of(cluster)
    old = product.agent_pod(cluster)
    assert old is not None
    try:
        product.install(cluster, admission=True, **{"agent.logLevel": "debug"})
        cluster.wait(lambda: (product.agent_pod(cluster) or old) != old, 60, "no other agent")
        cluster.wait(lambda: product.agent_ready(cluster), 60, "the other agent is not ready")
        assert auditor.ledger_of(cluster) == before
        pods.run(pod("next", container("c", 70, 10)))
        auditor.settled(cluster)
        assert held.container_id in {one.container_id for one in auditor.containers(cluster)}
    finally:
        product.install(cluster, admission=True)


def test_the_charts_own_test_is_content(cluster: Cluster, pods: Pods) -> None:
    """It reaches agent and webhook by the names of their Services, as any pod would."""
    if not cluster.parts.services:
        pytest.skip("this kernel translates no addresses, so Services have none that works")
    try:
        said = cluster.helm("test", "gpu-manager", "-n", product.NAMESPACE, "--logs", "--timeout=90s")
    finally:
        parts = "app.kubernetes.io/component=test"
        cluster.kubectl("delete", "pods", "-n", product.NAMESPACE, "-l", parts)
    assert re.search(r"Phase:\s+Succeeded", said), said
    assert "ok   room: " in said
    assert "ok   its memory is the share: " in said


def test_an_uninstalled_product_leaves_running_limits_and_little_in_the_api(
    cluster: Cluster, pods: Pods
) -> None:
    """And installed again it knows what runs."""
    pods.run(pod("kept", container("c", 30, 10)))
    auditor.settled(cluster)
    [held], before = auditor.containers(cluster), auditor.ledger_of(cluster)
    try:
        cluster.helm("uninstall", "gpu-manager", "-n", product.NAMESPACE, "--wait", "--timeout=90s")
        cluster.wait(lambda: product.allocatable(cluster) == (0, 0), 60, "still offered")
        assert auditor.limits_in_force(held) == before[held.uid, "c"]
        assert [one for one in left(cluster) if one != MADE_FOR_CLAIMS] == MADE_BY_ITSELF
        sockets = cluster.root("/var/lib/kubelet/device-plugins").glob("*.sock")
        # A killed plugin leaves its socket behind; those of other tests are not ours to remove.
        assert {path.name for path in sockets} - {foreign_plugin.SOCKET, foreign_plugin.GPU_SOCKET} == {
            "kubelet.sock"
        }
    finally:
        product.install(cluster, admission=True)
    assert auditor.ledger_of(cluster) == before
    pods.run(pod("next", container("c", 70, 10)))
    auditor.settled(cluster)


def test_what_an_uninstall_leaves_on_the_node_is_what_the_docs_say_and_can_be_removed(
    cluster: Cluster, pods: Pods
) -> None:
    pods.run(pod("part", container("c", 30, 10)), pod("whole", container("c", 100)))
    pods.clear()
    auditor.settled(cluster, chosen().given_back_seconds, leaks=True)
    try:
        cluster.helm("uninstall", "gpu-manager", "-n", product.NAMESPACE, "--wait", "--timeout=90s")
        cluster.wait(lambda: product.containers(cluster) == set(), 60, "containers of the product stay")
        found = on_node(cluster)
        specs = set(fnmatch.filter(found, SPECS))  # there if a test before this one has injected by CDI
        assert found - specs == {"/run/gpu-manager", "/var/lib/gpu-manager"}
        assert "gpu-manager" not in cluster.inside("cat", "/proc/mounts").stdout.replace(OWN_MOUNT, "")
        labels, annotations = of_node(cluster)
        assert (labels, annotations) == ({MODEL_LABEL, MODEL_LABEL_GAIA}, {INVENTORY})
        cluster.kubectl("annotate", "node", layout.NODE, f"{INVENTORY}-")
        cluster.kubectl("label", "node", layout.NODE, f"{MODEL_LABEL}-", f"{MODEL_LABEL_GAIA}-")
        for place in ("/run/gpu-manager", "/var/lib/gpu-manager"):
            cluster.inside("sh", "-c", f"rm -rf {place}/*; rmdir {place} || true")
        cluster.inside("sh", "-c", f"rm -f {SPECS}")
    finally:
        product.order_cards(cluster, {})
        product.install(cluster, admission=True)
    pods.run(pod("next", container("c", 30, 10)))
    auditor.settled(cluster)


SPECS = "/run/cdi/tencent.com-vcuda_*.json"
OWN_MOUNT = " /var/lib/gpu-manager "  # the cluster's own, so that the machine's directory is not written to


def on_node(cluster: Cluster) -> set[str]:
    """Files of the node, outside of Kubernetes' own directories, whose name tells of the product."""
    places = ["/etc", "/run", "/var/lib"]
    own = ["containerd", "kubelet", "netns"]
    prune = [word for name in own for word in ("-name", name, "-prune", "-o")]
    names = [word for name in ("*gpu-manager*", "*vcuda*") for word in ("-name", name, "-o")][:-1]
    found = cluster.inside("find", *places, "-xdev", *prune, "(", *names, ")", "-print", "-prune").stdout
    return set(found.split())


def of_node(cluster: Cluster) -> tuple[set[str], set[str]]:
    """Labels and annotations of the Node that are ours."""
    meta = cluster.api.get(f"/api/v1/nodes/{layout.NODE}")["metadata"]
    labels, annotations = (
        {key for key in meta[kind] if "tencent.com/" in key} for kind in ("labels", "annotations")
    )
    return labels, annotations


# Made by admission at work, so that helm knows nothing of it; docs/upgrade.md says how to remove it.
MADE_BY_ITSELF = ["Secret gpu-quota-admission-certs", "Lease gpu-quota-admission"]
MADE_FOR_CLAIMS = "Lease gpu-quota-admission-claims"  # where a node has ever given cards by them
LEFT = (
    "daemonsets,deployments,services,configmaps,secrets,serviceaccounts,leases",
    "clusterroles,clusterrolebindings,roles,rolebindings",
    "mutatingwebhookconfigurations,validatingwebhookconfigurations",
    "validatingadmissionpolicies,validatingadmissionpolicybindings",
)


def left(cluster: Cluster) -> list[str]:
    """Objects of the API whose name or labels tell of the product."""
    found = []
    for kinds in LEFT:
        items = json.loads(cluster.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        for one in items:
            meta = one["metadata"]
            text = f"{meta['name']} {meta.get('labels', {})}"
            if any(word in text for word in ("gpu-manager", "gpu-quota", "vcuda")):
                found.append(f"{one['kind']} {meta['name']}")
    return found
