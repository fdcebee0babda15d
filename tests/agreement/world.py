"""Where a case runs: an API server over HTTP and, for those about nodes, a kubelet and its sockets."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.fakes.waiting import PATIENCE

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NAMESPACE = "agreement"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NOBODY = "nobody"  # a user without a single right
Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """``proves`` says in a line what is held when :attr:`run` returns ``expected``.

    ``since``: the minor version of Kubernetes that does so first, where an older line in support does not.
    """

    proves: str
    run: Callable[[Any], object]
    expected: object
    since: int = 0

    @property
    def name(self) -> str:
        """For test ids."""
        return self.run.__name__.strip("_")


class Table(list[Case]):
    """Cases, gathered by a decorator: ``@table.case(proves, expected)``."""

    def case(
        self, proves: str, expected: object, *, since: int = 0
    ) -> Callable[[Callable[[Any], object]], None]:
        def gather(run: Callable[[Any], object]) -> None:
            self.append(Case(proves, run, expected, since))

        return gather


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said."""

    code: int
    body: Any

    def refusal(self) -> tuple[int, str, str]:
        """Code, reason and sentence; what differs from run to run is ``<uid>`` and ``<n>``."""
        found = self.body if isinstance(self.body, Mapping) else {}
        return self.code, str(found.get("reason")), plain(str(found.get("message")))

    def ok(self) -> Any:
        """The body of a success."""
        assert self.code < 300, self.body
        return self.body


def plain(text: str) -> str:
    """Without what no two runs have in common."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>", text)
    return re.sub(r"\b\d{2,}\b", "<n>", text)


@dataclass
class World:
    """One API server. ``headers`` are those of a user: an administrator ("") or :data:`NOBODY`."""

    url: str
    headers: Mapping[str, Mapping[str, str]]
    authority: Path | None = None
    forget: Callable[[], None] = lambda: None  # that version 1 ever was: a real server has compacted it away
    _made: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """The namespace of all cases."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        answer = self.ask("POST", "/api/v1/namespaces", body)
        assert answer.code in (201, 409), answer

    def clear(self) -> None:
        """Take away what a case made."""
        for path in reversed(self._made):
            self.ask("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
        made, self._made = self._made, []
        for path in made:
            self.until(lambda path=path: self.ask("GET", path).code == 404, f"{path} does not go")

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        kind: str = "application/json",
        *,
        user: str = "",
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Answer:
        """One request, over a connection of its own."""
        with self._sent(
            method, path, body, kind, self.headers[user] if headers is None else headers, query
        ) as response:
            content = response.read()
        try:
            return Answer(response.status, json.loads(content))
        except (ValueError, RecursionError):
            return Answer(response.status, content.decode("utf-8", "replace"))

    def make(self, collection: str, body: Mapping[str, Any]) -> Any:
        """Create something that goes with the case."""
        made = self.ask("POST", collection, body).ok()
        self._made.append(f"{collection}/{made['metadata']['name']}")
        return made

    def made(self, path: str) -> None:
        """It goes with the case, too."""
        self._made.append(path)

    def pod(self, name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> Any:
        """Create a pod that no scheduler looks at, of one container unless ``spec`` says otherwise."""
        return self.make(PODS, pod(name, annotations=annotations, **spec))

    def written(self, path: str, **query: object) -> bytes:
        """The bytes of a GET."""
        with self._sent("GET", path, None, "", self.headers[""], query) as response:
            return response.read()

    def bind(self, name: str, node: str = "nowhere", **meta: object) -> Answer:
        """POST a Binding."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, **meta},
            "target": {"kind": "Node", "name": node},
        }
        return self.ask("POST", f"{PODS}/{name}/binding", body)

    def get(self, path: str) -> Any:
        """Raises AssertionError unless it is there."""
        return self.ask("GET", path).ok()

    @contextmanager
    def watching(self, path: str, **query: object) -> Iterator[Iterator[Obj]]:
        """The events of a watch, as they come; the iterator ends with the stream."""
        with self._sent("GET", path, None, "", self.headers[""], {"watch": "true", **query}) as response:
            assert response.status == 200, response.read()
            yield (json.loads(line) for line in iter(response.readline, b""))

    @contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        body: object,
        kind: str,
        headers: Mapping[str, str],
        query: Mapping[str, object],
    ) -> Iterator[http.client.HTTPResponse]:
        address = urlsplit(self.url)
        host, port = address.hostname or "", address.port
        if self.authority is not None:
            context = ssl.create_default_context(cafile=str(self.authority))
            connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        try:
            text = body if body is None or isinstance(body, bytes) else json.dumps(body)
            whole = f"{path}?{urlencode(query)}" if query else path
            connection.request(method, whole, text, {**headers, **({"Content-Type": kind} if text else {})})
            yield connection.getresponse()
        finally:
            connection.close()

    def until(self, holds: Callable[[], Any], otherwise: str) -> Any:
        """Poll until something holds; what it returned."""
        ends = time.monotonic() + PATIENCE
        while not (found := holds()):
            assert time.monotonic() < ends, otherwise
            time.sleep(0.05)
        return found


def pod(name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    """A pod that no scheduler looks at, of one container unless ``spec`` says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"case": name}, "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": "none",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "image"}],
            **spec,
        },
    }


def asking(limits: Mapping[str, object], requests: Mapping[str, object] | None = None) -> Sequence[Obj]:
    """Containers of a pod that asks for something."""
    resources = {"limits": dict(limits), **({} if requests is None else {"requests": dict(requests)})}
    return [{"name": "main", "image": "image", "resources": resources}]
