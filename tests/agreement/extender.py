"""A scheduler extender that does what a case tells it, and keeps every question; and the world around it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.agreement.world import NAMESPACE, PODS, STRATEGIC, World, pod
from tests.fakes.waiting import PATIENCE

MANAGED = "example.test/card"  # the resource that the extender is asked about
LABEL = "example.test/case"  # pods of a case go to its own nodes alone
Obj = dict[str, Any]


def fits(question: Obj) -> Obj:
    """Every node."""
    return {"NodeNames": question["NodeNames"]}


class Extender:
    """On loopback. ``plan`` gives a verb's answer: a JSON value, or a number for an HTTP error."""

    def __init__(self) -> None:
        self.plan: dict[str, Callable[[Obj], Any]] = {}
        self._asked: list[tuple[str, Obj, float]] = []
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = outer._answer(self.path.rpartition("/")[2], question)
                refused = isinstance(answer, int)
                body = b"no" if refused else json.dumps(answer).encode()
                self.send_response(answer if refused else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()

    def forget(self) -> None:
        """Before each case: nothing was asked, everything fits, nothing is worth more."""
        with self._changed:
            self._asked.clear()
            self.plan.clear()

    def asked(self, verb: str, name: str = "") -> list[Obj]:
        """The questions so far, about a pod if one is named."""
        with self._changed:
            return [q for v, q, _ in self._asked if v == verb and name in ("", _about(q))]

    def times(self, verb: str, name: str) -> list[float]:
        """When (monotonic seconds) a pod was asked about."""
        with self._changed:
            return [at for v, q, at in self._asked if v == verb and name == _about(q)]

    def wait(self, verb: str, name: str, count: int = 1, seconds: float = PATIENCE) -> list[Obj]:
        """Wait for so many questions about a pod; all of them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.asked(verb, name)) >= count, seconds)
        found = self.asked(verb, name)
        assert len(found) >= count, f"{verb} was asked {len(found)} times about {name}"
        return found

    def _answer(self, verb: str, question: Obj) -> Any:
        with self._changed:
            self._asked.append((verb, question, time.monotonic()))
            self._changed.notify_all()
            plan = self.plan.get(verb)
        if plan is not None:
            return plan(question)
        if verb == "filter":
            return fits(question)
        if verb == "prioritize":
            return [{"Host": name, "Score": 0} for name in question["NodeNames"]]
        return {"Error": f"no plan for {verb}"}


def _about(question: Obj) -> str:
    return str(question.get("PodName") or question["Pod"]["metadata"]["name"])


@dataclass
class Scheduling:
    """A world with a scheduler of this name that asks this extender."""

    world: World
    extender: Extender
    scheduler: str
    case: str = ""
    _classes: list[str] = field(default_factory=list)

    def begin(self, case: str) -> None:
        """A case of its own nodes."""
        self.case = case.replace("_", "-")
        self.extender.forget()
        self.extender.plan["bind"] = self.bind

    def node(self, name: str, cards: int = 4) -> str:
        """A node object with cards, that is ready; no kubelet."""
        name = f"{self.case}-{name}"
        meta = {"name": name, "labels": {LABEL: self.case}}
        self.world.make("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "100", MANAGED: str(cards)}
        ready = {"type": "Ready", "status": "True", "reason": "Object", "message": "no kubelet"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self.world.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC).ok()
        path = f"/api/v1/nodes/{name}"
        self.world.until(
            lambda: not self.world.get(path).get("spec", {}).get("taints"), f"{name} stays tainted"
        )
        return name

    def others(self) -> Mapping[str, str]:
        """Every node that is not the case's → its version, which any change of it moves."""
        items = self.world.get("/api/v1/nodes")["items"]
        return {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"]
            for one in items
            if one["metadata"].get("labels", {}).get(LABEL) != self.case
        }

    def pod(self, name: str, cards: int = 1, *, where: str = "containers", **spec: Any) -> Obj:
        """Create a pod for this scheduler and the case's nodes."""
        resources = {"resources": {"limits": {MANAGED: str(cards)}}} if cards else {}
        containers: dict[str, Sequence[Obj]] = {"containers": [{"name": "main", "image": "image"}]}
        containers[where] = [{"name": "asks", "image": "image", **resources}]
        body = pod(name, **containers, schedulerName=self.scheduler, nodeSelector={LABEL: self.case}, **spec)
        return dict(self.world.make(PODS, body))

    def priority(self, name: str, value: int, **more: str) -> str:
        """A PriorityClass of the case; its name."""
        name = f"{self.case}-{name}"
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        self.world.make("/apis/scheduling.k8s.io/v1/priorityclasses", {**body, "value": value, **more})
        return name

    def bind(self, question: Mapping[str, Any]) -> Obj:
        """What an extender does that binds."""
        answer = self.world.bind(question["PodName"], question["Node"], uid=question["PodUID"])
        return {"Error": "" if answer.code == 201 else str(answer.body)}

    def bound(self, name: str) -> str:
        """The node of a pod, once it has one."""
        path = f"{PODS}/{name}"
        return str(
            self.world.until(lambda: self.world.get(path)["spec"].get("nodeName"), f"{name} is not bound")
        )

    def condition(self, name: str) -> Obj:
        """PodScheduled of a pod that was not, once it is said."""

        def said() -> Obj | None:
            found = self.world.get(f"{PODS}/{name}").get("status", {}).get("conditions", ())
            return next((c for c in found if c["type"] == "PodScheduled" and c["status"] == "False"), None)

        return dict(self.world.until(said, f"nothing is said about {name}"))

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and sentence of every Event of a pod."""
        path = f"/api/v1/namespaces/{NAMESPACE}/events"
        found = self.world.ask("GET", path, fieldSelector=f"involvedObject.name={name}").ok()["items"]
        return [(e["reason"], e.get("message") or e.get("note") or "") for e in found]
