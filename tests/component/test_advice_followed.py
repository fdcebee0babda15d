"""What commands tell people to do, done to the letter on a sandbox: does it help?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.contract import CORE, MEMORY, PLACEMENT
from sandbox import commands
from sandbox.simulated_cluster import NODE, Sandbox, SandboxSettings
from tests.fakes.sandbox import short_directory, until
from tests.fakes.typist import Typist

HASH = "pod-template-hash"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with short_directory() as directory:
        settings = SandboxSettings(directory / "s", profile="t4x4")
        with Sandbox(settings) as running:
            yield running


@pytest.fixture(autouse=True)
def on_the_sandbox(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KUBECONFIG", str(sandbox.kubeconfig))
    yield
    for pod in sandbox.api.list("pods", "default"):
        sandbox.api.delete("pods", pod["metadata"]["name"], grace=0)
    until(lambda: not sandbox.api.list("pods", "default"))


def manifest(name: str, cores: int, **meta: Any) -> dict[str, Any]:
    limits = {CORE: str(cores)} | ({MEMORY: "4"} if cores < 100 else {})
    spec = {
        "containers": [{"name": "main", "image": "sandbox", "resources": {"limits": limits}}],
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **meta},
        "spec": spec,
    }


def is_running(sandbox: Sandbox, name: str) -> bool:
    return ((sandbox.api.get("pods", name) or {}).get("status") or {}).get("phase") == "Running"


def start(sandbox: Sandbox, *manifests: dict[str, Any]) -> None:
    for one in manifests:
        commands.apply(sandbox.api, [one])
        until(lambda one=one: is_running(sandbox, one["metadata"]["name"]))  # type: ignore[misc]


def spread(name: str, cores: int, app: str) -> dict[str, Any]:
    """A pod of a ReplicaSet that likes the emptiest card: the one that it has just left."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": "u", "controller": True}
    meta = {"labels": {"app": app, HASH: app}, "ownerReferences": [owner]}
    return manifest(name, cores, annotations={PLACEMENT: "spread"}, **meta)


def test_the_sandboxs_agent_is_asked_through_the_api_server(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    start(sandbox, manifest("train", 30))
    until(lambda: run(["top"]) == 0 and "30      0 %" in capsys.readouterr().out)  # once it was sampled
    assert run(["top"]) == run(["advise"]) == 0
    assert capsys.readouterr().err == ""


def test_defrag_makes_room_when_its_commands_are_typed(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    start(sandbox, manifest("whole", 200), spread("web-1", 40, "web"), spread("api-1", 50, "api"))
    commands.apply(sandbox.api, [manifest("train", 100)])
    until(lambda: run(["defrag", "train"]) == 0 and "to do it:" in capsys.readouterr().out)
    assert run(["defrag", "pod/train"]) == 0
    lines = capsys.readouterr().out.partition("to do it:\n")[2].splitlines()
    numbers = count(2)

    def replaced(gone: Mapping[str, Any]) -> None:
        app = gone["metadata"]["labels"]["app"]
        cores = int(gone["spec"]["containers"][0]["resources"]["limits"][CORE])
        commands.apply(sandbox.api, [spread(f"{app}-{next(numbers)}", cores, app)])

    typist = Typist(sandbox.api, replaced)
    for line in lines:
        typist.type(line)
    until(lambda: is_running(sandbox, "train"))
    assert all(card["cordoned"] is False for card in sandbox.graph()["cards"])
    until(
        lambda: all(is_running(sandbox, p["metadata"]["name"]) for p in sandbox.api.list("pods", "default"))
    )


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"unschedulable": True}, "is cordoned"),
        (
            {"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]},
            'has the taint "dedicated=ml:NoSchedule", which the pod does not tolerate',
        ),
    ],
)
def test_explain_does_not_promise_room_on_a_node_that_keeps_the_pod_off(
    spec: dict[str, Any], says: str, sandbox: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "late.yaml"
    file.write_text(json.dumps(manifest("late", 30)))
    sandbox.api.patch("nodes", NODE, {"spec": spec})
    try:
        # The service has seen it, and that what earlier tests ran is gone.
        until(lambda: run(["explain", str(file)]) == 1 and "has room for it" in capsys.readouterr().out)
        assert run(["explain", str(file)]) == 1
        out = capsys.readouterr().out
        assert f'waits: of 1 node, 1 keeps it off ("{NODE}" {says})' in out
        assert f"{NODE}: has room for it, but {says}" in out
        assert "there is room now" not in out
    finally:
        sandbox.api.patch("nodes", NODE, {"spec": dict.fromkeys(spec)})
    until(lambda: run(["explain", str(file)]) == 0)


def test_explain_names_the_selector_that_no_node_meets(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    picky = manifest("picky", 30)
    picky["spec"]["nodeSelector"] = {"zone": "b"}
    commands.apply(sandbox.api, [picky])
    assert run(["explain", "picky"]) == 1
    assert f'"{NODE}" lacks what the pod selects:' in capsys.readouterr().out
