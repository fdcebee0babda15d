"""The chart's policies for ResourceClaims, judged as the API server would: by CEL."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from gpu_manager.domain.contract import CLAIM_RECORD, DRA_DRIVER, RESOURCES, WHOLE_CARD
from tests.agreement.claim_cases import ILLEGAL, LEGAL, claim, template
from tests.deploy.chart import ROOT, agent_pod, container, objects, of_kind, the
from tests.fakes.cel import Policy

KINDS = {"vcuda-claims": claim, "vcuda-claim-templates": template}


@pytest.fixture(scope="module", params=KINDS)
def judged(request: pytest.FixtureRequest) -> tuple[Policy, Any]:
    spec = the("claims", "ValidatingAdmissionPolicy", request.param)["spec"]
    return Policy(spec), KINDS[request.param]


def refusals(judged: tuple[Policy, Any], spec: dict[str, Any]) -> list[str]:
    policy, made = judged
    obj = made(spec, "c")
    return [text for _, text in policy.refusals({"operation": "CREATE", "object": obj})]


@pytest.mark.parametrize("name", LEGAL)
def test_what_can_be_given_is_taken(judged: tuple[Policy, Any], name: str) -> None:
    assert refusals(judged, LEGAL[name]) == []


def test_the_templates_of_our_examples_are_taken() -> None:
    policy = Policy(the("claims", "ValidatingAdmissionPolicy", "vcuda-claim-templates")["spec"])
    files = sorted((ROOT / "deploy/examples").glob("*.yaml"))
    found = [one for file in files for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    templates = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    assert len(templates) > 1
    for one in templates:
        assert policy.refusals({"operation": "CREATE", "object": one}) == []


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_kubernetes_would_change_in_silence_is_refused_with_the_nearest(
    judged: tuple[Policy, Any], name: str
) -> None:
    spec, says = ILLEGAL[name]
    [text] = refusals(judged, spec)
    assert re.search(says, text), text


def test_there_are_twenty_illegal_shapes() -> None:
    assert len(ILLEGAL) >= 20


def test_nothing_of_claims_is_installed_by_default() -> None:
    assert [o["metadata"]["name"] for o in objects("defaults") if "claim" in o["metadata"]["name"]] == []
    assert not list(of_kind("defaults", "DeviceClass"))
    assert not [a for a in container(agent_pod("defaults"), "gpu-manager")["args"] if "front" in a]


def test_agents_that_leave_claims_keep_rights_and_mounts_and_no_new_claim_is_allocated() -> None:
    pod = agent_pod("leaving")
    agent = container(pod, "gpu-manager")
    assert [a for a in agent["args"] if "front" in a or "claims" in a] == ["--front=plugin"]
    assert not list(of_kind("leaving", "DeviceClass"))
    mounted = {mount["name"] for mount in agent["volumeMounts"]}
    assert mounted == {
        mount["name"] for mount in container(agent_pod("split"), "gpu-manager")["volumeMounts"]
    }
    for role in ("gpu-manager", "gpu-quota-admission", "gpu-manager-view"):
        of_claims = the("claims", "ClusterRole", role)["rules"]
        assert [r for r in the("leaving", "ClusterRole", role)["rules"] if r not in of_claims] == []
    assert {o["metadata"]["name"] for o in of_kind("leaving", "ValidatingAdmissionPolicy")} >= {
        "vcuda-slices"
    }


@pytest.mark.parametrize(("values", "record"), [("defaults", False), ("split", True), ("leaving", True)])
def test_whoever_judges_claims_may_record_what_it_let_pass(values: str, record: bool) -> None:
    (leases,) = (
        rule
        for rule in the(values, "Role", "gpu-quota-admission")["rules"]
        if rule["resources"] == ["leases"] and rule["verbs"] == ["get", "update"]
    )
    assert (CLAIM_RECORD in leases["resourceNames"]) is record


def test_an_agent_that_splits_its_cards_may_see_which_claims_are_allocated() -> None:
    arguments = container(agent_pod("split"), "gpu-manager")["args"]
    assert [a for a in arguments if "front" in a or "claim" in a] == ["--front=split", "--claim-cards=2"]
    for name, verbs in (("claims", ["get"]), ("split", ["get", "list"])):
        rules = the(name, "ClusterRole", "gpu-manager")["rules"]
        assert next(r for r in rules if r["resources"] == ["resourceclaims"])["verbs"] == verbs
    assert [o["metadata"]["name"] for o in of_kind("split", "DeviceClass")] == [DRA_DRIVER, "vcuda-card"]


def test_whole_cards_have_a_resource_of_their_own_and_no_plugins_name() -> None:
    classes = {one["metadata"]["name"]: one["spec"] for one in of_kind("claims", "DeviceClass")}
    names = {name: spec.get("extendedResourceName") for name, spec in classes.items()}
    assert names == {DRA_DRIVER: None, "vcuda-card": WHOLE_CARD}
    assert WHOLE_CARD not in RESOURCES
    assert classes["vcuda-card"]["selectors"] == classes[DRA_DRIVER]["selectors"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_class_of_whole_cards_is_no_way_around_the_policies(kind: str) -> None:
    spec = json.loads(json.dumps(next(iter(ILLEGAL.values()))[0]).replace(DRA_DRIVER, "vcuda-card"))
    policy = Policy(the("claims", "ValidatingAdmissionPolicy", kind)["spec"])
    assert policy.refusals({"operation": "CREATE", "object": KINDS[kind](spec, "c")})
    whole = {
        "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "vcuda-card", "count": 2}}]}
    }
    assert not policy.refusals({"operation": "CREATE", "object": KINDS[kind](whole, "c")})


def test_an_agent_with_claims_has_what_it_needs() -> None:
    pod = agent_pod("claims")
    agent = container(pod, "gpu-manager")
    assert {"--front=dra", "--minimum-cores=$(VCUDA_MINIMUM_CORES)"} <= set(agent["args"])
    mounted = {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert "/var/lib/kubelet/plugins_registry" in mounted
    assert f"/var/lib/kubelet/plugins/{DRA_DRIVER}" in mounted
    assert "/var/run/cdi" in mounted
    role = the("claims", "ClusterRole", "gpu-manager")
    rights = {r: rule["verbs"] for rule in role["rules"] for r in rule["resources"]}
    assert rights["resourceclaims"] == ["get"]
    assert rights["resourceslices"] == ["list", "create", "update", "delete"]


@pytest.mark.parametrize(
    ("operation", "user", "node", "driver", "refused"),
    [
        ("CREATE", "gpu-manager", "n1", DRA_DRIVER, False),
        ("UPDATE", "gpu-manager", "n1", DRA_DRIVER, False),
        ("DELETE", "gpu-manager", "n1", DRA_DRIVER, False),
        ("CREATE", "gpu-manager", "n2", DRA_DRIVER, True),
        ("DELETE", "gpu-manager", "n2", DRA_DRIVER, True),
        ("UPDATE", "gpu-manager", "n1", "gpu.nvidia.com", True),
        ("CREATE", "somebody", "n2", "gpu.nvidia.com", False),
    ],
)
def test_an_agent_publishes_its_own_node_alone(operation, user, node, driver, refused) -> None:
    spec = the("claims", "ValidatingAdmissionPolicy", "vcuda-slices")["spec"]
    for validation in spec["validations"]:
        validation.setdefault("messageExpression", f'"{validation["message"]}"')
    policy = Policy(spec)
    slice_ = {"metadata": {"name": "s"}, "spec": {"driver": driver, "nodeName": node}}
    request = {
        "operation": operation,
        "resource": {"resource": "resourceslices"},
        "object": None if operation == "DELETE" else slice_,
        "oldObject": None if operation == "CREATE" else slice_,
        "userInfo": {
            "username": f"system:serviceaccount:kube-system:{user}",
            "extra": {"authentication.kubernetes.io/node-name": ["n1"]},
        },
    }
    assert bool(policy.refusals(request)) == refused
