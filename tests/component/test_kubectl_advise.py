"""``kubectl vcuda advise`` over the API stand-in: the agents' needs, pooled by workload."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.advice.size import advise
from gpu_manager.domain.advice.sized import Sized, sized_json
from gpu_manager.domain.resources import GIB, MIB, Amount
from sandbox.api import StandInApi
from tests.fakes.kubectl import a_node, an_agent, said

pytestmark = pytest.mark.usefixtures("kubectl_login")

GIVEN, UNIT = Amount(50, 8 * GIB), 256 * MIB
NEED = Need(2 * DAY, 3, 4 * HOUR, 30, (2 * GIB,) * 25, (2 * GIB,) * 3)
ENDLESS = {"containers": [{"need": {"seconds": 1, "starts": float("inf")}}]}
WEB = ("default", "Deployment/web", "c")


def page(*needs: tuple[tuple[str, str, str], str, Need]) -> Any:
    """The page of an agent with one pod for each."""
    made = [Sized(who, (pod,), GIVEN, UNIT, need, advise(need, GIVEN, UNIT)) for who, pod, need in needs]
    return {"containers": [sized_json(one) for one in made]}


def test_replicas_are_pooled_and_every_figure_has_its_reason(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    larger = replace(NEED, hours=(3 * GIB,) * 25, days=(3 * GIB,) * 3, cores=40)
    an_agent(api, page((WEB, "web-1", NEED), (WEB, "web-2", larger), (("other", "Pod/x", "c"), "x", NEED)))
    assert run(["advise"]) == 0
    out, err = said(capsys)
    assert err == ""
    assert out.splitlines() == [
        "NAMESPACE   WORKLOAD         CONTAINER   PODS   CORES   ADVISED   MEMORY   ADVISED",
        "default     Deployment/web   c           2      50      40        8 GiB    3 GiB",
        "default/Deployment/web c:",
        "  cores: while it works it would use up to 40 cores without a limit",
        "  memory: it took at most 3 GiB in 2 days",
    ]
    assert run(["advise", "-A", "-o", "json", "--memory-margin", "50"]) == 0
    rows = json.loads(said(capsys)[0])["containers"]
    assert [(row["workload"], row["pods"]) for row in rows] == [
        ("Deployment/web", ["web-1", "web-2"]),
        ("Pod/x", ["x"]),
    ]
    assert rows[0]["advised"]["memory"]["value"] == 4.5 * GIB


def test_one_pod_or_workload_can_be_asked_for_and_a_wrong_name_is_said(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    an_agent(api, page((WEB, "web-1", NEED), (("default", "Pod/one", "c"), "one", NEED)))
    for name in ("web-1", "Deployment/web"):
        assert run(["advise", name]) == 0
        out = said(capsys)[0]
        assert "Deployment/web" in out
        assert "Pod/one" not in out
    assert run(["advise", "none"]) == 2
    assert '"none" in namespace default: no pod or workload of that name holds' in said(capsys)[1]
    assert run(["advise", "-n", "empty"]) == 0
    assert "no container in namespace empty holds a part of one card" in said(capsys)[0]


@pytest.mark.parametrize(
    "answer", [{}, {"containers": [{}]}, {"containers": 7}, {"containers": [{"pods": None}]}, [], ENDLESS]
)
def test_an_agent_that_answers_with_something_else_is_named(
    api: StandInApi, capsys: pytest.CaptureFixture[str], answer: Any
) -> None:
    a_node(api)
    an_agent(api, answer)
    assert run(["advise"]) == 0
    assert "advice of n1 is not known: its agent answered with something else" in said(capsys)[1]
