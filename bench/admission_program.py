"""The admission service as a program: beside an API server in another process, asked as Kubernetes asks.

Webhooks: 200 reviews a second over kept TLS connections, each timed from the moment at which it was due, so
that one slow answer is charged to all that wait behind it. :mod:`bench.admission_rate` has pods a second.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from bench.admission_flow import schedule
from bench.api_process import pod as made_pod
from bench.rows import Row, percentile
from gpu_manager.domain.contract import ADMISSION_NAME, NAMESPACE
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import ADMIN_TOKEN
from sandbox.extender import ExtenderClient
from sandbox.http_client import LoopbackClient

Obj = dict[str, Any]
_RATE = 200  # reviews a second
_CALLERS = 16
_START_SECONDS = 60.0
_AT_ONCE = 1000
_IDLE = 5000


class ApiProcess:
    """The stand-in's process, by a ``module`` that speaks as :mod:`bench.api_process` does."""

    def __init__(self, nodes: int, module: str = "bench.api_process") -> None:
        command = [sys.executable, "-m", module, str(nodes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.place = f"--api-url={self.url}"
        self.name = "API stand-in"
        self._line = LoopbackClient(int(self.url.rpartition(":")[2]))

    def pods(self, prefix: str, count: int) -> Any:
        """So many new ones; returns what the program answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{prefix} {count}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def get(self, path: str) -> Obj:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        found: Obj = json.loads(self._line.ask("GET", path, headers=headers)[1])
        return found

    def authority(self) -> str:
        """Who signs the service's certificate; empty until it has one."""
        secret = self.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{ADMISSION_NAME}-certs")
        return base64.b64decode((secret.get("data") or {}).get("ca.crt") or "").decode()

    def processor(self) -> float:
        """Seconds of processor time of its process."""
        return processor_seconds(self.process.pid)

    def bound(self) -> int:
        return sum(bool(p["spec"].get("nodeName")) for p in self.get("/api/v1/pods")["items"])

    def close(self) -> None:
        self._line.close()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


class ApiPlace(Protocol):
    """An API server; ``place`` is the argument by which programs find it."""

    place: str
    name: str

    def pods(self, prefix: str, count: int) -> Any:
        """So many new ones; returns what the program answers."""

    def authority(self) -> str:
        """Who signs the service's certificate; empty until it has one."""

    def processor(self) -> float:
        """Seconds of processor time of its processes."""


class ServiceProcess:
    """One replica."""

    def __init__(self, api: ApiPlace, *arguments: str) -> None:
        command = [
            sys.executable, "-m", "admission", api.place, "--webhook-address=127.0.0.1",
            "--webhook-port=0", "--extender-address=127.0.0.1:0", "--probe-address=127.0.0.1:0",
            "--drain-seconds=0", *arguments,
        ]  # fmt: skip
        kept = {k: v for k, v in os.environ.items() if k not in ("EXTRA_FLAGS", "POD_NAME", "POD_NAMESPACE")}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**kept, "LOG_LEVEL": "info"}
        )
        assert self.process.stderr is not None
        said = next(line for line in map(json.loads, self.process.stderr) if line.get("event") == "running")
        self.port = int(said["port"])
        self.extender_port = int(said["extender_port"])
        self.probe_port = int(said["probe_port"])
        self.extender = ExtenderClient(self.extender_port)
        self._reader = threading.Thread(target=self.process.stderr.read)
        self._reader.start()

    def binds(self, api: ApiProcess, pods: int) -> bool:
        """True once it leads, and knows of so many pods that wait."""
        authority = api.authority()
        if not authority:
            return False
        line = LoopbackClient(self.port, f"{ADMISSION_NAME}.{NAMESPACE}.svc", lambda: authority)
        try:
            page = line.ask("GET", "/metrics")[1].decode()
        except NodeUnready:
            return False
        finally:
            line.close()
        figures = dict(re.findall(r"^vcuda_admission_(leader|waiting_pods) (\S+)$", page, re.MULTILINE))
        return figures.get("leader") == "1.0" and float(figures.get("waiting_pods", 0)) >= pods

    def close(self) -> None:
        self.extender.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(20)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def world(nodes: int, *arguments: str) -> Iterator[tuple[ApiProcess, ServiceProcess]]:
    api = ApiProcess(nodes)
    try:
        service = ServiceProcess(api, *(arguments or ("--leader-mode=alone",)))
        try:
            yield api, service
        finally:
            service.close()
    finally:
        api.close()


def rows(*, full: bool) -> Iterator[Row]:
    """What only the whole program can show."""
    with world(1000) as (api, service):
        yield _webhook(api, service, full=full)
        yield _reviews_at_once(api, service, full=full)
    with world(100) as (api, service):
        pods = api.pods("burst", 1000)
        wait_for(api, service, len(pods))
        burst = schedule(service.extender_port, pods, [f"node-{n:05d}" for n in range(100)])
        assert api.bound() == burst.bound
        note = f"1,000 pods, {burst.bound} bound, {burst.unplaced} found no room"
        yield Row("burst_conflicts", burst.conflicts, "count", "≤ 0", None, full, note)
        yield Row("burst_seconds", round(burst.seconds, 2), "s", "≤ 10", None, full, note)
    yield from _idle_connections(full=full)
    yield _leader_change(full=full)


def wait_for(api: ApiProcess, service: ServiceProcess, pods: int) -> None:
    """Until it leads, some seconds after its start where pods wait already, and the watch has shown all pods:
    a bind of one that it has not seen asks the API server first.
    """
    ends = time.monotonic() + _START_SECONDS
    while not service.binds(api, pods):
        if time.monotonic() > ends:
            raise NodeUnready("the service does not lead, or does not see the pods")
        time.sleep(0.2)


def _webhook(api: ApiProcess, service: ServiceProcess, *, full: bool) -> Row:
    authority = api.authority()
    line = LoopbackClient(service.port, f"{ADMISSION_NAME}.{NAMESPACE}.svc", lambda: authority)
    seconds = 60 if full else 15
    review = json.dumps(sample_review()).encode()
    kind = {"Content-Type": "application/json"}

    def judge(number: int) -> None:
        status, _ = line.ask("POST", "/mutate" if number % 2 else "/validate", review, kind)
        assert status == 200, status

    def nothing(_number: int) -> None:
        line.ask("GET", "/healthz")

    _paced(nothing, 1)  # connections
    bare = _paced(nothing, seconds)
    took = _paced(judge, seconds)
    line.close()
    note = (
        f"{len(took)} reviews at {_RATE}/s over TLS, half of each webhook, from the moment each was due;"
        f" median {percentile(took, 50) * 1e3:.1f} ms, most {max(took) * 1e3:.1f} ms; beside it /healthz"
    )
    figures = (round(percentile(values, 99) * 1e3, 2) for values in (took, bare))
    return Row("webhook_p99_ms", next(figures), "ms", "≤ 20", next(figures), full, note)


def _reviews_at_once(api: ApiProcess, service: ServiceProcess, *, full: bool) -> Row:
    """Reviews without an answer, each on a connection of its own, as an API server asks."""
    context = ssl.create_default_context(cadata=api.authority())
    body = json.dumps(sample_review()).encode()
    head = (
        f"POST /validate HTTP/1.1\r\nHost: {ADMISSION_NAME}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()

    async def ask() -> bool:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", service.port, ssl=context, server_hostname=f"{ADMISSION_NAME}.{NAMESPACE}.svc"
        )
        writer.write(head + body)
        said = await reader.readline()
        writer.transport.abort()
        return said.split()[1:2] == [b"200"]

    async def ask_all() -> list[bool | BaseException]:
        async with asyncio.timeout(120):
            return await asyncio.gather(*(ask() for _ in range(_AT_ONCE)), return_exceptions=True)

    began = time.perf_counter()
    lost = sum(answer is not True for answer in asyncio.run(ask_all()))
    note = (
        f"{_AT_ONCE} reviews sent at once, each on its own TLS connection; "
        f"{time.perf_counter() - began:.1f} s with the handshakes"
    )
    return Row("reviews_lost", lost, "count", "≤ 0", None, full, note)


def _idle_connections(*, full: bool) -> Iterator[Row]:
    """TLS connections that are opened, used once and left; beside them reviews and probes."""
    with world(1000) as (api, service):
        authority = api.authority()
        line = LoopbackClient(service.port, f"{ADMISSION_NAME}.{NAMESPACE}.svc", lambda: authority)
        review, kind = json.dumps(sample_review()).encode(), {"Content-Type": "application/json"}
        command = [sys.executable, "-m", "tests.fakes.idle_connections", str(service.port), str(_IDLE)]
        idle = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert idle.stdout is not None
            assert idle.stdout.readline() == "open\n"
            answered = 0
            for _ in range(100):
                probe = LoopbackClient(service.probe_port)
                answered += (
                    line.ask("POST", "/validate", review, kind)[0] == 200
                    and probe.ask("GET", "/healthz")[0] == 200
                )
                probe.close()
        finally:
            idle.kill()
            idle.communicate()
            line.close()
        resident = mebibytes(service.process.pid, "VmHWM")
        note = f"{answered} of 100 reviews and probes answered beside them; at most {resident} MiB resident"
        yield Row(
            "idle_connections_survived", _IDLE if answered == 100 else 0, "count", "≥ 5000", None, full, note
        )
        yield Row("idle_connections_mib", resident, "MiB", "≤ 400", None, full, note)


def processor_seconds(pid: int) -> float:
    """Processor time of a process, all threads, in the kernel's own resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


def mebibytes(pid: int, field: str) -> int:
    """A figure of /proc/PID/status, such as VmRSS."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    line = next(line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) >> 10


def _paced(act: Callable[[int], None], seconds: int) -> list[float]:
    """Seconds that each call took, from the moment it was due."""
    count = _RATE * seconds
    took = [0.0] * count
    begin = time.perf_counter() + 0.1

    def caller(first: int) -> None:
        for number in range(first, count, _CALLERS):
            due = begin + number / _RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            act(number)
            took[number] = time.perf_counter() - due

    with ThreadPoolExecutor(_CALLERS) as pool:
        for done in [pool.submit(caller, first) for first in range(_CALLERS)]:
            done.result()
    return took


def sample_review() -> Obj:
    """An AdmissionReview of a pod that asks for a fraction."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "train",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
        "object": made_pod("train", 30, 20),
        "oldObject": None,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _leader_change(*, full: bool) -> Row:
    """SIGKILL for the one that leads, while pods wait; until the other has bound one of them."""
    figures = []
    for _ in range(3 if full else 1):
        with world(3, "--leader-mode=lease", "--pod-name=first") as (api, first):
            second = ServiceProcess(api, "--leader-mode=lease", "--pod-name=second")
            try:
                pods = deque(api.pods("pod", 40))
                _bind_next(first, pods)
                _bind_next(first, pods)
                began = time.perf_counter()
                first.process.kill()
                _bind_next(second, pods)
                figures.append(time.perf_counter() - began)
            finally:
                second.close()
    note = f"{len(figures)} times: SIGKILL for who holds the Lease (12 s), until the other has bound a pod"
    return Row("leader_change_s", round(max(figures), 2), "s", "≤ 15", None, full, note)


def _bind_next(service: ServiceProcess, pods: deque[Obj]) -> None:
    """Try until one is bound."""
    pod, ends = pods.popleft(), time.monotonic() + _START_SECONDS
    while time.monotonic() < ends:
        try:
            fitting = service.extender.filter(pod, [f"node-{n:05d}" for n in range(3)]).nodes
            service.extender.bind(pod, fitting[0])
            return
        except NodeUnready:
            time.sleep(0.05)
    raise NodeUnready("nobody binds")
