"""Orders to a running sandbox: all that can be done is done and told at once, what is refused has a word."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_manager.adapters.http import HttpClient
from gpu_manager.domain.errors import RequestInvalid
from sandbox.api import ADMIN_TOKEN, StandInApi
from sandbox.control import ControlServer, SandboxOrder, obey, send
from sandbox.simulated_cluster import Sandbox


def pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c"}]},
    }


DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}


def a_sandbox(directory: Path) -> Sandbox:
    """What orders need of one: its API server and where it lies."""
    return cast("Sandbox", SimpleNamespace(api=StandInApi(), directory=directory))


def test_what_is_refused_does_not_keep_the_rest_from_being_applied(tmp_path: Path) -> None:
    sandbox = a_sandbox(tmp_path)
    told: list[str] = []
    order = SandboxOrder(
        [pod("a"), DEPLOYMENT, pod("b"), pod("Bad_Name"), pod("c")], ["absent"], ["nonsense"]
    )
    said = r"4 of 7 were refused: deployment/web: .*no controllers.*; pod/Bad"
    with pytest.raises(RequestInvalid, match=said):  # noqa: PT012  # same
        for line in obey(sandbox, order):
            told.append(line)  # noqa: PERF402  # what comes before the refusal counts
    assert told == ["pod/a created", "pod/b created", "pod/c created"]
    assert {p["metadata"]["name"] for p in sandbox.api.list("pods")} == {"a", "b", "c"}


def test_each_line_is_told_before_the_next_thing_is_done(tmp_path: Path) -> None:
    sandbox = a_sandbox(tmp_path)
    control = ControlServer(sandbox)
    control.start()
    told: list[str] = []
    first = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        first.set()

    try:
        with pytest.raises(RequestInvalid, match="deployment/web"):
            send(tmp_path, SandboxOrder([*(pod(f"p{n}") for n in range(300)), DEPLOYMENT]), tell)
        assert first.is_set()
    finally:
        control.stop()
    assert told == [f"pod/p{n} created" for n in range(300)]
    assert send(tmp_path, SandboxOrder(), tell) is False


def test_kinds_and_bodies_that_are_not_served_have_a_word() -> None:
    with StandInApi() as api:
        client = HttpClient(api.url)
        headers = {
            "Authorization": f"Bearer {ADMIN_TOKEN}",
            "Content-Type": "application/vnd.kubernetes.protobuf",
        }
        maps = client.ask("POST", "/api/v1/namespaces/default/configmaps", body=b"k8s\0", headers=headers)
        assert (maps.status, b"kubectl apply -f it" in maps.body) == (415, True)
        made = client.ask("POST", "/apis/apps/v1/namespaces/default/replicasets", body=b"{}", headers=headers)
        assert (made.status, b"no controllers: apply the pods themselves" in made.body) == (404, True)
        body = json.dumps(DEPLOYMENT).encode()
        headers["Content-Type"] = "application/json"
        kept = client.ask("POST", "/apis/apps/v1/namespaces/default/deployments", body=body, headers=headers)
        assert (kept.status, "no controllers" in kept.headers.get("warning", "")) == (201, True)
        client.close()
