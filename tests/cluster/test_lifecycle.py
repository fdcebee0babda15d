"""Any part killed and started again, while pods come and go: nothing is lost, nothing is mixed up."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from gpu_manager.domain.contract import INVENTORY, decode_inventory
from tests.cluster import auditor, layout, processes, product
from tests.cluster.cluster import Cluster
from tests.cluster.pods import AWAY, Pods, container, pod
from tests.cluster.test_kills import ended

FULL = (800, 1256)  # eight cards of 39.25 GiB


@pytest.mark.case(1)
def test_both_resources_are_offered(cluster: Cluster, pods: Pods) -> None:
    cluster.wait(lambda: product.allocatable(cluster) == FULL, 20, "not offered")
    assert product.allocatable(cluster, "capacity") == FULL


@pytest.mark.case(10)
def test_a_killed_agent_comes_back_and_keeps_what_runs(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("kept", container("c", 30, 10)), pod("kept-2", container("c", 100)))
    auditor.settled(cluster)
    before = auditor.ledger_of(cluster)
    product.kill(cluster, product.AGENT)
    cluster.wait(lambda: not product.agent_ready(cluster), 20, "the agent's end is not noticed")
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the agent does not come back")
    assert auditor.ledger_of(cluster) == before
    cluster.wait(lambda: product.allocatable(cluster) == FULL, 30, "not offered again")
    pods.run(pod("next", container("c", 70, 10)))
    auditor.settled(cluster)


@pytest.mark.case(5, 45)
def test_a_restarted_kubelet_is_registered_with_at_once(cluster: Cluster, pods: Pods) -> None:
    """Both resources, from the moment when the kubelet takes registrations; what runs is not touched."""
    pods.run(pod("kept", container("c", 30, 10)), pod("kept-2", container("a", 20, 4), container("b", 40, 8)))
    auditor.settled(cluster)
    before, ids = auditor.ledger_of(cluster), auditor.checkpoint_of(cluster)
    log = cluster.scratch / "kubelet.log"
    size = log.stat().st_size
    cluster.restart("kubelet")
    cluster.wait(lambda: len(registered(log, size)) == 2, 20, "not registered again")
    assert max(registered(log, size)) <= REGISTERED_SECONDS
    cluster.wait(cluster.node_ready, 30, "the node is not ready")
    pods.run(pod("next", container("c", 50, 10)))
    auditor.settled(cluster)
    after = auditor.ledger_of(cluster)
    assert {key: after[key] for key in before} == before
    now, living = auditor.checkpoint_of(cluster), auditor.living(cluster)
    kept = {key: held for key, held in ids.items() if key[0] in living}
    assert len(kept) == 6
    assert now.items() >= kept.items()


REGISTERED_SECONDS = 0.3  # until the agent next looks for the socket, and the two calls


def registered(log: Path, since: int) -> list[float]:
    """Seconds after it began to take registrations that the kubelet got each of ours, by its own log."""
    with log.open("rb") as file:
        file.seek(since)
        lines = file.read().decode("utf-8", "replace").splitlines()
    times = [(line, clock(stamp)) for line in lines if (stamp := STAMP.match(line))]
    began = [at for line, at in times if "Starting device plugin registration server" in line]
    got = [at for line, at in times if "Got registration request" in line and "tencent.com/" in line]
    return [at - began[0] for at in got if began and at >= began[0]]


STAMP = re.compile(r"[IWEF]\d{4} (\d\d):(\d\d):(\d\d\.\d{6}) ")  # of the kubelet's log


def clock(stamp: re.Match[str]) -> float:
    """Seconds of the day."""
    hours, minutes, seconds = stamp.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def test_pods_bound_while_the_kubelet_is_down_all_run(cluster: Cluster, pods: Pods) -> None:
    """Re-admission in one batch, in an order that nobody knows."""
    pods.run(pod("kept", container("c", 30, 10)))
    cluster.kill("kubelet")
    try:
        made = (container("c", 10 + 10 * (i % 4), 4) for i in range(12))
        names = pods.create(*(pod(f"batch-{i}", one, nodeName=layout.NODE) for i, one in enumerate(made)))
    finally:
        cluster.start("kubelet")
    for name in names:
        pods.wait_running(name)
    auditor.settled(cluster)


def test_a_scheduler_waits_for_the_kubelet_to_have_our_devices_again(cluster: Cluster, pods: Pods) -> None:
    """Else what it binds to a node that was ready a moment ago is refused for good."""
    cluster.kill("kubelet")
    try:
        cluster.wait(lambda: not serving(cluster), 20, "the inventory does not say that the kubelet is away")
        names = pods.create(*(pod(f"late-{i}", container("c", 100)) for i in range(4)))
        assert not any("nodeName" in pods.get(name)["spec"] for name in names)
    finally:
        cluster.start("kubelet")
    for name in names:
        pods.wait_running(name)
    auditor.settled(cluster)


def serving(cluster: Cluster) -> bool:
    """What the node's inventory says of its agent."""
    node = cluster.api.get(f"/api/v1/nodes/{layout.NODE}")
    inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    return inventory.serving


@pytest.mark.case(46)
def test_a_pod_deleted_while_the_kubelet_is_down_is_given_back(cluster: Cluster, pods: Pods) -> None:
    gone, _ = pods.run(pod("gone", container("c", 100)), pod("kept", container("c", 30, 10)))
    uid = gone["metadata"]["uid"]
    cluster.kill("kubelet")
    cluster.api.delete("/api/v1/namespaces/default/pods/gone", 0)
    cluster.start("kubelet")
    cluster.wait(cluster.node_ready, 30, "the node is not ready")
    # The kubelet frees nothing while it re-admits its first batch, and the orphan has first to be ended.
    pods.run(*(pod(f"whole-{i}", container("c", 100)) for i in range(6)), seconds=90)
    cluster.wait(lambda: not alive(uid), 60, "the orphan is not ended")
    pods.run(pod("whole-6", container("c", 100)))
    auditor.settled(cluster)


def alive(uid: str) -> bool:
    """True while a process of the pod lives."""
    paths = Path("/sys/fs/cgroup/devices", layout.CGROUP).glob(f"**/pod{uid}/*/cgroup.procs")
    return any(map(processes.members, paths))


def test_a_killed_containerd_and_a_killed_api_server(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("kept", container("c", 30, 10)))
    before = auditor.ledger_of(cluster)
    for part in ("containerd", "kube-apiserver"):
        cluster.restart(part)
    cluster.wait(cluster.node_ready, 60, "the node is not ready")
    pods.run(pod("next", container("c", 30, 10)), seconds=90)
    auditor.settled(cluster)
    after = auditor.ledger_of(cluster)
    assert {key: after[key] for key in before} == before


def test_pods_start_while_the_api_server_is_away(cluster: Cluster, pods: Pods) -> None:
    """The agent asks the kubelet for its pods: a container that restarts needs no API server."""
    pods.run(pod("kept", container("c", 30, 10), restartPolicy="Always"))
    auditor.settled(cluster)
    [held] = auditor.containers(cluster)
    cluster.kill("kube-apiserver")
    try:
        cluster.inside("kill", "-9", _inner(auditor.process_of(held)))
        cluster.wait(lambda: _new_process(held) is not None, 30, "the container does not come back")
    finally:
        cluster.start("kube-apiserver")
    cluster.wait(cluster.node_ready, 60, "the node is not ready")
    pods.wait_running("kept")
    auditor.settled(cluster)


def _inner(pid: int) -> str:
    """A process's number in the cluster's PID namespace."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("NSpid"))
    return line.split()[2]


def _new_process(held: auditor.Held) -> int | None:
    for path in Path("/sys/fs/cgroup/devices", layout.CGROUP).glob(f"**/pod{held.uid}/*/cgroup.procs"):
        if path.parent.name != held.container_id and len(processes.members(path)) > 1:
            return 1
    return None


def test_servers_stopped_and_started_at_once_while_pods_start(cluster: Cluster, pods: Pods) -> None:
    """As an orderly restart of all of them does; test_kills has the disorderly.

    A kubelet that has waited for the API server admits its first batch within milliseconds of taking
    registrations: a pod that nobody had admitted before may fail then, and its controller makes another.
    """
    pods.run(pod("kept", container("c", 30, 10)))
    names = pods.create(*(pod(f"churn-{i}", container("c", 20, 4)) for i in range(10)))
    for part in ("kubelet", "containerd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        cluster.restart(part, signal.SIGTERM)
    cluster.wait(cluster.node_ready, 60, "the node is not ready")
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the agent is not ready")
    failed = [why for name in names if (why := ended(pods, name))]
    assert all(why.startswith(AWAY) for why in failed), failed
    pods.run(pod("next", container("c", 20, 4)))
    auditor.settled(cluster)


@pytest.mark.case(47)
def test_a_succeeded_pod_frees_its_card(cluster: Cluster, pods: Pods) -> None:
    """Case 47, over a kubelet's restart."""
    pods.create(*(pod(f"job-{i}", container("c", 100, args=("true",))) for i in range(8)))
    for i in range(8):
        pods.wait_phase(f"job-{i}", "Succeeded")
    restart_kubelet(cluster)
    pods.run(*(pod(f"after-{i}", container("c", 100)) for i in range(8)), seconds=90)
    auditor.settled(cluster)


def restart_kubelet(cluster: Cluster) -> None:
    """Until it has re-admitted its first batch: before that it gives back nothing of the dead, to nobody."""
    log = cluster.scratch / "kubelet.log"
    before = log.read_text("utf-8", "replace").count('"SyncLoop ADD" source="api"')
    cluster.restart("kubelet")
    cluster.wait(
        lambda: log.read_text("utf-8", "replace").count('"SyncLoop ADD" source="api"') > before,
        30,
        "no pod is added",
    )


@pytest.mark.case(9)
def test_an_agent_that_ends_leaves_capacity_but_offers_nothing(cluster: Cluster, pods: Pods) -> None:
    """Case 9; and what runs keeps its limits meanwhile."""
    pods.run(pod("kept", container("c", 30, 10)))
    path = f"/apis/apps/v1/namespaces/{product.NAMESPACE}/daemonsets/gpu-manager-daemonset"
    cluster.api.patch(path, {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "yes"}}}}})
    try:
        cluster.wait(lambda: product.allocatable(cluster) == (0, 0), 60, "still offered")
        assert product.allocatable(cluster, "capacity") == FULL
        [held] = auditor.containers(cluster)
        limits = auditor.limits_in_force(held)
        assert limits is not None
        assert {share[1:] for share in limits} == {(30, 10 << 28)}
    finally:
        cluster.api.patch(path, {"spec": {"template": {"spec": {"nodeSelector": None}}}})
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the agent does not come back")
    auditor.settled(cluster)
    pods.run(pod("next", container("c", 70, 10)))
    auditor.settled(cluster)


@pytest.mark.case(48)
def test_a_rebooted_node_grants_nothing_twice(cluster: Cluster, pods: Pods) -> None:
    """Case 48, emulated: every container, the kubelet and what lies on a tmpfs are gone at once.

    The kubelet re-admits before the agent's own container runs, so pods without a controller fail; the next
    ones get whole cards, and no page of the dead is in force.
    """
    names = [
        p["metadata"]["name"] for p in pods.run(*(pod(f"old-{i}", container("c", 60, 10)) for i in range(4)))
    ]
    auditor.settled(cluster)
    before = product.containers(cluster)
    cluster.kill("kubelet")
    ctr = f"{cluster.parts['ctr']} -n k8s.io tasks"
    cluster.inside("sh", "-c", f"for t in $({ctr} ls -q); do {ctr} kill -s SIGKILL $t; done")
    cluster.kill("containerd")
    cluster.inside("sh", "-c", "rm -rf /run/gpu-manager/*")
    cluster.start("containerd")
    cluster.start("kubelet")
    cluster.wait(cluster.node_ready, 60, "the node is not ready")
    cluster.wait(lambda: not before & product.containers(cluster), 60, "what ran before is still said to run")
    cluster.wait(lambda: product.agent_ready(cluster), 90, "the agent does not come back")
    cluster.wait(lambda: product.admission_ready(cluster), 90, "admission does not come back")
    cluster.wait(
        lambda: all(pods.phase(n) != "Running" or _ready(pods, n) for n in names), 60, "half-dead pods"
    )
    pods.delete(*[n for n in names if pods.phase(n) != "Running"])
    pods.run(*(pod(f"new-{i}", container("c", 30, 10)) for i in range(4)), seconds=90)
    auditor.settled(cluster)


def _ready(pods: Pods, name: str) -> bool:
    statuses = pods.get(name)["status"].get("containerStatuses", [])
    return bool(statuses) and all("running" in s["state"] for s in statuses)
