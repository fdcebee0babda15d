"""The admission service beside the API servers of the group ``objects``: its readiness, and its metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.admission_program import ApiPlace, ApiProcess, ServiceProcess
from gpu_manager.domain.contract import ADMISSION_NAME, NAMESPACE
from gpu_manager.domain.errors import NodeUnready
from sandbox.http_client import LoopbackClient

_START_SECONDS: Final = 600.0


@contextmanager
def stand_in(nodes: int) -> Iterator[ApiProcess]:
    """The stand-in's process, by :mod:`bench.objects_api`."""
    api = ApiProcess(nodes, "bench.objects_api")
    try:
        yield api
    finally:
        api.close()


def until_ready(service: ServiceProcess) -> None:
    """Wait until it has listed all that it must know."""
    ends = time.monotonic() + _START_SECONDS
    while True:
        probe = LoopbackClient(service.probe_port)
        try:
            if probe.ask("GET", "/readyz")[0] == 200:
                return
        except NodeUnready:
            pass
        finally:
            probe.close()
        assert time.monotonic() < ends, "the service does not become ready"
        time.sleep(0.2)


def total(api: ApiPlace, service: ServiceProcess, metric: str) -> float:
    """All series of a metric of the service together, which must be there."""
    authority = api.authority()
    line = LoopbackClient(service.port, f"{ADMISSION_NAME}.{NAMESPACE}.svc", lambda: authority)
    try:
        text = line.ask("GET", "/metrics")[1].decode()
    finally:
        line.close()
    found = re.findall(rf"^vcuda_admission_{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"{metric} is not shown"
    return sum(map(float, found))
