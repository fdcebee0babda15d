"""Usage in the cluster's console: from the agents' pods by their addresses, with their token, or blank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpu_manager.adapters.kube.agent_pages import KubeAgents
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.domain.contract import AGENT_DAEMONSET
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.web import send, serving

USAGE = {"usage": {}}


class Agent:
    """An agent's port, which may ask for a token."""

    def __init__(self) -> None:
        self.token = ""
        self.url = ""

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        given = handler.headers.get("Authorization", "")
        allowed = not self.token or given == f"Bearer {self.token}"
        send(handler, json.dumps(USAGE).encode(), 200 if allowed else 401, kind="application/json")

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0


@pytest.fixture
def agent() -> Iterator[Agent]:
    running = Agent()
    with serving(running.respond) as running.url:
        yield running


def put(api: StandInApi, obj: dict[str, Any]) -> None:
    """Create it and, as a kubelet does, write its status."""
    api.create(obj, "kube-system")
    api.patch("pods", obj["metadata"]["name"], {"status": obj["status"]}, "kube-system", subresource="status")


def pod(
    name: str, node: str, port: int | None, *, owner: str = AGENT_DAEMONSET, **status: Any
) -> dict[str, Any]:
    ports = [] if port is None else [{"name": "metrics", "containerPort": port}]
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": "1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "ownerReferences": owners},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "x", "ports": ports}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1", **status},
    }


def test_agents_are_the_running_pods_of_the_daemonset_at_the_port_that_they_name(agent: Agent) -> None:
    with StandInApi() as api:
        put(api, pod("a", "n1", agent.port))
        put(api, pod("b", "n2", None, podIP="fd00::1"))
        put(api, pod("starting", "n3", None, phase="Pending"))
        put(api, pod("other", "n4", None, owner="other"))
        agents = KubeAgents(connect(url=api.url, token=ADMIN_TOKEN), "kube-system")
        found = agents.addresses()
        assert found == {"n1": agent.url, "n2": "http://[fd00::1]:5678"}
        assert json.loads(agents.page(found["n1"], "/usage")) == USAGE
        api.delete("pods", "b", "kube-system", grace=0)
        assert agents.addresses() == {"n1": agent.url}


def test_the_token_is_read_anew_and_without_it_the_agent_refuses(agent: Agent, tmp_path: Path) -> None:
    agent.token = "sesame"
    file = tmp_path / "token"
    with StandInApi() as api:
        put(api, pod("a", "n1", agent.port))
        connection = connect(url=api.url, token=ADMIN_TOKEN)
        bare, armed = KubeAgents(connection, "kube-system"), KubeAgents(connection, "kube-system", file)
        with pytest.raises(NodeUnready, match="401"):
            bare.page(bare.addresses()["n1"], "/usage")
        armed.addresses()
        with pytest.raises(NodeUnready, match="cannot read"):
            armed.page(agent.url, "/usage")
        file.write_text("sesame\n")
        assert json.loads(armed.page(agent.url, "/usage")) == USAGE
