"""The quota's ConfigMap as it changes: who is told of a bad one and how often, who is looked at again."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from admission.cluster.claims import TEMPLATES, slim_template
from admission.cluster.snapshot import PODS
from admission.cluster.trim import slim_pod
from admission.explain.claims import ClaimingPods
from admission.extender.cluster_metrics import ClusterMetrics
from admission.ports import Involved
from admission.quota_controller import QuotaController
from gpu_manager.domain.contract import EVENT_QUOTA_UNUSABLE, QUOTA_SEEN
from gpu_manager.domain.kube.pod import Pod
from tests.fakes.extender import World, bound, config_map, pod
from tests.unit.test_cluster_claims import claim, part
from tests.unit.test_explained_claims import Voice
from tests.unit.test_explained_claims import world as made_for_claims

PLACE = "kube-system", "gpuquota"
ONE, TWO = '{"a": {"quota": {"T4": 1}}}', '{"a": {"quota": {"T4": 2}}}'


class Paper:
    """Keeps what it is to write; an annotation comes back by the watch, as from an API server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[tuple[str, ...]] = []
        self.touched: list[str] = []

    def annotate(self, pod: Pod, annotations: dict[str, str]) -> None:
        self.touched.append(pod.key)
        obj = self.world.api.pods[pod.namespace, pod.name]
        changed = bound(obj, "", annotations)
        self.world.api.put(changed)
        self.world.cluster.apply(PODS, "MODIFIED", changed)

    def event_about(self, involved: Involved, reason: str, text: str) -> None:
        self.events.append((involved.namespace, involved.name, involved.uid, reason, text))


class Rig:
    def __init__(self) -> None:
        self.world = made_for_claims()
        self.leads = True
        self.paper: Any = Paper(self.world)
        figures = ClusterMetrics(CollectorRegistry())
        self.claiming = ClaimingPods(self.world.cluster, Voice(), self.world.clock, 1)
        self.watch = QuotaController(
            PLACE, self.world.cluster, self.paper, figures, lambda: self.leads, self.claiming.waiting
        )

    def take(self, text: str | None) -> None:
        self.watch.take(None if text is None else config_map(text))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_bad_quota_is_told_once_and_again_when_it_is_bad_in_another_way(rig: Rig) -> None:
    rig.take(ONE)
    for text in ("{", "{", ONE, "{", "[]"):
        rig.take(text)
        rig.watch.complain()
        rig.watch.complain()
    assert [(said[0], said[1], said[3]) for said in rig.paper.events] == [(*PLACE, EVENT_QUOTA_UNUSABLE)] * 3
    assert all(
        "The last good quota stays in force until it is mended" in said[4] for said in rig.paper.events
    )


def test_a_quota_bad_from_the_start_says_that_nobody_is_placed(rig: Rig) -> None:
    rig.take("{")
    rig.watch.complain()
    assert "No GPU pod is placed until it is mended" in rig.paper.events[0][4]


def test_who_does_not_lead_writes_nothing_and_whoever_leads_next_makes_up_for_it(rig: Rig) -> None:
    rig.world.create(pod("waits", namespace="a"))
    rig.leads = False
    rig.take(ONE)
    rig.take(TWO)
    rig.watch.complain()
    assert (rig.paper.touched, rig.paper.events) == ([], [])
    rig.leads = True
    rig.watch.wake()
    assert rig.paper.touched == ["a/waits"]


def test_a_pod_that_waits_is_touched_once_for_a_quota_and_only_where_it_changed(rig: Rig) -> None:
    rig.world.create(
        pod("waits", namespace="a"), pod("other", namespace="b"), pod("runs", namespace="a", on="n")
    )
    rig.take(ONE)
    rig.watch.wake()
    rig.take(ONE)
    assert rig.paper.touched == ["a/waits"]
    assert QUOTA_SEEN in rig.world.api.pods["a", "waits"]["metadata"]["annotations"]
    rig.take(TWO)
    assert rig.paper.touched == ["a/waits"] * 2


def test_a_change_for_everybody_else_touches_whoever_is_not_named(rig: Rig) -> None:
    rig.world.create(pod("named", namespace="a"), pod("unnamed", namespace="b"))
    rig.take('{"a": {"quota": {"T4": 1}}, "*": {"quota": {"T4": 1}}}')
    assert sorted(rig.paper.touched) == ["a/named", "b/unnamed"]
    rig.take('{"a": {"quota": {"T4": 1}}, "*": {"quota": {"T4": 2}}}')
    assert sorted(rig.paper.touched) == ["a/named", "b/unnamed", "b/unnamed"]


def test_a_pod_whose_claim_was_refused_is_touched_so_that_it_is_made_again(rig: Rig) -> None:
    """Whoever makes claims of templates tries a refused one again only after up to a quarter of an hour."""

    def show(obj: dict[str, Any]) -> None:
        slim = slim_pod(obj)
        assert slim is not None
        rig.world.api.put(obj)
        rig.claiming.look(slim, gone=False, tells=False)

    class Watched(Paper):
        def annotate(self, pod: Pod, annotations: dict[str, str]) -> None:
            self.touched.append(pod.key)
            show(bound(self.world.api.pods[pod.namespace, pod.name], "", annotations))

    rig.paper = rig.watch.writer = Watched(rig.world)
    template = {"name": "t", "namespace": "a", "uid": "uid-t"}
    spec = {"spec": claim("t", asks=part(50, "4Gi"))["spec"]}
    rig.world.cluster.replace(TEMPLATES, [slim_template({"metadata": template, "spec": spec})])
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    refused = pod("waits", None, None, namespace="a")
    refused["spec"]["resourceClaims"] = [entry]
    other = pod("other", None, None, namespace="b")
    other["spec"]["resourceClaims"] = [entry]
    for obj in (refused, other):
        show(obj)
    rig.take('{"a": {"protected": {"T4": 1}}}')
    rig.watch.wake()
    assert rig.paper.touched == ["a/waits"]
    rig.take('{"a": {"protected": {"T4": 2}}}')
    assert rig.paper.touched == ["a/waits"] * 2, "the right alone has changed"
