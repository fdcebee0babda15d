"""``kubectl vcuda advise`` over the API stand-in: the agents' needs, pooled by workload."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.advice.size import Sized, advise, sized_json
from gpu_manager.domain.contract import ADVICE, RESIZE
from gpu_manager.domain.resources import GIB, MIB, Amount
from sandbox.api import StandInApi
from tests.fakes.kubectl import a_node, a_share, an_agent, said
from tests.fakes.node import container, pod

pytestmark = pytest.mark.usefixtures("kubectl_login")

GIVEN, UNIT = Amount(50, 8 * GIB), 256 * MIB
NEED = Need(3 * DAY, 3, 4 * HOUR, 30, (2 * GIB,) * 25, (2 * GIB,) * 4)
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
    larger = replace(NEED, hours=(3 * GIB,) * 25, days=(3 * GIB,) * 4, cores=40)
    an_agent(api, page((WEB, "web-1", NEED), (WEB, "web-2", larger), (("other", "Pod/x", "c"), "x", NEED)))
    assert run(["advise"]) == 0
    out, err = said(capsys)
    assert err == ""
    assert out.splitlines() == [
        "NAMESPACE   WORKLOAD         CONTAINER   PODS   CORES   ADVISED   MEMORY   ADVISED",
        "default     Deployment/web   c           2      50      40        8 GiB    3 GiB",
        "default/Deployment/web c:",
        "  cores: while it works it would use up to 40 cores without a limit",
        "  memory: it took at most 3 GiB in 3 days",
        "  kubectl vcuda resize deployment/web -c c --cores 40 --memory 3Gi",
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
    for name in ("web-1", "pod/web-1", "Deployment/web", "deployment/web", "deploy/web"):
        assert run(["advise", name]) == 0
        out = said(capsys)[0]
        assert "Deployment/web" in out
        assert "Pod/one" not in out
    assert run(["advise", "job/none"]) == 2
    said(capsys)
    assert run(["advise", "none"]) == 2
    assert (
        '"none" is no pod or workload here with a part of one card: no container in namespace default'
        in said(capsys)[1]
    )
    assert run(["advise", "-n", "empty"]) == 0
    assert "no container in namespace empty holds a part of one card" in said(capsys)[0]


def test_advice_takes_labels(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_node(api)
    a_share(api, "web-1", 40, "GPU-0", labels={"app": "web"})
    a_share(api, "one", 30, "GPU-1", labels={"app": "db"})
    an_agent(api, page((WEB, "web-1", NEED), (("default", "Pod/one", "c"), "one", NEED)))
    assert run(["advise", "-l", "app=web", "-o", "jsonpath={.containers[*].workload}"]) == 0
    assert said(capsys)[0].split() == ["Deployment/web"]
    assert run(["advise", "-l", "app=none", "-A"]) == 0
    assert "no container in any namespace with app=none holds a part of one card" in said(capsys)[0]


def test_how_to_follow_advice_is_said_of_each_kind_of_workload(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    enough = replace(NEED, cores=GIVEN.cores)
    limited = replace(NEED, cores=100, hours=(4608 * MIB,) * 25, days=(4608 * MIB,) * 4)
    young = replace(NEED, cores=None, seconds=60)
    an_agent(
        api,
        page(
            (("default", "Job/a", "c"), "a", NEED),
            (("default", "Pod/b", "c"), "b", enough),
            (("other", "StatefulSet/d", "c"), "d", limited),
            (("default", "Pod/e", "c"), "e", young),
        ),
    )
    assert run(["advise", "-A"]) == 0
    assert [line for line in said(capsys)[0].splitlines() if "resize" in line or "template" in line] == [
        "  in its template: tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 8",
        "  kubectl vcuda resize b -c c --memory 2Gi",
        "  kubectl vcuda resize statefulset/d -c c -n other --cores 99 --memory 4608Mi",
    ]


def test_the_agents_margin_counts_unless_another_is_asked_for(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    told = page((WEB, "web-1", NEED))
    told["containers"][0]["margin"] = 0.5
    an_agent(api, told)
    for words, memory, says in (
        ([], 3, "50 % more is advised"),
        (["--memory-margin", "0"], 2, "it took at most 2 GiB in 3 days\n"),
        (["--memory-margin=-25"], 1.5, "25 % less is advised"),
    ):
        assert run(["advise", *words]) == 0
        out = said(capsys)[0]
        assert f"{memory} GiB\n" in out
        assert says in out
    assert run(["advise", "--memory-margin=-60"]) == 2


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


def test_a_container_that_no_agent_has_looked_at_yet_is_no_container_without_a_card(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "new", 30)
    an_agent(api, page())
    assert run(["advise"]) == 0
    assert said(capsys)[0] == (
        "nothing is known yet of one container in namespace default: agents look once a minute\n"
    )
    assert run(["advise", "new"]) == 2
    assert "agents look once a minute" in said(capsys)[1]


def deployment(name: str, **annotations: str) -> dict[str, Any]:
    template = {"spec": pod("p", container("c", 50, 32))["spec"], "metadata": {}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }


def allowing(**bounds: Any) -> str:
    return json.dumps({"v": 1, "apply": "in-place", "containers": {"c": bounds} if bounds else {}})


def test_advice_is_applied_where_its_owner_allows_it_and_once_a_day(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    api.create(deployment("web", **{ADVICE: allowing(memory=["3Gi", "6Gi"])}))
    api.create(deployment("kept"))
    api.create({**pod("one", container("c", 50, 32), annotations={ADVICE: allowing()}), "apiVersion": "v1"})
    names = ("Deployment/web", "Deployment/kept", "Pod/one", "Job/batch")
    an_agent(api, page(*((("default", name, "c"), f"p{n}", NEED) for n, name in enumerate(names))))
    assert run(["advise", "--apply", "in-place"]) == 0
    out = said(capsys)[0]
    assert "changed: default/Deployment/web c: 30 cores, 3 GiB instead of 50 cores, 8 GiB" in out
    assert "changed: default/Pod/one c: 30 cores, 2 GiB instead of 50 cores, 8 GiB" in out
    assert "\ndefault/Deployment/kept c: its owner does not allow it" in out
    assert "\ndefault/Job/batch c: a Job has no size of its own: change its template" in out
    there = api.get("deployments", "web", "default")["metadata"]["annotations"]
    assert json.loads(there[RESIZE])["containers"] == {"c": {"cores": 30, "memory": 3 * GIB}}
    assert RESIZE not in api.get("deployments", "kept", "default")["metadata"].get("annotations", {})
    assert (
        json.loads(api.get("pods", "one")["metadata"]["annotations"][RESIZE])["containers"]["c"]["cores"]
        == 30
    )
    assert run(["advise", "Deployment/web", "--apply", "in-place", "-o", "json"]) == 0
    (applied,) = json.loads(said(capsys)[0])["applied"]
    assert applied["applied"] is None
    assert applied["text"].startswith("it was changed within the last day: again from ")


def test_a_template_may_allow_it_and_its_workload_forbid_it(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    for name, own in (("a", {}), ("b", {ADVICE: '{"v":1,"apply":"off"}'})):
        made = deployment(name, **own)
        made["spec"]["template"]["metadata"]["annotations"] = {ADVICE: allowing(cores=[35, 99])}
        api.create(made)
    an_agent(api, page(*((("default", f"Deployment/{n}", "c"), n, NEED) for n in "ab")))
    assert run(["advise", "--apply", "in-place"]) == 0
    out = said(capsys)[0]
    assert "changed: default/Deployment/a c: 35 cores, 2 GiB" in out
    assert "\ndefault/Deployment/b c: its owner does not allow it" in out


def test_another_writer_in_between_does_no_harm(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_node(api)
    api.create(deployment("a", **{ADVICE: allowing()}))
    an_agent(api, page((("default", "Deployment/a", "c"), "a", NEED)))
    api.faults.fail(9, 409, match="patch deployments")
    assert run(["advise", "--apply", "in-place"]) == 1
    assert "refused: default/Deployment/a c: " in said(capsys)[0]
    api.faults.clear()
    api.faults.fail(2, 409, match="patch deployments")
    assert run(["advise", "--apply", "in-place"]) == 0
    assert "changed: default/Deployment/a c: 30 cores, 2 GiB" in said(capsys)[0]


def test_a_refused_change_is_told_beside_those_that_were_made(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    api.create(deployment("a", **{ADVICE: allowing()}))
    api.create(deployment("b", **{ADVICE: allowing()}))
    api.create(deployment("c", **{ADVICE: "yes"}))
    an_agent(api, page(*((("default", f"Deployment/{n}", "c"), n, NEED) for n in "abcd")))
    api.faults.fail(1, 403, match="patch deployments default/a")
    assert run(["advise", "--apply", "in-place"]) == 1
    out = said(capsys)[0]
    assert "refused: default/Deployment/a c: " in out
    assert "changed: default/Deployment/b c: " in out
    assert (
        f'refused: default/Deployment/c c: annotation {ADVICE} is "yes": it is not JSON of version 1' in out
    )
    assert "refused: default/Deployment/d c: " in out, "there is no such Deployment"
