"""Pods with ResourceClaims that are not created yet, and those in the list of what waits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from admission.app import manifest_file
from admission.cluster.claims import CLASSES, TEMPLATES, slim_class, slim_template
from admission.config import ClusterTerms
from admission.console.cluster_page import ClusterPage, PageSources
from admission.console.routes import judged_workloads
from admission.explain.claims import ClaimingPods
from admission.explain.drafts import read_draft
from admission.explain.explain_api import ExplainSources
from admission.explain.explanation import Explanation
from admission.extender.fragmentation_score import LeastFragmentation
from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.errors import RequestInvalid
from tests.fakes.extender import World, config_map, node, pod
from tests.unit.test_cluster_claims import CLASS, claim, part
from tests.unit.test_explained_claims import Voice, held, pending, waiting, world

FOREIGN = {"selectors": [{"cel": {"expression": "device.driver == 'other'"}}]}


def sources(made: World) -> ExplainSources:
    claiming = ClaimingPods(made.cluster, Voice(), made.clock, 1)
    policy = LeastFragmentation(made.cluster)
    return ExplainSources(
        made.cluster, made.quota, made.judge, policy, ClusterTerms(), lambda *_: None, claiming
    )


def template(name: str = "t", asks: dict[str, Any] | None = None) -> dict[str, Any]:
    spec = claim(name, asks=part(50, "4Gi") if asks is None else asks)["spec"]
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"spec": spec},
    }


def of_template(name: str = "t", **more: Any) -> dict[str, Any]:
    obj = waiting(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": name}], **more)
    return {"kind": "Pod", **obj}


def answered(knowledge: ExplainSources, *objects: dict[str, Any]) -> Explanation:
    body = json.dumps({"kind": "List", "items": list(objects)}).encode()
    return knowledge.explain_draft(read_draft(body, ClusterTerms()))


def test_a_pod_of_a_file_is_explained_by_the_template_beside_it() -> None:
    knowledge = sources(world(claim("a", held("n1", 0, 60)), claim("b", held("n1", 1, 70))))
    found = answered(knowledge, of_template(), template())
    assert found.line == (
        "waits: claim gpu, request gpu: 50 cores, 4 GiB of one card. Of 2 nodes: 1 without room now, 1 "
        "without cards for claims. The largest part that is free now: 40 cores, 12 GiB on card 0 of n1"
    )
    small = answered(knowledge, of_template(), template(asks=part(40, "4Gi")))
    assert small.line.startswith("there is room now on 1 of 2 nodes: on n1 it would get 40 cores, 4 GiB")


def test_a_pod_of_a_file_is_explained_by_the_claim_beside_it_and_by_one_that_exists() -> None:
    made = world(claim("there", held("n1", 0, 60)))
    beside = {"kind": "ResourceClaim", **claim("w", asks=part(50, "4Gi"))}
    obj = {"kind": "Pod", **waiting("w")}
    assert answered(sources(made), obj, beside).counts["fits"] == 1
    existing = {"kind": "ResourceClaim", **claim("there", asks=part(99, "4Gi"))}
    found = answered(sources(made), {"kind": "Pod", **waiting("there")}, existing)
    assert found.line == "its claims are allocated: claim there holds 60 cores, 4 GiB of card 0 on n1"


def test_a_template_of_the_cluster_is_enough_and_one_of_another_namespace_is_not() -> None:
    made = world()
    made.cluster.replace(TEMPLATES, [slim_template(template())])
    assert answered(sources(made), of_template()).counts["fits"] == 1
    elsewhere = template("u")
    elsewhere["metadata"]["namespace"] = "other"
    found = answered(sources(made), of_template("u"), elsewhere)
    assert found.line == (
        'waits: claim template "u" is not in the file, and the cluster has none of that name in namespace '
        '"ml" that may be given a card here'
    )
    assert found.counts == {"not asked": 2}
    missing = answered(sources(made), {"kind": "Pod", **waiting("w")})
    assert missing.line.startswith('waits: claim "w" is not in the file')


def test_what_the_quota_says_of_claims_to_come() -> None:
    made = World([node("n1", claimed=[0, 1])], quota={"ml": {"quota": {"*": 0.4}}})
    made.cluster.replace("deviceclasses", [])
    knowledge = sources(made)
    found = answered(knowledge, of_template(), template())
    assert found.line.startswith("its claims would not be created: ")
    assert "ExceedsGPUQuota" in found.line
    assert found.counts == {"quota": 1}
    assert found.quota
    small = answered(knowledge, of_template(), template(asks=part(40, "4Gi")))
    assert small.counts == {"fits": 1}
    assert small.quota


def test_foreign_claims_and_pods_of_extended_resources_are_explained_as_ever() -> None:
    knowledge = sources(world())
    foreign = answered(knowledge, of_template(), template(asks=FOREIGN))
    assert foreign.line == "asks for no part of a card: any node will do"
    limits = {"limits": {"tencent.com/vcuda-core": 900}}
    both = of_template(containers=[{"name": "c", "resources": limits}])
    assert answered(knowledge, both, template()).line.startswith("waits: of 2 nodes"), "no room by itself"


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([template()], "0 objects beside claims"),
        ([of_template(), of_template()], "2 objects beside claims"),
        ([of_template(), template(asks={"count": 0})], "allocationMode"),
    ],
)
def test_a_list_that_is_no_pod_with_its_claims_is_refused(items: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RequestInvalid, match=words):
        answered(sources(world()), *items)


def test_the_console_judges_a_file_with_its_claims() -> None:
    file = "\n---\n".join(map(json.dumps, (of_template(), template(asks=part(40, "4Gi")))))
    made = sources(world(claim("a", held("n1", 0, 60))))
    (one,) = judged_workloads(manifest_file(file.encode()), "", made)
    assert one["said"]["counts"] == {"fits": 1, "node": 1}
    bad = "\n---\n".join(map(json.dumps, (of_template(), template(asks={"count": -1}))))
    (one,) = judged_workloads(manifest_file(bad.encode()), "", made)
    assert "count" in one["error"]


def test_the_console_lists_pods_that_wait_for_claims_of_ours_with_the_reason() -> None:
    full = [claim("a", held("n1", 0, 60)), claim("b", held("n1", 1, 70))]
    made = world(*full, claim("w", asks=part(50, "4Gi")), claim("theirs", asks=FOREIGN))
    made.cluster.replace(TEMPLATES, [slim_template(template()), slim_template(template("f", FOREIGN))])
    knowledge = sources(made)
    assert knowledge.claiming is not None
    for name in ("w", "theirs"):
        knowledge.claiming.look(pending(f"by-{name}", name), gone=False, tells=True)
    for name in ("t", "f"):
        one = of_template(name)
        one["metadata"] |= {"name": f"of-{name}", "uid": f"uid-{name}"}
        knowledge.claiming.look(one, gone=False, tells=True)
    made.show(pod("plain", 30, 4))
    page = ClusterPage(
        PageSources(
            knowledge.snapshot,
            knowledge.waiting,
            lambda one, everywhere: knowledge.explain(one, everywhere=everywhere),
            lambda: None,
        ),
        made.clock,
    )
    rows = {row["pod"]: row for row in json.loads(page.data())["waiting"]}
    assert set(rows) == {"ml/by-w", "ml/of-t", "default/plain"}
    assert rows["ml/by-w"]["asks"] == "claim w, request gpu: 50 cores, 4 GiB of one card"
    assert rows["ml/by-w"]["why"].startswith("waits: claim w, request gpu: 50 cores")
    assert rows["ml/by-w"]["group"] == "room"
    assert rows["ml/of-t"]["why"].startswith("waits: its claim gpu is not created yet")
    assert {row["pod"] for row in json.loads(page.data("ml"))["waiting"]} == {"ml/by-w", "ml/of-t"}
    knowledge.claiming.look(pending("by-w", "w"), gone=True, tells=True)
    made.clock.pass_(3)
    assert "ml/by-w" not in {row["pod"] for row in json.loads(page.data())["waiting"]}


def test_a_pod_of_a_file_that_would_not_be_created_is_not_said_to_wait() -> None:
    obj = {"kind": "Pod", **pod("service", namespace="ml", annotations={PRIORITY: "protected"})}
    found = answered(sources(World([node("n1")], quota={})), obj)
    assert found.line.startswith("would not be created: ExceedsGPUQuota: ")
    assert (
        'an operator grants them in its quota (ConfigMap kube-system/gpuquota), under "protected"'
        in found.line
    )
    assert found.counts == {"quota": 1}


@pytest.mark.parametrize(
    ("quota", "others", "helps"),
    [
        ({}, 0, f"leave out annotation {PRIORITY} (then node n1 takes it: 30 cores, 1 GiB of card 0)"),
        ({"ml": {"quota": {"T4": 0.1}}}, 0, 'have the right granted, and ask 10 cores, 1 GiB instead of 30 cores, 1 GiB for "main" (then node n1 takes it)'),
        ({"ml": {"protected": {"T4": 0.2}}}, 0, 'ask 20 cores, 1 GiB instead of 30 cores, 1 GiB for "main" (then node n1 takes it)'),
        ({"ml": {"quota": {"T4": 0.2}, "protected": {"T4": 1}}}, 20, "let the quota grow"),
    ],
)  # fmt: skip
def test_a_pod_of_a_file_that_would_not_be_created_is_told_what_helps(
    quota: dict[str, Any], others: int, helps: str
) -> None:
    there = [pod("there", others, 1, namespace="ml", on="n1")] if others else []
    obj = {"kind": "Pod", **pod("service", namespace="ml", annotations={PRIORITY: "protected"})}
    found = answered(sources(World([node("n1")], there, quota=quota)), obj)
    assert found.line.startswith("would not be created: ExceedsGPUQuota: ")
    assert found.line.endswith(f". Smallest change: {helps}")


def test_a_pod_whose_claim_the_quota_refuses_is_told_that_and_not_to_look_for_an_event() -> None:
    obj = {**of_template(), "metadata": {"name": "p", "namespace": "ml", "uid": "uid-p"}}
    made = World([node("n1", claimed=[0, 1])], quota={"ml": {"quota": {"T4": 0.2}}})
    made.cluster.replace(CLASSES, [slim_class(CLASS)])
    made.cluster.replace(TEMPLATES, [slim_template(template())])
    knowledge = replace(sources(made), fetch=lambda *_: obj)
    found = knowledge.explain_named("ml", "p")
    assert found is not None
    assert found.line.startswith(
        'its claims would not be created: ExceedsGPUQuota: namespace "ml": 0.2 cards of T4'
    )
    assert found.counts == {"quota": 1}
    made.quota.update(config_map('{"ml": {"quota": {"T4": 1}}}'))
    granted = knowledge.explain_named("ml", "p")
    assert granted is not None
    assert granted.line.startswith("waits: its claim gpu is not created yet")
