"""The agents' pods, and their pages as they are reached from within the cluster: by the pods' addresses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.http import HttpLimits, fetch
from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.streams import Pages
from gpu_manager.domain.contract import AGENT_DAEMONSET, HTTP_PORT
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.untrusted import mapping, mappings, text

_LIMITS: Final = HttpLimits(connect=1.0, answer=2.0, largest=4 << 20)
_PORT_NAME: Final = "metrics"  # of the container's port, in the chart


class KubeAgents:
    """See :class:`admission.console.agents_usage.Agents`. ``token``: file with the bearer token of
    the agents' pages, None if they ask for none.
    """

    def __init__(self, connection: Connection, namespace: str, token: Path | None = None) -> None:
        self._connection = connection
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._token = token
        self._places: Mapping[str, tuple[str, int]] = {}  # URL → address and port

    def addresses(self) -> Mapping[str, str]:
        """Node → URL of its agent. Raises NodeUnready."""
        found: dict[str, str] = {}
        places: dict[str, tuple[str, int]] = {}
        for pod in Pages(self._connection, "list the agents", self._path).read():
            spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
            node, ip = text(spec.get("nodeName")), text(status.get("podIP"))
            if is_agent(pod) and status.get("phase") == "Running" and node and ip:
                port = _port(spec)
                found[node] = f"http://{f'[{ip}]' if ':' in ip else ip}:{port}"
                places[found[node]] = ip, port
        self._places = places
        return found

    def page(self, url: str, path: str) -> bytes:
        """The agent's answer to a GET. Raises NodeUnready."""
        headers = {"Accept": "application/json"}
        if self._token is not None:
            try:
                headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
            except OSError as error:
                raise NodeUnready(f"cannot read {self._token}: {error.strerror}") from error
        place = self._places.get(url)
        if place is None:
            raise NodeUnready("it is not running any more")
        answer = fetch(*place, path, headers, _LIMITS)
        if answer.status != 200:
            raise NodeUnready(f"it answered {answer.status}")
        return answer.body


def _port(spec: Mapping[str, Any]) -> int:
    """The port that the container names for its pages."""
    for container in mappings(spec.get("containers")):
        for port in mappings(container.get("ports")):
            number = port.get("containerPort")
            if port.get("name") == _PORT_NAME and isinstance(number, int) and 0 < number < 1 << 16:
                return number
    return HTTP_PORT


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
