"""What ``kubectl`` needs of the API stand-in beyond the API: tables, short names, applying the same again."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpu_manager.domain.contract import NAMESPACE
from sandbox.agent_pod import show_agent
from sandbox.api import StandInApi
from sandbox.api.tables import age, pod_word
from sandbox.http_client import LoopbackClient
from tests.fakes.sandbox import BareNode, shell, short_directory, until
from tests.fakes.waiting import PATIENCE

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
NGINX = Path(__file__).parents[2] / "docs/examples/nginx.yaml"


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with StandInApi() as running:
        running.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "a"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"x.io/gpu": 1}}}]},
            }
        )
        yield running


def get(api: StandInApi, path: str, accept: str = TABLE) -> Any:
    link = http.client.HTTPConnection(urlsplit(api.url).netloc, timeout=PATIENCE)
    try:
        link.request("GET", path, headers={"Accept": accept})
        return json.loads(link.getresponse().read())
    finally:
        link.close()


@pytest.mark.parametrize("path", ["/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/pods/a"])
def test_pods_are_a_table_for_who_asks_for_one(api: StandInApi, path: str) -> None:
    found = get(api, path)
    assert found["kind"] == "Table"
    names = [c["name"] for c in found["columnDefinitions"]]
    assert names[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    (row,) = found["rows"]
    assert row["cells"][:4] == ["a", "0/1", "Pending", "0"]
    assert row["object"]["metadata"]["name"] == "a"


def test_the_agents_pod_is_shown_ready_as_its_node_is(api: StandInApi) -> None:
    pages = LoopbackClient(1)
    show_agent(api, "n1", 1, pages)
    pages.close()
    (row,) = get(api, f"/api/v1/namespaces/{NAMESPACE}/pods")["rows"]
    assert row["cells"][1:4] == ["1/1", "Running", "0"]


def test_programs_get_objects_as_before(api: StandInApi) -> None:
    assert get(api, "/api/v1/namespaces/default/pods", "application/json")["kind"] == "PodList"
    assert get(api, "/api/v1/namespaces/default/pods/a", "application/json")["kind"] == "Pod"
    assert get(api, "/api/v1/namespaces")["columnDefinitions"][0]["name"] == "Name"


def test_an_absent_pod_is_no_table(api: StandInApi) -> None:
    assert get(api, "/api/v1/namespaces/default/pods/b")["reason"] == "NotFound"


def pod(init: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    found = {"initContainerStatuses": init} if init else {}
    return {"metadata": {"name": "p"}, "spec": {"containers": [{}]}, "status": {**status, **found}}


def row(reason: str, kind: str = "waiting", *, ready: bool = False) -> dict[str, Any]:
    return {"ready": ready, "state": {kind: {"reason": reason}}}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (pod(phase="Pending"), "Pending"),
        (pod(phase="Running", containerStatuses=[row("CrashLoopBackOff")]), "CrashLoopBackOff"),
        (pod(phase="Succeeded", containerStatuses=[row("Completed", "terminated")]), "Completed"),
        (pod(phase="Failed", reason="Evicted", containerStatuses=[row("Error", "terminated")]), "Evicted"),
        (
            pod([{"ready": False, "started": True, "state": {"running": {}}}, row("")], phase="Pending"),
            "Init:1/2",
        ),
        (pod([row("CrashLoopBackOff")], phase="Pending"), "Init:CrashLoopBackOff"),
        (pod([row("Completed", "terminated", ready=True)], phase="Running"), "Running"),
        ({**pod(phase="Running"), "metadata": {"deletionTimestamp": "2026-11-21T00:00:00Z"}}, "Terminating"),
    ],
)
def test_the_status_column_says_what_explains_a_pod_best(found: dict[str, Any], word: str) -> None:
    assert pod_word(found) == word


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200_000, "2d")],
)
def test_ages_are_in_the_largest_unit_that_says_enough(seconds: int, shown: str) -> None:
    now = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
    then = now - dt.timedelta(seconds=seconds)
    assert age(then.strftime("%Y-%m-%dT%H:%M:%SZ"), now) == shown
    assert age(None, now) == "<unknown>"


def test_numbers_and_texts_of_one_quantity_are_no_change(api: StandInApi) -> None:
    before = api.get("pods", "a")
    assert before is not None
    spec = json.loads(json.dumps(before["spec"]).replace('"x.io/gpu": "1"', '"x.io/gpu": 1'))
    assert spec != before["spec"]
    assert api.patch("pods", "a", {"spec": spec})["spec"] == before["spec"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
def test_kubectl_applies_gets_describes_and_deletes() -> None:
    with short_directory() as directory, BareNode(directory) as node:
        config = node.api.kubeconfig(directory / "kubeconfig")
        manifest = directory / "pod.json"
        spec = {"containers": [shell("app", "exec sleep 60", resources={"limits": {"x.io/gpu": "1"}})]}
        manifest.write_text(
            json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec})
        )

        def kubectl(*arguments: str) -> str:
            done = subprocess.run(
                ["kubectl", f"--kubeconfig={config}", f"--cache-dir={directory}/cache", *arguments],
                check=False,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "pod/one created" in kubectl("apply", "-f", str(manifest))
        node.phase("one", "Running")
        until(lambda: node.container("one", "app").get("ready"))
        assert "pod/one unchanged" in kubectl("apply", "-f", str(manifest))
        assert kubectl("get", "po", "--no-headers").split()[:3] == ["one", "1/1", "Running"]
        assert "Successfully assigned" in kubectl("describe", "pod", "one")
        assert "deleted" in kubectl("delete", "pod", "one", "--grace-period=1")
        assert not node.pod("one")
