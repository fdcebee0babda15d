"""The agent as a cluster shows it: a pod of its DaemonSet, whose pages are reached through the API server.

The agent itself is a process beside the node's loop, not one of its containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu_manager.domain.contract import AGENT_DAEMONSET, HTTP_PORT, NAMESPACE, TOKEN_HEADER
from sandbox.api import StandInApi
from sandbox.http_client import LOOPBACK, LoopbackClient

NAME: Final = f"{AGENT_DAEMONSET}-sandbox"
LABELS: Final = {"app.kubernetes.io/component": "agent"}  # the chart's, by which agents are found


def show_agent(api: StandInApi, node: str, port: int, pages: LoopbackClient) -> None:
    """Make the pod and its DaemonSet; requests for its pages (pods/proxy) reach the agent."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": AGENT_DAEMONSET,
        "uid": AGENT_DAEMONSET,
        "controller": True,
    }
    container = {
        "name": "gpu-manager",
        "image": "gpu-manager",
        "ports": [{"name": "metrics", "containerPort": port}],
    }
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": AGENT_DAEMONSET, "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": LABELS}, "template": template},
        }
    )
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": LABELS, "ownerReferences": [owner]},
            "spec": {"nodeName": node, "containers": [container]},
        }
    )
    row = {"name": "gpu-manager", "image": "gpu-manager", "ready": True, "restartCount": 0}
    status = {
        "phase": "Running",
        "podIP": LOOPBACK,
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{**row, "state": {"running": {}}}],
    }
    api.patch("pods", NAME, {"status": status}, NAMESPACE, subresource="status")

    def passed_on(path: str, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        kept = {name: headers[name.lower()] for name in ("Accept", TOKEN_HEADER) if name.lower() in headers}
        return pages.ask(method, path, body or None, kept)

    api.serve_behind(f"/api/v1/namespaces/{NAMESPACE}/pods/{NAME}:{HTTP_PORT}/proxy", passed_on)
