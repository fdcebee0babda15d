"""The product on the cluster, installed as users install it: the chart, with values for simulated cards."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Final

from gpu_manager.domain.contract import DRA_DRIVER
from tests.cluster import auditor, processes
from tests.cluster.api import ApiError
from tests.cluster.cluster import PROFILE, Cluster
from tests.cluster.parts import ROOT
from tests.cluster.periods import chosen

CHART: Final = ROOT / "deploy/helm/gpu-manager"
SIMULATED: Final = "values-simulated.yaml"
NAMESPACE: Final = "kube-system"
STATE: Final = "/var/lib/gpu-manager"
CONTROL: Final = "cards.yaml"  # below the agent's state directory
AGENT: Final = "app.kubernetes.io/component=agent"
TEMPLATE: Final = "deprecated.daemonset.template.generation"
ADMISSION: Final = "app.kubernetes.io/component=admission"
EVICTOR: Final = "app.kubernetes.io/component=evictor"
WAIT_SECONDS: Final = 180


def install(
    cluster: Cluster,
    *,
    admission: bool,
    chart: Path = CHART,
    simulated: Path = CHART / SIMULATED,
    **more: str,
) -> None:
    """Install or upgrade; returns when every pod of it is ready.

    ``chart`` is a directory or an archive, ``simulated`` its file of values for a cluster without cards, ``more``
    are further values.
    """
    values = {
        "cards.source": f"simulated:{PROFILE}",
        "admission.enabled": str(admission).lower(),
        "agent.extraArgs[0]": f"--control={STATE}/{CONTROL}",
        **{f"agent.extraArgs[{at}]": option for at, option in enumerate(chosen().agent, 1)},
        **more,
    }
    if chart == CHART:  # other pods for another image under the same tag
        values["podAnnotations.image"] = f"sha256-{cluster.running.image}"
    pairs = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    timeout = f"--timeout={WAIT_SECONDS}s"
    # Not --wait: helm judges a DaemonSet by its whole fleet, and further nodes of the cluster are not real.
    cluster.helm(
        *("upgrade", "--install", "gpu-manager", str(chart), "-n", NAMESPACE, timeout),
        *("-f", str(simulated), *pairs),
    )
    wait_ready(cluster, admission=admission)


def wait_ready(cluster: Cluster, *, admission: bool = True) -> None:
    """Until every pod of what was installed last is ready."""
    cluster.wait(lambda: newest(cluster) and agent_ready(cluster), WAIT_SECONDS, "the agent is not ready")
    if admission:
        cluster.wait(lambda: admission_ready(cluster), WAIT_SECONDS, "admission is not ready")


def agent_pod(cluster: Cluster, component: str = AGENT) -> dict[str, Any] | None:
    """The real node's agent, or another component, if its pod is there and not on its way out."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pods = cluster.api.get(path, labelSelector=component, fieldSelector="spec.nodeName=n1")["items"]
    living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return living[0] if living else None


def newest(cluster: Cluster) -> bool:
    """True if the agent is of the DaemonSet's template as it is now."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpu-manager-daemonset"
    wanted = cluster.api.get(path)["metadata"]["annotations"][TEMPLATE]
    pod = agent_pod(cluster)
    return pod is not None and pod["metadata"]["labels"].get("pod-template-generation") == wanted


def agent_ready(cluster: Cluster) -> bool:
    """True once the agent has registered and the node offers cards, by the front that it was given."""
    pod = agent_pod(cluster)
    conditions = (pod or {}).get("status", {}).get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    front = _front(pod)
    by_claims = front != "dra" or bool(devices(cluster))  # a split node may give all cards one way
    return ready and by_claims and (front != "plugin" or allocatable(cluster) != (0, 0))


def _front(pod: dict[str, Any] | None) -> str:
    containers = pod["spec"]["containers"] if pod is not None else []
    options = (option for one in containers for option in one.get("args", ()))
    return next((option.partition("=")[2] for option in options if option.startswith("--front=")), "plugin")


def devices(cluster: Cluster) -> list[dict[str, Any]]:
    """The devices that the node publishes to DRA, in their order."""
    path, selector = "/apis/resource.k8s.io/v1/resourceslices", f"spec.driver={DRA_DRIVER},spec.nodeName=n1"
    slices = cluster.api.get(path, fieldSelector=selector)["items"]
    return [device for one in slices for device in one["spec"].get("devices", ())]


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
    return str(cluster.api.get(_proxied(cluster, path), text=True))


def ask_json(cluster: Cluster, path: str) -> Any:
    """As :func:`ask`, of a page that has a form for programs."""
    return cluster.api.get(_proxied(cluster, path))


def _proxied(cluster: Cluster, path: str) -> str:
    pod = agent_pod(cluster)
    name = pod["metadata"]["name"] if pod is not None else "none"
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:5678/proxy{path}"


def containers(cluster: Cluster) -> set[str]:
    """Ids of the product's containers that the API says run."""
    pods = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", ())]
    return {status["containerID"] for status in statuses if "running" in status["state"]}


def told(cluster: Cluster, component: str = AGENT) -> list[dict[str, Any]]:
    """The own words of the agent, or another component, since it started; none while they cannot be had: a log is
    the kubelet's to show.
    """
    pod = agent_pod(cluster, component)
    if pod is None:
        return []
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/log"
    try:
        text = cluster.api.get(path, text=True, container=pod["spec"]["containers"][0]["name"])
    except ApiError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def offers(cluster: Cluster) -> list[dict[str, Any]]:
    """Each list of devices that the kubelet was sent."""
    return [line for line in told(cluster) if line["event"] == "devices_sent"]


def first_asked(cluster: Cluster) -> dict[str, str]:
    """Pod → the resource that the kubelet allocated first."""
    found: dict[str, str] = {}
    for line in told(cluster):
        if line["event"] == "placed":
            found.setdefault(line["pod"], line["resource"])
    return found


def order_cards(cluster: Cluster, orders: dict[int, dict[str, Any]]) -> None:
    """Set the health of simulated cards; what is not named is well."""
    path = Path(cluster.scratch / "agent" / CONTROL)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"cards": {str(index): order for index, order in orders.items()}}), "utf-8")
    draft.replace(path)


def kill(cluster: Cluster, selector: str) -> None:
    """SIGKILL to every process of the product's containers with this label; the kubelet starts them again."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pods = cluster.api.get(path, labelSelector=selector, fieldSelector="spec.nodeName=n1")["items"]
    for pod in pods:
        for pid in processes_of(pod):
            processes.end(pid)


def kill_held_agent(cluster: Cluster) -> None:
    """SIGKILL to the agent's own process, as a crash ends it; returns once its parent has started another, which answers."""
    pod = agent_pod(cluster)
    assert pod is not None
    _, killed = agent_processes(pod)
    processes.end(killed)

    def answers() -> bool:
        now = agent_pod(cluster)  # its container may have been replaced
        return (
            now is not None and agent_processes(now)[1] not in (0, killed) and bool(ask(cluster, "/readyz"))
        )

    cluster.wait(answers, 60, "the agent does not come back under its parent")


def agent_processes(pod: dict[str, Any]) -> tuple[int, int]:
    """The process that the agent's container runs, and its child, the agent; 0 where there is none."""
    found = {pid: _parent(pid) for pid in processes_of(pod, "gpu-manager")}
    [holder, *_] = [pid for pid, parent in found.items() if parent not in found] or [0]
    [agent, *_] = [pid for pid, parent in found.items() if parent == holder] or [0]
    return holder, agent


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return 0


def processes_of(pod: dict[str, Any], container: str = "") -> list[int]:
    """Of a pod's containers, or of one of them, without the one that holds its namespaces."""
    held = [
        auditor.Held(pod["metadata"]["name"], pod["metadata"]["uid"], status["name"], 0, 0, number, None)
        for status in pod["status"].get("containerStatuses", ())
        if container in ("", status["name"]) and (number := status.get("containerID", "").rpartition("/")[2])
    ]
    found = []
    for one in held:
        with contextlib.suppress(ProcessLookupError):
            found += auditor.processes_of(one)
    return found
