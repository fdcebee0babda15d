"""What ``/mutate/claims`` makes of pods that nobody here chose passes the policies that the chart ships."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.config import ClusterTerms
from admission.webhook.admit import mutate
from admission.webhook.claim_translation import turn
from gpu_manager.domain.contract import (
    CORE_LIMIT,
    FRONT_LABEL,
    GPU_MODEL,
    GPU_UUID,
    PRELOAD,
    PRIORITY,
    TURNED_LABEL,
)
from tests.agreement.claim_cases import claim, template
from tests.deploy.chart import the
from tests.fakes.cel import Policy
from tests.fakes.reviews import ask, container, patched, pod, review
from tests.unit.test_claim_translation import Templates
from tests.unit.test_webhook_properties import pods

ADMISSION = "system:serviceaccount:kube-system:gpu-quota-admission"
TERMS = ClusterTerms(default_memory=4, minimum_cores=5)  # the chart's values of these policies say so, too
POLICIES = {
    "vcuda-claims": claim,  # Kubernetes makes it of the template
    "vcuda-claim-templates": template,
}
JUDGED = {name: Policy(the("claims", "ValidatingAdmissionPolicy", name)["spec"]) for name in POLICIES}


LEGAL = st.builds(
    lambda shares, whole, notes: pod(
        *(container(f"part{n}", str(core), str(memory)) for n, (core, memory) in enumerate(shares)),
        *(container(f"whole{n}", str(100 * count)) for n, count in enumerate(whole)),
        annotations=notes,
    ),
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 300)), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), max_size=2),
    st.fixed_dictionaries(
        {},
        optional={
            CORE_LIMIT: st.integers(1, 100).map(str),
            PRIORITY: st.sampled_from(["normal", "best-effort", "protected"]),
            PRELOAD: st.sampled_from(["true", "false"]),
            GPU_MODEL: st.sampled_from(["A100", "V100,T4", "it's"]),
            GPU_UUID: st.just("GPU-5ba26600-f15d-50c2-94c7-ef9459af6b8b"),
        },
    ),
)
"""Shares, whole cards and what annotations say of them: most of these pods are turned."""


def templates_of(obj: dict[str, Any]) -> list[dict[str, Any]]:
    """The specs of the templates by which a pod is turned; none of one that is refused or stays as it is."""
    mended = ask(mutate, review(obj), TERMS)
    templates = Templates()
    if mended["allowed"]:
        ask(
            lambda one, terms: turn(one, terms, templates.ensure),
            review(patched(obj, mended)),
            TERMS,
        )
    return [dict(spec) for spec in templates.made.values()]


def refusals(spec: dict[str, Any]) -> list[str]:
    """What the policies say of a template and of the claim that Kubernetes makes of it."""
    return [
        text
        for name, policy in JUDGED.items()
        for _, text in policy.refusals({"operation": "CREATE", "object": POLICIES[name](spec, "c")})
    ]


@settings(max_examples=300)
@given(pods | LEGAL)
def test_no_claim_of_a_turned_pod_is_refused(obj: dict[str, Any]) -> None:
    assert [text for spec in templates_of(obj) for text in refusals(spec)] == []


def test_pods_with_every_kind_of_annotation_are_among_those_that_are_turned() -> None:
    notes = {CORE_LIMIT: "80", PRIORITY: "best-effort", PRELOAD: "true", GPU_MODEL: "A100"}
    [spec] = templates_of(pod(container("part", "30", "8"), container("more", "50", "4"), annotations=notes))
    assert spec["devices"]["config"]
    assert spec["devices"]["requests"][0]["exactly"]["selectors"]
    assert refusals(spec) == []


def test_the_policies_would_have_refused_a_claim_that_is_rounded() -> None:
    [spec] = templates_of(pod(container("part", "30", "8")))
    spec["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = "1500Mi"
    assert len(refusals(spec)) == len(POLICIES)


@pytest.mark.parametrize(
    ("user", "operation", "labels", "says"),
    [
        (ADMISSION, "CREATE", {FRONT_LABEL: "dra"}, ""),
        (ADMISSION, "CREATE", {FRONT_LABEL: "plugin"}, "in namespaces with label"),
        (ADMISSION, "CREATE", {}, "in namespaces with label"),
        (ADMISSION, "CREATE", None, "in namespaces with label"),
        (ADMISSION, "UPDATE", {}, ""),
        (ADMISSION, "DELETE", {}, ""),
        ("somebody", "CREATE", {}, ""),
    ],
)
def test_the_service_makes_templates_where_pods_are_turned_and_nowhere_else(
    user: str, operation: str, labels: dict[str, str] | None, says: str
) -> None:
    """Its port answers whoever reaches it: a forged review would else make them in any namespace."""
    policy = Policy(the("claims", "ValidatingAdmissionPolicy", "vcuda-turned-templates")["spec"])
    obj = {"metadata": {"name": "t", "labels": {TURNED_LABEL: "true"}}}
    namespace = {"metadata": {"name": "ml", **({} if labels is None else {"labels": labels})}}
    asked = {"operation": operation, "userInfo": {"username": user}, "namespaceObject": namespace}
    objects = {
        "object": None if operation == "DELETE" else obj,
        "oldObject": None if operation == "CREATE" else obj,
    }
    found = [text for _, text in policy.refusals({**asked, **objects})]
    assert len(found) == bool(says)
    assert says in "".join(found)
