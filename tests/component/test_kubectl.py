"""``kubectl vcuda`` over the API stand-in: what containers hold and use, quota, cordons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import PROGRAM, run
from gpu_manager.domain.contract import CORDON, INVENTORY, PRIORITY
from sandbox.api import StandInApi
from tests.fakes.kubectl import MANIFEST, a_node, a_share, an_agent, said

pytestmark = pytest.mark.usefixtures("kubectl_login")


def test_top_shows_shares_with_what_the_nodes_agent_says_is_used(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    made = a_share(api, "train", 30)
    device = {"uuid": "GPU-0", "gpu": 12.4, "mem": 512.0}
    an_agent(api, {"usage": {made["metadata"]["uid"]: {"stat": {"c": {"dev": [device]}}}}})
    assert run(["top"]) == 0
    out, err = said(capsys)
    assert out.splitlines()[1].split() == [
        "default",
        "train",
        "c",
        "n1",
        "0",
        "30",
        "12",
        "%",
        "2",
        "GiB",
        "512",
        "MiB",
    ]
    assert err == ""
    assert run(["top", "-o", "json"]) == 0
    (row,) = json.loads(said(capsys)[0])["containers"]
    assert (row["coresUsed"], row["memoryUsed"], row["cardKnown"]) == (12.4, 512 << 20, True)
    assert run(["top", "-n", "other"]) == 0
    assert "no container in namespace other holds a share" in said(capsys)[0]


def test_top_marks_a_container_whose_account_the_driver_contradicts(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    made = a_share(api, "train", 30)
    device = {"uuid": "GPU-0", "gpu": 30.0, "mem": 512.0, "account_difference": 24.4}
    an_agent(api, {"usage": {made["metadata"]["uid"]: {"stat": {"c": {"dev": [device]}}}}})
    assert run(["top"]) == 0
    out, _ = said(capsys)
    assert "30 % (+24)" in out.splitlines()[1]
    assert (
        out.splitlines()[-1]
        == "(+n), (-n): the driver counts so many points more or less; see the pod's Events"
    )
    assert run(["top", "-o", "json"]) == 0
    (row,) = json.loads(said(capsys)[0])["containers"]
    assert row["accountDifference"] == 24.4


@pytest.mark.parametrize(
    ("page", "code", "text"),
    [
        ({"usage": []}, 200, "answered with something else"),
        ({"usage": {"x": {"stat": {"c": {"dev": [{}]}}}}}, 200, "answered with something else"),
        ({"message": "forbidden"}, 403, "you lack this right"),
    ],
)
def test_usage_that_cannot_be_had_is_left_out_and_said(
    api: StandInApi, capsys: pytest.CaptureFixture[str], page: Any, code: int, text: str
) -> None:
    a_node(api)
    a_share(api, "train", 30)
    an_agent(api, page, code)
    assert run(["top", "-A", "-o", "wide"]) == 0
    out, err = said(capsys)
    assert out.splitlines()[1].split()[6] == "-"
    assert "usage of n1 is not known" in err
    assert text in err


def test_graph_charges_a_pod_that_says_no_card_where_the_node_would_put_it(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "said", 60, "GPU-0")
    a_share(api, "silent", 60, None)
    a_share(api, "liar", 20, "GPU-of-another-node")
    api.patch("nodes", "n1", {"metadata": {"annotations": {CORDON: "GPU-1"}}})
    assert run(["graph", "n1", "-o", "yaml"]) == 0
    assert "cordoned: true" in said(capsys)[0]
    api.patch("nodes", "n1", {"metadata": {"annotations": {CORDON: None}}})
    assert run(["graph", "-o", "json"]) == 0
    first, second = json.loads(said(capsys)[0])["nodes"][0]["cards"]
    assert [(h["pod"], h["planned"]) for h in first["holders"]] == [("said", False), ("liar", True)]
    assert [(h["pod"], h["planned"]) for h in second["holders"]] == [("silent", True)]
    assert (first["cores_free"], second["cores_free"]) == (20, 40)


def test_a_pod_that_was_squeezed_in_is_charged_and_named(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, cards=1)
    a_share(api, "said", 60, "GPU-0")
    a_share(api, "by-hand", 60, None)
    assert run(["graph"]) == 0
    drawn = said(capsys)[0]
    assert "-20 of 100 cores free" in drawn
    assert "no card has room for default/by-hand, which is bound here" in drawn
    assert run(["explain", "by-hand", "--admission", "-"]) == 0
    assert "where no card has room for it" in said(capsys)[0]


def test_graph_shows_the_node_that_is_closed_to_smaller_pods(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("n1", "n2"):
        a_node(api, name, cards=1)
    kept = {"pod": "default/big\x1b", "since": "2026-01-01T00:00:00Z", "cards": 4, "left": 30}
    api.serve_behind(
        "/api/v1/namespaces/kube-system/services/https:gpu-quota-admission:443/proxy",
        lambda *_: (
            200,
            json.dumps({"closed": [{"node": "n1", **kept}, {"node": "n2", "cards": "x"}]}).encode(),
        ),
    )
    assert run(["graph"]) == 0
    out, err = said(capsys)
    first, second = out.split("n2: ")
    assert first.splitlines()[1] == (
        "|---closed to pods that ask for fewer than 4 cards and have no higher priority: kept for default/big\\x1b "
        "until it is here, or 30 more pods with cards have left their nodes"
    )
    assert "\n|---closed to" not in second
    assert err == ""
    assert run(["graph", "-o", "json"]) == 0
    assert [node.get("kept") for node in json.loads(said(capsys)[0])["nodes"]] == [kept, None]
    assert run(["graph", "--admission", "-"]) == 0
    out, err = said(capsys)
    assert "closed to pods" not in out
    assert err == "a node that is closed to smaller pods is not shown as such: --admission is -\n"


@pytest.mark.parametrize("odd", [{"tencent.com/vcuda-core-limit": "150"}, {"tencent.com/placement": "foo"}])
def test_a_running_pod_with_an_odd_annotation_holds_what_it_holds(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path, odd: dict[str, str]
) -> None:
    a_node(api, cards=1)
    a_share(api, "train", 60, "GPU-0")
    api.patch("pods", "train", {"metadata": {"annotations": odd}})
    assert run(["graph"]) == 0
    assert "40 of 100 cores free" in said(capsys)[0]
    assert run(["top", "-A"]) == 0
    assert said(capsys)[0].splitlines()[1].split()[1:6] == ["train", "c", "n1", "0", "60"]
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 50)
    assert run(["simulate", str(file)]) == 1, "the extender would refuse it"
    assert "50 cores asked, 40 free" in said(capsys)[0]
    assert run(["simulate", "--drain", "n1"]) == 1, "nobody makes it anew"
    assert "no controller would make it anew" in said(capsys)[0]


def test_without_the_service_quota_comes_from_the_config_map_and_says_so(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "train", 60)
    text = json.dumps({"default": {"quota": {"V100": 0.5}, "memory": {"V100": 4096}}})
    meta = {"name": "gpuquota", "namespace": "kube-system"}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"gpu_quota": text}})
    assert run(["quota"]) == 1
    out, err = said(capsys)
    assert out.splitlines()[1].split() == ["default", "V100", "0.5", "0.6", "4", "GiB", "2", "GiB"]
    assert "from the ConfigMap" in err
    for text, words in (("{", "cannot be used: not JSON"), ('{"default": 3}', 'namespace "default" is 3')):
        api.patch("configmaps", "gpuquota", {"data": {"gpu_quota": text}}, "kube-system")
        assert run(["quota"]) == 1
        assert words in said(capsys)[1]
    api.delete("configmaps", "gpuquota", "kube-system")
    assert run(["quota"]) == 0
    assert "no quota limits namespace default" in said(capsys)[0]


def test_quota_top_and_graph_show_protected_shares(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "service", 30, annotations={PRIORITY: "protected"})
    text = json.dumps({"default": {"protected": {"V100": 0.2}}})
    meta = {"name": "gpuquota", "namespace": "kube-system"}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"gpu_quota": text}})
    assert run(["quota"]) == 1, "more is held than granted"
    titles, row = said(capsys)[0].splitlines()
    assert titles.split()[-2:] == ["PROTECTED", "USED"]
    assert row.split() == ["default", "V100", "-", "0.3", "-", "2", "GiB", "0.2", "0.3"]
    assert run(["top", "-o", "wide"]) == 0
    titles, row = said(capsys)[0].splitlines()
    assert (titles.split()[-1], row.split()[-1]) == ("PRIORITY", "protected")
    assert run(["graph"]) == 0
    assert "default/service c: 30 cores, 2 GiB, protected" in said(capsys)[0]


def test_kubectl_completes_commands_options_and_values() -> None:
    assert "graph" in PROGRAM.completions(["gr"])
    assert "--all-namespaces" in PROGRAM.completions(["top", "--"])
    assert PROGRAM.completions(["top", "-o", "w"]) == ["wide"]
    assert PROGRAM.completions(["nosuch", "a\"'b"]) == []
    assert set(PROGRAM.commands) <= set(PROGRAM.completions([""]))


def test_cards_are_closed_and_opened_whichever_node_they_are_in(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, "n1", cards=1)
    a_node(api, "n2", cards=2)
    assert run(["cordon", "GPU-1"]) == 0
    assert said(capsys) == ("n2: 1 cordoned\n  GPU-1\n", "")
    assert run(["graph", "n2"]) == 0
    assert "cordoned" in said(capsys)[0]
    api.patch("nodes", "n2", {"metadata": {"annotations": {INVENTORY: None}}})  # the card is lost meanwhile
    assert run(["uncordon", "GPU-1", "-o", "json"]) == 0
    assert json.loads(said(capsys)[0]) == {"nodes": [{"node": "n2", "cordoned": []}]}
    assert CORDON not in api.get("nodes", "n2")["metadata"]["annotations"]
    assert run(["cordon", "GPU-9"]) == 2
    assert 'no node shows a card "GPU-9"' in said(capsys)[1]
