"""``kubectl vcuda cost`` against recorded answers of Prometheus; tests/deploy asks a real one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gpu_manager.adapters.prometheus import PrometheusRanges, query
from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from tests.fakes.web import given, send, serving

CORES, BYTES = "core_seconds", "memory_byte_seconds"
USED, WASTED = "core_used_seconds", "core_wasted_seconds"
# What counters went up by in a day, in core-hours and GiB-hours, by namespace; one node of two was replaced.
HOURS = {
    "vision": {CORES: 720, USED: 240, WASTED: 480, BYTES: 120},
    "nlp": {CORES: 2400, BYTES: 960},
}
DAY_BEFORE = 1000.0  # the value of every counter a day ago


def hours(figure: str, value: float) -> float:
    return value * 3600 * (1 << 30 if "byte" in figure else 1)


def series(name: str, namespace: str, value: float, **more: str) -> dict[str, Any]:
    labels = {"__name__": name, "namespace": namespace, **more}
    return {"metric": labels, "value": [1.5, str(value)]}


def answer(text: str, *, start: bool) -> list[dict[str, Any]]:
    """As Prometheus answers about the counters at the range's start, and at its end."""
    if "kube_pod_labels" in text:
        return [
            {"metric": {"namespace": who, "pod": "p", "label_team": "=red"}, "value": [1.5, "1"]}
            for who in HOURS
        ]
    level = "pod" if "vcuda_pod_" in text else "namespace"
    own = {"pod": "p", "uid": "u"} if level == "pod" else {"node": "n1"}
    return [
        series(
            f"vcuda_{level}_{figure}_total", who, DAY_BEFORE + (0 if start else hours(figure, value)), **own
        )
        for who, figures in HOURS.items()
        for figure, value in figures.items()
    ]


SHARED = {"one-team": ("a", "b"), "two-teams": ("a", "c"), "unlabelled": ("x",), "half": ("a", "x")}
TEAMS = {"a": "red", "b": "red", "c": "blue", "own": "green"}


def of_claims(text: str, *, start: bool) -> list[dict[str, Any]]:
    """A pod that has its claim alone is billed under its own name, several that share one under the claim's."""
    if "kube_pod_labels" in text:
        told = [{"pod": pod, "label_team": team} for pod, team in TEAMS.items()]
    elif "vcuda_claim_info" in text:
        told = [{"claim": claim, "pod": pod} for claim, pods in SHARED.items() for pod in pods]
    else:
        value = DAY_BEFORE + (0 if start else hours(CORES, 24))
        names = (*SHARED, "own")
        return [series(f"vcuda_pod_{CORES}_total", "ml", value, pod=name, uid=name) for name in names]
    return [{"metric": {"namespace": "ml", **labels}, "value": [1.5, "1"]} for labels in told]


class Standin:
    """Records what is asked; ``status`` and ``body`` replace the answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.paths: list[str] = []
        self.moments: list[float] = []
        self.status, self.body = 200, b""
        self.url = ""
        self.answer = answer


@contextmanager
def standing() -> Iterator[Standin]:
    standin = Standin()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        where = urlsplit(handler.path)
        parameters = given(handler).decode() if handler.command == "POST" else where.query
        standin.paths.append(where.path)
        standin.asked.append(parse_qs(parameters)["query"][0])
        start = float(parse_qs(parameters)["time"][0]) < max(standin.moments, default=0.0)
        standin.moments.append(float(parse_qs(parameters)["time"][0]))
        result = standin.answer(standin.asked[-1], start=start)
        data = {"status": "success", "data": {"resultType": "vector", "result": result}}
        send(handler, standin.body or json.dumps(data).encode(), standin.status)

    with serving(respond) as standin.url:
        yield standin


@pytest.fixture
def standin() -> Iterator[Standin]:
    with standing() as one:
        yield one


def test_the_bill_of_a_day_by_namespace(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "--prometheus", standin.url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == ["NAMESPACE", "CORE-HOURS", "USED", "WASTED", "GIB-HOURS", "USED", "WASTED"]
    assert lines[3] == ["nlp", "2400.00", "-", "-", "960.00", "-", "-"], "what was not measured is not zero"
    assert lines[4] == ["vision", "720.00", "240.00", "480.00", "120.00", "-", "-"]
    assert lines[5][:3] == ["total", "3120.00", "240.00"]
    assert standin.asked[0].startswith('last_over_time({__name__=~"vcuda_namespace_(core_seconds_total|')
    assert standin.asked[0].endswith("[86400s])")
    assert standin.moments[0] - standin.moments[1] == pytest.approx(86400)


def test_a_spreadsheet_gets_plain_cells_and_programs_get_numbers(
    standin: Standin, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["cost", "--prometheus", standin.url, "--by", "label=team", "--since", "90m", "-n", "vision"]
    assert run([*arguments, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[1]["team"] == "'=red", "no formula"
    assert rows[0]["core_hours_used"] == ""
    assert float(rows[1]["core_hours_wasted"]) == 480
    assert "[5400s]" in standin.asked[0]
    assert any("max by (namespace, pod, uid, label_team)" in one for one in standin.asked)
    assert any("vcuda_claim_info" in one for one in standin.asked)
    assert all('namespace="vision"' in text for text in standin.asked)
    assert run([*arguments, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [line["core_hours_wasted"] for line in document["lines"]] == [None, 480]


def test_a_name_that_lives_twice_is_billed_by_uid_and_a_relabelled_pod_under_all_its_values(
    standin: Standin, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [("web", "u1", "red"), ("web", "u2", "blue"), ("job", "u3", "red"), ("job", "u3", "green")]
    used = {"u1": 10, "u2": 30, "u3": 50}
    names = {"u1": "web", "u2": "web", "u3": "job"}

    def answered(text: str, *, start: bool) -> list[dict[str, Any]]:
        if "kube_pod_labels" in text:
            return [
                {
                    "metric": {"namespace": "ml", "pod": pod, "uid": uid, "label_team": team},
                    "value": [1.5, "1"],
                }
                for pod, uid, team in labels
            ]
        if "vcuda_claim_info" in text:
            return []
        part = 0.0 if start else 1.0
        return [
            series(f"vcuda_pod_{CORES}_total", "ml", hours(CORES, value) * part, pod=names[uid], uid=uid)
            for uid, value in used.items()
        ]

    standin.answer = answered
    assert run(["cost", "--prometheus", standin.url, "--by", "label=team", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["team"]: one["core_hours"] for one in document["lines"]} == {
        "green + red": 50,
        "blue": 30,
        "red": 10,
    }


@pytest.mark.parametrize("by", ["namespace", "pod", "label=team"])
def test_of_pods_with_labels_alone(by: str, standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    def answered(text: str, *, start: bool) -> list[dict[str, Any]]:
        found = answer(text, start=start)
        return found[:1] if "kube_pod_labels" in text else [] if "claim_info" in text else found

    standin.answer = answered
    asked = "app=web, tier !=db,team in (red.1, blue),a/b notin (c),!d,e"
    assert (
        run(["cost", "--prometheus", standin.url, "--by", by, "-n", "vision", "-l", asked, "-o", "json"]) == 0
    )
    lines = json.loads(capsys.readouterr().out)["lines"]
    own = {"namespace": {}, "pod": {"pod": "p"}, "label=team": {"team": "=red"}}[by]
    assert [(line["namespace"], line["core_hours"]) for line in lines] == [("vision", 720)]
    assert own.items() <= lines[0].items()
    chosen = next(text for text in standin.asked if "kube_pod_labels" in text)
    assert (
        '{namespace="vision",label_app="web",label_tier!="db",label_team=~"red\\\\.1|blue",label_a_b!~"c",'
        'label_d="",label_e!=""}'
    ) in chosen
    standin.answer = lambda text, start: [] if "kube_" in text else answer(text, start=start)
    assert run(["cost", "--prometheus", standin.url, "-l", "app=web"]) == 1
    assert "knows no pod with these labels: kube-state-metrics" in capsys.readouterr().err


def test_a_label_that_nobody_publishes_is_named(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    def answered(text: str, *, start: bool) -> list[dict[str, Any]]:
        return [] if "kube_" in text or "claim_info" in text else answer(text, start=start)

    standin.answer = answered
    assert run(["cost", "--prometheus", standin.url, "--by", "label=team"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "knows no pod's label team: kube-state-metrics publishes labels" in said.err


def test_a_claim_of_several_pods_is_billed_once_to_whom_they_belong(
    standin: Standin, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.answer = of_claims
    assert run(["cost", "--prometheus", standin.url, "--by", "label=team", "-o", "json"]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert {line["team"]: line["core_hours"] for line in lines} == pytest.approx(
        {"red": 48, "blue + red": 24, "green": 24, "": 24}
    ), "one-team and half; two-teams; a pod of its own; unlabelled"


def test_a_month_is_asked_for_from_its_first_second_to_its_last(
    standin: Standin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cost", "--prometheus", standin.url, "--month", "2024-02", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["from"], document["to"]) == ("2024-02-01T00:00:00+00:00", "2024-03-01T00:00:00+00:00")
    assert f"[{29 * 86400}s]" in standin.asked[0]


def test_a_cluster_is_asked_through_its_api_server(
    standin: Standin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": standin.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    assert run(["cost", "--kubeconfig", str(tmp_path / "kubeconfig"), "-o", "csv"]) == 0
    assert "vision,720.0,240.0" in capsys.readouterr().out
    assert set(standin.paths) == {
        "/api/v1/namespaces/monitoring/services/http:prometheus-k8s:9090/proxy/api/v1/query"
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prometheus", "nowhere"], "write a URL, or NAMESPACE/SERVICE"),
        (["--prometheus", "ftp://x"], "write a URL"),
        (["--by", "card"], "use namespace, pod, or label=KEY"),
        (["--by", 'label=a"}'], "use namespace, pod, or label=KEY"),
        (["--since", "yesterday"], "write it like 90m"),
        (["--since", "900d"], "400d at most"),
        (["--month", "2026-13"], "write it like 2026-10"),
        (["--month", "0000-01"], "no such month"),
        (["--month", "9998-01"], "has not begun"),
        (["-n", 'a"} or vector(1) #'], "lower-case letters"),
        (["-l", "app in web"], "write it like app=web,tier!=db"),
        (["-l", "!app=web"], "write it like app=web,tier!=db"),
    ],
)
def test_what_cannot_be_asked_is_said(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cost", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"<html>", "is that Prometheus?"),
        (200, b"[]", "is that Prometheus?"),
        (200, b'{"data": {"result": [{"metric": [], "value": []}]}}', "not Prometheus'"),
        (200, b'{"status": "success"}', "not Prometheus'"),
        (
            422,
            b'{"status": "error", "error": "too many\\u001b[2J samples"}',
            "too many\\x1b[2J samples (422)",
        ),
        (502, b"oops", "does not say why (502)"),
        (200, b'{"data": {"result": []}}', "no container with a card was seen"),
    ],
)
def test_a_prometheus_that_fails_is_named(
    standin: Standin, status: int, body: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.status, standin.body = status, body
    assert run(["cost", "--prometheus", standin.url]) == 1
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


def test_nobody_there_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with standing() as gone:
        url = gone.url
    assert run(["cost", "--prometheus", url]) == 1
    assert "no Prometheus answers" in capsys.readouterr().err


def test_what_is_no_number_is_no_point() -> None:
    points = [{"metric": {"a": "b"}, "value": [0, text]} for text in ("NaN", "+Inf", "3")]
    found = query(lambda _: {"data": {"result": points}}, "x", 0.0)
    assert [point.value for point in found] == [3.0]
    with pytest.raises(NodeUnready):
        query(lambda _: {"data": {"result": [{"metric": {}, "value": [0, "three"]}]}}, "x", 0.0)


@pytest.fixture
def ranges() -> Iterator[Standin]:
    standin = Standin()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        standin.paths.append(urlsplit(handler.path).path)
        standin.asked.append(f"{handler.headers.get('Authorization')} {given(handler).decode()}")
        send(handler, standin.body, standin.status)

    with serving(respond) as standin.url:
        yield standin


def test_a_range_has_its_values_by_number_and_the_token_is_read_anew(ranges: Standin, tmp_path: Path) -> None:
    token = tmp_path / "token"
    asking = PrometheusRanges(f"{ranges.url}/", token)
    with pytest.raises(NodeUnready, match="cannot read"):
        asking.ask("up", 1000.0, 1120.0, 60)
    token.write_text("sesame\n")
    values = [[1000, "1"], [1060.4, "NaN"], [1120, "0.5"]]
    ranges.body = json.dumps({"data": {"result": [{"metric": {"a": "b"}, "values": values}]}}).encode()
    assert asking.ask("up", 1000.0, 1120.0, 60) == [({"a": "b"}, {0: 1.0, 2: 0.5})]
    assert ranges.asked == ["Bearer sesame query=up&start=1000.0&end=1120.0&step=60"]
    assert ranges.paths == ["/api/v1/query_range"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>", "is that Prometheus"),
        (200, b'{"data": {"result": [{"metric": 1}]}}', "--prometheus-url"),
        (200, b'{"data": {"result": [{"metric": {}, "values": [[1e999, "x"]]}]}}', "--prometheus-url"),
        (422, b'{"error": "too many points"}', "too many points"),
        (502, b"", "502"),
    ],
)
def test_a_range_that_cannot_be_had_says_why(ranges: Standin, status: int, body: bytes, words: str) -> None:
    ranges.status, ranges.body = status, body
    with pytest.raises(NodeUnready, match=words):
        PrometheusRanges(ranges.url).ask("up", 0.0, 60.0, 60)


def test_a_prometheus_that_is_away_or_has_no_address_is_named() -> None:
    with pytest.raises(NodeUnready, match="does not answer"):
        PrometheusRanges("http://127.0.0.1:9").ask("up", 0.0, 60.0, 60)
    with pytest.raises(RequestInvalid, match="--prometheus-url"):
        PrometheusRanges("prometheus")
