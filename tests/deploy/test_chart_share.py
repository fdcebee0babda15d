"""The second part of `helm test`, run: its pod as the chart writes it, on a sandbox's node."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_manager.sandbox.whole import Sandbox, Settings
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


def test_the_share_is_granted_and_the_driver_shows_it_and_another_size_is_a_failure() -> None:
    settings = {"profile": "t4x4", "admission": False}
    with short_directory() as directory, Sandbox(Settings(directory / "s", **settings)) as sandbox:
        if not sandbox.native.complete:
            pytest.fail("the stand-in driver is not built: make setup")
        phase, said = ended(sandbox, pod())
        assert (phase, said.count("ok  "), "FAIL" in said) == ("Succeeded", 3, False), said
        assert "256 MiB of GPU-" in said
        until(lambda: not sandbox.api.list("pods"))
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
