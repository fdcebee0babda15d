"""The policies in deploy/ are those of the rulebook, and judge as the webhook does."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.config import ClusterTerms
from admission.webhook.admission_review import parse_review
from admission.webhook.admit import validate
from gpu_manager.domain.contract import (
    CARDS,
    CORE,
    CORE_LIMIT,
    GPU_MODEL,
    GPU_UUID,
    MEMORY,
    NVIDIA,
    PLACEMENT,
    PREDICATE_NODE,
    PRELOAD,
    PRIORITY,
    VISIBLE_ENV,
)
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.rules.rulebook import Rule
from tests.fakes.reviews import NODE_GROUPS, container, pod, review, update
from tools.policies import policies, render
from tools.policies.checks import (
    annotation_checks,
    ephemeral_checks,
    guarded_checks,
    request_checks,
)

ROOT = Path(__file__).parents[2]
LAX = ClusterTerms()
STRICT = ClusterTerms(minimum_cores=5, deny_node_name=True)
SCHEDULER = "system:serviceaccount:kube-system:gpu-quota-admission"

SUMS = {"init-container-cards", "ceiling-out-of-range"}

needs_cel = pytest.mark.skipif(
    importlib.util.find_spec("celpy") is None, reason="cel-python is not installed: no CEL can be run here"
)


def test_the_committed_file_is_what_the_tool_prints() -> None:
    assert (ROOT / "deploy" / "policies" / "vcuda.yaml").read_text() == render(ClusterTerms())


def test_every_rule_that_needs_no_cluster_stands_in_a_policy_once() -> None:
    told = [
        c.rule
        for checks in (request_checks(STRICT), annotation_checks(), guarded_checks(), ephemeral_checks())
        for c in checks
    ]
    elsewhere = {
        Rule.POD_UNREADABLE,  # the API server decodes before any policy
        Rule.NODE_AFFINITY_TOO_LARGE,  # CEL does not know how large a part of an object is
        Rule.EPHEMERAL_CONTAINER,  # the API server forbids resources there
        Rule.RESIZE_UNREADABLE,  # CEL reads no JSON
        Rule.RESIZE_NOT_A_FRACTION,
        Rule.RESIZE_VALUE,
        Rule.RESIZE_IMPOSSIBLE,  # the cluster's cards decide
        Rule.RESIZE_ABOVE_CEILING,
        Rule.ADVICE_UNREADABLE,
        Rule.ADVICE_BOUND,
        Rule.CARDS_CORES,  # CEL makes no map of a text, by which containers are named; webhook and node refuse
        Rule.CARDS_MEMORY,
        Rule.CARDS_INIT_CONTAINER,
        Rule.CARDS_BESIDE_CLAIM,
        Rule.MIG_SEVERAL,  # a list means instances if every entry does, by a pattern of words
        Rule.MIG_PARTS,
        Rule.MIG_LENT,
        Rule.CARDS_NOT_YET,  # the replicas decide
        Rule.CLAIM_PARAMETERS,  # the claims' own policies judge them, and classes no policy reads
        Rule.CLAIMS_IN_ONE_CONTAINER,  # whose a request is, its claim and its class say, which no policy reads
        *(rule for rule in Rule if rule.is_warning and rule is not Rule.NODE_NAME_SET),
    }
    static = {rule for rule in Rule if rule not in elsewhere and not re.search("quota", rule.id)}
    assert set(told) == static
    assert sorted(r.id for r in told if told.count(r) > 1) == [
        *["requests-differ"] * 2,  # one a resource
        *["visible-devices-set"] * 2,  # of ephemeral containers too
    ]


def test_each_policy_has_its_binding_and_only_words_that_1_30_knows() -> None:
    objects = list(yaml.safe_load_all(render(STRICT)))
    assert [o["kind"] for o in objects] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ] * 5
    for policy, binding in zip(objects[::2], objects[1::2], strict=True):
        name = policy["metadata"]["name"]
        action = "Warn" if name == "vcuda-ephemeral-privileged" else "Deny"
        assert binding["spec"] == {"policyName": name, "validationActions": [action]}
        assert policy["spec"]["failurePolicy"] == "Fail"
        for validation in policy["spec"]["validations"]:
            assert "\n" not in validation["expression"] + validation["messageExpression"]
            assert ".?" not in validation["expression"]  # optionals came later
            assert validation["reason"] in ("Invalid", "Forbidden")


def test_the_terms_of_the_cluster_stand_in_the_policies() -> None:
    text = render(ClusterTerms(unit=1 << 30, minimum_cores=7, trusted_users=frozenset({"someone"})))
    assert "1 GiB" in text
    assert "this cluster gives no less than " in text
    assert "['someone']" in text


def compiled(terms: ClusterTerms) -> Any:
    from tests.fakes.cel import Policy  # noqa: PLC0415  # needs cel-python

    return [Policy(o["spec"]) for o in policies(terms) if o["kind"] == "ValidatingAdmissionPolicy"]


@pytest.fixture(scope="module")
def judges() -> Any:
    return {terms: compiled(terms) for terms in (LAX, STRICT)}


def refusals(judges: Any, sent: dict[str, Any], terms: ClusterTerms = LAX) -> list[tuple[str, str]]:
    request = sent["request"]
    return [found for p in judges[terms] if p.matches(request) for found in p.refusals(request)]


def agreed(judges: Any, sent: dict[str, Any], terms: ClusterTerms) -> list[tuple[str, str]]:
    """Both refuse by the same rules, or both allow; what the policies say.

    Beside an amount that is no number of cores, sums over containers may be reckoned with it or without.
    """
    said = refusals(judges, sent, terms)
    told = {fixed.removeprefix("rule ").partition(":")[0] for fixed, _ in said}
    verdict = validate(parse_review(json.dumps(sent).encode()), terms)
    assert (not verdict.allowed) == bool(told)
    rules = set() if verdict.allowed else set(verdict.rules)
    uncertain = SUMS if rules & {"core-not-whole", "core-too-large", "core-negative"} else set()
    assert told - uncertain == rules - uncertain
    return said


@needs_cel
@pytest.mark.parametrize(
    "added",
    [
        {"env": [{"name": VISIBLE_ENV, "value": "all"}]},
        {"env": [{"name": VISIBLE_ENV, "value": "void"}], "envFrom": [{"secretRef": {"name": "s"}}]},
        {"envFrom": [{"secretRef": {"name": "s"}}]},
        {},
    ],
)
def test_ephemeral_containers_are_judged_alike(judges: Any, added: dict[str, Any]) -> None:
    asks = container("c", "30", "20")
    debug = {"name": "debug", "image": "i", **added}
    sent = update(pod(asks), pod(asks, ephemeralContainers=[debug]), "ephemeralcontainers")
    said = [text for _, text in agreed(judges, sent, LAX)]
    verdict = validate(parse_review(json.dumps(sent).encode()), LAX)
    assert all(text in verdict.message for text in said)
    kept = update(pod(asks, ephemeralContainers=[debug]), pod(asks, ephemeralContainers=[debug]))
    assert refusals(judges, kept) == []


@needs_cel
@pytest.mark.parametrize(("asking", "init"), [(64, 0), (65, 0), (65, 1)])
def test_the_bound_on_asking_containers_is_the_same_in_both(judges: Any, asking: int, init: int) -> None:
    made = [container(f"c{i}", core="1", memory="1") for i in range(asking)]
    sent = review(pod(*made[init:], initContainers=made[:init]))
    said = [text for _, text in agreed(judges, sent, LAX) if "a pod may have" in text]
    assert len(said) == asking - 64
    verdict = validate(parse_review(json.dumps(sent).encode()), LAX)
    assert all(text in verdict.message for text in said)


quantities = st.sampled_from(
    ["0", "1", "4", "5", "30", "60", "99", "100", "150", "200", "300", "-1", "0.5", "99.5", "1500m", "1e25"]
)
variables = st.sampled_from([
    *({"name": VISIBLE_ENV, "value": value} for value in ("all", "void", "none", "", "GPU-" + "0" * 70)),
    {"name": VISIBLE_ENV},
    {"name": VISIBLE_ENV, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "OTHER", "value": "all"},
])  # fmt: skip
containers = st.builds(
    lambda core, memory, gpus, requests, privileged, env, sidecar: container(
        "c",
        resources={
            "limits": {k: v for k, v in ((CORE, core), (MEMORY, memory), (NVIDIA, gpus)) if v is not None},
            **({"requests": requests} if requests is not None else {}),
        },
        **({"securityContext": {"privileged": True}} if privileged else {}),
        **({"env": env} if env is not None else {}),
        **({"restartPolicy": "Always"} if sidecar else {}),
    ),
    st.none() | quantities,
    st.none() | quantities,
    st.none() | st.sampled_from(["0", "1", "2"]),
    st.none() | st.dictionaries(st.sampled_from([CORE, MEMORY, "cpu"]), quantities, max_size=2),
    st.booleans(),
    st.none() | st.lists(variables, max_size=3),
    st.booleans(),
)
annotations = st.fixed_dictionaries(
    {},
    optional={
        CORE_LIMIT: st.sampled_from(["80", "+80", "0", "101", "x", "", "8.0", "9" * 19]),
        PLACEMENT: st.sampled_from(["binpack", "random", ""]),
        PRELOAD: st.sampled_from(["true", "no"]),
        PRIORITY: st.sampled_from(["protected", "best-effort", "normal", "best_effort"]),
        GPU_MODEL: st.sampled_from(["V100", " V100 , T4 ", "V100,", "-", "ä", ",".join(["T4"] * 65)]),
        GPU_UUID: st.sampled_from(["GPU-5fd4f087-86f3-7a43-b711-4771313afc50", "GPU-x", ""]),
        PREDICATE_NODE: st.sampled_from(["n1", "n2"]),
        "tencent.com/predicate-gpu-idx-0": st.just("0"),
        "x": st.just("y"),
    },
)


def named(found: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    return [{**c, "name": f"{prefix}{i}"} for i, c in enumerate(found)]


pods = st.builds(
    lambda apps, init, notes, node: pod(
        *named(apps, "app"), annotations=notes, initContainers=named(init, "init"), **({"nodeName": "n1"} if node else {})
    ),
    st.lists(containers, min_size=1, max_size=2), st.lists(containers, max_size=3), annotations, st.booleans(),
)  # fmt: skip


@needs_cel
@settings(max_examples=60)
@given(pods, st.sampled_from([LAX, STRICT]), st.sampled_from(["someone", SCHEDULER]))
def test_policies_and_webhook_refuse_new_pods_by_the_same_rules(
    judges: Any, obj: dict[str, Any], terms: ClusterTerms, user: str
) -> None:
    agreed(judges, review(obj, user=user), terms)


@needs_cel
@settings(max_examples=40)
@given(
    annotations,
    annotations,
    st.sampled_from(["", "status", "resize"]),
    st.sampled_from(["someone", SCHEDULER]),
)
def test_policies_and_webhook_refuse_the_same_changes_of_guarded_annotations(
    judges: Any, old: dict[str, str], new: dict[str, str], sub: str, user: str
) -> None:
    kept = PREDICATE_NODE, "tencent.com/predicate-gpu-idx-0", PRIORITY, "x"
    guarded = [  # values are judged by another policy, which does not see the status
        {k: v for k, v in notes.items() if k in kept and v != "best_effort"} for notes in (old, new)
    ]
    agreed(
        judges,
        update(*(pod(container(core="30", memory="1"), annotations=n) for n in guarded), sub, user=user),
        ClusterTerms(),
    )


@needs_cel
def test_a_wish_that_was_bad_before_does_not_keep_a_pod_from_ending(judges: Any) -> None:
    old = pod(container(core="30", memory="1"), annotations={PLACEMENT: "random"})
    assert refusals(judges, update(old, {**old, "metadata": {**old["metadata"], "finalizers": []}})) == []
    worse = pod(container(core="30", memory="1"), annotations={PLACEMENT: "other"})
    assert [fixed for fixed, _ in refusals(judges, update(old, worse))] == [
        "rule placement-unknown: see docs/errors.md"
    ]


@needs_cel
@pytest.mark.parametrize(
    ("obj", "annotated"),
    [
        (container("train", "150"), {}),
        (container("train", "30"), {}),
        (container("train", None, "20"), {}),
        (container("train", "-30"), {}),
        (container("train", "30", "20", securityContext={"privileged": True}), {}),
        (container("train", "100", env=[{"name": VISIBLE_ENV, "value": "all"}]), {}),
        (container("train", "30", "20"), {PREDICATE_NODE: "n1"}),
        (container("train", "30", "20"), {PLACEMENT: "random"}),
        (container("train", "30", "20"), {CORE_LIMIT: "20"}),
        (container("train", "30", "20"), {PRIORITY: "high"}),
        (container("train", "200"), {PRIORITY: "protected"}),
    ],
)
def test_the_policies_speak_the_webhooks_words(
    judges: Any, obj: dict[str, Any], annotated: dict[str, str]
) -> None:
    sent = review(pod(obj, annotations=annotated))
    ((_, text),) = refusals(judges, sent)
    assert text == validate(parse_review(json.dumps(sent).encode()), ClusterTerms()).message


@needs_cel
def test_static_pods_bindings_and_pods_that_ask_for_nothing_are_judged_as_by_the_webhook(judges: Any) -> None:
    mirror = pod(container(core="150"), annotations={"kubernetes.io/config.mirror": "x"}, nodeName="n1")
    assert refusals(judges, review(mirror, groups=NODE_GROUPS), STRICT) == []
    assert refusals(judges, review(mirror), STRICT) != []
    assert refusals(judges, review(pod(container(), annotations={PLACEMENT: "random"}))) == []
    binding = {"metadata": {"annotations": {PREDICATE_NODE: "n1"}}, "target": {"name": "n1"}}
    for user in ("someone", SCHEDULER):
        agreed(judges, review(binding, subResource="binding", user=user), ClusterTerms())
        for priority in Priority:
            prioritised = {**binding, "metadata": {"annotations": {PRIORITY: priority.value}}}
            said = agreed(judges, review(prioritised, subResource="binding", user=user), ClusterTerms())
            assert bool(said) is (user == "someone" and priority is not Priority.NORMAL)
        older = {"group": "", "version": "v1", "resource": "bindings"}  # POST .../namespaces/x/bindings
        agreed(judges, review(binding, resource=older, user=user), ClusterTerms())


@needs_cel
@pytest.mark.parametrize(("old", "new", "said"), [
    ({}, {PRIORITY: "normal"}, None),
    ({PRIORITY: "normal"}, {}, None),
    ({PRIORITY: "odd"}, {PRIORITY: "odd"}, None),
    ({}, {PRIORITY: "protected"}, 'is "protected": it is fixed when the pod is created: leave it out'),
    ({PRIORITY: "protected"}, {}, 'is removed: it is fixed when the pod is created: leave it as it was, "protected"'),
])  # fmt: skip
@pytest.mark.parametrize("sub", ["", "status"])
def test_a_priority_is_fixed_with_the_webhook_and_without(
    judges: Any, old: dict[str, str], new: dict[str, str], said: str | None, sub: str
) -> None:
    sent = update(*(pod(container(core="30", memory="1"), annotations=n) for n in (old, new)), sub)
    assert [text for _, text in agreed(judges, sent, LAX)] == (
        [f"annotation {PRIORITY} {said}"] if said else []
    )
    verdict = validate(parse_review(json.dumps(sent).encode()), LAX)
    assert (verdict.message, verdict.code) == ((f"annotation {PRIORITY} {said}", 403) if said else ("", 200))


@needs_cel
@pytest.mark.parametrize(
    ("core", "notes"),
    [
        ("150", {CARDS: "2"}),
        ("100", {CARDS: "train=2"}),
        ("80", {CARDS: " 02 ", CORE_LIMIT: "50"}),
        ("120", {CARDS: "2", PRIORITY: "best-effort"}),
        ("100", {CARDS: " train = 4 ", "x": "y"}),
    ],
)
def test_policies_let_legal_parts_of_several_cards_pass(
    judges: Any, core: str, notes: dict[str, str]
) -> None:
    assert refusals(judges, review(pod(container("train", core, "40"), annotations=notes))) == []


@needs_cel
@pytest.mark.parametrize("written", ["two", "0", "17", "2=train", "train=2,eval", ""])
def test_policies_refuse_a_number_of_cards_that_cannot_be_read(judges: Any, written: str) -> None:
    ((rule, text),) = agreed(
        judges, review(pod(container("train", "80", "32"), annotations={CARDS: written})), LAX
    )
    assert "cards-malformed" in rule
    assert "write a number such as 2, or one for each container as train=2" in text


@needs_cel
def test_the_number_of_cards_is_fixed_with_the_webhook_and_without(judges: Any) -> None:
    two, four = (pod(container("train", "160", "40"), annotations={CARDS: cards}) for cards in ("2", "4"))
    ((rule, text),) = agreed(judges, update(two, four), LAX)
    assert "cards-changed" in rule
    assert 'leave it as it was, "2"' in text
