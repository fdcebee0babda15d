"""Workloads: what the webhooks foretell of the pods of a template, and that they refuse none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.config import ClusterTerms
from admission.webhook.admit import TEMPLATES, CreateTimeChecks, mutate, validate
from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.domain.contract import (
    ADVICE,
    PREDICATE_NODE,
    PRIORITY,
)
from tests.fakes.reviews import ask, container, pod, workload

WORKLOADS = [
    ("Deployment", "apps", "deployments"),
    ("StatefulSet", "apps", "statefulsets"),
    ("DaemonSet", "apps", "daemonsets"),
    ("ReplicaSet", "apps", "replicasets"),
    ("Job", "batch", "jobs"),
    ("CronJob", "batch", "cronjobs"),
    ("ReplicationController", "", "replicationcontrollers"),
    ("PodTemplate", "", "podtemplates"),
]


def around(kind: str, template: dict[str, Any]) -> dict[str, Any]:
    obj: dict[str, Any] = {"spec": {"template": template}}
    if kind == "CronJob":
        obj = {"spec": {"jobTemplate": obj}}
    if kind == "PodTemplate":
        obj = {"template": template}
    return {"metadata": {"name": "w", "namespace": "research"}, "kind": kind, **obj}


@pytest.mark.parametrize(("kind", "group", "plural"), WORKLOADS)
def test_a_workload_is_only_ever_warned(kind: str, group: str, plural: str) -> None:
    response = ask(validate, workload(kind, group, plural, around(kind, pod(container("train", "150")))))
    assert response["allowed"]
    (warning,) = response["warnings"]
    assert warning.startswith(f"pods of this {kind} will be refused: cores are greater than 100")
    assert len(warning) <= 256
    legal = workload(kind, group, plural, around(kind, pod(container("train", "30", "20"))))
    assert ask(validate, legal) == {"uid": legal["request"]["uid"], "allowed": True}
    assert ask(mutate, legal)["allowed"]


@pytest.mark.parametrize(("kind", "group", "_plural"), WORKLOADS)
def test_the_webhook_finds_the_same_template_as_the_command_line(kind: str, group: str, _plural: str) -> None:
    assert {(g, p) for _, g, p in WORKLOADS} == set(TEMPLATES)
    manifest = around(kind, {"spec": {"marker": 1}}) | {"apiVersion": f"{group}/v1".lstrip("/")}
    (found,) = read_manifests(json.dumps(manifest).encode())
    assert found.pod == {"spec": {"marker": 1}}


def test_a_template_is_warned_of_all_that_will_happen_to_its_pods() -> None:
    template = pod(
        container("a", "30"), container("b", "200", "3"), annotations={PREDICATE_NODE: "n1"}, nodeName="n2"
    )
    found = ask(
        validate,
        workload(*WORKLOADS[0], around("Deployment", template)),
        ClusterTerms(default_memory=4, deny_node_name=True),
    )
    assert [w.partition(": ")[0] for w in found["warnings"]] == ["pods of this Deployment"] * 3 + [
        "pods of this Deployment will be refused"
    ]
    without = ask(validate, workload(*WORKLOADS[0], around("Deployment", template)))
    assert "will be refused" in without["warnings"][0]
    assert "without tencent.com/vcuda-memory" in without["warnings"][0]


def test_advice_that_no_pod_could_follow_is_foretold_for_a_template() -> None:
    template = pod(container("train", "30", "3"), annotations={ADVICE: "yes"})
    (warning,) = ask(validate, workload(*WORKLOADS[0], around("Deployment", template)))["warnings"]
    assert f"will be refused: annotation {ADVICE} is" in warning


@pytest.mark.parametrize(("kind", "group", "plural"), WORKLOADS)
def test_an_annotation_on_the_workload_itself_is_said_to_do_nothing_there(
    kind: str, group: str, plural: str
) -> None:
    bare = around(kind, pod(container("train", "30", "20")))
    noted = {**bare, "metadata": {**bare["metadata"], "annotations": {PRIORITY: "protected", "x": "y"}}}
    place = ".".join(TEMPLATES[group, plural])
    said = [
        f"annotation {PRIORITY} stands on the {kind} itself, where it does nothing: write it into {place}.metadata.annotations"
    ]
    assert ask(validate, workload(kind, group, plural, noted))["warnings"] == said
    assert ask(validate, workload(kind, group, plural, noted, bare))["warnings"] == said, "kubectl annotate"
    scaled = {**noted, "status": {"replicas": 3}}
    assert "warnings" not in ask(validate, workload(kind, group, plural, scaled, noted)), "said before"
    both = around(kind, pod(container("train", "30", "20"), annotations={PRIORITY: "protected"}))
    both["metadata"] = noted["metadata"]
    assert "warnings" not in ask(validate, workload(kind, group, plural, both))


def test_an_update_that_leaves_the_template_alone_is_not_warned_again() -> None:
    old = around("Deployment", pod(container("train", "150")))
    scaled = {**old, "spec": {**old["spec"], "replicas": 3}}
    assert "warnings" not in ask(validate, workload(*WORKLOADS[0], scaled, old))


def test_a_template_that_is_none_is_allowed_with_a_word() -> None:
    assert "warnings" in ask(
        validate, workload(*WORKLOADS[0], around("Deployment", {"spec": {"containers": 7}}))
    )
    assert "warnings" not in ask(validate, workload(*WORKLOADS[0], {"spec": 5}))


def test_an_exceeded_quota_is_foretold_for_a_template() -> None:
    text = 'ExceedsGPUQuota: namespace "research": 4 of 4 T4 cards are used'
    checks = CreateTimeChecks(refuse=lambda *_: (text,))
    sent = workload(*WORKLOADS[0], around("Deployment", pod(container(core="100"))))
    assert ask(validate, sent, checks=checks)["warnings"] == [
        f"pods of this Deployment will be refused: {text}"
    ]
