"""Pods that name their node or another scheduler: no way past a quota, and none to protected shares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.config import ClusterTerms
from admission.explain.drafts import read_draft
from admission.webhook.admission_review import parse_review
from admission.webhook.admit import validate
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.domain.contract import PRIORITY
from tests.fakes.extender import World, node, pod
from tests.fakes.reviews import NODE_GROUPS, container, review, workload
from tests.fakes.reviews import pod as written
from tests.unit.test_drafted_claims import sources

OURS = ClusterTerms(scheduler_name="vcuda-scheduler")


def said(world: World, obj: dict[str, Any], **more: Any) -> str:
    """Why the webhook refuses the pod; empty if it does not."""
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    sent = review(obj, namespace=obj["metadata"].get("namespace", "default"), **more)
    verdict = validate(parse_review(json.dumps(sent).encode()), OURS, checks)
    assert verdict.allowed == (not verdict.message)
    return verdict.message


def by_hand(
    name: str, core: object = 30, memory: object = 4, *, on: str = "n1", **more: Any
) -> dict[str, Any]:
    return pod(name, core, memory, namespace="a", on=on, scheduler=OURS.scheduler_name, **more)


# Protected shares: the right is the scheduler's to count.


@pytest.mark.parametrize(
    ("past", "field"),
    [
        ({"nodeName": "n1"}, 'spec.nodeName "n1"'),
        ({"schedulerName": "volcano"}, 'spec.schedulerName "volcano"'),
    ],
)
def test_a_protected_pod_cannot_pass_the_scheduler_by_however_large_the_right(
    past: dict[str, str], field: str
) -> None:
    world = World([node("n1")], quota={"a": {"protected": {"*": 100}}})
    obj = by_hand("p", on="", annotations={PRIORITY: "protected"})
    assert said(world, obj) == ""
    obj["spec"] |= past
    assert said(world, obj) == (
        f"annotation {PRIORITY} is protected, but {field} passes the scheduler by, which alone counts the right "
        f"to protected shares: remove {field.partition(' ')[0]}"
    )
    for other in ("normal", "best-effort"):
        obj["metadata"]["annotations"][PRIORITY] = other
        assert said(world, obj) == ""


def test_a_static_pod_runs_already_and_a_pod_without_shares_holds_nothing() -> None:
    static = {PRIORITY: "protected", "kubernetes.io/config.mirror": "x"}
    assert said(World([node("n1")]), by_hand("p", annotations=static), groups=NODE_GROUPS) == ""
    nothing = by_hand("p", None, None, annotations={PRIORITY: "protected"})
    assert said(World([node("n1")]), nothing) == ""


def test_a_workload_whose_pods_would_be_refused_is_warned() -> None:
    template = written(container("c", "30", "4"), annotations={PRIORITY: "protected"}, nodeName="n1")
    sent = workload("Job", "batch", "jobs", {"spec": {"template": template}})
    first = validate(parse_review(json.dumps(sent).encode()), OURS).warnings[0]
    assert first.startswith(
        f"pods of this Job will be refused: annotation {PRIORITY} is protected, but spec.nodeName"
    )


def test_where_any_scheduler_may_bind_protected_pods_are_counted_when_they_are_created() -> None:
    """Else one that asks no extender would pass the right."""
    protected = {PRIORITY: "protected"}
    world = World(
        [node("n1")],
        [pod("x", 20, 4, on="n1", namespace="a", annotations=protected)],
        quota={"a": {"protected": {"*": 0.6}}},
    )
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock, any_scheduler=True)

    def told(obj: dict[str, Any]) -> str:
        sent = review(obj, namespace="a")
        return validate(parse_review(json.dumps(sent).encode()), ClusterTerms(), checks).message

    first = pod("p", 30, 4, namespace="a", scheduler="volcano", annotations=protected)
    assert told(first) == ""
    world.create(first)
    second = pod("q", 20, 4, namespace="a", scheduler="volcano", annotations=protected)
    assert told(second).endswith(
        "0.2 used or being bound, 0.5 asked: 0.4 would still fit, protected pods that wait counted"
    )
    assert told(pod("r", 10, 4, namespace="a", scheduler="volcano", annotations=protected)) == ""
    assert told(pod("s", 90, 4, namespace="a", scheduler="volcano")) == ""


# Quota: such a pod does not wait.


def test_a_pod_that_names_its_node_is_held_to_what_its_namespace_has_left() -> None:
    world = World(
        [node("n1")], [pod("x", 60, 4, on="n1", namespace="a")], quota={"a": {"quota": {"T4": 0.9}}}
    )
    assert said(world, by_hand("p", 30)) == ""
    assert said(world, by_hand("p", 40, on="")) == "", "it waits"
    assert said(world, by_hand("p", 40)) == (
        'ExceedsGPUQuota: namespace "a": 0.9 cards of T4, 0.6 used or being bound, 0.4 asked: 0.3 would still fit, '
        "and with spec.nodeName it cannot wait: leave that out"
    )
    free = by_hand("p", 40)
    free["metadata"]["namespace"] = "b"
    assert said(world, free) == "", "nothing limits that one"


def test_the_memory_of_whole_cards_counts_and_each_model_that_the_node_could_give() -> None:
    memory = World([node("n1")], quota={"a": {"memory": {"T4": 20 << 10}}})
    assert said(memory, by_hand("p", 100, None)) == ""
    assert "20 GiB of T4, 0 B used or being bound, 32 GiB asked" in said(memory, by_hand("p", 200, None))
    models = World([node("n1", model=["Tesla-T4", "Tesla-P40"])], quota={"a": {"quota": {"T4": 1}}})
    assert 'model "Tesla-P40" is not among its models (T4)' in said(models, by_hand("p"))
    assert said(models, by_hand("p", annotations={"tencent.com/gpu-model": "T4"})) == ""


def test_a_pool_holds_for_a_named_node_and_an_unknown_node_counts_under_every_model() -> None:
    nodes = [node("n1", labels={"gaia.tencent.com/gpu-pool": "red"})]
    pools = World(nodes, quota={"a": {"quota": {"*": 4}, "pool": ["blue"]}})
    assert 'namespace "a": node "n1" is in none of its pools (blue)' in said(pools, by_hand("p"))
    keys = World([node("n1", 8)], quota={"a": {"quota": {"T4": 4, "P40": 0.2}}})
    assert said(keys, by_hand("p")) == ""
    assert "0.2 cards of P40, 0 used or being bound, 0.3 asked" in said(keys, by_hand("p", on="n9"))


def test_a_file_is_judged_as_it_would_be_when_it_is_created() -> None:
    made = World([node("n1")], quota={"a": {"protected": {"*": 1}}})
    knowledge = sources(made)
    obj = by_hand("p", on="n1", annotations={PRIORITY: "protected"})
    found = knowledge.explain_draft(read_draft(json.dumps({"kind": "Pod", **obj}).encode(), OURS))
    assert found.line.startswith(
        f'would not be created: annotation {PRIORITY} is protected, but spec.nodeName "n1" passes the scheduler by'
    )
    assert found.counts == {"never": 1}
    del obj["spec"]["nodeName"]
    found = knowledge.explain_draft(read_draft(json.dumps({"kind": "Pod", **obj}).encode(), OURS))
    assert found.counts == {"fits": 1}
