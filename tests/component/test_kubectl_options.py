"""kubectl's own options, forms of answers and names of things, as ``kubectl vcuda`` takes them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import PROGRAM as KUBECTL
from gpu_manager.cli.kubectl.main import run
from gpu_manager.cli.main import PROGRAM as NODE
from gpu_manager.cli.output import repeat
from gpu_manager.cli.program import LazyProgram, load
from gpu_manager.domain.contract import CORDON
from sandbox.api import StandInApi
from tests.fakes.kubectl import a_node, a_share, an_agent, said
from tests.fakes.node import container

pytestmark = pytest.mark.usefixtures("kubectl_login")

EVERY = [(program, name) for program in (NODE, KUBECTL) for name in program.commands]


@pytest.fixture
def shares(api: StandInApi) -> Mapping[str, Any]:
    """Pods a (10 of 40 cores used) and b (30 of 40), of two applications, on one node with two cards."""
    a_node(api)
    page = {}
    for name, used in (("a", 10.0), ("b", 30.0)):
        owner = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": f"set-{name}",
            "uid": name,
            "controller": True,
        }
        made = a_share(
            api, name, 40, f"GPU-{int(name == 'b')}", labels={"app": name}, ownerReferences=[owner]
        )
        page[made["metadata"]["uid"]] = {
            "stat": {"c": {"dev": [{"uuid": f"GPU-{int(name == 'b')}", "gpu": used, "mem": 100.0}]}}
        }
    an_agent(api, {"usage": page})
    return page


def pods(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert run(["top", *words, "-o", "jsonpath={.containers[*].pod}"]) == 0
    return said(capsys)[0].split()


@pytest.mark.usefixtures("shares")
def test_top_takes_pods_workloads_nodes_and_labels(capsys: pytest.CaptureFixture[str]) -> None:
    assert pods(capsys) == ["a", "b"]
    assert pods(capsys, "b") == pods(capsys, "pod/b") == pods(capsys, "sts/set-b") == ["b"]
    assert pods(capsys, "node/n1") == ["a", "b"]
    assert pods(capsys, "node/n2") == []
    assert pods(capsys, "-l", "app=a") == pods(capsys, "-l", "app in (a)", "-A") == ["a"]
    assert pods(capsys, "--sort-by", "idle") == ["a", "b"]
    assert pods(capsys, "--sort-by", "cores") == ["b", "a"]


@pytest.mark.usefixtures("shares")
@pytest.mark.parametrize("command", ["top", "advise", "explain", "graph"])
def test_a_selector_that_is_none_is_bad_input(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "-l", "a=(b"]) == 2
    assert "write it like app=web,tier!=db" in said(capsys)[1]


@pytest.mark.usefixtures("shares")
def test_explain_and_graph_take_labels(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "-l", "app in (a, b)", "--admission", "-", "-o", "jsonpath={.pods[*].pod}"]) == 0
    assert said(capsys)[0].split() == ["default/a", "default/b"]
    assert run(["explain", "-l", "app=none"]) == 2
    assert "no pod has app=none in namespace" in said(capsys)[1]
    assert run(["explain", "a", "-l", "app=a"]) == 2
    assert "name a pod, or manifests" in said(capsys)[1]
    api.patch("nodes", "n1", {"metadata": {"labels": {"pool": "a100"}}})
    assert run(["graph", "-l", "pool=a100", "-o", "name"]) == 0
    assert said(capsys)[0].split() == ["node/n1"]
    assert run(["graph", "-l", "pool=none"]) == 1
    assert "no node with pool=none publishes cards" in said(capsys)[0]
    assert run(["graph", "n1", "-l", "pool=a100"]) == 2
    assert "not both" in said(capsys)[1]


@pytest.mark.usefixtures("shares")
def test_advice_is_watched_or_followed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "-w", "--apply", "in-place"]) == 2
    assert "give one of them" in said(capsys)[1]


@pytest.mark.usefixtures("shares")
@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("name", "pod/a\npod/b\n"),
        ("custom-columns=POD:.pod,IDLE:.coresIdle,NONE:.none", "POD   IDLE   NONE\na     30.0   <none>\nb     10.0   <none>\n"),
        ('jsonpath={range .containers[*]}{.pod}={.cores}{"\\n"}{end}', "a=40\nb=40\n\n"),
        ("jsonpath={.containers[?(@.pod=='b')].coresUsed}", "30.0\n"),
        ("jsonpath={.containers[-1].card} {.containers[0:1].pod} {..uuid}", "1 a GPU-0 GPU-1\n"),
        ("jsonpath={.containers[0]['pod','node']}", "a n1\n"),
        ("jsonpath=.silent", "{}\n"),
    ],
)  # fmt: skip
def test_an_answer_is_cut_to_the_form_that_is_asked_for(
    form: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["top", "-o", form]) == 0
    assert said(capsys)[0] == printed


@pytest.mark.usefixtures("shares")
def test_a_table_without_titles_is_rows_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["top"], ["top", "-o", "wide"], ["top", "-o", "custom-columns=POD:.pod"]):
        assert run([*words, "--no-headers"]) == 0
        assert [line.split()[-1] == "" or line for line in said(capsys)[0].splitlines()] != []
        assert run([*words, "--no-headers"]) == 0
        assert len(said(capsys)[0].splitlines()) == 2


def test_a_watch_prints_what_is_new_until_it_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter((["POD", "a 1"], ["POD", "a 1"], ["POD", "a 2", "b 1"]))
    paused: list[float] = []

    def show() -> int:
        try:
            sys.stdout.write("\n".join(next(answers)) + "\n")
        except StopIteration:
            raise KeyboardInterrupt from None
        return 0

    with pytest.raises(KeyboardInterrupt):
        repeat(show, watch=True, pause=paused.append)
    assert said(capsys)[0] == "POD\na 1\na 2\nb 1\n"
    assert len(paused) == 3


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        (["n1/1"], ["GPU-1"]),
        (["1"], ["GPU-1"]),
        (["n1"], ["GPU-0", "GPU-1"]),
        (["node/n1"], ["GPU-0", "GPU-1"]),
        (["GPU-1", "n1/0"], ["GPU-0", "GPU-1"]),
    ],
)
def test_cards_are_named_by_their_place(words: list[str], closed: list[str], api: StandInApi) -> None:
    a_node(api)
    assert run(["cordon", *words]) == 0
    assert cordoned(api, "n1") == closed


def cordoned(api: StandInApi, node: str) -> list[str]:
    there = api.get("nodes", node)
    assert there is not None
    return sorted(there["metadata"]["annotations"][CORDON].split(","))


def test_a_card_is_named_by_the_first_letters_of_its_uuid(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_node(api, "n2", cards=0)
    closed = {"metadata": {"annotations": {CORDON: "GPU-2781aaaa-1,GPU-2781bbbb-2"}}}
    api.patch("nodes", "n2", closed)
    assert run(["uncordon", "2781A"]) == 0
    assert cordoned(api, "n2") == ["GPU-2781bbbb-2"]
    api.patch("nodes", "n2", closed)
    assert run(["uncordon", "GPU-2781"]) == 2
    assert '2 cards begin with "GPU-2781": GPU-2781aaaa-1, GPU-2781bbbb-2' in said(capsys)[1]
    assert run(["cordon", "0"]) == 2
    assert "as NODE/INDEX" in said(capsys)[1]


def test_what_a_node_says_of_anothers_card_does_not_keep_that_one_open(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that was taken over may show the UUIDs of others, and one that lost a card lists it as closed."""
    a_node(api)
    a_node(api, "n2", cards=0)
    api.patch("nodes", "n2", {"metadata": {"annotations": {CORDON: "GPU-1"}}})
    assert run(["cordon", "GPU-1"]) == 0
    assert cordoned(api, "n1") == ["GPU-1"]
    a_node(api, "n3")
    assert run(["cordon", "GPU-1"]) == 2
    assert 'n1, n3 all say that they have "GPU-1": name it as NODE/INDEX' in said(capsys)[1]
    assert run(["cordon", "n1"]) == 0
    assert cordoned(api, "n1") == ["GPU-0", "GPU-1"]


def test_explain_takes_a_workload(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_node(api)
    spec = {"containers": [container("c", 30, 8)]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
    api.create(
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
        }
    )  # fmt: skip
    assert run(["explain", "deploy/web", "--admission", "-"]) == 0
    out, err = said(capsys)
    assert "there is room now" in out
    assert "Deployment/web has no pod: judged is one that it would make" in err
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "w", "controller": True}
    for name in ("web-1", "web-2"):
        meta = {"name": name, "namespace": "default", "labels": {"app": "web"}, "ownerReferences": [owner]}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    api.bind("web-1", "n1", "default")
    assert run(["explain", "deployment/web", "--admission", "-"]) == 0
    assert said(capsys)[0].startswith("pod default/web-2")
    assert run(["explain", "deployment/none", "--admission", "-"]) == 2
    assert 'no deployment "none" in namespace "default"' in said(capsys)[1]


def test_explain_takes_the_workload_of_an_operator_from_a_file(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api)
    groups = [
        {"groupName": name, "template": {"spec": {"containers": [container("worker", 30, units)]}}}
        for name, units in (("small", 8), ("large", 5000))
    ]
    ray = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "ray"}}
    (tmp_path / "ray.yaml").write_text(json.dumps({**ray, "spec": {"workerGroupSpecs": groups}}))
    assert run(["explain", "-f", str(tmp_path / "ray.yaml"), "--admission", "-"]) == 1
    out, _ = said(capsys)
    assert out.count("pod default/ray\n") == 2
    assert "there is room now" in out
    assert "1250 GiB asked, 16 GiB free" in out


RESIZE = ["resize", "one", "--wait", "0s"]


def test_a_resize_is_tried_without_a_change_and_told_to_programs(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "one", 30)
    before = api.get("pods", "one")
    for way in ("--dry-run", "--dry-run=server", "--dry-run=client"):
        assert run([*RESIZE, "--cores", "50", way]) == 0
        assert "would ask for 50 cores: nothing was changed" in said(capsys)[0]
    assert api.get("pods", "one") == before
    assert run([*RESIZE, "--cores", "50", "-o", "json"]) == 0
    told = json.loads(said(capsys)[0])
    assert (told["kind"], told["namespace"], told["name"]) == ("Pod", "default", "one")
    assert (told["refused"], told["dryRun"]) == (False, False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--memory", "300Mi"], "use 256 MiB or 512 MiB"),
        (["--memory", "8"], "use 256 MiB"),
        (["--cores", "50", "-c", "other"], "and the pod has no such container"),
    ],
)
def test_bad_input_of_a_resize_is_refused_before_it_is_sent(
    words: list[str], says: str, api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "one", 30)
    before = api.get("pods", "one")
    assert run([*RESIZE, *words]) == 2
    assert says in said(capsys)[1]
    assert api.get("pods", "one") == before


def test_who_acts_as_another_is_told_that_the_service_is_not_asked(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    assert run(["quota", "-A", "--as", "jane"]) == 0
    assert run(["ui", "--no-browser", "--as", "jane"]) == 2
    assert "you act as jane (--as): the API server passes that on to no service" in said(capsys)[1]
    assert run(["top", "--as-group", "devs"]) == 2
    assert "go with a user alone" in said(capsys)[1]


def test_options_stand_over_the_kubeconfig(
    api: StandInApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    config = json.loads(api.kubeconfig(tmp_path / "other").read_text())
    server, login = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    config["clusters"] = [{"name": "good", "cluster": {"server": server}}, {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}]  # fmt: skip
    config["users"] = [{"name": "good", "user": {"token": login}}, {"name": "u", "user": {"token": "wrong"}}]
    config["contexts"] = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    config["current-context"] = "x"
    path = tmp_path / "merged"
    path.write_text(json.dumps(config))
    base = ["graph", "--admission", "-", "-o", "name", "--kubeconfig", str(path)]
    assert run(base) == 1
    for words in (["--cluster", "good", "--user", "good"], ["-s", server, "--token", login]):
        said(capsys)
        assert run([*base, *words]) == 0
        assert said(capsys)[0] == "node/n1\n"
    for option in ("--cluster", "--user", "--context"):
        assert run([*base, option, "none"]) == 2
        assert "'none'; it has" in said(capsys)[1]
    assert run([*base, "--request-timeout", "soon"]) == 2
    assert "write it like 30s, 2m or 1m30s" in said(capsys)[1]


@pytest.mark.usefixtures("shares")
def test_a_shell_is_offered_the_names_of_the_cluster(api: StandInApi) -> None:
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    offered = KUBECTL.completions
    assert set(offered(["explain", ""])) >= {"a", "b"}
    assert offered(["graph", "n"]) == ["n1"]
    assert offered(["cordon", "n1/"]) == ["n1/0", "n1/1"]
    assert offered(["cordon", "GPU"]) == ["GPU-0", "GPU-1"]
    assert "team" in offered(["top", "-n", "t"])
    assert offered(["quota", "tea"]) == ["team"]
    assert len(offered(["top", "--context", ""])) == 1
    assert offered(["graph", "--kubeconfig", "/nowhere", "n"]) == []


def test_the_versions_of_all_that_answers_are_shown(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    an_agent(api, {"version": "9.9"})
    labels = {"metadata": {"labels": {"app.kubernetes.io/component": "agent"}}}
    api.patch("pods", "agent-1", labels, "kube-system")
    assert run(["version"]) == 0
    client, service, agents = said(capsys)[0].splitlines()
    assert client.startswith("kubectl vcuda ")
    assert service.startswith("service: not known: ")
    assert agents == "agents: 9.9 on n1"


@pytest.mark.parametrize(("program", "name"), EVERY, ids=[f"{p.name} {n}" for p, n in EVERY])
def test_every_help_has_an_example_that_the_command_takes(
    program: LazyProgram, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run([name, "--help"]) == 0
    text = said(capsys)[0]
    _, _, below = text.partition("Examples:\n")
    examples = [line.strip() for line in below.partition("\n\n")[0].splitlines()]
    mine = [shlex.split(line) for line in examples if line.startswith((program.name, "gpu-manager check"))]
    assert mine
    for words in mine:
        own = len(program.name.split())
        if words[own] == name:
            load(program.name, name, program.commands[name][0]).values(words[own + 1 :])
