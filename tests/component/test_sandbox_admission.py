"""A sandbox with admission in it: the real program between the API, scheduler and kubelet stand-ins."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_manager import ui
from gpu_manager.cli.kubectl.main import run as kubectl
from gpu_manager.domain.contract import (
    ADVICE,
    ALLOCATION,
    CORE,
    MEMORY,
    NAMESPACE,
    QUOTA_KEY,
    QUOTA_MAP,
    RESIZE,
)
from gpu_manager.domain.errors import RequestInvalid
from sandbox import commands
from sandbox.admission import find_program
from sandbox.api import ADMIN_TOKEN, ApiError
from sandbox.simulated_cluster import NODE, Sandbox, SandboxSettings
from tests.component.test_ui import Served
from tests.fakes.admission import Calls
from tests.fakes.browser import NEEDS_A_BROWSER, browsing
from tests.fakes.sandbox import short_directory, until
from tests.fakes.web import serving


def manifest(name: str, core: int | None, units: int | None = None, **spec: Any) -> dict[str, Any]:
    limits = {k: str(v) for k, v in ((CORE, core), (MEMORY, units)) if v is not None}
    one = {"name": "main", "image": "sandbox", "resources": {"limits": limits}}
    meta = {"name": name, "namespace": "default"}
    spec = {"containers": [one], "terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    assert find_program() is not None, "the extra 'admission' is not installed here"
    with short_directory() as directory, Sandbox(SandboxSettings(directory / "s")) as running:
        yield running


@pytest.fixture(autouse=True)
def emptied(sandbox: Sandbox) -> Iterator[None]:
    yield
    for pod in sandbox.api.list("pods"):
        sandbox.api.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)
    until(lambda: not sandbox.api.list("pods"))
    # What a pod deleted by force held counts until its node has spoken, or was silent for a minute.
    until(lambda: takes_all_cards(sandbox))


def takes_all_cards(sandbox: Sandbox) -> bool:
    """True if a pod that asks for every card would get them now. The console's answers are up to 2 s old."""
    everything = manifest("everything", 800)
    everything["metadata"]["uid"] = "asked-about-alone"
    return bool(calls(sandbox).filter(everything, [NODE])["NodeNames"])


def state(sandbox: Sandbox, name: str) -> str:
    return str(((sandbox.api.get("pods", name) or {}).get("status") or {}).get("phase"))


def cards_of(sandbox: Sandbox, *names: str) -> dict[str, tuple[int, str]]:
    """Index and UUID by pod, as the agent has booked them."""
    found = [(h["pod"], c) for c in sandbox.graph()["cards"] for h in c["holders"]]
    return {pod: (c["index"], c["uuid"]) for pod, c in found if pod in names}


def calls(sandbox: Sandbox) -> Calls:
    assert sandbox.admission is not None
    return Calls(sandbox.admission.port, sandbox.admission.extender_port)


def test_a_pod_is_judged_placed_by_card_and_runs(sandbox: Sandbox) -> None:
    commands.apply(sandbox.api, [manifest("first", 30, 20)])
    until(lambda: state(sandbox, "first") == "Running")
    pod = sandbox.api.get("pods", "first") or {}
    said = json.loads(pod["metadata"]["annotations"][ALLOCATION])
    assert said["containers"]["main"][0]["uuid"] == cards_of(sandbox, "first")["first"][1]


def test_an_illegal_pod_is_not_created_and_hears_the_nearest_value(sandbox: Sandbox) -> None:
    with pytest.raises(RequestInvalid, match=r"denied the request.*\(100 or 200\)"):
        commands.apply(sandbox.api, [manifest("illegal", 150)])
    assert sandbox.api.get("pods", "illegal") is None


def test_a_tenant_cannot_write_its_allocation_but_the_agent_and_admission_can(sandbox: Sandbox) -> None:
    commands.apply(sandbox.api, [manifest("mine", 30, 20)])
    until(lambda: state(sandbox, "mine") == "Running")
    with pytest.raises(ApiError, match="leave it"):
        sandbox.api.patch("pods", "mine", {"metadata": {"annotations": {ALLOCATION: "{}"}}})


def test_a_workloads_own_annotations_are_judged_when_they_are_written(sandbox: Sandbox) -> None:
    template = {"spec": manifest("x", 30, 20)["spec"]}
    meta = {"name": "web", "namespace": "default"}
    sandbox.api.create(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"template": template}}
    )
    for key, value, says in (
        (RESIZE, '{"v":1,"containers":{"main":{"cores":200}}}', "use 99"),
        (ADVICE, "[1]", "it is not JSON of version 1"),
    ):
        with pytest.raises(ApiError, match=says):
            sandbox.api.patch("deployments", "web", {"metadata": {"annotations": {key: value}}})
    sandbox.api.delete("deployments", "web")


def test_a_quota_that_cannot_be_used_is_refused_when_it_is_stored(sandbox: Sandbox) -> None:
    meta = {"name": QUOTA_MAP, "namespace": NAMESPACE}
    broken = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {QUOTA_KEY: '{"a": {'}}
    with pytest.raises(ApiError, match=r"quota\..* denied the request: .*not JSON"):
        sandbox.api.create(broken)
    assert sandbox.api.get("configmaps", QUOTA_MAP, NAMESPACE) is None


def test_while_admission_is_down_other_pods_come_and_go_and_cards_wait(sandbox: Sandbox) -> None:
    assert sandbox.admission is not None
    keeper = sandbox.admission.process
    assert keeper is not None
    commands.apply(sandbox.api, [manifest("a", 30, 20)])
    until(lambda: state(sandbox, "a") == "Running")
    starts = keeper.starts
    commands.fault(sandbox, "admission kill")
    until(lambda: keeper.pid == 0 or keeper.starts > starts)
    commands.apply(sandbox.api, [manifest("plain", None)])
    until(lambda: state(sandbox, "plain") == "Running")
    until(lambda: sandbox.admission is not None and sandbox.admission.ready())
    assert keeper.starts == starts + 1
    commands.apply(sandbox.api, [manifest("b", 80, 20), manifest("c", 80, 20)])
    until(lambda: state(sandbox, "b") == state(sandbox, "c") == "Running")
    assert len(set(cards_of(sandbox, "a", "b", "c").values())) == 3


def test_a_burst_by_way_of_the_scheduler_has_no_conflict(sandbox: Sandbox) -> None:
    commands.apply(sandbox.api, [manifest(f"p{n}", 20, 16) for n in range(40)])
    until(lambda: all(state(sandbox, f"p{n}") == "Running" for n in range(40)))
    assert len(set(cards_of(sandbox, *(f"p{n}" for n in range(40))).values())) == 8
    steps = {
        k: v
        for (name, k), v in calls(sandbox).figures().items()
        if name == "vcuda_admission_scheduling_total"
    }
    assert steps["bound", "bind"] >= 40
    assert not [k for k in steps if k[1] == "bind_conflict"]


def test_an_urgent_pod_evicts_of_one_card_what_it_needs(sandbox: Sandbox) -> None:
    commands.apply(sandbox.api, [manifest(f"q{n}", 60, 16) for n in range(8)])
    until(lambda: all(state(sandbox, f"q{n}") == "Running" for n in range(8)))
    importance = {"kind": "PriorityClass", "metadata": {"name": "more"}, "value": 10}
    sandbox.api.create({"apiVersion": "scheduling.k8s.io/v1", **importance})
    commands.apply(sandbox.api, [manifest("urgent", 80, 20, priorityClassName="more")])
    until(lambda: state(sandbox, "urgent") == "Running")
    assert sum(bool(sandbox.api.get("pods", f"q{n}")) for n in range(8)) == 7
    told = [e for e in sandbox.api.list("events") if e["reason"] == "Preempted"]
    assert len(told) == 1


def test_kubectl_vcuda_explain_asks_the_service_through_the_api_server(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.apply(sandbox.api, [manifest("big", 800)])
    until(lambda: state(sandbox, "big") == "Running")
    commands.apply(sandbox.api, [manifest("late", 30, 20)])
    monkeypatch.setenv("KUBECONFIG", str(sandbox.kubeconfig))
    assert kubectl(["explain", "late"]) == 1
    printed = capsys.readouterr()
    assert "waits: of 1 node" in printed.out
    assert "judged by the admission service" in printed.err


def test_kubectl_vcuda_simulate_asks_the_service_too_and_marks_nodes_as_estimates_without_it(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands.apply(sandbox.api, [manifest("big", 700)])
    until(lambda: state(sandbox, "big") == "Running")
    coming = tmp_path / "coming.json"
    items = [manifest("new", 60, 20), manifest("late", 50, 20)]
    coming.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    monkeypatch.setenv("KUBECONFIG", str(sandbox.kubeconfig))
    assert kubectl(["simulate", str(coming)]) == 1
    printed = capsys.readouterr()
    assert "1 of 2 pods fit; cores booked then: 95.0% of 8 cards" in printed.out
    assert "default/late: waits: of 1 node" in printed.out
    assert "judged by the admission service" in printed.err
    assert "ESTIMATE" not in printed.out
    assert kubectl(["simulate", str(coming), "--admission", "-"]) == 1
    printed = capsys.readouterr()
    assert "NODE (ESTIMATE)" in printed.out
    assert "the nodes are estimates (the service was not asked)" in printed.err


def test_the_page_is_open_and_what_it_draws_is_for_who_may_read_pods(sandbox: Sandbox) -> None:
    service = calls(sandbox)
    for path in ui.PATHS:
        assert service.get(path, None) == (200, ui.asset(path)[1].decode())  # type: ignore[index]
    assert service.get("/ui/none", None)[0] == 404
    status, said = service.get("/ui/data", None)
    assert status == 401
    assert "kubectl create token" in json.loads(said)["error"]
    assert service.get("/ui/data", "wrong")[0] == 401
    assert service.get("/ui/history", None)[0] == 401
    status, said = service.get("/ui/history?subject=card&name=GPU-1", ADMIN_TOKEN)
    assert (status, json.loads(said)["source"]) == (200, "agents")
    assert service.get("/ui/history?span=1d", ADMIN_TOKEN)[0] == 400, "no Prometheus is configured"
    status, said = service.get("/ui/data", ADMIN_TOKEN)
    assert status == 200
    (node,) = json.loads(said)["nodes"]
    theirs = sandbox.graph()
    assert node.keys() == theirs.keys()
    assert node["cards"][0].keys() == theirs["cards"][0].keys()


@NEEDS_A_BROWSER
def test_a_look_at_the_page_answers_who_has_which_card_and_what_waits_for_what(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    commands.apply(sandbox.api, [manifest("big", 700), manifest("half", 60, 20)])
    until(lambda: state(sandbox, "big") == state(sandbox, "half") == "Running")
    commands.apply(sandbox.api, [manifest("late", 50, 20)])

    def waiting() -> Any:
        found = json.loads(calls(sandbox).get("/ui/data")[1])
        return found if any(row["why"].startswith("waits") for row in found["waiting"]) else None

    served = Served()
    with serving(served.respond) as served.url, browsing(tmp_path) as page:
        served.data = until(waiting)
        page.open(f"{served.url}/ui#/node/{NODE}", "document.querySelector('main h1')")
        held = page.text()
        page.open(f"{served.url}/ui#/waiting", "document.querySelector('main table')")
        asked = page.text()
        assert page.complaints == []
    assert "default/half main" in held
    # Usage is the agents' to say, as far as they have been asked by now.
    assert re.search("(\u2013|0) of 60 cores, (\u2013|0 GiB) of 5 GiB", held)
    assert "default/late" in asked
    assert "ask 40 cores" in asked


def shares(
    graph: Mapping[str, Any], pods: Collection[str]
) -> list[tuple[int, int, list[tuple[str, str, int, int]]]]:
    """Card by card: what is free, and what these pods hold."""
    return [
        (
            card["cores_free"],
            card["memory_free"],
            sorted(
                (h["pod"], h["container"], h["cores"], h["memory"])
                for h in card["holders"]
                if h["pod"] in pods
            ),
        )
        for card in graph["cards"]
    ]


def test_what_kubectl_and_admission_account_for_is_the_agents_own_ledger(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placed by the extender and bound by hand, with init containers, whole cards; deleted ones may linger."""
    monkeypatch.setenv("KUBECONFIG", str(sandbox.kubeconfig))
    first = {"name": "first", "image": "sandbox", "command": ["true"]}
    first["resources"] = {"limits": {CORE: "50", MEMORY: "8"}}
    commands.apply(sandbox.api, [manifest("part", 30, 20), manifest("two", 200), manifest("other", 60, 8)])
    commands.apply(sandbox.api, [manifest("phases", 20, 4, initContainers=[first])])
    by_hand = manifest("by-hand", 40, 4, nodeName=NODE)
    commands.apply(sandbox.api, [by_hand])
    names = ("part", "two", "other", "phases", "by-hand")
    until(lambda: {state(sandbox, name) for name in names} == {"Running"})

    def agreed() -> bool:
        assert kubectl(["graph", NODE, "-o", "json"]) == 0
        (by_kubectl,) = json.loads(capsys.readouterr().out)["nodes"]
        (on_the_page,) = json.loads(calls(sandbox).get("/ui/data")[1])["nodes"]
        return shares(by_kubectl, names) == shares(on_the_page, names) == shares(sandbox.graph(), names)

    until(agreed)
    assert set(cards_of(sandbox, *names)) == set(names)
