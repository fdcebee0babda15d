"""What explain says to pods that wait for ResourceClaims, card by card, where Kubernetes says four words."""

from __future__ import annotations

from typing import Any

from admission.cluster.claims import CLAIMS, CLASSES, slim_claim, slim_class
from admission.cluster.trim import slim_pod
from admission.config import ClusterTerms
from admission.explain.claims import ClaimingPods, claiming_pod, explain_claims
from admission.explain.explain_api import ExplainSources
from admission.explain.explanation import SHOWN_NODES, Explanation
from admission.extender.fragmentation_score import LeastFragmentation
from gpu_manager.domain.resources import GIB
from tests.fakes.claims import result
from tests.fakes.extender import World, node
from tests.unit.test_cluster_claims import CLASS, V100, claim, device, part


def held(where: str, index: int, cores: int, memory: int = 4 * GIB, cards: int = 2) -> dict[str, Any]:
    return result(device(where, index, cards), cores, memory, pool=where)


def waiting(*names: str, status: dict[str, Any] | None = None, on: str = "", **more: Any) -> dict[str, Any]:
    claims = [{"name": f"own-{n}", "resourceClaimName": name} for n, name in enumerate(names)]
    spec = {"resourceClaims": claims, "containers": [{"name": "c"}], **({"nodeName": on} if on else {})}
    return {"metadata": {"name": "p", "namespace": "ml"}, "spec": {**spec, **more}, "status": status or {}}


def world(*claims: dict[str, Any], nodes: list[dict[str, Any]] | None = None) -> World:
    made = World(nodes or [node("n1", claimed=[0, 1]), node("n2")])
    made.cluster.replace(CLASSES, [slim_class(CLASS)])
    made.cluster.replace(CLAIMS, [slim_claim(one) for one in claims])
    return made


def explained(made: World, obj: dict[str, Any], *, everywhere: bool = False) -> Explanation:
    pod = claiming_pod(obj)
    assert pod is not None
    found = explain_claims(pod, made.cluster, everywhere=everywhere)
    assert found is not None
    return found


def test_per_card_what_is_free_and_who_holds_it() -> None:
    made = world(
        claim("a", held("n1", 0, 60)),
        claim("b", held("n1", 1, 70), namespace="other"),
        claim("w", asks=part(50, "4Gi")),
    )
    found = explained(made, waiting("w"))
    assert found.line == (
        "waits: claim w, request gpu: 50 cores, 4 GiB of one card. Of 2 nodes: 1 without room now, 1 without "
        "cards for claims. The largest part that is free now: 40 cores, 12 GiB on card 0 of n1"
    )
    assert found.counts == {"room": 1, "node": 1}
    assert [(c.index, c.reason) for c in found.nodes[0].cards] == [
        (0, "40 cores, 12 GiB free; held by claim ml/a (60 cores, 4 GiB)"),
        (1, "30 cores, 12 GiB free; held by 1 of another namespace"),
    ]
    named = explained(made, waiting("w"), everywhere=True)
    assert named.nodes[0].cards[1].reason.endswith("held by claim other/b (70 cores, 4 GiB)")


def test_nodes_that_are_not_shown_are_counted() -> None:
    nodes = [node(f"n{n}", 1, claimed=[0]) for n in range(SHOWN_NODES + 2)]
    full = [
        claim(f"h{n}", result(device(f"n{n}", 0, 1), 99, GIB, pool=f"n{n}")) for n in range(SHOWN_NODES + 2)
    ]
    found = explained(world(*full, claim("w", asks=part(50, "4Gi")), nodes=nodes), waiting("w"))
    assert f"Of {SHOWN_NODES + 2} nodes: {SHOWN_NODES + 2} without room now" in found.line
    assert (len(found.nodes), found.total) == (SHOWN_NODES, SHOWN_NODES + 2)
    room = explained(world(claim("w", asks=part(50, "4Gi")), nodes=nodes), waiting("w"))
    assert room.line.startswith(f"there is room now on {SHOWN_NODES + 2} of {SHOWN_NODES + 2} nodes: on n0 ")


def test_a_selector_of_one_card_is_judged_card_by_card() -> None:
    uuid_of = "device.attributes['vcuda.tencent.com'].index == 1"
    asks = {**part(50, "4Gi"), "selectors": [{"cel": {"expression": uuid_of}}]}
    made = world(claim("a", held("n1", 1, 60)), claim("w", asks=asks), nodes=[node("n1", claimed=[0, 1])])
    assert [c.reason for c in explained(made, waiting("w")).nodes[0].cards] == [
        "selectors leave it out (100 cores, 16 GiB free)",
        "40 cores, 12 GiB free; held by claim ml/a (60 cores, 4 GiB)",
    ]


def test_where_it_would_go() -> None:
    made = world(claim("w", asks=part(50, "4Gi")))
    assert explained(made, waiting("w")).line == (
        "there is room now on 1 of 2 nodes: on n1 it would get 50 cores, 4 GiB of card 0"
    )


def test_what_no_card_could_ever_hold_and_what_kubernetes_rounds() -> None:
    made = world(claim("w", asks=part("30500m", "30Gi")), nodes=[node("n1", claimed=[0, 1])])
    assert explained(made, waiting("w")).line == (
        "waits: claim w, request gpu: 30.5 cores, 30 GiB of one card. Of 1 node: 1 could not hold it even if "
        "empty. The largest part that is free now: 100 cores, 16 GiB on card 0 of n1. Kubernetes rounds cores "
        "30.5 of request gpu to 31"
    )


def test_closed_cards_and_selectors_are_said() -> None:
    by_model = {
        "selectors": [{"cel": {"expression": "device.attributes['vcuda.tencent.com'].productName == 'A'"}}]
    }
    made = world(
        claim("w", asks={**part(50, "4Gi"), **by_model}),
        nodes=[node("n1", claimed=[0, 1, 2], cards=3, closed=[1], model=[V100, "A", "A"])],
    )
    made.cluster.apply(CLAIMS, "ADDED", slim_claim(claim("a", held("n1", 2, 60, cards=3))))
    assert [c.reason for c in explained(made, waiting("w")).nodes[0].cards] == [
        "selectors leave it out (100 cores, 16 GiB free)",
        "closed: cordoned",
        "40 cores, 12 GiB free; held by claim ml/a (60 cores, 4 GiB)",
    ]


def test_whole_cards_counts_and_all() -> None:
    shapes = {
        "one whole card": {},
        "2 whole cards": {"count": 2},
        "30 cores, 4 GiB of each of 2 cards": {"count": 2, **part(30, "4Gi")},
        "every card of a node, whole": {"allocationMode": "All"},
        "30 cores, 4 GiB of every card": {"allocationMode": "All", **part(30, "4Gi")},
        "30 cores, all the memory of one card": {"capacity": {"requests": {"cores": "30"}}},
        "4 GiB, all the cores of one card": {"capacity": {"requests": {"memory": "4Gi"}}},
    }
    for words, asks in shapes.items():
        full = [claim(f"h{n}", held("n1", n, 99)) for n in range(2)]
        found = explained(world(*full, claim("w", asks=asks)), waiting("w"))
        assert found.asks == f"claim w, request gpu: {words}"
        assert found.counts["room"] == 1
        assert "card 0 of n1" in found.line
    full = [claim(f"h{n}", held("n1", n, 100, 16 * GIB)) for n in range(2)]
    assert "No part of an open card is free now" in explained(world(*full, claim("w")), waiting("w")).line


def test_a_claim_that_is_not_created_is_said_so() -> None:
    made = world()
    obj = waiting(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
    assert explained(made, obj).line == (
        "waits: its claim gpu is not created yet; if that is refused, as by the quota, an Event of the pod "
        "says why (kubectl describe pod)"
    )


def test_what_claims_hold_once_they_are_allocated() -> None:
    made = world(claim("a", held("n1", 0, 60)), claim("b", held("gone", 0, 60)))
    template = waiting(
        status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "a"}]},
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}],
    )
    assert explained(made, template).line == (
        "its claims are allocated: claim a holds 60 cores, 4 GiB of card 0 on n1"
    )
    assert explained(made, waiting("a", "b", on="n1")).line == (
        "bound to node n1: claim a holds 60 cores, 4 GiB of card 0 on n1; claim b holds a card not known here "
        "on gone"
    )


def test_a_search_that_would_take_too_long_is_said_so() -> None:
    full = [claim(f"h{n}", held("n1", n, 20, cards=8)) for n in range(8)]
    requests = [
        {"name": f"r{n}", "exactly": {"deviceClassName": "vcuda.tencent.com", **part(20 + n, "1Gi")}}
        for n in range(20)
    ]
    asked = claim("w")
    asked["spec"]["devices"]["requests"] = [
        *requests,
        {"name": "last", "exactly": {"deviceClassName": "vcuda.tencent.com", **part(99, "1Gi")}},
    ]
    found = explained(world(*full, asked, nodes=[node("n1", 8, claimed=range(8))]), waiting("w"))
    assert "steps of the scheduler's search found no devices" in found.nodes[0].line


def test_pods_without_claims_of_ours_are_explained_as_ever() -> None:
    made = world(claim("theirs", asks={"selectors": [{"cel": {"expression": "device.driver == 'other'"}}]}))
    assert claiming_pod({"metadata": {"name": "p"}, "spec": {}}) is None
    pod = claiming_pod(waiting("theirs"))
    assert pod is not None
    assert explain_claims(pod, made.cluster) is None


def test_an_empty_cluster_and_many_holders() -> None:
    made = world(claim("w"), nodes=[])
    made.cluster.replace("nodes", [])
    assert explained(made, waiting("w")).line == "waits: the cluster has no node with cards"
    many = [claim(f"h{n}", held("n1", 0, 10, GIB, cards=1)) for n in range(9)]
    found = explained(world(*many, claim("w"), nodes=[node("n1", 1, claimed=[0])]), waiting("w"))
    assert "No part" not in found.line
    assert "claim ml/h3 (10 cores, 1 GiB), 5 more" in found.nodes[0].cards[0].reason


class Voice:
    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, pod: Any, reason: str, message: str, *, warning: bool = True) -> None:
        self.said.append(f"{pod.key} {reason} {message}")


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
}


def pending(name: str, claim_name: str, **changes: Any) -> dict[str, Any]:
    obj = waiting(claim_name, status=UNSCHEDULABLE)
    obj["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    slim = slim_pod({**obj, **changes})
    assert slim is not None
    return dict(slim)


def test_a_pod_that_found_no_node_is_told_why_within_a_second_and_once() -> None:
    made = world(
        claim("a", held("n1", 0, 60)), claim("b", held("n1", 1, 70)), claim("w", asks=part(50, "4Gi"))
    )
    voice = Voice()
    pods = ClaimingPods(made.cluster, voice, made.clock, 1)
    pods.look(pending("p", "w"), gone=False, tells=True)
    assert not pods.tell()
    made.clock.pass_(0.5)
    assert pods.tell()
    assert len(voice.said) == 1
    assert voice.said[0].startswith(
        "ml/p GPUNotPlaced waits: claim w, request gpu: 50 cores, 4 GiB of one card."
    )
    pods.look(pending("p", "w"), gone=False, tells=True)
    made.clock.pass_(300)
    assert pods.tell()
    assert len(voice.said) == 1, "the same line is told once"


def test_nothing_is_told_of_pods_that_go_that_fit_that_are_foreign_or_by_a_replica_that_does_not_lead() -> (
    None
):
    made = world(
        claim("w", asks=part(50, "4Gi")),
        claim("x", asks={"selectors": [{"cel": {"expression": "device.driver == 'a'"}}]}),
    )
    voice = Voice()
    pods = ClaimingPods(made.cluster, voice, made.clock, 1)
    for name, claim_name in (("fits", "w"), ("gone", "w"), ("foreign", "x"), ("bound", "w")):
        pods.look(pending(name, claim_name), gone=False, tells=True)
    pods.look(pending("silent", "w"), gone=False, tells=False)
    pods.look(pending("gone", "w"), gone=True, tells=True)
    bound = waiting("w", on="n1")
    bound["metadata"]["uid"] = "uid-bound"
    pods.look(bound, gone=False, tells=True)
    pods.look({"metadata": {"uid": "other"}, "spec": {}}, gone=False, tells=True)
    pods.look(
        {"metadata": {"uid": "odd"}, "spec": {"resourceClaims": [{}], "containers": 3}},
        gone=False,
        tells=True,
    )
    made.clock.pass_(1)
    while pods.tell():
        pass
    assert voice.said == []


def test_the_service_answers_for_a_pod_by_its_claims() -> None:
    made = world(claim("w", asks=part(50, "4Gi")))
    objects = {
        "p": pending("p", "w"),
        "plain": {"metadata": {"name": "plain", "namespace": "ml"}, "spec": {}},
    }
    sources = ExplainSources(
        made.cluster,
        made.quota,
        made.judge,
        LeastFragmentation(made.cluster),
        ClusterTerms(),
        lambda _namespace, name: objects.get(name),
    )
    found = sources.explain_named("ml", "p")
    assert found is not None
    assert found.line.startswith("there is room now on 1 of 2 nodes")
    plain = sources.explain_named("ml", "plain")
    assert plain is not None
    assert "asks for no part of a card" in plain.line
    assert sources.explain_named("ml", "nobody") is None
