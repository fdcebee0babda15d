"""A node whose agent's pod is not ready gets no pod: the kubelet would fail for good what is bound there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.cluster.node_view import AWAY
from admission.cluster.snapshot import NODES, PODS
from admission.cluster.trim import AGENT, COMPONENT, slim_pod
from gpu_manager.domain.contract import NAMESPACE
from tests.fakes.extender import World, answer, args
from tests.fakes.extender import node as fake_node
from tests.fakes.extender import pod as fake_pod

Obj = dict[str, Any]


def agent(
    *ready: Any, name: str = "agent", namespace: str = NAMESPACE, label: str = AGENT, phase: str = "Running"
) -> Obj:
    """The agent's pod on n1 as the watch passes it on; ``ready`` is what the kubelet says of each container."""
    found = slim_pod(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {COMPONENT: label}},
            "spec": {"nodeName": "n1", "containers": [{"name": "gpu-manager"}]},
            "status": {
                "phase": phase,
                "containerStatuses": [{"name": "gpu-manager", "ready": one} for one in ready],
            },
        }
    )
    assert found is not None
    return dict(found)


def world(*pods: Obj) -> World:
    return World([fake_node("n1", cards=2), fake_node("n2", cards=2)], pods)


def left(found: World) -> list[str]:
    return list(found.filter(fake_pod("new", 30, 4))["NodeNames"])


def test_its_node_is_left_out_while_it_is_not_ready_and_is_back_with_it() -> None:
    found = world(agent(True))
    assert left(found) == ["n1", "n2"]
    found.show(agent(False))
    told = answer(found.extender.filter(args(fake_pod("new", 30, 4), ["n1", "n2"])))
    assert (told["NodeNames"], told["FailedAndUnresolvableNodes"]) == (["n2"], {"n1": AWAY})
    found.show(agent(True))
    assert left(found) == ["n1", "n2"]


def test_a_pod_that_was_promised_the_node_before_is_not_bound_there() -> None:
    found, asked = world(agent(True)), fake_pod("new", 30, 4)
    found.create(asked)
    assert "n1" in found.filter(asked)["NodeNames"]
    found.show(agent(False))
    assert AWAY in found.bind(asked, "n1")
    assert found.booked("n1") == [(0, 0)] * 2


@pytest.mark.parametrize(
    "pods",
    [
        (),  # an agent that is a service of the host
        (agent(),),  # of which no kubelet has said anything
        (agent(False, namespace="tenant"),),
        (agent(False, label="admission"),),
        (agent(False, phase="Failed"),),
        (agent(False, name="old"), agent(True, name="new")),  # one leaves, the other has come
    ],
)
def test_other_nodes_stay(pods: tuple[Obj, ...]) -> None:
    assert left(world(*pods)) == ["n1", "n2"]


def test_an_agent_that_is_deleted_says_nothing_any_more() -> None:
    found = world(agent(False))
    assert left(found) == ["n2"]
    found.delete(agent(False))
    assert left(found) == ["n1", "n2"]
    found.show(agent(False))
    found.cluster.replace(PODS, [])
    assert left(found) == ["n1", "n2"]


def test_what_would_be_if_is_judged_alike() -> None:
    found = world(agent(False))
    copied = found.cluster.copy()
    assert copied.snapshot().nodes["n1"].problem == AWAY
    copied.apply(PODS, "MODIFIED", agent(True))
    copied.apply(NODES, "MODIFIED", fake_node("n1", cards=2))
    assert [copied.snapshot().nodes["n1"].problem, found.cluster.snapshot().nodes["n1"].problem] == ["", AWAY]


@pytest.mark.parametrize("statuses", [None, "x", [None], {"ready": False}, [{"ready": "yes"}], [{}]])
def test_statuses_of_any_shape_are_taken_in(statuses: Any) -> None:
    hostile = agent(True)
    hostile["status"]["containerStatuses"] = statuses
    found = world(json.loads(json.dumps(hostile)))
    told = isinstance(statuses, list) and statuses != [None]
    assert left(found) == (["n2"] if told else ["n1", "n2"])
