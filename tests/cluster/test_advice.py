"""What commands tell people to do, typed to the letter: does it help on real Kubernetes?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_manager.domain.contract import PLACEMENT
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod
from tests.cluster.workloads import Workload


def typed(cluster: Cluster, words: str | Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command line as a person types it, with kubectl and its plugin on the path."""
    programs = (Path(cluster.parts["kubectl"]).parent, Path(sys.executable).parent)
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    line = words if isinstance(words, str) else " ".join(words)
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run(
        line, shell=True, env=environment, capture_output=True, text=True, check=False, timeout=400
    )


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


def test_explain_names_the_cordon_that_keeps_a_pod_off(cluster: Cluster, pods: Pods) -> None:
    [node] = typed(cluster, "kubectl get nodes -o name").stdout.split()
    assert typed(cluster, f"kubectl cordon {node}").returncode == 0
    try:
        pods.create(pod("late", container("c", 20, 4)))
        done = typed(cluster, "kubectl vcuda explain late")
        assert done.returncode == 1
        assert "is cordoned" in done.stdout
        assert "there is room now" not in done.stdout
    finally:
        assert typed(cluster, f"kubectl uncordon {node}").returncode == 0
    pods.wait_running("late")
