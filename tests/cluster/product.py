"""The product on the cluster, installed as users install it: the chart, with values for simulated cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.cluster.cluster import PROFILE, Cluster
from tests.cluster.parts import ROOT

CHART: Final = ROOT / "deploy/helm/gpu-manager"
NAMESPACE: Final = "kube-system"
STATE: Final = "/var/lib/gpu-manager"
CONTROL: Final = "cards.yaml"  # below the agent's state directory
AGENT: Final = "app.kubernetes.io/component=agent"
RECLAIM_SECONDS: Final = 2


def install(cluster: Cluster, *, admission: bool, wait_seconds: int = 180, **more: str) -> None:
    """Install or upgrade; returns when every pod of it is ready. ``more``: further chart values."""
    values = {
        "cards.source": f"simulated:{PROFILE}",
        "admission.enabled": str(admission).lower(),
        "agent.extraArgs[0]": f"--control={STATE}/{CONTROL}",
        "agent.extraArgs[1]": f"--reclaim-seconds={RECLAIM_SECONDS}",
        **more,
    }
    pairs = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    simulated = ("-f", str(CHART / "values-simulated.yaml"))
    timeout = f"--timeout={wait_seconds}s"
    # Not --wait: helm judges a DaemonSet by its whole fleet, and further nodes of the cluster are not real.
    cluster.helm(
        "upgrade", "--install", "gpu-manager", str(CHART), "-n", NAMESPACE, timeout, *simulated, *pairs
    )
    cluster.wait(lambda: agent_ready(cluster), wait_seconds, "the agent is not ready")
    if admission:
        cluster.wait(lambda: admission_ready(cluster), wait_seconds, "admission is not ready")


def agent_pod(cluster: Cluster) -> dict[str, Any] | None:
    """The real node's agent, if its pod is there and not on its way out."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pods = cluster.api.get(path, labelSelector=AGENT, fieldSelector="spec.nodeName=n1")["items"]
    living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return living[0] if living else None


def agent_ready(cluster: Cluster) -> bool:
    """True once the agent has registered and the node offers cards."""
    pod = agent_pod(cluster)
    conditions = (pod or {}).get("status", {}).get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and allocatable(cluster) != (0, 0)


def allocatable(cluster: Cluster, what: str = "allocatable") -> tuple[int, int]:
    """Cores and units of memory that the kubelet offers (or its ``capacity``)."""
    found = cluster.api.get("/api/v1/nodes/n1")["status"][what]
    return int(found.get("tencent.com/vcuda-core", 0)), int(found.get("tencent.com/vcuda-memory", 0))


def admission_ready(cluster: Cluster) -> bool:
    """True once every replica answers, and the newest set of them alone."""
    found = cluster.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gpu-quota-admission")
    status, wanted = found["status"], found["spec"]["replicas"]
    newest = status.get("observedGeneration") == found["metadata"]["generation"]
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
    return newest and counts == [wanted] * 3


def ask(cluster: Cluster, path: str) -> str:
    """GET from the agent's port, through the API server."""
    pod = agent_pod(cluster)
    name = pod["metadata"]["name"] if pod is not None else "none"
    return str(cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:5678/proxy{path}", text=True))


def containers(cluster: Cluster) -> set[str]:
    """Ids of the product's containers that the API says run."""
    pods = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", ())]
    return {status["containerID"] for status in statuses if "running" in status["state"]}


def order_cards(cluster: Cluster, orders: dict[int, dict[str, Any]]) -> None:
    """Set the health of simulated cards; what is not named is well."""
    path = Path(cluster.scratch / "agent" / CONTROL)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"cards": {str(index): order for index, order in orders.items()}}), "utf-8")
    draft.replace(path)


def kill_agent(cluster: Cluster) -> None:
    """SIGKILL to the agent's process; its container is started again by the kubelet."""
    pod = agent_pod(cluster)
    assert pod is not None
    [status] = pod["status"]["containerStatuses"]
    name = status["containerID"].rpartition("/")[2]
    done = cluster.inside(
        cluster.parts["ctr"],
        "-a",
        "/run/containerd/containerd.sock",
        "-n",
        "k8s.io",
        "tasks",
        "kill",
        "-s",
        "SIGKILL",
        name,
    )
    assert done.returncode == 0, done.stderr
