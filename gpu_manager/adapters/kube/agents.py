"""The agents' pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.streams import Pages
from gpu_manager.domain.contract import AGENT_DAEMONSET
from gpu_manager.domain.untrusted import mapping, mappings, text


def find_agents(connection: Connection) -> Mapping[str, tuple[str, str]]:
    """Node → (namespace, pod) of the agent that runs there, by the chart's labels. Raises NodeUnready."""
    query = {"labelSelector": "app.kubernetes.io/component=agent"}
    found = {}
    for pod in Pages(connection, "list the agents' pods", "/api/v1/pods", query).read():
        meta, node = mapping(pod.get("metadata")), text(mapping(pod.get("spec")).get("nodeName"))
        if node and is_agent(pod) and mapping(pod.get("status")).get("phase") == "Running":
            found[node] = text(meta.get("namespace")), text(meta.get("name"))
    return found


def is_agent(obj: Mapping[str, Any]) -> bool:
    """True for a pod of the agent's DaemonSet."""
    owners = mappings(mapping(obj.get("metadata")).get("ownerReferences"))
    return any(one.get("kind") == "DaemonSet" and one.get("name") == AGENT_DAEMONSET for one in owners)
