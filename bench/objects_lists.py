"""Questions to the service while full lists are read, and while its leader changes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from bench.admission_program import ApiPlace, ServiceProcess, processor_seconds, sample_review
from bench.objects_service import stand_in, total, until_ready
from bench.rows import Row, percentile
from gpu_manager.domain.contract import ADMISSION_NAME, NAMESPACE
from gpu_manager.domain.errors import NodeUnready
from sandbox.http_client import LoopbackClient

_TIMEOUT_SECONDS: Final = 5.0  # of the extender, and of the webhooks
_QUIET_SECONDS: Final = 3.0


def rows(*, full: bool) -> Iterator[Row]:
    """Two replicas: their Lease goes from one to the other and back, then one reads full lists."""
    nodes, pods = (1_000, 100_000) if full else (100, 5_000)
    with stand_in(nodes) as api, ExitStack() as running:
        api.pods("others", pods)
        asked = api.pods("waiting", 1)
        replicas: dict[str, ServiceProcess] = {}
        for _ in range(2):
            name = api.pods("replica", 1)
            replicas[name] = ServiceProcess(api, "--leader-mode=lease", f"--pod-name={name}")
            running.callback(replicas[name].close)
        for service in replicas.values():
            until_ready(service)
        while not any(total(api, service, "leader") for service in replicas.values()):
            time.sleep(0.05)  # what a former process may have sent is waited for, by both
        names = [f"node-{n:05d}" for n in range(nodes)]
        askers = [_Asker(api, service, asked, names) for service in replicas.values()]
        yield from _leaders(api, replicas, askers, pods, full=full)
        for service in list(replicas.values())[1:]:
            service.close()
        first = next(iter(replicas.values()))
        yield from _lists(api, first, lambda: _Asker(api, first, asked, names), pods, full=full)


def _leaders(
    api: ApiPlace, replicas: Mapping[str, ServiceProcess], askers: Sequence[_Asker], pods: int, *, full: bool
) -> Iterator[Row]:
    count = 20 if full else 4
    services = replicas.values()
    waited, spent = [], sum(processor_seconds(one.process.pid) for one in services)
    began = time.monotonic()
    for _ in range(count):
        holder = api.pods("lead", 1).rpartition("_")[0]
        taken = time.monotonic()
        while not total(api, replicas[holder], "leader"):
            time.sleep(0.05)
        waited.append(time.monotonic() - taken)
    took = time.monotonic() - began
    spent = sum(processor_seconds(one.process.pid) for one in services) - spent
    for asker in askers:
        asker.end()
    times = [one for asker in askers for one in asker.took]
    note = (
        f"of {len(times)} filters and reviews by both replicas those that failed or took "
        f"{_TIMEOUT_SECONDS:g} s, most {max(times) * 1e3:.0f} ms, during {count} changes of leader over "
        f"{pods:,} pods in {took:.0f} s, {spent:.0f} s of processor time"
    )
    yield Row("leader_questions_lost", sum(a.lost for a in askers), "count", "≤ 0", None, full, note)
    note = f"from the Lease until it may bind, most of {count}, by the clock at load {os.getloadavg()[0]:.0f}"
    yield Row("leader_catches_up_s", round(max(waited), 2), "s", "≤ 3", None, full, note)


def _lists(
    api: ApiPlace, service: ServiceProcess, asker: Callable[[], _Asker], pods: int, *, full: bool
) -> Iterator[Row]:
    """Full lists, all of which the service knows."""
    count = 5 if full else 3
    quiet = asker()
    time.sleep(_QUIET_SECONDS)
    quiet.end()
    loud = asker()
    began, spent = time.monotonic(), processor_seconds(service.process.pid)
    for number in range(count):
        api.pods("forget", 1)
        while total(api, service, "waiting_pods") < number + 2:  # one more, and it is the list's last
            time.sleep(0.05)
    took, spent = time.monotonic() - began, processor_seconds(service.process.pid) - spent
    loud.end()
    figure, bare = (round(percentile(one.processor, 99) * 1e3, 1) for one in (loud, quiet))
    by_clock, bare_by_clock = (percentile(one.took, 99) * 1e3 for one in (loud, quiet))
    note = (
        f"{count} lists of {pods:,} known pods in {took:.0f} s, {spent:.0f} s of processor time; p99 of "
        f"what the service spent of it during each of {len(loud.took)} filters and reviews, most "
        f"{max(loud.processor) * 1e3:.0f} ms; beside it without a list; by the clock p99 {by_clock:.0f} "
        f"beside {bare_by_clock:.0f} ms at load {os.getloadavg()[0]:.0f}"
    )
    yield Row("list_silence_ms", figure, "ms", "≤ 50", bare, full, note)
    note = f"of {len(loud.took)} questions those that failed or took {_TIMEOUT_SECONDS:g} s"
    yield Row("list_questions_lost", loud.lost, "count", "≤ 0", quiet.lost, full, note)


class _Asker:
    """A scheduler's and an API server's questions, one after the other."""

    def __init__(self, api: ApiPlace, service: ServiceProcess, pod: Any, names: list[str]) -> None:
        authority = api.authority()
        self.took: list[float] = []
        self.processor: list[float] = []  # what the service spent of it meanwhile, on a list, too
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
                pid = self._service.process.pid
                began, spent = time.perf_counter(), processor_seconds(pid)
                try:
                    ask()
                except NodeUnready:
                    self.lost += 1
                took = time.perf_counter() - began
                self.took.append(took)
                self.processor.append(processor_seconds(pid) - spent)
                self.lost += took >= _TIMEOUT_SECONDS

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._thread.join()
        self._line.close()
