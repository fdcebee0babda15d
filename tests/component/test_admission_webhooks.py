"""The webhooks as an API server calls them: what a user who creates or changes a pod is told."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY, PREDICATE_NODE
from sandbox.api import ADMIN_TOKEN, Hook, StandInApi, https_hook
from tests.fakes.https import HOST, Webhooks, issued
from tests.fakes.waiting import PATIENCE


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInApi]:
    authority = tmp_path_factory.mktemp("ca") / "ca.crt"
    authority.write_bytes(issued().authority)
    judged = frozenset({"pods", "pods/status", "pods/binding"})
    with Webhooks() as service:
        url = f"https://{HOST}:{service.port}"
        hooks = [
            Hook("mutate.vcuda", https_hook(f"{url}/mutate", str(authority))),
            Hook("validate.vcuda", https_hook(f"{url}/validate", str(authority)), judged),
        ]
        with StandInApi(hooks=hooks) as api:
            yield api


def send(
    api: StandInApi, obj: dict[str, Any], method: str = "POST", path: str = ""
) -> tuple[int, dict[str, Any], str]:
    """Status, object and warnings, as kubectl gets them."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_TOKEN}"}
    if method == "PATCH":
        headers["Content-Type"] = "application/merge-patch+json"
    url = f"{api.url}/api/v1/namespaces/default/pods{path}"
    sent = urllib.request.Request(url, json.dumps(obj).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(sent, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer), " ".join(answer.headers.get_all("Warning") or [])
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), ""


def manifest(core: object = None, memory: object = None, **meta: Any) -> dict[str, Any]:
    limits = {k: v for k, v in ((CORE, core), (MEMORY, memory)) if v is not None}
    spec = {"containers": [{"name": "train", "image": "busybox", "resources": {"limits": limits}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "train-", **meta}, "spec": spec}


@pytest.mark.parametrize(
    ("core", "memory"), [(30, 20), (56, 1), (100, None), (600, None), (3400, None), ("3e1", "20")]
)
def test_the_seeds_legal_pods_are_created(cluster: StandInApi, core: object, memory: object) -> None:
    status, made, warnings = send(cluster, manifest(core, memory))
    assert (status, warnings) == (201, "")
    assert made["metadata"]["name"].startswith("train-")


@pytest.mark.parametrize(
    ("core", "memory", "says"),
    [
        (150, None, "(100 or 200)"),
        (270, None, "(200 or 300)"),
        (354, None, "(300 or 400)"),
        (None, 20, "add tencent.com/vcuda-core, 1 to 99"),
        (30, None, "add tencent.com/vcuda-memory, 1 or more units of 256 MiB"),
        ("0.3", 20, "if 0.3 cards were meant, use 30"),
        (30, "0.5", "in whole numbers: use 1"),
        ("-30", 20, "use 1 to 100 for a part of one card"),
    ],
)
def test_the_seeds_illegal_pods_are_refused_with_the_nearest_value(
    cluster: StandInApi, core: object, memory: object, says: str
) -> None:
    status, answer, _ = send(cluster, manifest(core, memory))
    assert status == 422
    assert says in answer["message"]
    assert ".vcuda" in answer["message"]  # it was the webhook that said so


def test_what_is_mended_is_stored_mended_and_told(cluster: StandInApi) -> None:
    status, made, warnings = send(cluster, manifest(200, 20, annotations={PREDICATE_NODE: "n1", "mine": "x"}))
    assert status == 201
    assert made["metadata"]["annotations"] == {"mine": "x"}
    assert MEMORY not in str(made["spec"])
    assert "it is ignored" in warnings
    assert "is removed" in warnings


def test_a_tenant_cannot_annotate_its_own_pod(cluster: StandInApi) -> None:
    _, made, _ = send(cluster, manifest(100))
    path = f"/{made['metadata']['name']}"
    for sub in ("", "/status"):
        status, answer, _ = send(
            cluster, {"metadata": {"annotations": {PREDICATE_NODE: "n9"}}}, "PATCH", path + sub
        )
        assert (status, "leave it out" in answer["message"]) == (403, True)
    assert send(cluster, {"metadata": {"annotations": {"mine": "x"}}}, "PATCH", path)[0] == 200
    binding = {
        "metadata": {"name": path[1:], "annotations": {PREDICATE_NODE: "n9"}},
        "target": {"name": "n9"},
    }
    assert send(cluster, {"apiVersion": "v1", "kind": "Binding", **binding}, path=f"{path}/binding")[0] == 403


def test_a_dry_run_says_the_same_and_stores_nothing(cluster: StandInApi) -> None:
    before = len(cluster.list("pods"))
    assert send(cluster, manifest(150), path="?dryRun=All")[0] == 422
    assert send(cluster, manifest(100), path="?dryRun=All")[0] == 201
    assert len(cluster.list("pods")) == before
