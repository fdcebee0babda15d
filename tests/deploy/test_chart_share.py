"""The later parts of `helm test`, run: their pods as the chart writes them, on a sandbox's node."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_manager.adapters.kube.reading import is_agent
from sandbox.simulated_cluster import Sandbox, SandboxSettings
from tests.deploy.chart import the
from tests.fakes.sandbox import short_directory, until


def pod(*, share: str | None = None) -> dict[str, Any]:
    """As rendered, for the sandbox's one scheduler."""
    obj = the("defaults", "Pod", "gpu-manager-test-share")
    obj["spec"].pop("schedulerName")
    if share is not None:
        obj["spec"]["containers"][0]["args"][1] = share
    return obj


def ended(sandbox: Sandbox, obj: dict[str, Any]) -> tuple[str, str]:
    """Its phase, and what it printed."""
    name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
    sandbox.api.create(obj)
    phase = until(
        lambda: (
            (found := sandbox.api.get("pods", name, namespace)["status"].get("phase"))
            in ("Succeeded", "Failed")
            and found
        )
    )
    log = sandbox.directory / "logs" / f"{namespace}_{name}_share.log"
    said = log.read_text() if log.exists() else str(sandbox.api.get("pods", name, namespace)["status"])
    sandbox.api.delete("pods", name, namespace, grace=0)
    return str(phase), said


def room(sandbox: Sandbox, cores: int, memory: int) -> bool:
    """What the part before says of the sandbox's agent, at its own port."""
    script = the("defaults", "Pod", "gpu-manager-test-room")["spec"]["containers"][0]["args"][0]
    scope: dict[str, Any] = {"__name__": "room"}
    exec(script, scope)

    def moved(url: str, data: None, headers: dict[str, str]) -> urllib.request.Request:
        return urllib.request.Request(url.replace(":5678/", f":{sandbox.port}/"), data, headers)

    asking = SimpleNamespace(Request=moved, urlopen=urllib.request.urlopen)
    scope["urllib"] = SimpleNamespace(request=asking)
    return bool(scope["room"]("localhost", cores, memory))


def test_no_room_is_said_at_once_and_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"profile": "one", "admission": False}
    with short_directory() as directory, Sandbox(SandboxSettings(directory / "s", **settings)) as sandbox:
        assert room(sandbox, 1, 1 << 28)
        assert room(sandbox, 100, 0)
        assert "ok   room: 1 of 1 open cards have an idle card left" in capsys.readouterr().out
        obj = pod()
        obj["spec"]["containers"][0]["command"] = ["sleep", "60"]
        obj["spec"]["containers"][0]["args"] = []
        obj["spec"]["containers"][0]["resources"]["limits"]["tencent.com/vcuda-core"] = 99
        sandbox.api.create(obj)
        until(lambda: not room(sandbox, 2, 1 << 28))
        assert room(sandbox, 1, 1 << 28)
        assert not room(sandbox, 1, 1 << 60)
        assert not room(sandbox, 100, 0)
        assert "FAIL room: 0 of 1 open cards" in capsys.readouterr().out
        sandbox.set_card(0, {"healthy": False, "reason": "XID 79"})
        until(lambda: not sandbox.graph()["cards"][0]["healthy"])
        assert not room(sandbox, 1, 1 << 28)
        assert "0 of 0 open cards" in capsys.readouterr().out


def test_the_share_is_granted_and_the_driver_shows_it_and_another_size_is_a_failure() -> None:
    settings = {"profile": "t4x4", "admission": False}
    with short_directory() as directory, Sandbox(SandboxSettings(directory / "s", **settings)) as sandbox:
        if not sandbox.native.complete:
            pytest.fail("the stand-in driver is not built: make setup")
        phase, said = ended(sandbox, pod())
        assert (phase, said.count("ok  "), "FAIL" in said) == ("Succeeded", 3, False), said
        assert "256 MiB of GPU-" in said
        until(lambda: all(map(is_agent, sandbox.api.list("pods"))))
        phase, said = ended(sandbox, pod(share=str(1 << 30)))
        assert phase == "Failed"
        assert "FAIL its memory is the share: 256 MiB" in said


def test_where_no_driver_is_given_it_says_where_to_look() -> None:
    script = the("defaults", "Pod", "gpu-manager-test-share")["spec"]["containers"][0]["args"][0]
    scope: dict[str, Any] = {"__name__": "share"}
    exec(script, scope)
    scope["ctypes"] = type("none", (), {"CDLL": staticmethod(_nothing)})
    assert scope["opened"]() is None


def _nothing(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")
