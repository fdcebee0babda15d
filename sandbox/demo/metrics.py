"""The demo's chapter on metrics: the predecessor's lines for the first pod, fetched as Prometheus would."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpu_manager.domain.errors import NodeUnready
from sandbox.demo.output import DemoOutput
from sandbox.demo.stage import Stage
from sandbox.simulated_cluster import NODE

SECONDS: Final = 8.0  # usage is sampled once a second
_SERIES: Final = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_POD: Final = {"container_name": "nginx", "namespace": "default", "node": NODE, "pod_name": "nginx"}
# Metric, its own label, value: what the first pod must show.
WANTED: Final = (
    ("container_request_gpu_memory", {"req_of_gpu_memory": "total"}, 5120.0),
    ("container_request_gpu_utilization", {"req_of_gpu": "total"}, 0.3),
    ("container_gpu_memory_total", {"gpu_memory": "total"}, 0.0),
    ("container_gpu_utilization", {"gpu": "total"}, 0.0),
)


def metrics(stage: Stage, paper: DemoOutput) -> None:
    """Fetch, print, check."""
    paper.heading(f"The first pod's metrics, from {stage.sandbox.metrics_url}:")
    found: dict[str, tuple[str, float]] = {}

    def complete() -> bool:
        found.update(_find(stage))
        return len(found) == len(WANTED)

    try:
        stage.sandbox.wait(complete, SECONDS, "not all series were there")
    except NodeUnready:
        paper.line("(not all of them came)")
    for name, extra, value in WANTED:
        line, got = found.get(name, ("", None))
        if line:
            paper.line(line)
        label = next(iter(extra))
        shown = f'{name}{{pod_name="nginx",{label}="total"}}'
        paper.check(got == value, f"{shown} is {value:g}" + ("" if got == value else f", not {got}"))


def _find(stage: Stage) -> Mapping[str, tuple[str, float]]:
    """Name → its line as it came, and its value."""
    found = {}
    for line in stage.sandbox.ask("/metric").splitlines():
        match = _SERIES.fullmatch(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        for name, extra, _ in WANTED:
            if match[1] == name and labels == {**_POD, **extra}:
                found[name] = (line, float(match[3]))
    return found
