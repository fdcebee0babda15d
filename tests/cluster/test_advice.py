"""What commands tell people to do, typed to the letter: does it help on real Kubernetes?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_manager.domain.contract import PLACEMENT, USAGE_PATH
from tests.cluster import product
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod
from tests.cluster.shell import typed
from tests.cluster.workloads import Workload

_FINDINGS = re.compile(r"enforcement-\w+")


def test_defrag_makes_room_when_its_commands_are_typed(cluster: Cluster, pods: Pods) -> None:
    """Both deployments like the emptiest card, which is the one that a pod of theirs has just left."""
    spread = {PLACEMENT: "spread"}
    pods.run(pod("most", container("c", 600)))
    with (
        Workload(cluster, "Deployment", "web", container("c", 40, 4), spread, replicas=1) as web,
        Workload(cluster, "Deployment", "api", container("c", 50, 4), spread, replicas=1) as api,
    ):
        web.wait_ready(1)
        api.wait_ready(1)
        pods.create(pod("train", container("c", 100)))
        cluster.wait(lambda: typed(cluster, "kubectl vcuda defrag train").returncode == 0, 30, "no plan")
        lines = typed(cluster, "kubectl vcuda defrag pod/train").stdout.partition("to do it:\n")[2]
        for line in lines.splitlines():
            done = typed(cluster, line)
            assert done.returncode == 0, f"{line}: {done.stderr}"
        pods.wait_running("train")
        web.wait_ready(1)
        api.wait_ready(1)


@pytest.mark.parametrize(
    ("closes", "said", "opens"),
    [
        ("kubectl cordon {node}", "is cordoned", "kubectl uncordon {node}"),
        (
            "kubectl taint node {name} team=ml:NoSchedule",
            'has the taint "team=ml:NoSchedule", which the pod does not tolerate',
            "kubectl taint node {name} team-",
        ),
        ("kubectl vcuda cordon {cards}", "cordoned", "kubectl vcuda uncordon {cards}"),
    ],
    ids=["node cordoned", "taint", "cards cordoned"],
)
def test_explain_names_what_keeps_a_pod_off(
    cluster: Cluster, pods: Pods, closes: str, said: str, opens: str
) -> None:
    [node] = typed(cluster, "kubectl get nodes -o name").stdout.split()
    words = {
        "node": node,
        "name": node.partition("/")[2],
        "cards": " ".join(card.uuid for card in cluster.cards),
    }
    assert typed(cluster, closes.format(**words)).returncode == 0
    try:
        pods.create(pod("late", container("c", 20, 4)))
        cluster.wait(lambda: said in explained(cluster, "late"), 10, f"{said} is not said")
    finally:
        assert typed(cluster, opens.format(**words)).returncode == 0
    pods.wait_running("late")


def test_explain_names_the_label_that_a_pod_selects(cluster: Cluster, pods: Pods) -> None:
    [node] = typed(cluster, "kubectl get nodes -o name").stdout.split()
    pods.create(pod("apart", container("c", 20, 4), nodeSelector={"team": "ml"}))
    assert 'lacks what the pod selects: "team=ml"' in explained(cluster, "apart")
    assert typed(cluster, f"kubectl label {node} team=ml").returncode == 0
    try:
        pods.wait_running("apart")
    finally:
        assert typed(cluster, f"kubectl label {node} team-").returncode == 0


def explained(cluster: Cluster, name: str) -> str:
    """What ``explain`` says of a pod that waits."""
    done = typed(cluster, f"kubectl vcuda explain {name}")
    assert done.returncode == 1
    assert "there is room now" not in done.stdout
    return done.stdout


@pytest.mark.parametrize("found", ["enforcement-unknown", "enforcement-off"])
def test_the_doctor_tells_a_page_that_is_gone_from_one_that_was_overwritten(
    cluster: Cluster, pods: Pods, found: str
) -> None:
    """It says that a recreated pod gets a new page."""
    made = pod("ill", container("c", 20, 4))
    [running] = pods.run(made)
    assert "enforcement-" not in doctor(cluster)
    if found == "enforcement-off":
        [pid, *_] = product.processes_of(running)
        with Path(f"/proc/{pid}/root{USAGE_PATH}").open("r+b") as page:
            page.write(b"\xff" * 64)
    else:
        lines = pods.execute("ill", "cat", "/proc/self/mountinfo").splitlines()
        [root] = (line.split()[3] for line in lines if line.split()[4] == USAGE_PATH)
        cluster.root(f"/run{root}").unlink()
    cluster.wait(lambda: set(_FINDINGS.findall(doctor(cluster))) == {found}, 15, f"{found} is not found")
    pods.delete("ill")
    pods.run(made)
    cluster.wait(lambda: "enforcement-" not in doctor(cluster), 15, "it is not well again")


def doctor(cluster: Cluster) -> str:
    """What ``gpu-manager doctor`` finds in the agent's pod."""
    command = "kubectl -n kube-system exec ds/gpu-manager-daemonset -c gpu-manager -- gpu-manager doctor"
    return typed(cluster, command).stdout
