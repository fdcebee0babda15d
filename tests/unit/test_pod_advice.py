"""What the cluster's console tells of a pod's advised size: its agent's words, within bounds, or why there are none."""

import json
from dataclasses import replace

import pytest

from admission.console.agents_usage import AgentsUsage, pod_advice, read_advice
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.names import container_digest
from tests.fakes.ports import FakeClock
from tests.unit.test_card_health import OneAgent

CONTAINER = {
    "container": "main",
    "given": {"cores": 50, "memory": 4 << 30},
    "cores": {"value": 20, "reason": "it would use 20"},
    "memory": {"value": None, "reason": "it still grows"},
}


POD = Pod(PodUid("u-1"), "team-a", "train", (Container("main", ContainerKind.APP),), node="n1")


def told(answer, pod=POD):
    agent = OneAgent(answer)
    agents = AgentsUsage(agent, FakeClock())
    agents.ask_due(lambda jobs: [job() for job in jobs])
    return pod_advice("team-a/train", pod, agents), agent


def test_the_agent_of_the_pods_node_is_asked():
    answer, agent = told(json.dumps({"containers": [CONTAINER]}))
    assert answer == {"containers": [CONTAINER]}
    assert agent.asked[-1] == ("http://n1", "/ui/advice?uid=u-1&name=team-a%2Ftrain")


def test_a_container_that_the_agent_does_not_name_has_its_name_back():
    unnamed = {**CONTAINER, "container": container_digest("u-1", "main")}
    assert told(json.dumps({"containers": [unnamed]}))[0] == {"containers": [CONTAINER]}


@pytest.mark.parametrize(
    ("answer", "pod", "why"),
    [
        ("{}", POD, "an older one"),
        ("{}", None, "no pod .* is on a node"),
        ("{}", replace(POD, node=""), "no pod .* is on a node"),
        ("[", POD, "does not answer"),
    ],
)
def test_without_an_answer_the_reason_is_told(answer, pod, why):
    with pytest.raises((NodeUnready, RequestInvalid), match=why):
        told(answer, pod)


def test_whatever_an_agent_says_is_bounded():
    odd = {"container": 5, "given": "much", "cores": {"value": -1, "reason": "x" * 999}}
    first, *rest = read_advice({"containers": [odd, 7, *[CONTAINER] * 99]}, "n1")["containers"]
    assert first == {
        "container": "",
        "given": {"cores": None, "memory": None},
        "cores": {"value": None, "reason": "x" * 400},
        "memory": {"value": None, "reason": ""},
    }
    assert len(rest) == 49
