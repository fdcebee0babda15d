"""What the admission service's account may write, judged as the API server would: by CEL.

The whole table of :mod:`tests.deploy.rights` runs where a real API server is built.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpu_manager.domain import contract
from tests.deploy.chart import SETS, of_kind, the
from tests.deploy.rbac import granted
from tests.fakes.cel import Policy
from tests.fakes.reviews import container, pod, review, update

ADMISSION = "system:serviceaccount:kube-system:gpu-quota-admission"


def policy(name: str, chart: str = "defaults") -> Policy:
    spec = the(chart, "ValidatingAdmissionPolicy", name)["spec"]
    return Policy({"variables": [], **spec})


PODS = policy("vcuda-admission")
NAMES = policy("vcuda-admission-names")


def plain(**meta: Any) -> dict[str, Any]:
    made = pod(container("c", "30", "20"), serviceAccountName="default")
    made["metadata"] |= {"labels": {"app": "web"}, "annotations": {}, **meta}
    made["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return made


def told(old: dict[str, Any], new: dict[str, Any], sub: str = "", user: str = ADMISSION) -> list[str]:
    request = update(old, new, sub, user=user)["request"]
    request["namespace"] = old["metadata"].get("namespace", "team-a")
    assert PODS.matches(request)
    return [text for _, text in PODS.refusals(request)]


def changed(*path: str, value: Any) -> dict[str, Any]:
    made = plain()
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return made


@pytest.mark.parametrize("key", [contract.QUOTA_SEEN, contract.RESIZED])
def test_it_writes_its_own_annotations_of_any_pod(key: str) -> None:
    assert told(plain(), changed("metadata", "annotations", key, value="x")) == []


@pytest.mark.parametrize("key", [contract.ALLOCATION, contract.ASSIGNED, contract.CORE_LIMIT, "x"])
def test_it_writes_no_other_annotation(key: str) -> None:
    written = changed("metadata", "annotations", key, value="x")
    assert told(plain(), written) == [f"the admission service may not write {key} of a pod"]
    assert told(written, plain()) == [f"the admission service may not write {key} of a pod"]
    assert told(plain(), written, "status") == [f"the admission service may not write {key} of a pod"]


def test_it_changes_no_specification_label_finalizer_or_owner() -> None:
    image = copy.deepcopy(plain())
    image["spec"]["containers"][0]["image"] = "evil"
    (text,) = told(plain(), image)
    assert "may not change specifications" in text
    (text,) = told(plain(), changed("metadata", "labels", "app", value="other"))
    assert text == "the admission service may not write app of a pod"
    for field, value in (("finalizers", ["x/y"]), ("ownerReferences", [{"name": "o"}])):
        (text,) = told(plain(), changed("metadata", field, value=value))
        assert "may not change specifications, finalizers or owners" in text


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("labels", contract.LEADER_LABEL),
        ("annotations", contract.LEADER_SINCE),
        ("annotations", contract.FEATURES),
    ],
)
def test_the_marks_of_a_replica_are_for_its_own_pods(where: str, key: str) -> None:
    own = plain(namespace="kube-system")
    own["spec"]["serviceAccountName"] = "gpu-quota-admission"
    labelled = copy.deepcopy(own)
    labelled["metadata"].setdefault(where, {})[key] = "true"
    assert told(own, labelled) == []
    for change in ({"serviceAccountName": "dns"}, {}):
        old, new = copy.deepcopy(own), copy.deepcopy(labelled)
        for obj in (old, new):
            obj["spec"] |= change
            obj["metadata"]["namespace"] = "kube-system" if change else "team-a"
        assert told(old, new) == [f"the admission service may not write {key} of a pod"]


def test_of_a_status_it_writes_what_a_scheduler_writes() -> None:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    ready = {"type": "Ready", "status": "True"}
    assert told(plain(), changed("status", "conditions", value=[waits, ready]), "status") == []
    assert told(plain(), changed("status", "nominatedNodeName", value="n1"), "status") == []
    for change in (
        changed("status", "phase", value="Failed"),
        changed("status", "podIP", value="10.9.9.9"),
        changed("status", "conditions", value=[{"type": "Ready", "status": "False"}]),
    ):
        (text,) = told(plain(), change, "status")
        assert "a scheduler's conditions" in text


def test_it_preempts_no_pod_of_the_system() -> None:
    for priority, refused in ((1_000_000, 0), (2_000_000_000, 1), (None, 0)):
        victim = plain()
        if priority is not None:
            victim["spec"]["priority"] = priority
        request = update(victim, victim, user=ADMISSION)["request"]
        request |= {"operation": "DELETE", "object": None}
        assert len(PODS.refusals(request)) == refused, priority


def test_its_bindings_carry_what_it_reserves_and_nothing_else() -> None:
    def bound(*keys: str) -> list[str]:
        made = {"metadata": {"name": "p", "annotations": dict.fromkeys(keys, "x")}, "target": {"name": "n1"}}
        request = review(made, user=ADMISSION)["request"]
        request |= {"subResource": "binding", "namespace": "team-a"}
        assert PODS.matches(request)
        return [text for _, text in PODS.refusals(request)]

    written = (contract.ALLOCATION, contract.PREDICATE_NODE, contract.PREDICATE_TIME, contract.ASSIGNED)
    assert bound(*written, f"{contract.PREDICATE_INDEX}0") == []
    assert bound("x") == ["the admission service may not write x of a pod"]


def test_its_leases_and_events_are_its_own() -> None:
    def refused(resource: str, obj: dict[str, Any], namespace: str = "kube-system") -> int:
        request = {
            "operation": "CREATE",
            "userInfo": {"username": ADMISSION},
            "resource": {"resource": resource},
            "namespace": namespace,
            "object": obj,
        }
        return len(NAMES.refusals(request))

    assert refused("leases", {"metadata": {"name": "gpu-quota-admission"}}) == 0
    assert refused("leases", {"metadata": {"name": "gpu-quota-admission"}}, "team-a") == 1
    assert refused("leases", {"metadata": {"name": "kube-scheduler"}}) == 1
    assert refused("leasecandidates", {"metadata": {"name": "gpu-quota-admission"}}) == 1
    for component, reason, count in (
        ("gpu-quota-admission", contract.EVENT_NOT_PLACED, 0),
        ("gpu-quota-admission", contract.EVENT_EVADER, 1),
        ("gpu-quota-admission", "Scheduled", 1),
        ("vcuda-scheduler", "Scheduled", 0),
        ("vcuda-scheduler", contract.EVENT_EVADER, 1),
        ("kubelet", "Killing", 1),
        ("", "Killing", 1),
    ):
        event = {"metadata": {}, "reason": reason}
        assert refused("events", {**event, "reportingComponent": component}) == count
        assert refused("events", {**event, "source": {"component": component}}) == count
        assert refused("events", {**event, "reportingController": component}) == count


def test_others_are_not_its_policys_to_judge() -> None:
    assert told(plain(), changed("metadata", "annotations", "x", value="y"), user="someone") == []


@pytest.mark.parametrize("name", SETS)
def test_every_policy_of_an_account_has_its_binding(name: str) -> None:
    made = {o["metadata"]["name"] for o in of_kind(name, "ValidatingAdmissionPolicy")}
    bound = {o["spec"]["policyName"] for o in of_kind(name, "ValidatingAdmissionPolicyBinding")}
    assert made == bound
    ours = {n for n in made if n.startswith("vcuda-admission")}
    if name == "least":
        assert not ours
    else:
        beside = {"vcuda-admission-scheduler"} if not name.startswith("cluster") else set()
        assert ours == {"vcuda-admission", "vcuda-admission-names", *beside}


@pytest.mark.parametrize("name", ["cluster", "own-certificate"])
def test_with_certificates_of_others_it_may_write_neither_webhooks_nor_secrets(name: str) -> None:
    written = {right.resource for right in granted(name, "gpu-quota-admission")}
    assert not {"secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"} & written


def test_its_own_secret_is_the_charts_to_make() -> None:
    rights = granted("defaults", "gpu-quota-admission")
    assert {right.verb for right in rights if right.resource == "secrets"} == {"get", "patch"}
    secret = the("defaults", "Secret", "gpu-quota-admission-certs")
    assert "data" not in secret
