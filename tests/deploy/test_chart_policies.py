"""The chart's policies and matchConditions, judged as the API server would: by CEL."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import celpy
import pytest

from admission.config import ClusterTerms
from gpu_manager.domain import contract
from gpu_manager.domain.contract import FRONT_LABEL
from tests.deploy.chart import SETS, of_kind, the
from tests.fakes.cel import FUNCTIONS, Policy
from tests.fakes.reviews import container, pod, review, update
from tools.policies import policies

AGENT, ADMISSION = (
    f"system:serviceaccount:kube-system:{name}" for name in ("gpu-manager", "gpu-quota-admission")
)
NODE_CLAIM = "authentication.kubernetes.io/node-name"  # in the token of a pod, since Kubernetes 1.30
ACCOUNTS_POLICIES = (
    "vcuda-agent",
    "vcuda-agent-events",
    "vcuda-admission",
    "vcuda-admission-names",
    "vcuda-admission-scheduler",
    "vcuda-evictions",
    "vcuda-evictor-events",
)
TERMS = {
    "defaults": ClusterTerms(),
    "unprivileged": ClusterTerms(),
    "terms": ClusterTerms(unit=1 << 30, minimum_cores=5, deny_node_name=True),
    "own-namespace": ClusterTerms(
        trusted_users=frozenset(u.replace("kube-system", "gpu") for u in ClusterTerms().trusted_users)
    ),
}


@pytest.mark.parametrize(("name", "terms"), TERMS.items())
def test_the_policies_are_the_programs_own_with_the_clusters_terms(name: str, terms: ClusterTerms) -> None:
    printed = {(o["kind"], o["metadata"]["name"]): o["spec"] for o in policies(terms)}
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    ours = {(o["kind"], o["metadata"]["name"]): o["spec"] for kind in kinds for o in of_kind(name, kind)}
    for kind, policy_name in itertools.product(kinds, ACCOUNTS_POLICIES):
        assert ours.pop((kind, policy_name))
    assert ours == printed


# What an agent may write.


@pytest.fixture(scope="module")
def policy() -> Policy:
    return of_agent("unprivileged")


def of_agent(name: str) -> Policy:
    spec = the(name, "ValidatingAdmissionPolicy", "vcuda-agent")["spec"]
    return Policy({"variables": [], **_with_messages(spec)})


def _with_messages(spec: dict[str, Any]) -> dict[str, Any]:
    """The judge of our tests wants a composed message of each validation."""
    for validation in spec["validations"]:
        validation.setdefault("messageExpression", f'"{validation["message"]}"')
    return spec


def sent(
    old: dict[str, Any], new: dict[str, Any], *, user: str = AGENT, node: str | None = "n1"
) -> dict[str, Any]:
    request = update(old, new, user=user)["request"]
    if new["kind"] == "Node":
        request |= {"resource": {"group": "", "version": "v1", "resource": "nodes"}}
    extra = {} if node is None else {NODE_CLAIM: [node]}
    request["userInfo"]["extra"] = {"authentication.kubernetes.io/pod-name": ["agent-x"], **extra}
    return request


def told(policy: Policy, request: dict[str, Any]) -> list[str]:
    assert policy.matches(request)
    return [text for _, text in policy.refusals(request)]


def bound(node: str = "n1", **annotations: str) -> dict[str, Any]:
    return {"kind": "Pod", **pod(container("train", "30", "20"), annotations=annotations, nodeName=node)}


def noted(obj: dict[str, Any], key: str, value: str | None, field: str = "annotations") -> dict[str, Any]:
    made = copy.deepcopy(obj)
    found = made["metadata"].setdefault(field, {})
    if value is None:
        del found[key]
    else:
        found[key] = value
    return made


def node(name: str = "n1", **annotations: str) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    }


WRITTEN = (
    contract.ALLOCATION,
    contract.PREDICATE_NODE,
    contract.PREDICATE_TIME,
    contract.ASSIGNED,
    contract.EVICT,
    f"{contract.PREDICATE_INDEX}0",
)


@pytest.mark.parametrize("key", WRITTEN)
def test_the_agent_writes_our_keys_on_pods_of_its_node_alone(policy: Policy, key: str) -> None:
    assert told(policy, sent(bound(), noted(bound(), key, "x"))) == []
    assert told(policy, sent(noted(bound(), key, "x"), bound())) == []
    (text,) = told(policy, sent(bound("n2"), noted(bound("n2"), key, "x")))
    assert text == "the agent of node n1 may not change a pod of another node"


@pytest.mark.parametrize("key", [contract.CORE_LIMIT, contract.GPU_UUID, "kubernetes.io/config.mirror", "x"])
def test_the_agent_writes_no_other_annotation_of_a_pod(policy: Policy, key: str) -> None:
    for old, new in ((bound(), noted(bound(), key, "x")), (noted(bound(), key, "x"), bound())):
        assert told(policy, sent(old, new)) == [f"the agent may not change {key}"]


def test_the_agent_changes_nothing_else_of_a_pod(policy: Policy) -> None:
    labelled = noted(bound(), "app", "x", "labels")
    assert told(policy, sent(bound(), labelled)) == ["the agent may not change app"]
    for change in ({"finalizers": ["x/y"]}, {"ownerReferences": [{"name": "o"}]}):
        other = bound()
        other["metadata"] |= change
        old = bound()
        old["metadata"].pop(*change, None)
        assert told(policy, sent(old, other)) == [
            "an agent may not change specifications, finalizers or owners"
        ]
    image = bound()
    image["spec"]["containers"][0]["image"] = "evil"
    assert told(policy, sent(bound(), image)) == [
        "an agent may not change specifications, finalizers or owners"
    ]


def test_an_unbound_pod_is_nobodys(policy: Policy) -> None:
    free = bound()
    del free["spec"]["nodeName"]
    assert told(policy, sent(free, noted(free, contract.ASSIGNED, "true")))


def test_the_agent_publishes_its_own_node(policy: Policy) -> None:
    for key in (contract.INVENTORY, contract.CORDON, contract.FORGET):
        assert told(policy, sent(node(), noted(node(), key, "x"))) == []
    for key in (contract.MODEL_LABEL, contract.MODEL_LABEL_GAIA, contract.POOL_LABEL):
        # The pool is in this chart's agent.nodeLabels.
        assert told(policy, sent(node(), noted(node(), key, "x", "labels"))) == []
    assert told(policy, sent(node("n2"), noted(node("n2"), contract.INVENTORY, "x"))) == [
        "the agent of node n1 may not change another node"
    ]


def test_the_agent_cannot_make_its_node_more_attractive_or_open(policy: Policy) -> None:
    for field, key in (("labels", "node-role.kubernetes.io/control-plane"), ("annotations", "x")):
        assert told(policy, sent(node(), noted(node(), key, "x", field))) == [
            f"the agent may not change {key}"
        ]
    open_ = node()
    open_["spec"] = {}
    assert told(policy, sent(node(), open_)) == [
        "an agent may not change specifications, finalizers or owners"
    ]


START = {"key": contract.STARTUP_TAINT, "effect": "NoSchedule"}
OTHER = {"key": "a", "effect": "NoSchedule"}


def joined(*taints: dict[str, str], name: str = "n1", **spec: Any) -> dict[str, Any]:
    return node(name) | {"spec": {"taints": list(taints), **spec} if taints else spec}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (joined(START), joined()),
        (joined(OTHER, START), joined(OTHER)),
        (joined(START, OTHER, podCIDRs=["10.0.0.0/24"]), joined(OTHER, podCIDRs=["10.0.0.0/24"])),
        (joined(START, {**START, "effect": "NoExecute"}), joined()),
    ],
)
def test_the_agent_removes_the_startup_taint_of_its_node_where_that_is_on(
    policy: Policy, old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert told(of_agent("autoscaled"), sent(old, new)) == []
    assert told(policy, sent(old, new)) == ["an agent may not change specifications, finalizers or owners"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (joined(OTHER, START), joined()),
        (joined(OTHER, START), joined({**OTHER, "effect": "PreferNoSchedule"})),
        (joined(OTHER), joined()),
        (joined(START), joined(START, OTHER)),
        (joined(OTHER), joined(OTHER, START)),
        (joined(START), joined(unschedulable=True)),
        (joined(START, unschedulable=True), joined()),
        (joined(START, podCIDR="10.0.0.0/24"), joined(podCIDR="10.0.1.0/24")),
        (joined(START, providerID="aws:///a/i-1"), joined(providerID="aws:///a/i-2")),
        (joined(START), joined(externalID="x")),
    ],
)
def test_the_agent_changes_nothing_else_with_the_startup_taint(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert told(of_agent("autoscaled"), sent(old, new)) == [
        "an agent may not change specifications, finalizers or owners"
    ]


def test_no_agent_removes_the_startup_taint_of_another_node_or_more_than_it() -> None:
    autoscaled = of_agent("autoscaled")
    assert told(autoscaled, sent(joined(START, name="n2"), joined(name="n2"))) == [
        "the agent of node n1 may not change another node"
    ]
    relabelled = noted(joined(), "node-role.kubernetes.io/control-plane", "", "labels")
    assert told(autoscaled, sent(joined(START), relabelled))
    image = bound()
    image["spec"]["containers"][0]["image"] = "evil"
    assert told(autoscaled, sent(bound(), image))


def test_a_token_without_a_node_writes_nothing(policy: Policy) -> None:
    request = sent(bound(), noted(bound(), contract.ASSIGNED, "true"), node=None)
    (text,) = told(policy, request)
    assert "names no node" in text
    del request["userInfo"]["extra"]
    assert told(policy, request) == [text]


def test_others_are_not_the_agents_policy_to_judge(policy: Policy) -> None:
    for user in (ADMISSION, "someone", "system:node:n2"):
        assert told(policy, sent(bound("n2"), noted(bound("n2"), "x", "y"), user=user)) == []


# Whom the API server asks about.


def conditions(name: str, kind: str, hook: str) -> list[Any]:
    (found,) = (h for h in next(of_kind(name, kind))["webhooks"] if h["name"].startswith(hook))
    environment = celpy.Environment()
    return [
        environment.program(environment.compile(c["expression"]), functions=FUNCTIONS)
        for c in found["matchConditions"]
    ]


def asked(programs: list[Any], sent: dict[str, Any]) -> bool:
    request = sent["request"]
    scope = {
        "object": celpy.json_to_cel(request["object"]),
        "oldObject": celpy.json_to_cel(request.get("oldObject")),
        "request": celpy.json_to_cel({k: v for k, v in request.items() if k not in ("object", "oldObject")}),
    }
    return all(bool(program.evaluate(scope)) for program in programs)


@pytest.mark.parametrize(
    ("kind", "hook"),
    [("MutatingWebhookConfiguration", "mutate."), ("ValidatingWebhookConfiguration", "create.")],
)
def test_only_pods_that_ask_for_cards_or_carry_our_annotations_wait_for_the_webhook(
    kind: str, hook: str
) -> None:
    programs = conditions("defaults", kind, hook)
    plain = container("web", resources={"limits": {"cpu": "1"}})
    assert not asked(programs, review(pod(plain, annotations={"x": "y"})))
    assert not asked(programs, review(pod(container("web", resources={}))))
    assert asked(programs, review(pod(container("train", "30", "20"))))
    assert asked(programs, review(pod(container("train", None, "20"))))
    requests = container("train", resources={"requests": {contract.CORE: "30"}})
    assert asked(programs, review(pod(plain, requests)))
    assert asked(programs, review(pod(plain, initContainers=[container("first", "30", "20")])))
    assert asked(programs, review(pod(plain, annotations={contract.ALLOCATION: "{}"})))


def test_a_kubelets_report_never_waits_and_a_change_of_ours_always_does() -> None:
    programs = conditions("defaults", "ValidatingWebhookConfiguration", "change.")
    old = pod(container("train", "30", "20"), annotations={contract.ASSIGNED: "true"})
    running = {**old, "status": {"phase": "Running"}}
    assert not asked(programs, update(old, running, "status", user="system:node:n1"))
    assert not asked(programs, update(old, noted(old, "x", "y")))
    assert asked(programs, update(old, noted(old, contract.ASSIGNED, "false")))
    assert asked(programs, update(old, noted(old, contract.ALLOCATION, "{}"), "status"))
    assert asked(programs, update(old, noted(old, contract.ASSIGNED, None)))
    for user in (AGENT, ADMISSION):
        assert not asked(programs, update(old, noted(old, contract.ASSIGNED, "false"), user=user))
    bare = pod(container("train", "30", "20"))
    del bare["metadata"]["annotations"]
    assert not asked(programs, update(bare, bare))


def test_bindings_of_other_schedulers_never_wait() -> None:
    programs = conditions("defaults", "ValidatingWebhookConfiguration", "bind.")
    binding = {"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "n1"}}
    assert not asked(programs, review(binding, user="system:kube-scheduler"))
    ours = {**binding, "metadata": {"annotations": {contract.ALLOCATION: "{}"}}}
    assert asked(programs, review(ours, user="someone"))
    assert not asked(programs, review(ours, user=ADMISSION))


def test_both_ways_to_bind_a_pod_are_asked_about() -> None:
    """Its annotations come with POST .../pods/x/binding, and with the older POST .../bindings."""
    hooks = next(of_kind("defaults", "ValidatingWebhookConfiguration"))["webhooks"]
    (hook,) = (h for h in hooks if h["name"].startswith("bind."))
    assert hook["rules"][0]["resources"] == ["pods/binding", "bindings"]


def test_templates_are_warned_about_when_a_person_writes_them() -> None:
    programs = conditions("defaults", "ValidatingWebhookConfiguration", "warn.")

    def made(plural: str, obj: dict[str, Any], *groups: str) -> dict[str, Any]:
        return review(obj, resource={"group": "x", "version": "v1", "resource": plural}, groups=list(groups))

    card, plain = (
        {"spec": pod(c)["spec"]} for c in (container("c", "30", "20"), container("c", resources={}))
    )
    for plural, wrap in (
        ("deployments", lambda t: {"spec": {"template": t}}),
        ("cronjobs", lambda t: {"spec": {"jobTemplate": {"spec": {"template": t}}}}),
        ("podtemplates", lambda t: {"template": t}),
    ):
        assert asked(programs, made(plural, wrap(card), "people"))
        assert not asked(programs, made(plural, wrap(plain), "people"))
        assert not asked(programs, made(plural, wrap(card), "system:serviceaccounts:kube-system"))


@pytest.mark.parametrize("name", [n for n in SETS if n != "least"])
def test_a_dead_webhook_never_stops_the_cluster_from_healing(name: str) -> None:
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for hook in next(of_kind(name, kind))["webhooks"]:
            assert hook["matchConditions"], "every webhook says what concerns it"
            if hook["name"].startswith("quota."):  # one ConfigMap, where the cluster's own pods are
                assert hook["namespaceSelector"] == {
                    "matchLabels": {"kubernetes.io/metadata.name": "kube-system"}
                }
                assert (hook["failurePolicy"], hook["sideEffects"]) == ("Ignore", "None")
                continue
            exempt, *chosen = hook["namespaceSelector"]["matchExpressions"]
            turns = hook["name"].startswith("claims.")  # pods into claims, in labelled namespaces alone
            assert chosen == ([{"key": FRONT_LABEL, "operator": "In", "values": ["dra"]}] if turns else [])
            assert exempt["operator"] == "NotIn"
            assert {"kube-system", *(["gpu"] if name == "own-namespace" else [])} <= set(exempt["values"])
            assert hook["timeoutSeconds"] <= 10
            reserves = hook["name"].startswith("claim.")  # what it lets pass counts at once, not at a dry run
            assert hook["sideEffects"] == ("NoneOnDryRun" if reserves or turns else "None")
            assert hook["failurePolicy"] in (("Ignore",) if name == "terms" else ("Fail", "Ignore"))


def test_namespaces_that_are_left_out_are_told_to_the_program_too() -> None:
    (exempt,) = next(of_kind("terms", "MutatingWebhookConfiguration"))["webhooks"][0]["namespaceSelector"][
        "matchExpressions"
    ]
    assert exempt["values"] == ["kube-system", "ops"]
    (admission, _) = the("terms", "Deployment", "gpu-quota-admission")["spec"]["template"]["spec"][
        "containers"
    ]
    assert "--exclude-namespace=ops" in admission["args"]
