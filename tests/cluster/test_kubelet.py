"""What the kubelet does between our calls: rejections, foreign plugins, its limiter, its own list, its metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from tests.cluster import auditor, foreign_plugin, product
from tests.cluster.cluster import Cluster
from tests.cluster.parts import ROOT
from tests.cluster.pods import Pods, container, pod

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
HERE = Path(__file__).resolve().parent


def ask_kubelet(cluster: Cluster, *words: str) -> Any:
    """PodResources, from a process in the cluster's namespaces."""
    environment = ("env", f"PYTHONPATH={ROOT}")
    done = cluster.inside(*environment, sys.executable, str(HERE / "lister.py"), SOCKET, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def nics(cluster: Cluster) -> Iterator[str]:
    """A foreign resource of four devices, in the kubelet for the test's length."""
    directory = "/var/lib/kubelet/device-plugins"
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(HERE / "foreign_plugin.py"), directory]
    cluster.run("foreign", command)
    cluster.wait(lambda: offered(cluster) == foreign_plugin.COUNT, 30, "the foreign plugin is not registered")
    yield foreign_plugin.RESOURCE
    cluster.kill("foreign")


def test_a_plugin_without_options_is_refused_and_harms_nobody(cluster: Cluster, pods: Pods) -> None:
    """Case 11: the kubelet asks for the options within Register, and hands the failure back."""
    directory = "/var/lib/kubelet/device-plugins"
    command = [
        "env",
        f"PYTHONPATH={ROOT}",
        sys.executable,
        str(HERE / "foreign_plugin.py"),
        directory,
        "faulty",
    ]
    log = cluster.scratch / "faulty.log"
    cluster.run("faulty", command)
    try:
        cluster.wait(lambda: foreign_plugin.REFUSED in log.read_text("utf-8"), 30, "it is not refused")
        assert "no options today" in log.read_text("utf-8")
        pods.run(pod("beside", container("c", 30, 10)))
        assert offered(cluster) == 0
        assert product.allocatable(cluster) == (800, 1256)
    finally:
        cluster.kill("faulty")
    auditor.settled(cluster)


def offered(cluster: Cluster) -> int:
    """Foreign devices that the node has."""
    found = cluster.api.get("/api/v1/nodes/n1")["status"]["allocatable"]
    return int(found.get(foreign_plugin.RESOURCE, 0))


def test_pods_rejected_between_two_of_our_calls_confuse_nobody(
    cluster: Cluster, pods: Pods, nics: str
) -> None:
    """Case 33: the foreign resource runs out between core and memory; the next pod looks exactly alike."""
    both = container("c", 20, 8)
    both["resources"]["limits"][nics] = "1"
    # Bound by hand: the scheduler would not send more than there are devices.
    names = pods.create(*(pod(f"nic-{i}", both, nodeName="n1") for i in range(10)))
    names += pods.create(*(pod(f"plain-{i}", container("c", 20, 8)) for i in range(10)))
    ended = ("Running", "Failed")
    cluster.wait(lambda: all(pods.phase(n) in ended for n in names), 90, "some pods neither run nor fail")
    phases = {n: pods.phase(n) for n in names}
    assert [phases[n] for n in names if n.startswith("plain")] == ["Running"] * 10
    assert list(phases.values()).count("Failed") == 10 - foreign_plugin.COUNT
    auditor.settled(cluster)


def test_the_kubelet_lists_what_the_ledger_has(cluster: Cluster, pods: Pods) -> None:
    """Cases 52, 53 and 54."""
    pods.run(pod("one", container("a", 30, 10), container("b", 20, 4)), pod("two", container("c", 100)))
    pods.create(pod("ended", container("c", 10, 4, args=("true",))))
    pods.wait_phase("ended", "Succeeded")
    auditor.settled(cluster)
    listed = {
        (p["name"], c): {r: len(ids) for r, ids in devices.items() if r in (CORE, MEMORY)}
        for p in ask_kubelet(cluster, "list")
        for c, devices in p["containers"].items()
        if p["namespace"] == "default"
    }
    assert listed == {
        ("one", "a"): {CORE: 30, MEMORY: 10},
        ("one", "b"): {CORE: 20, MEMORY: 4},
        ("two", "c"): {CORE: 100},
    }
    assert set(ask_kubelet(cluster, "get", "default", "two")["containers"]) == {"c"}
    assert "error" in ask_kubelet(cluster, "get", "default", "nobody")


def test_a_client_that_hogs_the_limiter_delays_but_confuses_nobody(cluster: Cluster, pods: Pods) -> None:
    """Case 55: one bucket for all clients of the socket."""
    environment = ["env", f"PYTHONPATH={ROOT}"]
    cluster.run("hog", [*environment, sys.executable, str(HERE / "lister.py"), SOCKET, "hog", "600"])
    try:
        pods.run(*(pod(f"p-{i}", container("c", 20, 4)) for i in range(16)), seconds=90)
    finally:
        cluster.kill("hog")
    auditor.settled(cluster)


def test_the_kubelet_counts_our_registrations_and_allocations(cluster: Cluster, pods: Pods) -> None:
    """Case 56."""
    pods.run(pod("one", container("c", 30, 10)))
    text = str(cluster.api.get("/api/v1/nodes/n1/proxy/metrics", text=True))
    for name in ("registration_total", "alloc_duration_seconds_count"):
        lines = [x for x in text.splitlines() if x.startswith(f"kubelet_device_plugin_{name}")]
        counted = {r: float(x.split()[-1]) for x in lines for r in (CORE, MEMORY) if f'"{r}"' in x}
        assert set(counted) == {CORE, MEMORY}, lines
        assert min(counted.values()) >= 1


def test_a_deleted_agents_successor_takes_over(cluster: Cluster, pods: Pods) -> None:
    """Case 8: the old plugin's streams end around the new one's registration."""
    pods.run(pod("kept", container("c", 30, 10)))
    old = product.agent_pod(cluster)
    assert old is not None
    cluster.api.delete(f"/api/v1/namespaces/{product.NAMESPACE}/pods/{old['metadata']['name']}")
    cluster.wait(lambda: (product.agent_pod(cluster) or old) != old, 30, "no successor")
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the successor is not ready")
    cluster.wait(lambda: product.allocatable(cluster)[0] == 800, 30, "not offered")
    pods.run(pod("next", container("c", 70, 10)))
    auditor.settled(cluster)


def test_force_deleted_pods_leave_nothing_wrong(cluster: Cluster, pods: Pods) -> None:
    """Names are used again at once, by pods of other shapes, while their predecessors still end."""
    for round_ in range(4):
        names = pods.create(
            *(pod(f"again-{i}", container("c", 10 + 10 * round_, 4 + round_)) for i in range(6))
        )
        if round_ < 3:
            for name in names:
                cluster.api.delete(f"/api/v1/namespaces/default/pods/{name}", 0)
    for name in names:
        pods.wait_running(name)
    auditor.settled(cluster)
