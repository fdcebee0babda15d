"""``kubectl vcuda explain`` over the API stand-in, with and without an admission service behind its proxy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    DRA_DRIVER,
    INVENTORY,
    NVIDIA,
    PRIORITY,
    TOKEN_HEADER,
    Inventory,
    encode_inventory,
)
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.dra.parameters import API_VERSION, KIND
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import Link, Topology
from sandbox.api import StandInApi
from tests.fakes.admission import Service
from tests.fakes.kubectl import ADMISSION, MANIFEST, a_node, a_share, an_agent, said
from tests.fakes.node import container, pod

pytestmark = pytest.mark.usefixtures("kubectl_login")


def test_a_node_without_the_host_cpu_of_a_manifest_keeps_its_pod_off(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api, cards=1, cpu="2")
    file = tmp_path / "web.json"
    made = pod("web", container("c", 30, 8))
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "3"}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, **made}))
    assert run(["explain", "-f", str(file), "--admission", "-"]) == 1
    assert '"n1" has less host CPU free than the 3 that the pod asks for' in said(capsys)[0]


def test_explain_judges_a_manifest_that_is_not_created(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api, cards=1)
    a_share(api, "train", 60)
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 30)
    assert run(["explain", str(file), "-n", "ml", "--admission", "-"]) == 0
    out, err = said(capsys)
    assert out.startswith("pod ml/web\nthere is room now: on n1 it would get 30 cores, 2 GiB of card 0\n")
    assert "judged by this program" in err
    file.write_text(MANIFEST % 50)
    assert run(["explain", str(file), "-o", "json"]) == 1
    (answer,) = json.loads(said(capsys)[0])["pods"]
    assert answer["nodes"][0]["cards"][0]["reason"].startswith("50 cores asked, 40 free")
    file.write_text(MANIFEST % 150)
    assert run(["explain", str(file)]) == 1
    assert "never runs" in said(capsys)[0]
    assert run(["explain", "train"]) == 0
    assert "bound to node n1: 60 cores, 2 GiB of card 0" in said(capsys)[0]


@pytest.mark.parametrize(("held", "line"), [("gate", 'held by the scheduling gate "kueue.x-k8s.io/admission"'), ("volume", "held by a volume"), ("owner", "held by its own Deployment/web"), ("", "waits")])  # fmt: skip
def test_explain_names_who_holds_a_pod_without_the_service_too(
    held: str, line: str, api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    def of(template: str) -> dict[str, Any]:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{template}", "uid": template}
        meta = {"ownerReferences": [{**owner, "controller": True}], "labels": {"pod-template-hash": template}}
        return meta if held == "owner" else {}

    a_node(api, cards=1)
    a_share(api, "web-old", 60, **of("5d9"))
    waits = pod("late", container("main", 50, 4))
    waits["metadata"].update(of("7f2"))
    waits["spec"].pop("nodeName")
    if held == "gate":
        waits["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    api.create(waits)
    if held == "volume":
        message = 'persistentvolumeclaim "data" not found'
        condition = {"type": "PodScheduled", "status": "False", "message": message}
        api.patch("pods", "late", {"status": {"conditions": [condition]}}, subresource="status")
    assert run(["explain", "late", "--admission", "-", "-o", "json"]) == 1
    [answer] = json.loads(said(capsys)[0])["pods"]
    assert answer.get("held", "") == held
    assert answer["line"].startswith(line)


def test_a_manifest_without_a_namespace_is_judged_in_the_contexts_own(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api, cards=1)
    config = Path(os.environ["KUBECONFIG"])
    written = json.loads(config.read_text())
    written["contexts"][0]["context"]["namespace"] = "ml"
    config.write_text(json.dumps(written))
    file, named = tmp_path / "web.yaml", tmp_path / "named.yaml"
    file.write_text(MANIFEST % 30)
    named.write_text((MANIFEST % 30).replace("{name: web}", "{name: web, namespace: own}"))
    assert run(["explain", "-f", str(file), "-f", str(named), "--admission", "-"]) == 0
    assert [line for line in said(capsys)[0].splitlines() if line.startswith("pod ")] == [
        "pod ml/web",
        "pod own/web",
    ]
    assert run(["simulate", str(file), str(named), "--admission", "-"]) == 0
    assert [line.split()[0] for line in said(capsys)[0].splitlines()[1:3]] == ["ml/web", "own/web"]


def test_a_pod_of_several_that_cannot_be_read_is_named(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api)
    file = tmp_path / "two.yaml"
    odd = (
        (MANIFEST % 30)
        .replace("{name: web}", "{name: odd}")
        .replace("template:", "template:\n    metadata: {annotations: [1]}")
    )
    file.write_text(f"{MANIFEST % 30}---\n{odd}")
    assert run(["explain", str(file)]) == 2
    assert f"{file}: Deployment odd: metadata.annotations is a list" in said(capsys)[1]


def test_explain_says_what_a_pod_with_nvidias_name_waits_for(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api, cards=2)
    api.patch("nodes", "n1", {"status": {"capacity": {NVIDIA: "2"}}}, subresource="status")
    a_share(api, "train", 60)
    file = tmp_path / "theirs.yaml"
    limits = f"{{resources: {{limits: {{{NVIDIA}: 2}}}}, name: c, image: i}}"
    file.write_text(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: theirs}}\nspec: {{containers: [{limits}]}}\n"
    )
    assert run(["explain", str(file), "--admission", "-"]) == 1
    assert "n1: 1 of 2 cards are empty, 1 are held in part" in said(capsys)[0]
    file.write_text(file.read_text().replace(f"{NVIDIA}: 2", f"{NVIDIA}: 1"))
    assert run(["explain", str(file), "--admission", "-"]) == 0
    assert "room now on 1 of 1 nodes" in said(capsys)[0]


def test_a_pod_that_is_gone_is_bad_input_and_no_pod_that_waits(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    assert run(["explain", "train"]) == 2
    assert said(capsys) == ("", 'kubectl vcuda: no pod "train" in namespace "default"; -n names another\n')


def test_explain_repeats_why_a_pod_has_failed(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_node(api, cards=1)
    a_share(api, "late", 60)
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: no card"}
    api.patch("pods", "late", {"status": status}, subresource="status")
    assert run(["explain", "late", "--admission", "-"]) == 1
    lines = said(capsys)[0].splitlines()
    assert lines[1:3] == [
        "ended on node n1, and holds nothing any more",
        "it failed: UnexpectedAdmissionError: Pod was rejected: no card",
    ]
    assert "make it anew" in lines[3]
    assert run(["explain", "late", "--admission", "-", "-o", "json"]) == 1
    assert json.loads(said(capsys)[0])["pods"][0]["failed"].startswith("UnexpectedAdmissionError: ")


def test_explain_tells_a_pod_that_waits_for_something_else_so(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, cards=1)
    for name, units in (("picky", 8), ("large", 800)):
        waiting = pod(name, container("c", 30, units))
        waiting["spec"].pop("nodeName")
        api.create(waiting)
    assert run(["explain", "picky", "--admission", "-"]) == 0
    out, _ = said(capsys)
    assert (
        "\nwaits, but not for cards: there is room now: on n1 it would get 30 cores, 2 GiB of card 0. " in out
    )
    assert run(["explain", "large", "--admission", "-"]) == 1
    assert "\nwaits: the one node with cards has no room now; n1: " in said(capsys)[0]
    api.patch("nodes", "n1", {"spec": {"unschedulable": True}})
    assert run(["explain", "picky", "--admission", "-"]) == 1
    out, _ = said(capsys)
    assert '\nwaits: the one node with cards keeps it off: "n1" is cordoned\n' in out
    assert "\nn1: has room for it, but is cordoned\n" in out


def test_the_admission_service_is_asked_with_the_callers_token_in_a_header_that_survives_the_proxy(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api)
    a_share(api, "train", 30)
    asked: list[tuple[str, str, str | None, str]] = []

    def service(path: str, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        assert "authorization" not in headers
        asked.append((path, method, headers.get(TOKEN_HEADER.lower()), body.decode()))
        if path.startswith("/quota"):
            row = {"namespace": "default", "model": "V100", "cores": 100, "cores_used": 130}
            rows = [{**row, "memory": None, "memory_used": 1 << 30}]
            return 200, json.dumps({"quota": rows, "complaint": "not\x1b JSON"}).encode()
        answer = {
            "pod": "default/x",
            "line": "waits: \x1b[2J",
            "counts": {"room": 1},
            "total": 1,
            "nodes": [7],
        }
        return 200, json.dumps({**answer, "quota": ["1 of 2 cards"]}).encode()

    api.serve_behind(ADMISSION, service)
    assert run(["explain", "train"]) == 1
    out, err = said(capsys)
    assert "\x1b" not in out
    assert "quota: 1 of 2 cards" in out
    assert "judged by the admission service" in err
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 30)
    assert run(["explain", str(file)]) == 1
    said(capsys)
    assert run(["quota", "default"]) == 1  # 1.3 of 1
    out, err = said(capsys)
    assert out.splitlines()[1].split() == ["default", "V100", "1", "1.3", "-", "1", "GiB"]
    assert "not\\x1b JSON: the last valid quota is in force, and shown" in err
    assert run(["quota", "default", "-o", "json"]) == 1
    assert json.loads(said(capsys)[0])["complaint"] == "not\x1b JSON"
    assert [(path, method) for path, method, _, _ in asked] == [
        ("/explain/default/train", "GET"),
        ("/explain", "POST"),
        *[("/quota?namespace=default", "GET")] * 2,
    ]
    assert {token for _, _, token, _ in asked} == {"Bearer sandbox-admin"}
    assert json.loads(asked[1][3])["metadata"] == {"name": "web", "namespace": "default"}


def test_a_service_that_does_not_answer_is_told_from_one_that_is_not_there(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "train", 60)

    def away(*_: object) -> tuple[int, bytes]:
        raise NodeUnready("Connection refused")

    api.serve_behind(ADMISSION, away)
    assert run(["explain", "train"]) == 0
    assert (
        "without quotas, gangs and PriorityClasses (kube-system/gpu-quota-admission: no pod of it is ready)"
        in said(capsys)[1]
    )


def test_a_pod_of_a_file_is_explained_with_the_claims_and_templates_of_all_files(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api)
    asked: list[Any] = []

    def service(_path: str, _method: str, _headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        asked.append(json.loads(body))
        answer = {"pod": "default/p", "line": "there is room now", "counts": {"fits": 1}, "total": 1}
        return 200, json.dumps({**answer, "nodes": []}).encode()

    api.serve_behind(ADMISSION, service)
    by_claim, template = tmp_path / "pod.yaml", tmp_path / "template.yaml"
    by_claim.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
        "  resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]\n  containers: [{name: c}]\n"
    )
    template.write_text(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: t}\nspec: {spec: {}}\n"
    )
    assert run(["explain", "-f", str(by_claim), "-f", str(template)]) == 0
    said(capsys)
    assert [one["kind"] for one in asked[0]["items"]] == ["Pod", "ResourceClaimTemplate"]
    assert asked[0]["kind"] == "List"
    assert run(["explain", str(by_claim), "--admission", "-"]) == 1
    assert "the admission service alone explains them" in said(capsys)[0]


def test_the_real_admission_service_behind_the_proxy_answers_for_what_the_caller_may_see(
    api: StandInApi, serve: Callable[..., Service], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api, cards=1)
    a_share(api, "train", 60)
    service = serve()
    api.serve_behind(ADMISSION, service.behind)
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 50)
    assert run(["explain", str(file)]) == 1
    out, err = said(capsys)
    assert "judged by the admission service" in err
    assert "ask 40 cores" in out
    assert "50 cores asked, 40 free" in out
    assert run(["explain", "train"]) == 0
    assert "bound to node n1: 60 cores, 2 GiB of card 0" in said(capsys)[0]


def a_claim(api: StandInApi, name: str, uid: str, device: str, priority: str) -> None:
    told = {"apiVersion": API_VERSION, "kind": KIND, "priority": priority}
    given = {
        "request": "gpu",
        "driver": DRA_DRIVER,
        "pool": "n1",
        "device": device,
        "shareID": uid,
        "consumedCapacity": {"cores": "30", "memory": "4Gi"},
    }
    config = {"source": "FromClaim", "opaque": {"driver": DRA_DRIVER, "parameters": told}}
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "uid": uid},
            "spec": {"devices": {}},
        }
    )
    status = {
        "allocation": {"devices": {"results": [given], "config": [config]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{uid}"}],
    }
    api.patch("resourceclaims", name, {"status": status}, "default", subresource="status")


def test_explain_warns_of_a_long_kernel_beside_a_pod_whose_claim_is_protected(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    card = Card(0, CardUuid("GPU-0"), "V100", 16 * GIB)
    inventory = Inventory(
        256 << 20, (CardState(card, held=DRA_DRIVER),), Topology.uniform(1, Link.parse("SYS"))
    )
    meta = {"name": "n1", "annotations": {INVENTORY: encode_inventory(inventory)}}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    [device] = device_names([card]).values()
    uids = {}
    for name, priority in (("service", "protected"), ("batch", "best-effort")):
        container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "nodeName": "n1",
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        }
        made = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        a_claim(api, name, f"claim-{name}", device, priority)
        claim = api.get("resourceclaims", name)
        assert claim is not None
        uids[name] = claim["metadata"]["uid"]
        users = [{"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}]
        api.patch("resourceclaims", name, {"status": {"reservedFor": users}}, "default", subresource="status")
    used = {"dev": [{"uuid": "GPU-0", "longest": 0.3, "priority": "best-effort"}]}
    an_agent(api, {"usage": {uids["batch"]: {"stat": {"batch/gpu": used}}}})
    run(["explain", "service", "--admission", "-"])
    assert "a kernel or graph of 0.3 s, and none is interrupted" in said(capsys)[0]
    run(["explain", "batch", "--admission", "-"])
    assert "a kernel" not in said(capsys)[0]


def test_explain_warns_of_a_long_kernel_beside_a_protected_pod(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, cards=1)
    a_share(api, "service", 30, annotations={PRIORITY: "protected"})
    made = a_share(api, "batch", 40, annotations={PRIORITY: "best-effort"})
    assert run(["explain", "service", "--admission", "-"]) == 0
    assert "a kernel" not in said(capsys)[0], "no agent can be asked"
    device = {"uuid": "GPU-0", "longest": 0.3}
    an_agent(api, {"usage": {made["metadata"]["uid"]: {"stat": {"c": {"dev": [device]}}}}})
    assert run(["explain", "service", "--admission", "-"]) == 0
    assert (
        "a kernel or graph of 0.3 s, and none is interrupted: a launch may wait that long" in said(capsys)[0]
    )
    assert run(["explain", "batch", "--admission", "-"]) == 0
    assert "a kernel" not in said(capsys)[0]
