"""Dashboards and rules against a real Prometheus that scrapes a sandbox under load, and admission beside it.

Every query of every panel and every rule must match something there: a metric that was renamed, a label that
is not there, a panel that would stay empty is found here and not by whoever needs it.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from admission.console.agents_usage import AgentsUsage
from admission.console.history import ConsoleHistory
from deploy.grafana import dashboards
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.adapters.prometheus import PrometheusRanges
from gpu_manager.adapters.store import FileStore
from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.advice.demand import DAY, HOUR, Demand
from gpu_manager.domain.cluster.usage_history import HistoryQuery
from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.resources import MIB
from sandbox import commands
from sandbox.simulated_cluster import NODE, Sandbox, SandboxSettings
from tests.fakes.admission import Process
from tests.fakes.prometheus import Prometheus, needs_prometheus
from tests.fakes.reviews import container, pod, review
from tests.fakes.sandbox import short_directory, until
from tests.fakes.waiting import PATIENCE
from tests.fakes.web import send, serving
from tests.unit.test_agents_usage import Agents

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "helm" / "gpu-manager" / "files"
RULES = (FILES / "rules.yaml").read_text()
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((FILES / "dashboards").glob("*.json"))}
SELECTOR = re.compile(r"\b(?:[a-z_]+:)?(?:vcuda_|kube_)[a-z0-9_:]+(?:\{[^}]*\})?|\bup\{[^}]*\}")
VARIABLES = {
    "$node": ".*",
    "$card": ".*",
    "$namespace": "vision|nlp",
    "$pod": ".*",
    "$__range_s": "60",
    "$__range": "60s",
}


# What the files are.


@pytest.mark.parametrize("name", sorted(dashboards.texts()))
def test_the_dashboard_in_the_chart_is_what_the_generator_writes(name: str) -> None:
    assert (FILES / "dashboards" / name).read_text() == dashboards.texts()[name], (
        "python -m deploy.grafana.dashboards"
    )


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_dashboard_names_no_data_source_of_its_own_and_its_panels_do_not_overlap(name: str) -> None:
    board = BOARDS[name]
    assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(board))) == {"$datasource", f"vcuda-{name}"}
    assert board["templating"]["list"][0]["name"] == "datasource"
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """All but the headings of rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_panel_stands_under_a_heading_and_explains_itself(name: str) -> None:
    board = BOARDS[name]
    assert board["panels"][0]["type"] == "row"
    for panel in panels(board):
        assert len(panel["description"].split()) > 4, panel["title"]
        assert panel["description"].endswith("."), panel["title"]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_table_begins_with_what_needs_somebody_and_has_words_for_states(name: str) -> None:
    for panel in panels(BOARDS[name]):
        if panel["type"] != "table":
            continue
        shown = next(t for t in panel["transformations"] if t["id"] == "organize")["options"]["renameByName"]
        (by,) = panel["options"]["sortBy"]
        assert by["displayName"] in shown.values(), panel["title"]
        worded = {
            override["matcher"]["options"]: one["value"][0]["options"]
            for override in panel["fieldConfig"]["overrides"]
            for one in override["properties"]
            if one["id"] == "mappings"
        }
        states = {"healthy", "cordoned", "held"} & set(shown.values())
        assert states == set(worded), panel["title"]
        assert by["desc"] == (by["displayName"] not in {*worded, "State"}), panel["title"]
        assert worded.get("healthy", {}).get("0", {}).get("text", "unhealthy") == "unhealthy"


def links(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of each panel that leads on, and where."""
    for panel in panels(board):
        config = panel["fieldConfig"]
        properties = [p for override in config["overrides"] for p in override["properties"]]
        found = [link for p in properties if p["id"] == "links" for link in p["value"]]
        for link in found + config["defaults"].get("links", []):
            yield panel["title"], link["url"]


def test_every_link_leads_to_a_dashboard_of_the_chart_and_sets_variables_that_it_has() -> None:
    by_uid = {board["uid"]: board for board in BOARDS.values()}
    led: dict[str, set[str]] = {}
    for name, board in BOARDS.items():
        for title, url in links(board):
            match = re.match(r"/d/([a-z-]+)\?", url)
            assert match, (title, url)
            target = by_uid[match[1]]
            variables = {variable["name"] for variable in target["templating"]["list"]}
            assert set(re.findall(r"&var-(\w+)=", url)) <= variables, (title, url)
            led.setdefault(name, set()).add(match[1].removeprefix("vcuda-"))
    assert led == {
        "cluster": {"node", "card", "pod"},
        "node": {"node", "card", "pod"},
        "card": {"node", "card", "pod"},
        "pod": {"node", "card", "pod"},
    }


def test_no_panel_needs_the_recording_rules_and_a_full_card_is_not_green() -> None:
    for board in BOARDS.values():
        for panel in panels(board):
            for target in panel["targets"]:
                assert not re.search(r"\b[a-z_]+:vcuda_", target["expr"]), (panel["title"], target["expr"])
            if panel["type"] == "bargauge":
                steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
                assert "green" not in {step["color"] for step in steps}, panel["title"]


# What they show.

HOLD = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
while not cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(32 << 20)):
    pass
time.sleep(600)
"""


def asking(
    name: str, namespace: str, command: list[str], cores: int, memory: int, team: str
) -> dict[str, Any]:
    limits = {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": memory}
    one = {"name": "main", "image": "sandbox", "command": command, "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"team": team}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [one]},
    }


def state_metrics(sandbox: Sandbox) -> str:
    """What kube-state-metrics says of the sandbox's cluster, as far as our rules ask it."""
    lines = []
    for one in sandbox.api.list("pods"):
        meta = one["metadata"]
        named = ((re.sub(r"\W", "_", key), value) for key, value in meta.get("labels", {}).items())
        labels = "".join(f',label_{key}="{value}"' for key, value in named)
        lines.append(f'kube_pod_labels{{namespace="{meta["namespace"]}",pod="{meta["name"]}"{labels}}} 1')
    for name, value in sandbox.api.get("nodes", NODE)["status"]["allocatable"].items():
        resource = re.sub(r"[^a-z0-9]", "_", name)
        lines.append(f'kube_node_status_allocatable{{node="{NODE}",resource="{resource}"}} {value}')
    return "\n".join(line for line in lines if re.search(r" \d+$", line)) + "\n"


def watched(sandbox: Sandbox) -> None:
    """The agent has watched a pod for two days, which needs less than it will ask for."""
    now = time.time()
    demand = Demand(now - 2 * DAY, starts=3)
    for hours in range(48):
        demand.held(192 * MIB, now - hours * HOUR)
        demand.worked(HOUR, 0.12 * HOUR, 0, now - hours * HOUR)
    row = ["vision", "Pod/spin-30", "main", now, [], demand.encode()]
    FileStore(sandbox.directory / "state" / "demands", what="demands").save(json.dumps([row]).encode())
    starts = sandbox.agent.starts
    commands.fault(sandbox, "agent kill")
    until(lambda: sandbox.agent.starts > starts and sandbox.agent.pid)


@dataclass
class Seen:
    prometheus: Prometheus
    sandbox: Sandbox


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with (
        short_directory() as directory,
        Sandbox(SandboxSettings(directory / "s")) as sandbox,
        serving(lambda h: send(h, state_metrics(sandbox).encode(), kind="text/plain")) as states,
    ):
        prepare(sandbox)
        with Process(f"--kubeconfig={sandbox.kubeconfig}", "--leader-mode=alone") as admission:
            yield from observe(
                directory, sandbox, urlsplit(states).port or 0, admission.port, admission.extender_port
            )


def observe(directory: Path, sandbox: Sandbox, states: int, webhook: int, extender: int) -> Iterator[Seen]:
    """Scrape all three while the load changes, until an hour's sum has been recorded."""
    jobs = [
        job("gpu-manager", sandbox.port, "/metric", honor_labels=True),
        job(
            "gpu-quota-admission",
            webhook,
            "/metrics",
            scheme="https",
            tls_config={"insecure_skip_verify": True},
        ),
        job("kube-state-metrics", states, "/metrics", honor_labels=True),
    ]
    at_once = re.sub(r"(?m)^    for: .*\n", "", RULES.replace("interval: 1m", "interval: 1s"))
    with Prometheus(directory / "prometheus", jobs, at_once) as prometheus:
        load(sandbox)
        ask(webhook, extender)
        hours = "namespace:vcuda_wasted_core_hours:increase_1h"
        until(lambda: prometheus.query(f"count_over_time({hours}[1m]) >= 5"))
        yield Seen(prometheus, sandbox)


def job(name: str, port: int, path: str, **more: Any) -> dict[str, Any]:
    target = {"targets": [f"127.0.0.1:{port}"], "labels": {"node": NODE}}
    return {"job_name": name, "metrics_path": path, "static_configs": [target], **more}


QUOTA = {name: {"quota": {"A100": 4}, "memory": {"A100": 65536}} for name in ("vision", "nlp", "research")}
QUOTA["vision"]["protected"] = {"*": 1}


def prepare(sandbox: Sandbox) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gpuquota", "namespace": "kube-system"},
    }
    names = ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in QUOTA)
    commands.apply(sandbox.api, [*names, {**quota, "data": {"gpu_quota": json.dumps(QUOTA)}}])
    watched(sandbox)


def load(sandbox: Sandbox) -> None:
    """Two that compute, one that fills its memory and is refused more, one idle and protected; a card ails."""
    idle = asking("idle", "vision", ["sleep", "600"], 20, 4, "red")
    idle["metadata"]["annotations"] = {PRIORITY: "protected"}
    commands.apply(
        sandbox.api,
        [
            asking("spin-30", "vision", ["cuda-spin", "600"], 30, 8, "red"),
            asking("spin-60", "nlp", ["cuda-spin", "600"], 60, 8, "blue"),
            asking("full", "nlp", [sys.executable, "-c", HOLD], 10, 4, "blue"),
            idle,
        ],
    )
    sandbox.set_card(7, {"healthy": False, "reason": "XID 79"})


def ask(webhook: int, extender: int) -> None:
    """A pod is denied, and a scheduler asks for two places; no card has room for the second."""
    context = ssl._create_unverified_context()
    denied = review(pod(container("train", "150")))
    question = {"Pod": pod(container("train", "30", "8")), "NodeNames": [NODE]}
    hopeless = {"Pod": pod(container("train", "30", "800")), "NodeNames": [NODE]}
    for url, body in (
        (f"https://127.0.0.1:{webhook}/validate", denied),
        (f"https://127.0.0.1:{webhook}/mutate", denied),
        (f"http://127.0.0.1:{extender}/scheduler/filter", question),
        (f"http://127.0.0.1:{extender}/scheduler/filter", hopeless),
        (f"http://127.0.0.1:{extender}/scheduler/prioritize", question),
    ):
        asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(
            asked, timeout=PATIENCE, context=context if url.startswith("https") else None
        ).close()


def queries() -> Iterator[tuple[str, str]]:
    for where, text, _ in targets():
        if AFTER_DAYS not in text:
            yield where, text


def targets() -> Iterator[tuple[str, str, set[str]]]:
    """Every query with where it stands, and the labels that its legend or its table's columns name."""
    for name, board in BOARDS.items():
        for panel in panels(board):
            columns = next((t for t in panel.get("transformations", ()) if t["id"] == "organize"), None)
            renamed = columns["options"]["renameByName"] if columns else {}
            for target in panel["targets"]:
                text = target["expr"]
                for variable, value in VARIABLES.items():
                    text = text.replace(variable, value)
                labels = {label for label in renamed if not label.startswith("Value")}
                labels |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                yield f"{name}: {panel['title']}", text, labels


AFTER_DAYS = "vcuda_container_advised_memory_bytes"
"""Less memory is advised after three days: no series of a young agent."""


AT_FAULT_ALONE = ["vcuda_container_not_injected", "vcuda_pod_marked_for_eviction"]
"""Series of containers at fault and pods marked for eviction alone; their alerts are provoked in :mod:`bench.alerts`."""


def rules() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES)["groups"]:
        for rule in group["rules"]:
            yield rule.get("record") or rule["alert"], rule["expr"]


def empty(prometheus: Prometheus, asked: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{where}: {text}" for where, text in asked if not prometheus.query(text)]


@needs_prometheus
def test_every_query_of_every_panel_returns_data(seen: Seen) -> None:
    until(lambda: not empty(seen.prometheus, queries()))


@needs_prometheus
def test_every_label_that_a_legend_or_a_column_names_is_there(seen: Seen) -> None:
    until(lambda: not empty(seen.prometheus, queries()))
    for where, text, labels in targets():
        for series in seen.prometheus.query(text):
            absent = {"rule", "reason"}  # a refusal may have no rule, and what is not refused no reason
            assert labels <= set(series["metric"]) | absent, f"{where}: {text}"


@needs_prometheus
def test_every_rule_stands_on_series_that_are_there(seen: Seen) -> None:
    # Nothing answers with an error here: the metric and its label must be there, whatever the code.
    texts = ((name, text.replace('code=~"5.."', 'code=~".+"')) for name, text in rules())
    selectors = ((f"{name}: {text}", one) for name, text in texts for one in SELECTOR.findall(text))
    assert [one.rpartition(": ")[2] for one in empty(seen.prometheus, selectors)] == AT_FAULT_ALONE
    records = ((name, name) for name, _ in rules() if ":" in name)
    assert empty(seen.prometheus, records) == []


@needs_prometheus
def test_every_variable_of_a_dashboard_has_values(seen: Seen) -> None:
    for board in BOARDS.values():
        for variable in board["templating"]["list"][1:]:
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match, variable
            metric = match[1].replace("$namespace", "vision|nlp").replace("$node", ".*")
            assert seen.prometheus.get(f"label/{match[2]}/values", **{"match[]": metric}), variable["query"]


@needs_prometheus
def test_what_ails_in_the_sandbox_fires_and_its_text_names_it(seen: Seen) -> None:
    wanted = {"VcudaCardUnhealthy", "VcudaMemoryNearLimit"}

    def firing() -> dict[str, Any] | None:
        found = {a["labels"]["alertname"]: a for a in seen.prometheus.get("alerts")["alerts"]}
        return found if wanted <= set(found) else None

    alerts = until(firing)
    assert alerts["VcudaCardUnhealthy"]["annotations"]["summary"] == f"Card 7 of {NODE} is unhealthy"
    assert (
        alerts["VcudaMemoryNearLimit"]["annotations"]["summary"] == "nlp/full main is near its memory limit"
    )
    assert "100% of its share of card" in alerts["VcudaMemoryNearLimit"]["annotations"]["description"]
    quiet = {
        "VcudaEvader",
        "VcudaAgentDown",
        "VcudaAdmissionDown",
        "VcudaNoLeader",
        "VcudaPluginNotRegistered",
    }
    assert not quiet & set(alerts)


@needs_prometheus
def test_booked_and_used_are_what_the_pods_asked_for_and_do(seen: Seen) -> None:
    def values(text: str) -> dict[str, float]:
        return {v["metric"]["namespace"]: float(v["value"][1]) for v in seen.prometheus.query(text)}

    booked = values("namespace:vcuda_core_booked_ratio:sum")
    assert {name: round(booked[name], 2) for name in ("vision", "nlp")} == {"vision": 0.5, "nlp": 0.7}
    if seen.sandbox.native.complete:
        until(lambda: 0.2 < values("namespace:vcuda_core_used_ratio:sum")["vision"] < 0.4)
    team = seen.prometheus.query("namespace_team:vcuda_core_booked_ratio:sum")
    found = {
        (v["metric"]["namespace"], v["metric"]["label_team"]): round(float(v["value"][1]), 2) for v in team
    }
    assert {("vision", "red"): 0.5, ("nlp", "blue"): 0.7}.items() <= found.items()


@needs_prometheus
@pytest.mark.parametrize("by", ["namespace", "pod", "label=team"])
def test_the_bill_comes_from_this_prometheus(seen: Seen, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--prometheus",
        seen.prometheus.url,
        "--by",
        by,
        "--since",
        "60s",
        "-o",
        "json",
    ]

    def bill() -> list[dict[str, Any]]:
        """Nothing until the agent has saved, and Prometheus has seen, what it measured."""
        assert run(["cost", *arguments]) == 0
        lines = [x for x in json.loads(capsys.readouterr().out)["lines"] if x["namespace"] != "research"]
        return [] if any(line["core_hours_used"] is None for line in lines) else lines

    lines = until(bill)
    assert len(lines) == (4 if by == "pod" else 2)
    for line in lines:
        assert 0 < line["core_hours"] <= 70 / 60
        assert line["core_hours_used"] + line["core_hours_wasted"] >= line["core_hours"] * 0.5
        assert 0 < line["gib_hours"] < 1
        assert line.get("team", "red") in ("red", "blue")


@needs_prometheus
def test_the_consoles_hours_come_from_this_prometheus_by_namespace(seen: Seen) -> None:
    cards = seen.sandbox.graph()["cards"]
    holders = {(held["namespace"], held["pod"]): card["uuid"] for card in cards for held in card["holders"]}
    clock = SystemClock()
    ask = PrometheusRanges(seen.prometheus.url).ask
    history = ConsoleHistory(AgentsUsage(Agents(), clock), lambda _: list(holders.values()), clock, ask)

    def shown(subject: str, name: str, namespace: str = "") -> list[Mapping[str, str]]:
        """The labels of every series with a figure of cores and of memory."""
        found = history.answer(HistoryQuery.parse(subject, name, namespace), "1h")["series"]
        figures = {"cores", "memory", "waited"}
        assert all(any(v is not None for v in one["cores"] + one["memory"]) for one in found)
        return [{key: value for key, value in one.items() if key not in figures} for one in found]

    assert shown("cluster", "") == shown("cluster", "", "vision") == [{}]
    assert {"uuid": holders["nlp", "full"]} in shown("node", NODE)
    assert {one["uuid"] for one in shown("node", NODE, "vision")} <= {
        uuid for (namespace, _), uuid in holders.items() if namespace == "vision"
    }
    assert shown("cluster", "", "nobody") == shown("node", NODE, "nobody") == []
    full = {"namespace": "nlp", "pod": "full", "container": "main"}
    assert full in shown("card", holders["nlp", "full"], "nlp")
    assert full not in shown("card", holders["nlp", "full"], "vision")
    assert shown("pod", "nlp/full", "nlp") == [{"container": "main", "uuid": holders["nlp", "full"]}]
    assert shown("pod", 'nlp/x"} or vcuda_container_core_usage_ratio{a="') == []


@needs_prometheus
def test_a_pod_that_comes_is_seen_within_seconds(seen: Seen) -> None:
    def booked() -> list[float]:
        found = seen.prometheus.query('namespace:vcuda_core_booked_ratio:sum{namespace="research"}')
        return [float(one["value"][1]) for one in found]

    before = seen.prometheus.query("sum(vcuda_card_cores_booked_ratio)")[0]["value"][1]
    commands.apply(seen.sandbox.api, [asking("late", "research", ["sleep", "600"], 10, 4, "green")])
    until(lambda: booked() == [0.1])
    until(lambda: seen.prometheus.query(f"sum(vcuda_card_cores_booked_ratio) > {before}"))
