"""What people type because kubectl takes it: -f, directories, pod/NAME, --sort-by, and what they mistype."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_manager.cli.kubectl.main import run
from sandbox.api import StandInApi
from tests.component.test_kubectl_plan import node, pod
from tests.fakes.kubectl import MANIFEST, a_node, a_share, an_agent, said

pytestmark = pytest.mark.usefixtures("kubectl_login")


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A directory with two manifests and a file that is none."""
    (made := tmp_path / "m").mkdir()
    (made / "a.yaml").write_text(MANIFEST % 30)
    (made / "b.yml").write_text(MANIFEST % 40)
    (made / "notes.txt").write_text("{")
    return made


def test_a_directory_means_the_manifests_in_it_with_f_or_without(
    manifests: Path, api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    for words in (["check", str(manifests)], ["check", "-f", str(manifests)]):
        assert run(words) == 0
        assert "2 legal" in said(capsys)[0]
    assert run(["check", "-f", str(manifests / "a.yaml"), str(manifests / "b.yml")]) == 0
    assert "2 legal" in said(capsys)[0]
    assert run(["explain", "-f", str(manifests), "--admission", "-"]) == 0
    assert said(capsys)[0].count("there is room now") == 2
    assert run(["simulate", "-f", str(manifests)]) == 0
    assert "2 of 2 pods fit" in said(capsys)[0]
    assert run(["defrag", "-f", str(manifests / "a.yaml")]) == 0
    answer, beside = said(capsys)
    assert "fits as things are" in answer
    assert "Quotas" in beside, "a pod that its quota holds is told so"


def test_a_pod_may_be_named_with_its_kind(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_node(api)
    a_share(api, "train", 60)
    for name in ("train", "pod/train", "pods/train", "po/train"):
        assert run(["explain", name, "--admission", "-"]) == 0
        assert "bound to node n1" in said(capsys)[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["simulat", "x"], "there is no command 'simulat' (did you mean simulate?)"),
        (
            ["top", "--all-namespace"],
            "unrecognized arguments: --all-namespace (did you mean --all-namespaces?)",
        ),
        (["zzz"], "there is no command 'zzz': "),
        (["check"], "FILE missing: name a manifest or a directory"),
        (["explain"], "name a pod, or manifests: POD, KIND/NAME, -l SELECTOR, FILE or -f FILE"),
        (["defrag", "a", "-f", "b"], "name the pod, or its manifest"),
    ],
)
def test_what_was_probably_meant_is_said(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert says in said(capsys)[1]


def test_top_puts_first_what_uses_most(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_node(api)
    figures = {"a": (10.0, 900.0), "b": (30.0, 100.0)}
    page = {}
    for name, (cores, memory) in figures.items():
        uid = a_share(api, name, 40)["metadata"]["uid"]
        device = {"uuid": "GPU-0", "gpu": cores, "mem": memory}
        page[uid] = {"stat": {"c": {"dev": [device]}}}
    an_agent(api, {"usage": page})
    for order, first in (("name", "a"), ("cores", "b"), ("memory", "a")):
        assert run(["top", "--sort-by", order, "-o", "json"]) == 0
        assert json.loads(said(capsys)[0])["containers"][0]["pod"] == first


def test_cost_says_how_to_name_prometheus_where_it_is_not_found(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert api.list("pods") == []
    assert run(["cost"]) == 1
    assert "--prometheus says: NAMESPACE/SERVICE[:PORT], or a URL" in said(capsys)[1]


def test_the_steps_of_defrag_name_pods_as_their_controllers_make_them_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"app": "db", "statefulset.kubernetes.io/pod-name": "db-0"}
    waiting = pod("train", 100)
    items = [node("n1", 2), pod("db-0", 30, "n1", 0, labels=labels), pod("large", 50, "n1", 1), waiting]
    (path := tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    assert (
        run(["defrag", "pod/train", "-n", "team", "--from", str(path), "--context", "lab", "-o", "json"]) == 0
    )
    assert json.loads(said(capsys)[0])["commands"] == [
        "kubectl vcuda cordon GPU-n1-0 --context lab",
        "kubectl -n team delete pod db-0 --context lab",
        "kubectl -n team wait --for=create pod/db-0 --timeout=5m --context lab",
        "kubectl -n team wait --for=condition=PodScheduled pod/db-0 --timeout=5m --context lab",
        "kubectl vcuda uncordon GPU-n1-0 --context lab",
        "kubectl -n team wait --for=condition=PodScheduled pod/train --timeout=5m --context lab",
    ]
