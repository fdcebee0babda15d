"""Objects that mean harm, or are many: what agent and service hear of others, and who waits meanwhile.

An API server stand-in is another process; what it sends is what a real one stores (tests/agreement).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.admission_program import ApiProcess, ServiceProcess, mebibytes, sample_review
from bench.rows import Row, percentile
from gpu_manager.domain.contract import ADMISSION_NAME, NAMESPACE
from gpu_manager.domain.errors import NodeUnready
from sandbox.http_client import LoopbackClient

PARTS = ("hostile", "large", "lists")
_AGENT_MIB, _ADMISSION_MIB = 256, 512  # half of the chart's memory limits
_HONEST: Final = 20
_TIMEOUT_SECONDS: Final = 5.0  # of the extender, and of the webhooks


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """Run it; ``only`` is one of :data:`PARTS`."""
    if only in ("", "hostile"):
        yield from _hostile(full=full)
    if only in ("", "large"):
        yield from _large(full=full)
    if only in ("", "lists"):
        yield from _lists(full=full)


@contextmanager
def _api(nodes: int) -> Iterator[ApiProcess]:
    api = ApiProcess(nodes, "bench.objects_api")
    try:
        yield api
    finally:
        api.close()


class _Agent:
    """The reader's process."""

    def __init__(self, api: ApiProcess) -> None:
        command = [sys.executable, "-m", "bench.objects_reader", api.url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def end(self) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        figures = self.line()
        self._process.wait(20)
        self._process.stdout.close()
        return figures


def _hostile(*, full: bool) -> Iterator[Row]:
    count = 10_000 if full else 300
    waiting = 75 if full else 10
    with _api(2) as api:
        api.pods("hostile", count - count // 10)
        api.pods("affine", waiting)
        agent, service = _Agent(api), ServiceProcess(api, "--leader-mode=alone")
        try:
            agent.line()  # the list is in
            _until_ready(service)
            late = []
            for _ in range(_HONEST):
                api.pods("hostile", count // 10 // _HONEST)
                created = api.pods("honest", 1)
                late.append(agent.line() - created)
            agent_figures = agent.end()
            unreadable = _sum(api, service, "unreadable_objects_total")
            resident = mebibytes(service.process.pid, "VmHWM")
        finally:
            service.close()
    missing = count + _HONEST - agent_figures["pods"] - count // 10 % _HONEST
    note = (
        f"{count:,} hostile pods of 150 KiB, {_HONEST} honest ones among them; {missing} of all not heard by "
        f"the agent, {agent_figures['unreadable']} and {unreadable:.0f} unreadable to agent and service"
    )
    if missing or agent_figures["error"] or unreadable:
        note = f"NOT HEARD: {note}"
        late.append(60.0)
    yield Row("hostile_objects_heard_s", round(max(late), 3), "s", "≤ 1", None, full, note)
    note = f"most that is resident; beside the same, {waiting} waiting pods with 0.8 MiB of node affinity"
    yield Row("hostile_objects_agent_mib", agent_figures["peak"], "MiB", f"≤ {_AGENT_MIB}", None, full, note)
    yield Row("hostile_objects_admission_mib", resident, "MiB", f"≤ {_ADMISSION_MIB}", None, full, note)


def _until_ready(service: ServiceProcess) -> None:
    ends = time.monotonic() + 600
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


def _large(*, full: bool) -> Iterator[Row]:
    count = 5_000 if full else 150
    with _api(2) as api:
        api.pods("large", count)
        agent, service = _Agent(api), ServiceProcess(api, "--leader-mode=alone")
        try:
            agent.line()
            _until_ready(service)
            figures = agent.end()
            resident = mebibytes(service.process.pid, "VmHWM")
        finally:
            service.close()
    assert figures["pods"] == count, figures
    note = f"most that is resident while {count:,} pods of 1.2 MiB are listed"
    yield Row("large_objects_agent_mib", figures["peak"], "MiB", f"≤ {_AGENT_MIB}", None, full, note)
    yield Row("large_objects_admission_mib", resident, "MiB", f"≤ {_ADMISSION_MIB}", None, full, note)


def _lists(*, full: bool) -> Iterator[Row]:
    """Questions while full lists are read, all of which the service knows."""
    nodes, pods, lists = (1_000, 100_000, 20) if full else (100, 5_000, 3)
    with _api(nodes) as api:
        api.pods("others", pods)
        asked = api.pods("waiting", 1)
        service = ServiceProcess(api, "--leader-mode=alone")
        try:
            _until_ready(service)
            names = [f"node-{n:05d}" for n in range(nodes)]
            quiet = _Asker(api, service, asked, names)
            time.sleep(3.0)
            quiet.end()
            loud = _Asker(api, service, asked, names)
            began = time.monotonic()
            for number in range(lists):
                api.pods("forget", 1)
                while _sum(api, service, "waiting_pods") < number + 2:  # one more, and it is the list's last
                    time.sleep(0.05)
            took = time.monotonic() - began
            loud.end()
        finally:
            service.close()
    figure, bare = (round(percentile(one.took, 99) * 1e3, 1) for one in (loud, quiet))
    note = (
        f"{lists} lists of {pods:,} known pods in {took:.0f} s; {len(loud.took)} filters and reviews, "
        f"most {max(loud.took) * 1e3:.0f} ms; beside it without a list"
    )
    yield Row("list_silence_ms", figure, "ms", "≤ 50", bare, full, note)
    note = f"of {len(loud.took)} questions those that failed or took {_TIMEOUT_SECONDS:g} s"
    yield Row("list_questions_lost", loud.lost, "count", "≤ 0", quiet.lost, full, note)


def _sum(api: ApiProcess, service: ServiceProcess, metric: str) -> float:
    """All series of a metric of the service, which must be there."""
    authority = api.authority()
    line = LoopbackClient(service.port, f"{ADMISSION_NAME}.{NAMESPACE}.svc", lambda: authority)
    try:
        text = line.ask("GET", "/metrics")[1].decode()
    finally:
        line.close()
    found = re.findall(rf"^vcuda_admission_{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"{metric} is not shown"
    return sum(map(float, found))


class _Asker:
    """A scheduler's and an API server's questions, one after the other."""

    def __init__(self, api: ApiProcess, service: ServiceProcess, pod: Any, names: list[str]) -> None:
        authority = api.authority()
        self.took: list[float] = []
        self.lost = 0
        self._service, self._pod, self._names = service, pod, names
        self._line = LoopbackClient(
            service.port, f"{ADMISSION_NAME}.{NAMESPACE}.svc", lambda: authority, _TIMEOUT_SECONDS
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        body, kind = json.dumps(sample_review()).encode(), {"Content-Type": "application/json"}
        while not self._ended.wait(0.002):
            for ask in (
                lambda: self._service.extender.filter(self._pod, self._names),
                lambda: self._line.ask("POST", "/validate", body, kind),
            ):
                began = time.perf_counter()
                try:
                    ask()
                except NodeUnready:
                    self.lost += 1
                took = time.perf_counter() - began
                self.took.append(took)
                self.lost += took >= _TIMEOUT_SECONDS

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._line.close()
