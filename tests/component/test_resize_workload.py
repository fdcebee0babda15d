"""A Deployment's size through the whole admission service: what a user writes, and what its pods get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.contract import CORE, RESIZE, RESIZED, TEMPLATE_SIZE
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resize.sizes import answer_of
from sandbox.api import StandInApi
from tests.fakes.admission import NODES, Service, cluster
from tests.fakes.extender import pod
from tests.fakes.reviews import patched, review
from tests.fakes.sandbox import until

Obj = dict[str, Any]


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with cluster() as made:
        yield made


def replica(name: str) -> Obj:
    obj = pod(name)
    del obj["metadata"]["uid"]
    obj["metadata"]["labels"] = {"pod-template-hash": "abc"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc", "controller": True, "uid": "1"}
    obj["metadata"]["ownerReferences"] = [owner]
    return obj


def mutated(service: Service, obj: Obj) -> Obj:
    sent = {**obj, "metadata": {**obj["metadata"], "namespace": "default"}}
    body = review(sent, namespace="default")
    status, text = service.send("POST", "/mutate", body, **{"Content-Type": "application/json"})
    assert status == 200, text
    return patched(sent, json.loads(text)["response"])


def cores_of(obj: Obj) -> int:
    return parse_pod(obj).containers[0].wants(CORE)


@pytest.mark.usefixtures("kubectl_login")
def test_running_pods_follow_and_new_ones_start_so(api: StandInApi) -> None:
    api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"template": {"spec": pod("x")["spec"]}},
        }
    )
    with Service(api) as service:
        running = api.create(replica("web-abc-1"))
        assert service.placed(running, NODES)
        before = mutated(service, replica("web-abc-2"))
        assert (cores_of(before), before["metadata"]["annotations"].get(TEMPLATE_SIZE)) == (30, None)
        assert run(["resize", "deployment/web", "--cores", "50"]) == 0

        def answered() -> bool:
            answer = answer_of(parse_pod(api.get("pods", "web-abc-1")))
            return answer is not None and answer.sizes["main"].cores == 50

        until(answered)
        assert RESIZE not in api.get("pods", "web-abc-1")["metadata"]["annotations"]
        new = mutated(service, replica("web-abc-2"))
        assert cores_of(new) == 50
        created = api.create(new)
        assert service.placed(created, NODES)
        assert RESIZED not in api.get("pods", "web-abc-2")["metadata"]["annotations"], "it was created so"


@pytest.mark.usefixtures("kubectl_login")
def test_a_size_that_no_card_has_is_refused_and_a_reset_mends_what_waits(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"template": {"spec": pod("x")["spec"]}},
        }
    )
    with Service(api) as service:
        assert run(["resize", "deployment/web", "--memory", "8Gi", "--wait", "0"]) == 0
        until(lambda: TEMPLATE_SIZE in mutated(service, replica("web-abc-1"))["metadata"]["annotations"])
        api.create(mutated(service, replica("web-abc-1")))
        assert run(["resize", "deployment/web", "--memory", "4Gi", "--wait", "0"]) == 0
        assert "web-abc-1 waits at the size that was asked for before" in capsys.readouterr().out
        assert run(["resize", "deployment/web", "--reset", "--wait", "5"]) == 0
        assert "web-abc-1 waited at the size that was asked for before: deleted" in capsys.readouterr().out
        assert api.get("pods", "web-abc-1") is None
