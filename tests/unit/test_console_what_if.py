"""What the console says of manifests that nobody applied: each pod in the words of explain, within one's rights."""

import pytest

from admission.app import manifest_file
from admission.config import ClusterTerms
from admission.console.routes import MOST_WORKLOADS, judged_workloads
from admission.explain.explain_api import ExplainSources
from admission.extender.fragmentation_score import LeastFragmentation
from gpu_manager.domain.errors import RequestInvalid
from tests.fakes.extender import World, node, pod

FILE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %s}
spec:
  replicas: 3
  template:
    spec:
      containers:
      - name: main
        image: x
        resources: {limits: {tencent.com/vcuda-core: %s, tencent.com/vcuda-memory: 4}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
"""


def judged(text, namespace=""):
    held = [pod("a", 60, 4, on="n1"), pod("b", 20, 4, on="n1", namespace="other")]
    world = World([node("n1", cards=1)], held)
    policy = LeastFragmentation(world.cluster)
    knowledge = ExplainSources(
        world.cluster, world.quota, world.judge, policy, ClusterTerms(), lambda *_: None
    )
    return judged_workloads(manifest_file(text.encode()), namespace, knowledge)


def test_a_workload_that_fits_is_told_where_and_other_objects_are_passed_over():
    (one,) = judged(FILE % ("team", 20))
    assert (one["kind"], one["name"], one["copies"]) == ("Deployment", "team/web", 3)
    assert one["fit"] == 1
    assert one["said"]["line"].startswith(
        "1 of 3 copies fit now; the next waits: of 1 node, 1 has no room now"
    )
    (all_fit,) = judged(FILE % ("team", 5))
    assert (all_fit["fit"], all_fit["said"]["counts"]) == (3, {"fits": 1})
    assert all_fit["said"]["line"].startswith("all 3 copies fit now: ")


def test_one_without_room_is_told_the_change_that_helps():
    (one,) = judged(FILE % ("team", 50))
    assert one["said"]["line"].startswith("waits: of 1 node, 1 has no room now")
    assert one["said"]["change"]


def test_one_that_is_illegal_is_told_why():
    (one,) = judged(FILE % ("team", 150))
    assert one["said"]["line"].startswith("never runs: ")


def test_who_sees_one_namespace_is_told_of_workloads_there_alone():
    (one,) = judged(FILE % ("team", 20), "default")
    assert "only" in one["error"]
    assert "said" not in one
    (mine,) = judged(FILE % ('""', 50), "default")
    assert mine["name"] == "default/web"
    assert "other/" not in str(mine)


def test_a_template_that_is_none_is_named():
    (one,) = judged("kind: Deployment\napiVersion: apps/v1\nmetadata: {name: web}\nspec: {template: 1}\n")
    assert one["error"]


def test_what_is_no_manifest_and_too_many_are_refused():
    with pytest.raises(RequestInvalid):
        judged("a: [")
    with pytest.raises(RequestInvalid, match="at most"):
        judged("---\n".join([FILE % ("team", 20)] * (MOST_WORKLOADS + 1)))
