"""kube-apiserver over etcd with hostile objects; speaks to its callers as the stand-in's process does."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from bench.admission_program import processor_seconds
from bench.api_process import MODELS, node
from bench.objects_texts import made
from gpu_manager.domain.contract import ADMISSION_NAME, NAMESPACE
from tests.deploy.api_server import SERVERS, Server
from tests.fakes.sandbox import short_directory

_WRITERS: Final = 4
_SECONDS: Final = 60.0
_ADMIN: Final = {"Authorization": "Bearer admin", "Content-Type": "application/json"}


@contextmanager
def real_api(nodes: int) -> Iterator[RealApi]:
    """The newest that is built, with so many nodes; ends with its store."""
    with short_directory() as directory:
        server = Server(directory, SERVERS[-1])
        try:
            server.start()
            api = RealApi(server)
            for n in range(nodes):
                api.post("/api/v1/nodes", json.dumps(node(f"node-{n:05d}", MODELS[n % 3])).encode())
            yield api
        finally:
            server.stop()


class RealApi:
    """Thread-safe but for :meth:`pods`, which is one thread's."""

    def __init__(self, server: Server) -> None:
        self.place = f"--kubeconfig={server.directory}/kubeconfig"
        self.name = f"kube-apiserver {SERVERS[-1].parent.name.removeprefix('bin-')} and etcd"
        self._port = server.port
        self._server = server
        self._context = ssl.create_default_context(cafile=str(server.directory / "certs" / "apiserver.crt"))
        self._lines = threading.local()
        self._made = 0

    def processor(self) -> float:
        """Seconds of processor time of etcd and API server."""
        return sum(map(processor_seconds, self._server.pids))

    def pods(self, kind: str, count: int) -> Any:
        """So many new objects of that kind; when the creation of the last began, the name of a replica."""
        numbers = range(self._made + 1, self._made + count + 1)
        self._made += count
        with ThreadPoolExecutor(_WRITERS) as pool:
            began = list(pool.map(lambda number: self._create(kind, number), numbers))
        return made(kind, self._made).obj["metadata"]["name"] if kind == "replica" else began[-1]

    def get(self, path: str) -> Any:
        """The object there; a Status if there is none."""
        self._lines.line = None  # the one before may have been idle for longer than the server keeps it
        return json.loads(self._ask("GET", path)[1])

    def authority(self) -> str:
        """Who signs the service's certificate; empty until it has one."""
        secret = self.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{ADMISSION_NAME}-certs")
        return base64.b64decode((secret.get("data") or {}).get("ca.crt") or "").decode()

    def post(self, path: str, body: bytes) -> None:
        """Create it."""
        code, text = self._ask("POST", path, body)
        if code != 201:
            raise RuntimeError(f"{path}: {code} {text[:300]!r}")

    def _create(self, kind: str, number: int) -> float:
        one = made(kind, number)
        text = one.write(one.obj["metadata"])
        began = time.monotonic()
        self.post(one.place, text)
        return began

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        line = getattr(self._lines, "line", None)
        if line is None:
            line = http.client.HTTPSConnection(
                "127.0.0.1", self._port, timeout=_SECONDS, context=self._context
            )
            self._lines.line = line
        line.request(method, path, body, _ADMIN)
        with line.getresponse() as answer:
            return answer.status, answer.read()
