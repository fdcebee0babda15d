"""When the cluster's console asks which agent, and what it makes of an agent that is silent."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from admission.console.agents_usage import (
    LOOKED_SECONDS,
    MOST_A_SECOND,
    OLD_PERIODS,
    PERIOD_SECONDS,
    AgentsUsage,
    ask_all,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.names import container_digest
from tests.fakes.ports import FakeClock
from tests.fakes.waiting import PATIENCE


class Agents:
    """Answers with 1 % more each time."""

    def __init__(self, *nodes):
        self.nodes = list(nodes)
        self.asked = []
        self.silent = set()
        self.listed = 0
        self.more = 1
        self.nonsense = False
        self.container = "c"
        self.past = {}
        self.heard = threading.Event()

    def addresses(self):
        self.listed += 1
        if "api" in self.silent:
            raise NodeUnready("no API server")
        return {node: f"http://{node}" for node in self.nodes}

    def page(self, url, path):
        node = url.removeprefix("http://")
        if path == "/usage/history":
            return json.dumps(self.past).encode()
        assert path == "/usage"
        self.asked.append(node)
        self.heard.set()
        if node in self.silent:
            raise NodeUnready("no answer")
        if self.nonsense:
            return b"<html>"
        gpu = len(self.asked) * self.more
        device = {"uuid": "GPU-1", "gpu": gpu, "mem": 1}
        return json.dumps({"usage": {"u": {"stat": {self.container: {"dev": [device]}}}}}).encode()


def asking(*nodes):
    agents, clock = Agents(*nodes), FakeClock()
    usage = AgentsUsage(agents, clock)

    def ask(seconds=0.0):
        clock.pass_(seconds)
        agents.asked.clear()
        usage.ask_due(lambda jobs: [job() for job in jobs])
        return agents.asked

    return usage, agents, ask


def test_an_agent_is_asked_every_five_seconds_and_no_sooner():
    usage, _, ask = asking("a", "b")
    assert ask() == ["a", "b"]
    assert ask(PERIOD_SECONDS - 0.1) == []
    assert ask(0.1) == ["a", "b"]
    assert set(usage.look()) == {"a", "b"}


def test_in_a_large_cluster_no_more_than_twenty_are_asked_a_second():
    nodes = [f"n{i:03}" for i in range(200)]
    _, _, ask = asking(*nodes)
    rounds = [list(ask(1.0)) for _ in range(10)]
    assert all(len(asked) == MOST_A_SECOND for asked in rounds)
    assert sorted(node for asked in rounds for node in asked) == nodes, "each once, nobody is left out"
    assert ask(1.0) == nodes[:20]


def test_what_an_agent_does_not_answer_is_not_known():
    usage, agents, ask = asking("a", "b")
    ask()
    agents.silent.add("a")
    ask(PERIOD_SECONDS)
    assert set(usage.look()) == {"b"}
    agents.nonsense = True
    ask(PERIOD_SECONDS)
    assert usage.look() == {}


def test_what_was_said_long_ago_is_not_known():
    usage, _, ask = asking("a")
    ask()
    assert set(usage.look()) == {"a"}
    usage._clock.pass_(OLD_PERIODS * PERIOD_SECONDS + 1)
    assert usage.look() == {}


def test_a_node_that_left_is_forgotten_and_the_list_is_kept_while_nobody_can_list():
    usage, agents, ask = asking("a", "b")
    ask()
    agents.silent.add("api")
    assert ask(31) == ["a", "b"]
    agents.silent.clear()
    agents.nodes.remove("b")
    assert ask(PERIOD_SECONDS) == ["a"]
    assert set(usage.look()) == {"a"}


def test_equal_figures_are_the_same_object_so_that_nothing_is_drawn_anew():
    usage, agents, ask = asking("a")
    agents.more = 0
    ask()
    first = usage.look()["a"].usage
    ask(PERIOD_SECONDS)
    assert usage.look()["a"].usage is first


def test_a_container_keeps_its_name_while_its_agent_tells_of_it_though_its_pod_is_gone():
    pods = {"u": Pod(PodUid("u"), "team-a", "train", (Container("c", ContainerKind.APP),))}
    agents, clock = Agents("a"), FakeClock()
    agents.container = container_digest("u", "c")
    usage = AgentsUsage(agents, clock, lambda _: pods)
    for _ in range(2):
        usage.ask_due(lambda jobs: [job() for job in jobs])
        ((key, used),) = usage.look()["a"].usage.items()
        assert (key, used.namespace, used.pod) == (("u", "c", "GPU-1"), "team-a", "train")
        pods = {}
        clock.pass_(PERIOD_SECONDS)
    agents.nodes = []
    clock.pass_(31)
    usage.ask_due(lambda jobs: [job() for job in jobs])
    assert usage._named == {}


def test_nobody_is_asked_before_somebody_looks_and_after_nobody_does():
    usage, agents, _ = asking("a")
    usage.start()
    try:
        assert usage.ready() == {}
        assert not agents.heard.wait(0.2)
        usage.look()
        assert agents.heard.wait(PATIENCE)
        usage._clock.pass_(LOOKED_SECONDS + 1)
    finally:
        usage.stop()
    assert agents.listed == 1


def test_an_agent_that_is_slow_holds_up_no_other():
    last = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        ask_all([lambda: last.wait(PATIENCE), lambda: None, last.set], pool)
    assert last.is_set()


def test_agents_that_answer_at_once_are_asked_by_one_thread():
    by: list[str] = []
    with ThreadPoolExecutor(8) as pool:
        ask_all([lambda: by.append(threading.current_thread().name)] * 20, pool, alone_seconds=PATIENCE)
    assert len(by) == 20
    assert len({*by}) == 1


def test_what_an_agent_must_not_raise_is_not_lost():
    with ThreadPoolExecutor(8) as pool, pytest.raises(IndexError):
        ask_all([[].pop, lambda: None], pool)
