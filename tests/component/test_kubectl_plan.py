"""What-if commands over a saved cluster: what they answer, what they refuse, and that they change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CORE, INVENTORY, MEMORY, Inventory, encode_inventory
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.domain.topology import SELF, Link, Topology
from tests.fakes.claims import result
from tests.fakes.extender import node as claimed
from tests.unit.test_cluster_claims import claim, device


def node(name: str, cards: int, unit: int = DEFAULT_UNIT) -> dict[str, Any]:
    links = tuple(tuple(SELF if i == j else Link.parse("PIX") for j in range(cards)) for i in range(cards))
    states = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), "A100", 64 * DEFAULT_UNIT)) for i in range(cards)
    )
    inventory = encode_inventory(Inventory(unit, states, Topology(links)))
    return {"kind": "Node", "metadata": {"name": name, "annotations": {INVENTORY: inventory}}}


def pod(name: str, cores: int, on: str = "", card: int = 0, **meta: Any) -> dict[str, Any]:
    said = {
        "v": 1,
        "node": on,
        "pod": f"uid-{name}",
        "containers": {"main": [{"uuid": f"GPU-{on}-{card}", "cores": cores, "memory": 8 * DEFAULT_UNIT}]},
    }
    limits = {CORE: str(cores)} | ({MEMORY: "8"} if cores < 100 else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "annotations": {"tencent.com/vcuda-allocation": json.dumps(said)} if on else {},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}],
            **meta,
        },
        "spec": {
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
            **({"nodeName": on} if on else {}),
        },
        "status": {"phase": "Running" if on else "Pending"},
    }


def budget(allowed: int) -> dict[str, Any]:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "team"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": allowed},
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two cards half full; a whole one is wanted."""
    path = tmp_path / "cluster.json"
    items = [node("n1", 2), pod("small", 30, "n1", 0), pod("large", 50, "n1", 1), pod("train", 100)]
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


def manifest(path: Path, cores: int, replicas: int) -> str:
    template = {"spec": pod("p", cores)["spec"]}
    spec = {"replicas": replicas, "template": template}
    path.write_text(
        yaml.safe_dump(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        )
    )
    return str(path)


def test_replicas_are_seated_one_by_one_and_the_rest_hear_why_once(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", manifest(tmp_path / "web.yaml", 40, 5), "--from", str(saved)]) == 1
    shown = capsys.readouterr()
    assert "2 of 5 pods fit" in shown.out
    assert "default/web-2 and 2 more: no room on the only node" in shown.out
    assert "Judged by cards" in shown.err


def test_how_many_more_nodes(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    web = manifest(tmp_path / "web.yaml", 40, 12)
    assert run(["simulate", web, "--like", "n1", "--from", str(saved), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["added"] == 3  # two fit beside what runs, four on each new node's two cards
    assert answer["refused"] == []
    assert len(answer["placements"]) == 12


def test_a_node_that_goes_names_what_finds_no_place(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--drain", "n1", "--from", str(saved)]) == 1
    said = capsys.readouterr().out
    assert "team/large and 1 more: no other node publishes cards" in said
    assert "0 of 2 pods fit" in said


def test_the_fewest_moves_are_printed_with_before_and_after(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["defrag", "train", "-n", "team", "--from", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "team/train would fit on node n1, card 0 if 1 pod moved (the fewest possible)" in shown
    assert "team/small   n1 card 0   n1 card 1" in shown
    assert "before:\n  n1 card 0: 70 cores, 14 GiB free; team/small" in shown
    assert "after:\n  n1 card 0: 0 cores" in shown


@pytest.mark.parametrize("kept", ["budget", "no controller"])
def test_what_must_stay_is_not_moved(
    kept: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = json.loads(saved.read_text())
    if kept == "budget":
        cluster["items"].append(budget(0))
    else:
        for item in cluster["items"][1:3]:
            del item["metadata"]["ownerReferences"]
    saved.write_text(json.dumps(cluster))
    assert run(["defrag", "train", "-n", "team", "--from", str(saved)]) == 1
    said = capsys.readouterr().out
    assert "of the 0 pods that may move makes room on one node; these must stay: team/" in said
    why = {
        "budget": "team/small (PodDisruptionBudget team/all allows no more disruption)",
        "no controller": "team/small (no controller would make it anew)",
    }
    assert why[kept] in said


def test_what_no_node_can_ever_hold_is_said_at_once(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = manifest(tmp_path / "huge.yaml", 1600, 1)
    assert run(["defrag", huge, "--from", str(saved)]) == 1
    assert "no node could hold it even if all its pods were gone" in capsys.readouterr().out
    assert run(["simulate", huge, "--like", "n1", "--from", str(saved)]) == 1
    said = capsys.readouterr().out
    assert 'not even an empty node like "n1" holds it: ' in said
    assert "nodes like n1 would not help" in said


def test_a_cluster_without_nodes_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "none.json").write_text('{"items": []}')
    web = manifest(tmp_path / "web.yaml", 40, 1)
    assert run(["simulate", web, "--from", str(path)]) == 1
    assert "default/web: no node publishes cards" in capsys.readouterr().out
    assert run(["defrag", web, "--from", str(path)]) == 1
    assert "default/web: no node publishes cards" in capsys.readouterr().out
    assert run(["simulate", web, "--like", "h200x8", "--from", str(path)]) == 0
    assert "1 more node like h200x8 is needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate"], "give manifests of the pods to come, or --drain NODE"),
        (["simulate", "--drain", "n9"], 'node "n9" publishes no cards; nodes that do: n1'),
        (["defrag", "nobody"], 'no pod "nobody" that asks for cards'),
        (["defrag", "small", "-n", "team"], "is on node n1 already"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--from", str(saved)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_illegal_pod_is_named_with_its_file(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = manifest(tmp_path / "wrong.yaml", 150, 3)
    fine = manifest(tmp_path / "fine.yaml", 20, 1)
    assert run(["simulate", fine, wrong, "--from", str(saved)]) == 2
    error = capsys.readouterr().err
    assert "wrong.yaml: Deployment default/web: cores are greater than 100" in error
    assert run(["simulate", manifest(tmp_path / "many.yaml", 20, 100_001), "--from", str(saved)]) == 2
    assert "many.yaml: Deployment default/web: more than 100000 pods in all" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"items": 3}', '{"items": [1, {"kind": "Node"}, {"kind": "Pod"}]}']
)
def test_a_file_of_anything_is_survived(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    web = manifest(tmp_path / "web.yaml", 40, 1)
    assert run(["simulate", web, "--from", str(path)]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


def with_items(saved: Path, *items: dict[str, Any]) -> list[dict[str, Any]]:
    """The saved cluster with more in it; what it now holds."""
    cluster = json.loads(saved.read_text())
    cluster["items"] += items
    saved.write_text(json.dumps(cluster))
    return list(cluster["items"])


def test_a_node_that_bars_a_pod_is_no_place_for_it(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tainted = node("n2", 2)
    tainted["spec"] = {"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]}
    cordoned = node("n3", 2)
    cordoned["spec"] = {"unschedulable": True}
    with_items(saved, tainted, cordoned)
    web = manifest(tmp_path / "web.yaml", 40, 4)
    assert run(["simulate", web, "--from", str(saved)]) == 1
    said = capsys.readouterr().out
    assert "2 of 4 pods fit" in said
    assert 'not asked: "n2" has the taint "dedicated=ml:NoSchedule", which the pod does not tolerate' in said
    assert '"n3" is cordoned' in said
    text = yaml.safe_load(Path(web).read_text())
    text["spec"]["template"]["spec"]["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    Path(web).write_text(yaml.safe_dump(text))
    assert run(["simulate", web, "--from", str(saved)]) == 0


def test_a_daemon_set_has_a_pod_on_every_node_and_none_of_them_is_moved(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cordoned = node("n2", 1)
    cordoned["spec"] = {"unschedulable": True}
    daemon = {"kind": "DaemonSet", "name": "mon", "controller": True}
    running = pod("mon-x", 5, "n2", 0, ownerReferences=[daemon])
    with_items(saved, cordoned, running)
    path = tmp_path / "mon.yaml"
    template = {"spec": pod("p", 5)["spec"]}
    kind = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "mon"}}
    path.write_text(yaml.safe_dump({**kind, "spec": {"template": template}}))
    assert run(["simulate", str(path), "--from", str(saved), "-o", "json"]) == 0
    placements = json.loads(capsys.readouterr().out)["placements"]
    assert [(s["pod"], s["node"]) for s in placements] == [("default/mon-n1", "n1"), ("default/mon-n2", "n2")]
    assert run(["simulate", "--drain", "n2", "--from", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "team/mon-x: its DaemonSet would make it anew on the same node" in said
    assert "0 of 0 pods fit" in said


def test_a_drain_says_who_would_be_lost_and_which_budget_makes_it_wait(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = pod("bare", 10, "n1", 0, ownerReferences=[])
    with_items(saved, node("n2", 2), bare, budget(1))
    assert run(["simulate", "--drain", "n1", "--from", str(saved)]) == 1
    shown = capsys.readouterr()
    assert "team/bare: no controller would make it anew: it would be gone for good" in shown.out
    assert "PodDisruptionBudget team/all lets 1 of 2 of these pods go now: kubectl drain waits" in shown.out
    assert "Pods that wait already and are not counted: 1." in shown.err
    assert run(["simulate", "--drain", "n1", "--from", str(saved), "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["budgets"] == [{"name": "team/all", "allowed": 1, "pods": 2}]


def test_a_node_that_counts_memory_otherwise_is_left_out_as_the_extender_leaves_it_out(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_items(saved, node("n2", 1), node("n0", 1, unit=DEFAULT_UNIT // 2))
    web = manifest(tmp_path / "web.yaml", 40, 5)
    assert run(["simulate", web, "--from", str(saved)]) == 1
    said = capsys.readouterr().out
    assert "4 of 5 pods fit" in said
    assert '"n0" counts memory by 128 MiB, most nodes by 256 MiB' in said


def test_a_node_whose_agent_is_being_replaced_is_left_out_and_a_new_one_like_it_is_not(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = node("n9", 4)
    said = json.loads(away["metadata"]["annotations"][INVENTORY])
    away["metadata"]["annotations"][INVENTORY] = json.dumps({**said, "serving": False})
    with_items(saved, away)
    web = manifest(tmp_path / "web.yaml", 100, 6)
    assert run(["simulate", web, "--from", str(saved)]) == 1
    shown = capsys.readouterr().out
    assert '"n9" waits for its agent, which is starting or has left' in shown
    assert run(["simulate", web, "--from", str(saved), "--like", "n9"]) == 0
    assert "more nodes like n9 are needed" in capsys.readouterr().out


def test_host_cpu_counts_with_what_pods_without_a_card_take(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allocatable = {"cpu": "4", "memory": "64Gi", "pods": "110"}
    roomy = {**node("n2", 2), "status": {"allocatable": allocatable}}
    resources = {"requests": {"cpu": "1500m"}}
    daemon = {"kind": "DaemonSet", "name": "logs", "controller": True}
    plain = [
        {
            "kind": "Pod",
            "metadata": {"name": name, "uid": name, "ownerReferences": owners},
            "spec": {"nodeName": "n2", "containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": phase},
        }
        for name, phase, owners in (("logs", "Running", [daemon]), ("done", "Succeeded", []))
    ]
    items = with_items(saved, roomy, *plain)
    items[0]["spec"] = {"unschedulable": True}
    saved.write_text(json.dumps({"items": items}))
    web = manifest(tmp_path / "web.yaml", 20, 4)
    text = yaml.safe_load(Path(web).read_text())
    limits = text["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["cpu"] = 1  # a request of as much, as the API server has it
    Path(web).write_text(yaml.safe_dump(text))
    assert run(["simulate", web, "--from", str(saved)]) == 1
    said = capsys.readouterr().out
    assert "2 of 4 pods fit" in said
    assert '"n2" has less host CPU free than the 1 that the pod asks for' in said
    assert run(["simulate", web, "--like", "n2", "--from", str(saved)]) == 0
    assert "1 more node like n2 is needed" in capsys.readouterr().out  # its logs' pod takes 1.5 of 4


def test_a_pod_that_is_ending_is_not_moved(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = with_items(saved)
    for item in items[1:3]:
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    saved.write_text(json.dumps({"items": items}))
    assert run(["defrag", "train", "-n", "team", "--from", str(saved)]) == 1
    assert "team/small (it is ending already)" in capsys.readouterr().out


def test_a_priority_class_counts_as_the_api_server_would_write_it(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = with_items(saved, {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000})
    for item in items[1:3]:
        item["spec"]["priority"] = 500
    saved.write_text(json.dumps({"items": items}))
    path = tmp_path / "train.yaml"
    one = pod("train-2", 100)
    path.write_text(yaml.safe_dump(one))
    assert run(["defrag", str(path), "--from", str(saved)]) == 1
    assert "team/large (its priority 500 is above 0)" in capsys.readouterr().out
    one["spec"]["priorityClassName"] = "high"
    path.write_text(yaml.safe_dump(one))
    assert run(["defrag", str(path), "--from", str(saved)]) == 0
    assert "if 1 pod moved" in capsys.readouterr().out
    one["spec"]["priorityClassName"] = "unheard-of"
    path.write_text(yaml.safe_dump(one))
    assert run(["defrag", str(path), "--from", str(saved)]) == 1
    assert 'priority class "unheard-of" is not known here: judged with priority 0' in capsys.readouterr().err


def test_a_cluster_comes_by_standard_input_too(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with saved.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert run(["simulate", manifest(tmp_path / "web.yaml", 40, 2), "--from", "-"]) == 0
    assert "2 of 2 pods fit" in capsys.readouterr().out


def test_no_more_pods_move_than_may(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_items(saved, pod("more", 20, "n1", 0), node("n2", 1), pod("much", 20, "n2", 0))
    with_items(saved, node("n3", 1), pod("tiny", 5, "n3", 0))
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(pod("two", 200)))
    assert run(["defrag", str(path), "--from", str(saved), "--moves", "2"]) == 1
    assert "no set of at most 2 of the 5 pods" in capsys.readouterr().out
    assert run(["defrag", str(path), "--from", str(saved), "--moves", "3"]) == 0
    assert "if 3 pods moved (the fewest possible)" in capsys.readouterr().out


def test_a_pod_of_another_namespace_is_named(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["defrag", "train", "--from", str(saved)]) == 2
    assert 'in namespace "default"; there is one in "team": name it with -n' in capsys.readouterr().err


def a_claim(name: str, where: str, *pods: str) -> dict[str, Any]:
    given = result(device(where, 0, 1), 40, 4 * GIB, pool=where)
    return {"kind": "ResourceClaim", **claim(name, given, namespace="team", pods=pods)}


def test_pods_with_claims_are_named_where_their_node_goes_and_where_nothing_is_planned_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.json"
    nodes = [{"kind": "Node", **claimed("n1", 1, claimed=[0])}, node("n2", 2)]
    path.write_text(json.dumps({"items": [*nodes, a_claim("shared", "n1", "a", "b")]}))
    assert run(["simulate", "--drain", "n1", "--from", str(path)]) == 0
    shown = capsys.readouterr()
    assert "team/a and 1 more: holds cards by ResourceClaims; where kube-scheduler would" in shown.out
    assert "left out" not in shown.err
    assert run(["simulate", "--drain", "n1", "--from", str(path), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["byClaims"] == ["team/a", "team/b"]
    assert run(["defrag", "a", "-n", "team", "--from", str(path)]) == 2
    assert "for a pod with ResourceClaims nothing is planned" in capsys.readouterr().err
    path.write_text(json.dumps({"items": nodes}))
    assert run(["simulate", "--drain", "n1", "--from", str(path)]) == 0
    assert "what ResourceClaims hold is left out: the file has none" in capsys.readouterr().err


def test_manifests_with_claims_alone_are_sent_to_explain_and_counted_beside_others(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claiming = tmp_path / "claiming.yaml"
    spec = {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        "containers": [{"name": "c"}],
    }
    claiming.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    )
    assert run(["simulate", str(claiming), "--from", str(saved)]) == 2
    assert "kubectl vcuda explain -f says where each would go now" in capsys.readouterr().err
    web = manifest(tmp_path / "web.yaml", 40, 1)
    assert run(["simulate", web, str(claiming), "--from", str(saved)]) == 0
    assert "Not counted: 1 manifests whose pods use ResourceClaims." in capsys.readouterr().err
