"""The real parts as a world for the cases of tests/agreement."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from tests.agreement.extender import MANAGED
from tests.agreement.node import NodeWorld
from tests.agreement.world import NOBODY, World
from tests.cluster import layout
from tests.cluster.cluster import Cluster
from tests.cluster.images import WORKLOAD

SCHEDULER: Final = "agreement"
SOCKET: Final = "/var/lib/kubelet/device-plugins/kubelet.sock"


def world(cluster: Cluster) -> World:
    """The cluster's API server."""
    admin = {"Authorization": f"Bearer {cluster.api.token}"}
    made = World(
        f"https://{cluster.api.host}:{cluster.api.port}",
        {"": admin, NOBODY: {**admin, "Impersonate-User": NOBODY}},
        cluster.api.authority,
        forget=lambda: _forget(cluster),
    )
    made.begin()
    return made


def _forget(cluster: Cluster) -> None:
    """A restarted API server remembers nothing from before its first lists."""
    cluster.restart("kube-apiserver")
    cluster.wait(lambda: cluster.api.get("/readyz", text=True) == "ok", 60, "the API server is not back")


@contextmanager
def scheduler(cluster: Cluster, port: int, directory: Path) -> Iterator[None]:
    """A kube-scheduler beside the cluster's own, of the name :data:`SCHEDULER`, with an extender on this port.

    It runs on the machine's own network, where the extender of a test is, and reaches the API server as kubectl
    does.
    """
    verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": SCHEDULER}],
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}/scheduler",
                **verbs,
                "weight": 5,
                "nodeCacheCapable": True,
                "managedResources": [{"name": MANAGED}],
            }
        ],
    }
    path = directory / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    with (directory / "scheduler.log").open("wb") as log:
        command = [cluster.parts["kube-scheduler"], f"--config={path}", "--secure-port=0"]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    try:
        yield
    finally:
        process.kill()
        process.wait()


def node(cluster: Cluster, api: World) -> NodeWorld:
    """The real node, reached from outside its namespaces: sockets are files."""

    def restart() -> None:
        before = cluster.root(SOCKET).stat()
        cluster.restart("kubelet")
        cluster.wait(lambda: cluster.root(SOCKET).stat().st_ctime_ns != before.st_ctime_ns, 30, "no kubelet")
        cluster.wait(cluster.node_ready, 60, "the node is not ready")

    return NodeWorld(api, layout.NODE, cluster.root("/var/lib/kubelet"), WORKLOAD, restart)
