"""The admission service beside an API server: as a process of its own, and what schedulers and people ask of it."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from admission.app import compose
from admission.config import AdmissionSettings, ExtenderEndpoint, LeaderMode, Leadership
from admission.program import AdmissionProgram
from gpu_manager.domain.contract import ALLOCATION, TOKEN_HEADER, decode_assignment
from sandbox.api import ADMIN_TOKEN, StandInApi, User
from tests.fakes.extender import binding, node, pod
from tests.fakes.sandbox import until
from tests.fakes.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
Obj = dict[str, Any]
NODES = ["n1", "n2"]
TENANT = "tenant-token"


def blind() -> ssl.SSLContext:
    """Trusts whoever answers: these tests are about something else."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Calls:
    """What schedulers and people ask of a service on loopback."""

    def __init__(self, port: int, extender_port: int) -> None:
        self.port = port
        self.extender_port = extender_port

    def ask(self, verb: str, body: Any) -> tuple[int, Any]:
        line = http.client.HTTPConnection("127.0.0.1", self.extender_port, timeout=PATIENCE)
        try:
            line.request("POST", f"/scheduler/{verb}", json.dumps(body), {"Content-Type": "application/json"})
            with line.getresponse() as answer:
                said = answer.read()
                return answer.status, json.loads(said) if answer.status == 200 else said.decode()
        finally:
            line.close()

    def get(self, path: str, token: str | None = ADMIN_TOKEN, **headers: str) -> tuple[int, str]:
        return self.send("GET", path, None, token, **headers)

    def send(
        self, method: str, path: str, body: Any, token: str | None = ADMIN_TOKEN, **headers: str
    ) -> tuple[int, str]:
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        line = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=blind())
        try:
            line.request(method, path, None if body is None else json.dumps(body), {**sent, **headers})
            with line.getresponse() as answer:
                return answer.status, answer.read().decode()
        finally:
            line.close()

    def figures(self) -> dict[tuple[str, tuple[str, ...]], float]:
        return {
            (s.name, tuple(v for _, v in sorted(s.labels.items()))): s.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for s in family.samples
        }

    def filter(self, obj: Obj, nodes: Sequence[str]) -> Obj:
        status, answer = self.ask("filter", {"Pod": obj, "Nodes": None, "NodeNames": list(nodes)})
        assert status == 200, answer
        found: Obj = answer
        return found

    def bind(self, obj: Obj, node: str) -> str:
        status, answer = self.ask("bind", binding(obj, node))
        assert status == 200, answer
        return str(answer["Error"])

    def place(self, obj: Obj, nodes: Sequence[str]) -> str:
        """Filter, prioritize and bind as kube-scheduler does; the node, or why not."""
        answer = self.filter(obj, nodes)
        if not answer["NodeNames"]:
            return answer["Error"] or str({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]})
        _, scores = self.ask("prioritize", {"Pod": obj, "NodeNames": answer["NodeNames"]})
        best = max(scores, key=lambda score: score["Score"])["Host"]
        return self.bind(obj, best) or best

    def placed(self, obj: Obj, nodes: Sequence[str]) -> str:
        """The same, tried again until it is placed, as a scheduler's queue does."""
        return str(until(lambda: (found := self.place(obj, nodes)) in nodes and found))


class Process(Calls):
    """The program as its own process, until :meth:`close`; ``arguments`` say where its API server is."""

    def __init__(self, *arguments: str) -> None:
        command = [
            sys.executable, "-m", "admission", "--webhook-address=127.0.0.1", "--webhook-port=0",
            "--extender-address=127.0.0.1:0", "--probe-address=127.0.0.1:0",
            "--drain-seconds=0", *arguments,
        ]  # fmt: skip
        kept = {k: v for k, v in os.environ.items() if k not in ("LOG_LEVEL", "EXTRA_FLAGS", "POD_NAME")}
        self.program = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=kept, text=True)
        assert self.program.stderr is not None
        said = deque[str](maxlen=20)
        for line in self.program.stderr:
            said.append(line)
            if line.startswith("{") and json.loads(line)["event"] == "running":
                break
        else:
            raise AssertionError(f"it ended with {self.program.wait(PATIENCE)}: {''.join(said)}")
        ports = json.loads(said[-1])
        super().__init__(ports["port"], ports["extender_port"])
        self.probe_port = int(ports["probe_port"])
        # A log that nobody reads holds up who writes it.
        self._reader = threading.Thread(target=self.program.stderr.read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        self.program.kill()
        self.close()

    def close(self) -> None:
        if self.program.poll() is None:
            self.program.terminate()
        self.program.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.program.stderr is not None
        self.program.stderr.close()


class Service(Calls):
    """The same in this process, ready; until the end of the block."""

    def __init__(
        self, api: StandInApi, leadership: Leadership | None = None, records: Path | None = None
    ) -> None:
        settings = AdmissionSettings(
            address="127.0.0.1",
            port=0,
            api_url=api.url,
            extender=ExtenderEndpoint(port=0),
            leadership=leadership or Leadership(LeaderMode.ALONE),
            drain_seconds=0,
            records=records,
        )
        self.program: AdmissionProgram = compose(settings)
        super().__init__(self.program.port, self.program.ports()["extender_port"])
        self.program.start()
        until(lambda: all(self.program.ready().values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.stop()

    def behind(self, path: str, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Answers as a page of the API server's proxy, which reaches a service by https and looks at no
        certificate of it.
        """
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=blind(), timeout=PATIENCE)
        kept = ("accept", "content-type", TOKEN_HEADER.lower())
        try:
            connection.request(method, path, body, {k: v for k, v in headers.items() if k in kept})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def cluster() -> Iterator[StandInApi]:
    """Two nodes of one card each, two namespaces, and a tenant who may see the pods of one."""

    def allowed(user: User, access: Any) -> bool:
        return user.name != "tenant" or bool(access.namespace == "team-a")

    with StandInApi(history=50, tokens={TENANT: User("tenant")}, authorize=allowed) as made:
        for name in NODES:
            made.create(node(name, cards=1))
        for name in ("team-a", "team-b"):
            made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield made
        made.faults.clear()


def known(service: Calls, name: str) -> Callable[[], bool]:
    """Whether the service has seen the pod."""
    return lambda: service.get(f"/explain/default/{name}")[0] == 200


def create(api: StandInApi, name: str, **more: Any) -> Obj:
    """A pod that asks for cards, as the API server has it."""
    obj = pod(name, **more)
    del obj["metadata"]["uid"]
    return api.create(obj)


def booked(api: StandInApi) -> Mapping[tuple[str, str], int]:
    """Cores by node and card, as the annotations of bound pods say: what the cluster will believe."""
    found: dict[tuple[str, str], int] = {}
    for obj in api.list("pods"):
        said = decode_assignment((obj["metadata"].get("annotations") or {}).get(ALLOCATION))
        if said is None or not obj["spec"].get("nodeName"):
            continue
        for shares in said.containers.values():
            for uuid, amount in shares:
                key = said.node, str(uuid)
                found[key] = found.get(key, 0) + amount.cores
    return found
