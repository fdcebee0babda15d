"""What explain says of a pod with extended resources and ResourceClaims: one node has to have room for both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from admission.explain.claims import explain_both
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.extender import container, node, pod
from tests.unit.test_cluster_claims import claim
from tests.unit.test_drafted_claims import answered, of_template, sources, template
from tests.unit.test_explained_claims import held, waiting, world

PLUGIN, CLAIMS, SPLIT = node("n1"), node("n2", claimed=[0, 1]), node("n3", claimed=[0])
BOTH = {"containers": [container("main", 30, 4)]}


def drafted(*nodes: dict[str, Any], claims: tuple[dict[str, Any], ...] = ()) -> Any:
    return answered(sources(world(*claims, nodes=list(nodes))), of_template(**BOTH), template())


def test_nodes_that_have_room_for_one_of_the_two_are_named_for_it() -> None:
    found = drafted(PLUGIN, CLAIMS)
    assert found.line == (
        "waits: no node has room for its extended resources (there is some on n1) and for its claims (there is "
        "some on n2). Only a node whose front is split gives cards in both ways"
    )
    assert found.counts == {"node": 2}
    assert [(one.node, one.outcome) for one in found.nodes] == [("n1", "node"), ("n2", "node")]
    assert found.nodes[0].line.startswith("extended resources: fits: ")
    assert "30 cores" in found.asks
    assert "claim gpu, request gpu: 50 cores" in found.asks


def test_a_split_node_with_room_for_both_is_where_it_goes() -> None:
    found = drafted(PLUGIN, CLAIMS, SPLIT)
    assert found.line.startswith("there is room now on 1 of 3 nodes: on n3, extended resources: fits: ")
    assert found.line.endswith("; claims: fits: 50 cores, 4 GiB of card 0")
    assert found.counts == {"fits": 1, "node": 2}
    assert found.nodes[0].node == "n3"


def test_what_lacks_room_by_itself_is_said_alone() -> None:
    full = claim("a", held("n3", 0, 60)), claim("w")
    found = drafted(SPLIT, claims=full)
    assert found.line.startswith("waits: claim gpu, request gpu: 50 cores")
    assert found.asks.startswith("30 cores")
    tall = of_template(containers=[container("main", 900, 0)])
    assert answered(sources(world(nodes=[SPLIT])), tall, template()).line.startswith("waits: of 1 node")


def test_where_not_all_nodes_are_shown_nothing_is_said_of_both() -> None:
    one = drafted(SPLIT)
    many = replace(one, total=one.total + 1)
    claims = replace(one, line="claims")
    assert explain_both(many, claims).line == explain_both(one, replace(claims, total=9)).line == "claims"


def running(made: Any, **more: Any) -> Any:
    obj = pod("p", 30, 4, namespace="ml", on="n3", **more)
    made.create(obj)
    using = waiting("a", on="n3", containers=obj["spec"]["containers"])
    return {**obj, "spec": {**obj["spec"], **using["spec"]}}


def test_a_pod_on_its_node_holds_what_both_say() -> None:
    made = world(claim("a", held("n3", 0, 60), pods=("p",)), nodes=[SPLIT])
    obj = running(made)
    found = replace(sources(made), fetch=lambda *_: obj).explain_named("ml", "p")
    assert found is not None
    assert found.line.startswith("bound to node n3")
    assert found.line.endswith("; claim a holds 60 cores, 4 GiB of card 0 on n3")


def test_without_the_api_server_it_holds_what_is_known() -> None:
    made = world(claim("a", held("n3", 0, 60), pods=("p",)), nodes=[SPLIT])
    running(made)

    def away(*_: object) -> None:
        raise NodeUnready("away")

    for fetch in (away, lambda *_: None):
        found = replace(sources(made), fetch=fetch).explain_named("ml", "p")
        assert found is not None
        assert "claim" not in found.line


def test_a_pod_of_extended_resources_alone_is_explained_as_ever() -> None:
    made = world(nodes=[SPLIT])
    obj = pod("p", 30, 4, namespace="ml", on="n3")
    made.create(obj)
    knowledge = replace(sources(made), fetch=lambda *_: obj)
    assert knowledge.explain_named("ml", "p") == replace(sources(made), claiming=None).explain_named(
        "ml", "p"
    )
    assert sources(made).explain_named("ml", "nobody") is None
