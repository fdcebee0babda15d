"""What the demo says when something is not so; ``make demo``, a part of CI, runs it from beginning to end."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from gpu_manager.domain.errors import NodeUnready
from sandbox.demo import metrics as scene
from sandbox.demo.output import DemoOutput
from sandbox.demo.run import _sum

REQUEST = (
    'container_request_gpu_memory{container_name="nginx",namespace="default",node="sandbox",pod_name="nginx",'
)


class _Sandbox:
    """An agent that answers with this text."""

    metrics_url = "http://127.0.0.1:1/metric"

    def __init__(self, text: str) -> None:
        self._text = text

    def ask(self, _path: str) -> str:
        return self._text

    def wait(self, holds: Any, _seconds: float, otherwise: str) -> None:
        if not holds():
            raise NodeUnready(otherwise)


class _Stage:
    def __init__(self, text: str) -> None:
        self.sandbox = _Sandbox(text)


def paper() -> tuple[DemoOutput, StringIO]:
    out = StringIO()
    return DemoOutput(Console(file=out, width=200)), out


def test_a_missing_series_is_said_and_fails_the_demo() -> None:
    page, out = paper()
    scene.metrics(_Stage("# nothing\n"), page)  # type: ignore[arg-type]  # what metrics() uses of a stage
    assert len(page.failed) == len(scene.WANTED)
    assert _sum(page, Path("/tmp/x")) == 1
    assert "do NOT hold" in out.getvalue()
    assert "container_request_gpu_memory" in out.getvalue()


def test_a_wrong_value_is_said() -> None:
    page, out = paper()
    line = f'{REQUEST}req_of_gpu_memory="total"}} 4096.0'
    scene.metrics(_Stage(line), page)  # type: ignore[arg-type]  # as above
    assert "is 5120, not 4096.0" in out.getvalue()
