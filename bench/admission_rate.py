"""Pods that the whole admission service decides on and binds in a second; the API server is another process.

``pods_per_second``: filter and prioritize of one pod after the other, bind beside that with 16 at a time, as
kube-scheduler does it. ``pods_per_second_ratio`` and ``…_5000`` are the same as a part of the bare rate: the
same Bindings, 16 at a time, straight to the same API server, on which nobody watches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bench.admission_flow import BINDERS, Scheduled, schedule
from bench.admission_program import ApiProcess, ServiceProcess, wait_for, world
from bench.rows import Row
from sandbox.api import ADMIN_TOKEN
from sandbox.http_client import LoopbackClient

Obj = dict[str, Any]
_BARS: Final = {1000: "≥ 0.25", 5000: "≥ 0.1"}  # nodes → the ratio's bar
_BOUND: Final = 201  # Created


def rows(*, full: bool) -> Iterator[Row]:
    """The rate at 1,000 nodes, and the ratios at 1,000 and 5,000."""
    for nodes, bar in _BARS.items():
        names = [f"node-{n:05d}" for n in range(nodes)]
        with world(nodes) as (api, service):
            pods = api.pods("flow", 3000 if full else 1000)
            wait_for(api, service, len(pods))
            flow = schedule(service.extender_port, pods, names)
            example = next(pod for pod in api.get("/api/v1/pods")["items"] if pod["spec"].get("nodeName"))
            assert api.bound() == flow.bound
            asking = _asking_alone(service, len(pods))
        bare = _bare_binds(nodes, len(pods), names, example["metadata"]["annotations"])
        rate = flow.bound / flow.seconds
        if nodes == min(_BARS):
            yield Row("pods_per_second", round(rate, 1), "1/s", "≥ 200", asking, full, _note(flow, nodes))
        yield Row(
            "pods_per_second_ratio" if nodes == min(_BARS) else f"pods_per_second_ratio_{nodes}",
            round(rate / bare, 3),
            "ratio",
            bar,
            None,
            full,
            f"{_note(flow, nodes)}; {rate:.0f} a second of {bare:.0f} bare Bindings, {BINDERS} at a time",
        )


def _note(flow: Scheduled, nodes: int) -> str:
    return (
        f"{flow.bound} pods in {flow.seconds:.1f} s, {nodes:,} nodes a filter; {flow.conflicts} conflicts;"
        " without the scheduler's own work"
    )


def _asking_alone(service: ServiceProcess, pods: int) -> float:
    """Pods a second if all that is done is asking: three empty answers each."""
    line = LoopbackClient(service.extender_port)
    began = time.perf_counter()
    for _ in range(3 * pods):
        line.ask("GET", "/version")
    took = time.perf_counter() - began
    line.close()
    return round(pods / took, 1)


def _bare_binds(nodes: int, count: int, names: Sequence[str], annotations: Obj) -> float:
    """Bindings a second that the API server alone takes, with annotations as the service writes them."""
    api = ApiProcess(nodes)
    try:
        pods = api.pods("bare", count)
        line = LoopbackClient(int(api.url.rpartition(":")[2]))
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_TOKEN}"}

        def bind(number: int) -> None:
            meta = pods[number]["metadata"]
            body = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": meta["name"], "uid": meta["uid"], "annotations": annotations},
                "target": {"apiVersion": "v1", "kind": "Node", "name": names[number % nodes]},
            }
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
            status, said = line.ask("POST", path, json.dumps(body).encode(), head)
            assert status == _BOUND, said

        began = time.perf_counter()
        with ThreadPoolExecutor(BINDERS) as pool:
            list(pool.map(bind, range(count)))
        took = time.perf_counter() - began
        line.close()
        assert api.bound() == count
        return count / took
    finally:
        api.close()
