"""Objects that mean harm, or are many: what agent and service hear of others, and who waits meanwhile.

Hostile ones lie in the etcd of a real API server where one is built; all else comes from a stand-in in a
process of its own, which sends what a real one stores (tests/agreement).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bench import objects_lists
from bench.admission_program import ApiPlace, ServiceProcess, mebibytes, processor_seconds
from bench.objects_real import real_api
from bench.objects_service import stand_in, total, until_ready
from bench.rows import Measure, Row, rows_of
from tests.deploy.api_server import ABSENT, THERE

_AGENT_MIB, _ADMISSION_MIB = 256, 512  # half of the chart's memory limits
_HONEST: Final = 20
_HEARD_SECONDS: Final = 60.0


class _Agent:
    """The reader's process."""

    def __init__(self, api: ApiPlace) -> None:
        command = [sys.executable, "-m", "bench.objects_reader", api.place]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    @property
    def processor(self) -> float:
        """Seconds of processor time of its process."""
        return processor_seconds(self._process.pid)

    def end(self) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        figures = self.line()
        self._process.wait(20)
        self._process.stdout.close()
        return figures


@dataclass
class _Heard:
    """How late the agent hears of honest pods: by the clock, and in processor time that API server and agent
    spent from its creation on, on what was created before it, too.
    """

    api: ApiPlace
    agent: _Agent
    late: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def among(self, kind: str, count: int) -> None:
        """So many objects of that kind, then an honest pod."""
        self.api.pods(kind, count)
        began = self.agent.processor + self.api.processor()
        created = self.api.pods("honest", 1)
        self.late.append(self.agent.line() - created)
        self.processor.append(self.agent.processor + self.api.processor() - began)

    def row(self, name: str, note: str, *, lost: bool, full: bool) -> Row:
        """Judged by processor time: the machine does other things, too."""
        figure = _HEARD_SECONDS if lost else max(self.processor)
        said = (
            f"{'NOT HEARD: ' if lost else ''}{note}; processor time of API server and agent until then, "
            f"{max(self.late):.2f} s by the clock at load {os.getloadavg()[0]:.0f}"
        )
        return Row(name, round(figure, 3), "s", "≤ 1", None, full, said)


def _hostile(*, full: bool) -> Iterator[Row]:
    count, waiting = (10_000, 75) if full else (400, 10)
    with _hostile_api() as api:
        for kind, number in (("node", count // 50), ("claim", count // 50), ("large", count // 50)):
            api.pods(kind, number)
        pods = count - count // 50 * 3
        api.pods("hostile", pods - pods // 10)
        api.pods("affine", waiting)
        own = f"--pod-name={api.pods('replica', 1)}"
        agent, service = _Agent(api), ServiceProcess(api, "--leader-mode=alone", "--claims", own)
        heard = _Heard(api, agent)
        try:
            agent.line()  # the list is in
            until_ready(service)
            for _ in range(_HONEST):
                heard.among("hostile", pods // 10 // _HONEST)
                api.pods("waiting", 1)
            served = _heard_by_service(api, service, waiting + _HONEST)
            agent_figures = agent.end()
            unreadable = total(api, service, "unreadable_objects_total")
            resident = mebibytes(service.process.pid, "VmHWM")
        finally:
            service.close()
    there = pods - pods // 10 + pods // 10 // _HONEST * _HONEST + count // 50 + _HONEST
    missing = there - agent_figures["pods"]
    note = (
        f"{api.name}: {count:,} hostile objects, nodes and claims among them, {_HONEST} honest pods of the "
        f"agent's node, {_HONEST} that ask; {missing} not heard by the agent, {served} by the service, "
        f"{agent_figures['unreadable']} and {unreadable:.0f} unreadable to them"
    )
    lost = bool(missing or served or agent_figures["error"] or unreadable)
    yield heard.row("hostile_objects_heard_s", note, lost=lost, full=full)
    note = f"most that is resident; beside the same, {waiting} waiting pods with 0.8 MiB of node affinity"
    yield Row("hostile_objects_agent_mib", agent_figures["peak"], "MiB", f"≤ {_AGENT_MIB}", None, full, note)
    yield Row("hostile_objects_admission_mib", resident, "MiB", f"≤ {_ADMISSION_MIB}", None, full, note)


@contextmanager
def _hostile_api() -> Iterator[ApiPlace]:
    chosen: AbstractContextManager[ApiPlace] = real_api(2) if THERE else stand_in(2)
    with chosen as api:
        if not THERE:
            api.name += f" ({ABSENT})"
        yield api


def _heard_by_service(api: ApiPlace, service: ServiceProcess, pods: int) -> int:
    """How many of so many pods that wait it has not heard of in time."""
    ends = time.monotonic() + _HEARD_SECONDS
    while (missing := pods - int(total(api, service, "waiting_pods"))) and time.monotonic() < ends:
        time.sleep(0.05)
    return missing


def _large(*, full: bool) -> Iterator[Row]:
    count = 5_000 if full else 150
    with stand_in(2) as api:
        api.pods("large", count)
        own = f"--pod-name={api.pods('replica', 1)}"
        agent, service = _Agent(api), ServiceProcess(api, "--leader-mode=alone", own)
        heard = _Heard(api, agent)
        try:
            agent.line()
            until_ready(service)
            for _ in range(_HONEST):
                heard.among("large", 10)
            figures = agent.end()
            resident = mebibytes(service.process.pid, "VmHWM")
        finally:
            service.close()
    note = f"{count:,} pods of 1.2 MiB there, each of {_HONEST} honest ones after ten more"
    lost = figures["pods"] != count + 11 * _HONEST or bool(figures["error"])
    yield heard.row("large_objects_heard_s", note, lost=lost, full=full)
    note = f"most that is resident while {count:,} pods of 1.2 MiB are listed"
    yield Row("large_objects_agent_mib", figures["peak"], "MiB", f"≤ {_AGENT_MIB}", None, full, note)
    yield Row("large_objects_admission_mib", resident, "MiB", f"≤ {_ADMISSION_MIB}", None, full, note)


PARTS: Final[Mapping[str, Measure]] = {"hostile": _hostile, "large": _large, "lists": objects_lists.rows}


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """All rows of the group, or those of one part."""
    return rows_of(PARTS, only, full=full)
