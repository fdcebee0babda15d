"""Each command of ``kubectl vcuda`` in a cluster of hostile objects: it answers, and names what it cannot read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from bench.objects_texts import made
from gpu_manager.cli.kubectl.main import run
from sandbox.api import StandInApi
from tests.agreement.api_reads import FIELDS
from tests.fakes.kubectl import MANIFEST, a_node, a_share, an_agent, said

pytestmark = pytest.mark.usefixtures("kubectl_login")

# Of the wrong type where a command may read; an API server has types, a proxy or a file of objects has none.
ODD: tuple[Any, ...] = (
    7,
    "x",
    [7],
    {"a": 7},
    True,
    [{"name": 7}],
    [[]],
    1e400,
    reduce(lambda within, _: [within], range(700), 7),
)
PLACES = {
    "Pod": ("spec", "status", "spec.containers", "spec.nodeSelector", "spec.tolerations", "spec.affinity",
            "spec.priority", "spec.overhead", "metadata.labels", "metadata.annotations", "status.phase",
            "metadata.ownerReferences", "status.containerStatuses", "spec.resourceClaims", "metadata.uid"),
    "Node": ("spec", "status", "spec.taints", "status.allocatable", "metadata.labels", "status.conditions",
             "metadata.annotations", "status.capacity", "status.nodeInfo"),
    "PodDisruptionBudget": ("spec", "status", "spec.selector", "status.disruptionsAllowed"),
    "PriorityClass": ("value", "globalDefault"),
}  # fmt: skip
VERSIONS = {"PodDisruptionBudget": "policy/v1", "PriorityClass": "scheduling.k8s.io/v1"}
COMMANDS = {
    "top": ["top"],
    "graph": ["graph"],
    "quota": ["quota"],
    "explain": ["explain", "waits"],
    "explain -f": ["explain", "-f", "FILE"],
    "simulate": ["simulate", "FILE"],
    "drain": ["simulate", "--drain", "n1"],
    "defrag": ["defrag", "FILE"],
    "advise": ["advise"],
    "cordon": ["cordon", "GPU-1"],
    "doctor": ["doctor"],
    "resize": ["resize", "train", "--cores", "20", "--wait", "0"],
}


def odd(kind: str, place: str, value: Any, number: int) -> dict[str, Any]:
    name = f"odd-{number}"
    obj: dict[str, Any] = {"apiVersion": VERSIONS.get(kind, "v1"), "kind": kind, "spec": {}, "status": {}}
    obj["metadata"] = {"name": name, "uid": f"u-{number}"}
    if kind in ("Pod", "PodDisruptionBudget"):
        obj["metadata"]["namespace"] = "default"
    if kind == "Pod":
        limits = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "4"}
        obj["spec"] = {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": limits}}]}
    inside: Any = obj
    *parents, last = place.split(".")
    for parent in parents:
        inside = inside[parent]
    inside[last] = value
    return obj


def written(obj: Mapping[str, Any], end: bytes = b"}") -> bytes:
    return json.dumps(obj).encode()[:-1] + end


@pytest.fixture
def hostile(api: StandInApi, tmp_path: Path) -> StandInApi:
    a_node(api)
    a_share(api, "train", 30)
    an_agent(api, {"usage": {}})
    waits = {"name": "c", "resources": {"limits": {"tencent.com/vcuda-core": "250"}}}
    api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"}, "spec": {"containers": [waits]}}
    )
    for number in range(len(FIELDS)):
        for kind in ("hostile", "node"):
            one = made(kind, number)
            api.create_written(one.obj, lambda _, one=one: one.write(one.obj["metadata"]))
    for kind, more in (("Pod", {"namespace": "default"}), ("Node", {})):
        obj = {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": f"broken-{kind.lower()}", **more},
            "spec": {},
        }
        api.create_written(obj, lambda _, obj=obj: written(obj, b",}"))
    number = 0
    for kind, places in PLACES.items():
        for place in places:
            for value in ODD:
                number += 1
                obj = odd(kind, place, value, number)
                plain = {
                    **obj,
                    "spec": {},
                    "status": {},
                    "metadata": {"name": f"odd-{number}", "namespace": "default"},
                }
                api.create_written(plain, lambda _, obj=obj: written(obj))
    (tmp_path / "web.yaml").write_text(MANIFEST % 20)
    return api


@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_a_command_answers_and_names_what_it_cannot_read(
    words: list[str], hostile: StandInApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word.replace("FILE", str(tmp_path / "web.yaml")) for word in words]) in (0, 1)
    out, err = said(capsys)
    assert out
    lists = words[0] != "resize"  # which reads one pod
    assert lists == ("broken-node cannot be read and is left out: " in err)
    if lists and words[0] != "cordon":  # which reads nodes alone
        assert "default/broken-pod cannot be read and is left out: " in err
        assert "more objects cannot be read and are left out" in err


def test_a_saved_cluster_names_them_too(
    api: StandInApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    (tmp_path / "web.yaml").write_text(MANIFEST % 20)
    items = [written(obj) for obj in api.list("nodes")]
    items += [
        b'{"kind":"Pod","metadata":{"namespace":"default","name":"broken"},}',
        written(odd("Pod", "spec", 7, 1)),
    ]
    saved = tmp_path / "cluster.json"
    saved.write_bytes(b'{"apiVersion":"v1","kind":"List","items":[%b]}' % b",".join(items))
    assert run(["simulate", str(tmp_path / "web.yaml"), "--from", str(saved)]) in (0, 1)
    out, err = said(capsys)
    assert out
    assert "default/broken cannot be read" in err
    assert "default/odd-1 cannot be read" in err
