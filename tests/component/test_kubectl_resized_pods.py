"""What plans and answers say of pods that have another size than their spec.

A grown pod of 30 cores has 80 of card 0, a shrunk one of 60 has 10 of card 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, CORE, MEMORY, RESIZE, RESIZED
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resize.sizes import ResizeAnswer, digest, encode_answer
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from sandbox.api import StandInApi
from tests.component.test_kubectl_plan import manifest, node, pod
from tests.fakes.kubectl import said


def resized(obj: dict[str, Any], cores: int, *, by_owner: bool = False) -> dict[str, Any]:
    """The pod with a size that was asked for, answered, and booked by its agent."""
    annotations = obj["metadata"]["annotations"]
    booked = json.loads(annotations[ALLOCATION])
    booked["containers"]["main"][0]["cores"] = cores
    annotations |= {ALLOCATION: json.dumps(booked), ASSIGNED: "true"}
    if not by_owner:
        annotations[RESIZE] = json.dumps({"v": 1, "containers": {"main": {"cores": cores}}})
    read = parse_pod(obj)
    sizes = {"main": Amount(cores, 8 * DEFAULT_UNIT)}
    annotations[RESIZED] = encode_answer(ResizeAnswer(read.uid, digest(read), sizes))
    return obj


def a_node() -> dict[str, Any]:
    return {**node("n1", 2), "status": {"allocatable": {CORE: "200", MEMORY: "128"}}}


def items(*, by_owner: bool = False) -> list[dict[str, Any]]:
    grown = resized(pod("grown", 30, "n1", 0), 80, by_owner=by_owner)
    return [a_node(), grown, resized(pod("shrunk", 60, "n1", 1), 10), pod("train", 100)]


def saved(tmp_path: Path, objects: list[dict[str, Any]]) -> str:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": objects}))
    return str(path)


def test_simulate_places_beside_the_sizes_that_pods_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = saved(tmp_path, items())
    web = manifest(tmp_path / "web.yaml", 85, 1)
    assert run(["simulate", web, "--from", cluster, "-o", "json"]) == 0
    ((place,),) = (json.loads(capsys.readouterr().out)["placements"],)
    assert [card["index"] if isinstance(card, dict) else card for card in place["cards"]] == [1]
    assert run(["simulate", manifest(tmp_path / "web.yaml", 95, 1), "--from", cluster]) == 1
    assert "0 of 1 pods fit" in capsys.readouterr().out


def test_simulate_counts_the_device_ids_that_a_shrunk_pod_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [a_node(), pod("other", 90, "n1", 0), resized(pod("shrunk", 60, "n1", 1), 10)]
    assert run(["simulate", manifest(tmp_path / "w.yaml", 85, 1), "--from", saved(tmp_path, there)]) == 1
    assert "has 50 device ids of tencent.com/vcuda-core left, and the pod asks for 85" in (
        capsys.readouterr().out
    )


def test_defrag_moves_a_grown_pod_which_comes_back_with_the_size_of_its_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["defrag", "train", "-n", "team", "--from", saved(tmp_path, items())]) == 0
    shown = capsys.readouterr().out
    assert "team/grown   n1 card 0   n1 card 1" in shown
    assert "before:\n  n1 card 0: 20 cores, 14 GiB free; team/grown" in shown
    assert "n1 card 1: 60 cores, 12 GiB free; team/shrunk, team/grown" in shown


def test_defrag_gives_a_pod_that_grew_with_its_workload_that_size_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["defrag", "train", "-n", "team", "--from", saved(tmp_path, items(by_owner=True))]) == 0
    assert "n1 card 1: 10 cores, 12 GiB free; team/shrunk, team/grown" in capsys.readouterr().out


@pytest.mark.usefixtures("kubectl_login")
def test_explain_counts_real_sizes_card_by_card(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    for obj in items()[:3]:
        made = api.create({"apiVersion": "v1", **obj})
        if obj["kind"] == "Pod":
            text = json.dumps(obj["metadata"]["annotations"]).replace(
                obj["metadata"]["uid"], made["metadata"]["uid"]
            )
            api.patch(
                "pods", obj["metadata"]["name"], {"metadata": {"annotations": json.loads(text)}}, "team"
            )
    file = tmp_path / "web.yaml"
    manifest(file, 95, 1)
    assert run(["explain", str(file), "-o", "json", "--admission", "-"]) == 1
    (answer,) = json.loads(said(capsys)[0])["pods"]
    reasons = [card["reason"] for card in answer["nodes"][0]["cards"]]
    assert [reason.split(" free")[0] for reason in reasons] == ["95 cores asked, 20", "95 cores asked, 90"]
    manifest(file, 85, 1)
    assert run(["explain", str(file), "--admission", "-"]) == 0
    assert "on n1 it would get 85 cores, 2 GiB of card 1" in said(capsys)[0]
