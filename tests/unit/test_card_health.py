"""What the cluster's console tells of a card's health: its agent's words, within bounds, or why there are none."""

import json

import pytest

from admission.console.agents_usage import AgentsUsage, card_health, read_health
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from tests.fakes.extender import World, node
from tests.fakes.ports import FakeClock

EVENT = {"event": "xid", "text": "31", "first": 1.0, "last": 2.5, "count": 3}


class OneAgent:
    """Answers as it is told to."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def addresses(self):
        return {"n1": "http://n1"}

    def page(self, url, path):
        self.asked.append((url, path))
        if path == "/usage":
            return b'{"usage": {}}'
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def told(answer, *, listed=True):
    world = World([node("n1")], [])
    snapshot = world.cluster.snapshot()
    uuid = snapshot.nodes["n1"].node.cards[0].card.uuid
    agent = OneAgent(answer)
    agents = AgentsUsage(agent, FakeClock())
    if listed:
        agents.ask_due(lambda jobs: [job() for job in jobs])
    return card_health(uuid, snapshot, agents), agent, uuid, snapshot, agents


def test_the_agent_of_the_cards_node_is_asked():
    answer, agent, uuid, snapshot, agents = told(json.dumps({"since": 0.5, "events": [EVENT]}))
    assert answer == {"since": 0.5, "events": [EVENT]}
    assert agent.asked[-1] == ("http://n1", f"/ui/health?card={uuid}")
    with pytest.raises(RequestInvalid, match="no node has a card"):
        card_health("GPU-other&x=y", snapshot, agents)


@pytest.mark.parametrize(
    ("answer", "listed", "why"),
    [
        (NodeUnready("no route"), True, "does not answer: no route"),
        (b"<html>", True, "does not answer"),
        (b'{"usage": {}}', True, "it is an older one"),
        (b"{}", False, "no agent of node"),
    ],
)
def test_an_agent_that_does_not_tell_is_named(answer, listed, why):
    with pytest.raises(NodeUnready, match=why):
        told(answer, listed=listed)


def test_whatever_an_agent_says_is_bounded():
    odd = {"event": "x" * 999, "text": 5, "first": "now", "last": -1, "count": None}
    answer = read_health({"since": [], "events": [odd, 7, *[EVENT] * 50]}, "n1")
    assert answer["since"] is None
    assert answer["events"][0] == {"event": "x" * 200, "text": "", "first": None, "last": None, "count": 1}
    assert len(answer["events"]) == 20
