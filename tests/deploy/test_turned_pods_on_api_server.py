"""Old manifests on nodes that give cards by claims, on a real control plane, where one is built.

The chart's webhooks, policies and rights, the service with its own account behind them, and Kubernetes' own
controller and scheduler that make the claim of the template and allocate it.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from admission.cluster.claim_templates import ClaimTemplates, read_turned_template
from gpu_manager.adapters.kube.claims import KubeClaims, KubeClaimTemplates, KubeSlices
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    CORE,
    CORE_LIMIT,
    FRONT_LABEL,
    GPU_MODEL,
    MEMORY,
    PRIORITY,
    TEMPLATE_NEEDED,
    TURNED_LABEL,
)
from gpu_manager.domain.dra.allocation import AllocatedClaim
from gpu_manager.domain.dra.device import published_devices
from gpu_manager.domain.dra.parameters import ShareTerms
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.request import PlacementPolicy
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.deploy.chart import CHART, HELM, KUBECTL, SETS
from tests.deploy.test_claim_quota_on_api_server import claim
from tests.fakes import waiting
from tests.fakes.extender import node
from tests.fakes.ports import FakeClock
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not THERE, reason=ABSENT)
STATES = [
    CardState(Card(n, CardUuid(f"GPU-{n:08x}-0000"), model, 16 * GIB))
    for n, model in enumerate(("Tesla T4", "Tesla V100-SXM2-16GB"))
]


@pytest.fixture(scope="module", params=SERVERS or [None], ids=lambda p: p.parent.name if p else "none")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with short_directory() as directory:
        running = Server(directory, request.param)
        try:
            running.start()
            _install(running)
            yield running
        finally:
            running.stop()


def _install(server: Server) -> None:
    here = server.directory
    said = server.run(HELM, "install", "gpu-manager", str(CHART), "-n", "kube-system", *SETS["claims"])
    assert "STATUS: deployed" in said, said
    quota = {"full": {"quota": {"*": 0.5}}}
    for obj in (
        node("n1", 2, claimed=[0, 1]),
        *(namespace(name, dra=name != "plain") for name in ("team", "plain", "full", "gone")),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "gpuquota", "namespace": "kube-system"},
            "data": {"gpu_quota": json.dumps(quota)},
        },
    ):
        store(server, obj)
    connection = connect(kubeconfig=here / "kubeconfig")
    devices = published_devices(STATES, {}, PlacementPolicy.BINPACK, DEFAULT_UNIT, 5)
    KubeSlices(connection, "n1").publish(devices)
    connection.close()
    have = {"pods": "110", "cpu": "16"}
    room = {"allocatable": have, "capacity": have}
    for patch in (
        ("--subresource=status", "-p", json.dumps({"status": room})),
        ("-p", json.dumps({"spec": {"taints": None}})),  # no kubelet will take "not-ready" away
    ):
        said = server.run(KUBECTL, "patch", "node", "n1", "--type=merge", *patch)
        assert "patched" in said, said
    server.serve_admission("--claims", "--leader-mode=lease")
    for program, account, more in (
        ("kube-scheduler", "service.kubeconfig", ()),  # the account of the one beside the extender
        ("kube-controller-manager", "kubeconfig", ("--controllers=resourceclaim-controller",)),
    ):
        path = server.program.with_name(program)
        if not path.exists():
            pytest.skip(f"no {program} beside kube-apiserver")
        told = (f"--kubeconfig={here}/{account}", "--leader-elect=false", "--secure-port=0")
        server.spawn(str(path), *told, *more)
    assert until(lambda: "created" in create(server, pod("ready"), "--dry-run=server")), _log(server)
    limited = claim("ready", 10)  # once the service knows which claims others have let pass
    limited["metadata"]["namespace"] = "full"
    assert until(lambda: "created" in create(server, limited, "--dry-run=server")), _log(server)


def until(holds: Callable[[], Any]) -> Any:
    """Look twice a second: each look is a program that starts."""
    return waiting.until(holds, every=0.5)


def _log(server: Server) -> str:
    return (server.directory / f"{Path(sys.executable).name}.log").read_text()[-3000:]


def store(server: Server, obj: dict[str, Any]) -> None:
    said = server.run(KUBECTL, "create", "-f", "-", given=json.dumps(obj))
    assert "created" in said, said


def namespace(name: str, *, dra: bool) -> dict[str, Any]:
    labels = {FRONT_LABEL: "dra"} if dra else {}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def limits(core: int, memory: int | None) -> dict[str, Any]:
    asked = {CORE: str(core), **({MEMORY: str(memory)} if memory else {})}
    return {"limits": {"cpu": "100m", **asked}}


def pod(name: str, *sizes: tuple[int, int | None], where: str = "team", **annotations: str) -> dict[str, Any]:
    containers = [
        {"name": f"c{n}", "image": "i", "resources": limits(*size)}
        for n, size in enumerate(sizes or [(30, 20)])
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": where, "annotations": annotations},
        "spec": {"containers": containers},
    }


def create(server: Server, obj: dict[str, Any], *more: str) -> str:
    """What the API server says, with the warnings that it passes on."""
    done = subprocess.run(
        [str(KUBECTL), "create", "-f", "-", *more],
        input=json.dumps(obj),
        env=server.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.stdout + done.stderr


def stored(server: Server, kind: str, where: str, name: str = "") -> Any:
    found = server.run(KUBECTL, "get", kind, *([name] if name else []), "-n", where, "-o", "json")
    return json.loads(found)


def templates(server: Server, where: str) -> list[Any]:
    found: list[Any] = stored(server, "resourceclaimtemplates", where)["items"]
    return found


def allocated(server: Server, name: str, where: str = "team") -> AllocatedClaim:
    """What the scheduler gave the pod's claim."""
    connection = connect(kubeconfig=server.directory / "kubeconfig")
    claims = KubeClaims(connection, DEFAULT_UNIT)

    def look() -> AllocatedClaim | None:
        for one in stored(server, "pod", where, name).get("status", {}).get("resourceClaimStatuses", []):
            try:
                return claims.read(where, one["resourceClaimName"])
            except RequestInvalid:
                return None  # not allocated yet
        return None

    found = until(look)
    connection.close()
    return found


def test_a_pod_of_extended_resources_is_allocated_just_that_by_kubernetes_itself(server: Server) -> None:
    said = create(server, pod("train", (30, 20), (50, 8), **{CORE_LIMIT: "80", PRIORITY: "best-effort"}))
    assert "pod/train created" in said, said
    assert "its vcuda resources are asked of a ResourceClaim" in said
    got = allocated(server, "train")
    given = {one.request: one.amount for one in got.shares}
    assert given == {"c0": Amount(30, 5 * GIB), "c1": Amount(50, 2 * GIB)}
    assert got.terms == dict.fromkeys(("c0", "c1"), ShareTerms(80, Priority.BEST_EFFORT))
    spec = stored(server, "pod", "team", "train")["spec"]
    for n, one in enumerate(spec["containers"]):
        assert one["resources"]["limits"] == {"cpu": "100m"}
        assert one["resources"]["claims"] == [{"name": "vcuda", "request": f"c{n}"}]
    assert until(lambda: stored(server, "pod", "team", "train")["spec"].get("nodeName") == "n1")


def test_a_model_that_the_pod_names_chooses_the_card(server: Server) -> None:
    said = create(server, pod("modelled", (10, 4), **{GPU_MODEL: "V100,tesla-V100 sxm2"}))
    assert "created" in said, said
    [share] = allocated(server, "modelled").shares
    assert share.device == "gpu-00000001"


def test_a_dry_run_makes_no_template_and_the_pod_after_it_one(server: Server) -> None:
    obj = pod("dry", (7, 3))
    before = len(templates(server, "team"))
    assert "created (server dry run)" in create(server, obj, "--dry-run=server")
    assert len(templates(server, "team")) == before
    assert "created" in create(server, obj)
    assert "created" in create(server, pod("same", (7, 3)))
    assert len(templates(server, "team")) == before + 1


def test_namespaces_without_the_label_are_left_as_they_are(server: Server) -> None:
    said = create(server, pod("plain", where="plain"))
    assert "created" in said
    assert "ResourceClaim" not in said
    spec = stored(server, "pod", "plain", "plain")["spec"]
    assert "resourceClaims" not in spec
    assert templates(server, "plain") == []


def test_what_a_claim_cannot_say_keeps_its_resources_and_the_reason_is_shown(server: Server) -> None:
    obj = pod("unlike")
    obj["spec"]["initContainers"] = [{"name": "load", "image": "i", "resources": limits(10, 4)}]
    said = create(server, obj)
    assert "pod/unlike created" in said, said
    assert "it is not turned into a ResourceClaim" in said
    assert "resourceClaims" not in stored(server, "pod", "team", "unlike")["spec"]


def test_an_illegal_pod_has_the_words_of_its_rule(server: Server) -> None:
    assert "cores are greater than 100, must be multiple of 100" in create(server, pod("odd", (150, None)))


def test_the_quota_counts_the_claim_once_and_refuses_what_could_never_pass(server: Server) -> None:
    said = create(server, pod("never", (60, 4), where="full"))
    assert 'ExceedsGPUQuota: namespace "full": 0.5 cards' in said, said
    assert "created" in create(server, pod("half", (30, 4), where="full"))
    assert allocated(server, "half", "full").shares[0].amount == Amount(30, GIB)
    assert "created" in create(server, pod("waits", (30, 4), where="full")), (
        "as pods of extended resources do"
    )
    events = ("get", "events", "-n", "full", "--field-selector=reason=FailedResourceClaimCreation")
    assert until(lambda: "0.3 used or being bound, 0.3 asked" in server.run(KUBECTL, *events))
    assert "created" in create(server, pod("rest", (20, 4), where="full"))
    assert allocated(server, "rest", "full").shares[0].amount == Amount(20, GIB), "counted once"


def test_where_no_template_may_be_made_the_pod_is_refused_with_the_answer(server: Server) -> None:
    said = server.run(KUBECTL, "create", "-f", "-", given=json.dumps(_nobody_makes_templates()))
    assert "created" in said, said
    sizes = itertools.count(10)  # each needs a template of its own

    def refused() -> str:
        said = create(server, pod("never", (next(sizes), 4), where="gone"))
        if "created" in said:  # the API server takes new policies in within a second or so
            server.run(KUBECTL, "delete", "pod", "never", "-n", "gone", "--force")
        return said if "cannot be made" in said else ""

    said = until(refused)
    assert "the ResourceClaimTemplate of the pod cannot be made: the API server refused to create" in said
    assert "templates are not wanted here" in said
    assert "NotFound" in server.run(KUBECTL, "get", "pod", "never", "-n", "gone")


def _nobody_makes_templates() -> dict[str, Any]:
    version = "admissionregistration.k8s.io/v1"
    match = {
        "resourceRules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["resourceclaimtemplates"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gone"}},
    }
    says = {"expression": "false", "message": "templates are not wanted here"}
    spec = {"failurePolicy": "Fail", "matchConstraints": match, "validations": [says]}
    binding = {"policyName": "none-here", "validationActions": ["Deny"]}
    meta = {"name": "none-here"}
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": spec},
            {
                "apiVersion": version,
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": meta,
                "spec": binding,
            },
        ],
    }


def test_the_service_writes_templates_of_its_own_alone(server: Server) -> None:
    spec = {
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vcuda.tencent.com"}}]}
        }
    }
    obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "a-tenants", "namespace": "default"},
        "spec": spec,
    }
    store(server, obj)
    connection = connect(kubeconfig=server.directory / "service.kubeconfig")
    api = KubeClaimTemplates(connection)
    with pytest.raises(NodeUnready, match="pods that it turned into claims alone"):
        api.annotate("default", "a-tenants", {TEMPLATE_NEEDED: "1"})
    with pytest.raises(NodeUnready, match="pods that it turned into claims alone"):
        api.create("default", {"metadata": {"name": "b"}, "spec": spec})
    ours = {"name": "c", "labels": {TURNED_LABEL: "true"}}
    with pytest.raises(NodeUnready, match=r"in namespaces with label tencent\.com/vcuda-front=dra alone"):
        api.create("default", {"metadata": ours, "spec": spec})
    uid, version = (stored(server, "resourceclaimtemplates", "default", "a-tenants")["metadata"][key]
                    for key in ("uid", "resourceVersion"))  # fmt: skip
    with pytest.raises(NodeUnready, match="pods that it turned into claims alone"):
        api.delete("default", "a-tenants", uid, version)
    connection.close()


def test_idle_templates_are_collected_and_those_that_pods_name_or_just_need_stay(server: Server) -> None:
    clock = FakeClock()
    clock.time = 1e9
    connection = connect(kubeconfig=server.directory / "service.kubeconfig")
    api = KubeClaimTemplates(connection)
    ours = ClaimTemplates(api, clock)
    assert "created" in create(server, pod("names", (9, 3)))
    [entry] = stored(server, "pod", "team", "names")["spec"]["resourceClaims"]
    used = entry["resourceClaimTemplateName"]
    spec = stored(server, "resourceclaimtemplates", "team", used)["spec"]["spec"]
    for name in ("idle", "needed"):
        assert ours.ensure("team", name, spec) == ""
        assert ours.ensure("team", name, spec) == ""
    assert not api.create(
        "team",
        {
            "metadata": {"name": "idle", "labels": {"tencent.com/vcuda-turned": "true"}},
            "spec": {"spec": spec},
        },
    )
    found = [one for one in map(read_turned_template, templates(server, "team")) if one]
    assert {"idle", "needed", used} <= {one.name for one in found}
    clock.time = 4e9
    assert api.annotate("team", "needed", {TEMPLATE_NEEDED: "1"})  # since it was read
    ours.sweep(found)
    left = {one["metadata"]["name"] for one in templates(server, "team")}
    assert "idle" not in left
    assert {"needed", used} <= left
    assert not api.annotate("team", "idle", {TEMPLATE_NEEDED: "1"})
    [gone] = [one for one in found if one.name == "idle"]
    assert not api.delete("team", "idle", gone.uid, gone.version)
    connection.close()
