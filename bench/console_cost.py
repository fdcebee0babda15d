"""What ten open consoles cost the admission service of 100 nodes: processor time of its process.

The service runs as a program; agents are one stand-in that answers on an address of loopback for each node,
with other figures every time, and closes the connection after each answer as the agent does. A console asks
as the page does: data every two seconds over a kept TLS connection, history every ten.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.rows import Row
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    AGENT_DAEMONSET,
    ALLOCATION,
    CORE,
    INVENTORY,
    MEMORY,
    NAMESPACE,
    Assignment,
    Inventory,
    encode_assignment,
    encode_inventory,
)
from gpu_manager.domain.resources import GIB, MIB, Amount
from gpu_manager.domain.topology import Link, Topology
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.admission import Process, blind
from tests.fakes.sandbox import until

NODES, CARDS, PAGES = 100, 8, 10
UNIT = 256 * MIB
START_SECONDS = 10.0
"""What a start costs the service for a moment after it is ready belongs to neither figure."""
Obj = dict[str, Any]


def cost_row(*, full: bool) -> Row:
    """Percent of a core that the pages add, over what the service costs without them."""
    seconds = 60.0 if full else 20.0
    uids: dict[tuple[int, int], str] = {}
    with agents(uids) as port, StandInApi() as api:
        uids |= fill(api, port)
        with Process(f"--api-url={api.url}", "--leader-mode=alone") as service:
            until(lambda: service.get("/readyz")[0] == 200)
            spent(service.program.pid, START_SECONDS)
            alone = spent(service.program.pid, seconds / 2)
            with looking(service.port):
                open_pages = spent(service.program.pid, seconds)
    note = f"{PAGES} pages, {NODES} nodes x {CARDS} cards, a pod each; {alone:.2f} without pages"
    return Row(
        "page_service_percent", round(open_pages - alone, 2), "% of a core", "≤ 2", full=full, note=note
    )


def spent(process: int, seconds: float) -> float:
    """Percent of a core that a process takes over so many seconds."""

    def ticks() -> int:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    begun, before = time.monotonic(), ticks()
    threading.Event().wait(seconds)
    return 100 * (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begun)


def uuid(node: int, card: int) -> CardUuid:
    return CardUuid(f"GPU-{node:04}-{card}")


@contextmanager
def agents(uids: Mapping[tuple[int, int], str]) -> Iterator[int]:
    """Answers ``/usage`` on 127.0.1.N for node N; yields the port. ``uids`` by node and card."""
    dice = random.Random(1)

    class Agent(BaseHTTPRequestHandler):
        wbufsize = -1  # an answer is one piece

        def do_GET(self) -> None:
            node = int(self.connection.getsockname()[0].rpartition(".")[2])
            pods = [(uids[node, c], node, c, dice.random()) for c in range(CARDS)]
            body = json.dumps({"usage": dict(used(*one) for one in pods)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = NODES  # each node has a queue of its own

    server = Server(("0.0.0.0", 0), Agent)  # every address of loopback
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def used(uid: str, node: int, card: int, ratio: float) -> tuple[str, Obj]:
    device = {"uuid": uuid(node, card), "gpu": 50 * ratio, "mem": 4096 * ratio, "throttled": 1.0}
    pod = {"project": "team", "pod": f"p-{node}-{card}", "stat": {"main": {"dev": [device]}}}
    return uid, pod


def fill(api: StandInApi, port: int) -> dict[tuple[int, int], str]:
    """The nodes, a pod on each card, and the agents' pods; UIDs of the pods by node and card."""
    uids = {}
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    for node in range(NODES):
        name = f"n{node:03}"
        states = tuple(CardState(Card(i, uuid(node, i), "A100", 40 * GIB)) for i in range(CARDS))
        inventory = Inventory(UNIT, states, Topology.uniform(CARDS, Link.parse("SYS")))
        meta = {"name": name, "annotations": {INVENTORY: encode_inventory(inventory)}}
        free = {CORE: str(100 * CARDS), MEMORY: str(160 * CARDS)}
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": free}})
        for card in range(CARDS):
            limits = {"limits": {CORE: "50", MEMORY: str(8 * GIB // UNIT)}}
            spec = {"nodeName": name, "containers": [{"name": "main", "image": "i", "resources": limits}]}
            uid = place(api, {"namespace": "team", "name": f"p-{node}-{card}"}, spec)
            shares = {"main": ((uuid(node, card), Amount(50, 8 * GIB)),)}
            said = {ALLOCATION: encode_assignment(Assignment(name, uid, shares))}
            api.patch("pods", f"p-{node}-{card}", {"metadata": {"annotations": said}}, "team")
            uids[node, card] = uid
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": AGENT_DAEMONSET, "uid": "d"}
        ports = [{"name": "metrics", "containerPort": port}]
        place(
            api,
            {"namespace": NAMESPACE, "name": f"agent-{node}", "ownerReferences": [owner]},
            {"nodeName": name, "containers": [{"name": "agent", "image": "i", "ports": ports}]},
            podIP=f"127.0.1.{node}",
        )
    return uids


def place(api: StandInApi, meta: Obj, spec: Obj, **status: str) -> str:
    """A pod that runs; its UID."""
    made = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    running = {"status": {"phase": "Running", **status}}
    api.patch("pods", meta["name"], running, meta["namespace"], subresource="status")
    return str(made["metadata"]["uid"])


@contextmanager
def looking(port: int) -> Iterator[None]:
    """So many consoles, each in a thread; on the way out, that each was answered with use is made sure of."""
    ended = threading.Event()
    told: list[int] = []
    threads = [threading.Thread(target=look, args=(port, number, ended, told)) for number in range(PAGES)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(30)
    if len(told) != PAGES or min(told) < NODES:
        raise RuntimeError(f"consoles saw use of {told} nodes, not of {NODES} each")


def look(port: int, number: int, ended: threading.Event, told: list[int]) -> None:
    """One console, until the end; then ``told`` gets how many nodes it has seen use of."""
    context = blind()
    line = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Accept-Encoding": "gzip"}
    since, seen, turn = "", set(), 0
    ended.wait(2 * number / PAGES)
    while not ended.wait(2.0):
        line.request("GET", f"/ui/data?since={since}", headers=headers)
        data = json.loads(gzip.decompress(line.getresponse().read()))
        since = data["generation"]
        seen |= {
            node["node"]
            for node in data["nodes"]
            for c in node["cards"]
            for h in c["holders"]
            if h["core_used"]
        }
        if turn % 5 == 0:
            line.request("GET", "/ui/history?subject=cluster", headers=headers)
            line.getresponse().read()
        turn += 1
    line.close()
    told.append(len(seen))
