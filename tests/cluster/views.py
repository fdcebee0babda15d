"""What operators see, held against the ledger: the agent's pages, its metrics, and ``kubectl vcuda graph|top``.

Each view is read into (namespace, pod, container, card) → (cores, bytes), by this file and the standard parsers
of JSON and Prometheus text; the ledger is the file on the node's disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster import layout, product
from tests.cluster.auditor import Books
from tests.cluster.cluster import Cluster
from tests.cluster.decoding import holders

Holdings = Mapping[tuple[str, str, str, str], tuple[int, int]]

MIB: Final = 1 << 20
GRACE_SECONDS: Final = 15.0  # kubectl reads annotations, which are written after the start


def booked(cluster: Cluster, pods: Collection[str], *, ended: bool = True) -> Holdings:
    """What the ledger on disk holds for these pods (UIDs); ``ended``: for their ended init containers too."""
    return {
        (row["ns"], row["name"], row["container"], uuid): (cores, size)
        for row in Books.of(cluster).rows
        if row["pod"] in pods and (ended or row["kind"] != "init")
        for uuid, cores, size in row["shares"]
    }


def running(cluster: Cluster) -> Mapping[str, tuple[str, str]]:
    """UID → namespace and name of the node's pods that run and stay: what others held is given back any time."""
    found = cluster.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={layout.NODE}")["items"]
    return {
        meta["uid"]: (meta["namespace"], meta["name"])
        for meta, status in ((pod["metadata"], pod["status"]) for pod in found)
        if status.get("phase") == "Running" and "deletionTimestamp" not in meta
    }


def kubectl(cluster: Cluster, *arguments: str) -> Any:
    """The JSON that ``kubectl vcuda`` prints. Raises RuntimeError with its words."""
    command = [str(Path(sys.executable).with_name("kubectl-vcuda")), *arguments, "-o", "json"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"kubectl vcuda {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def graph(cluster: Cluster) -> Holdings:
    """The agent's ``/graph``."""
    return holders(product.ask_json(cluster, "/graph"))


def kubectl_graph(cluster: Cluster) -> Holdings:
    """``kubectl vcuda graph n1``: annotations of the node and its pods."""
    [node] = kubectl(cluster, "graph", "n1")["nodes"]
    return holders(node)


def kubectl_top(cluster: Cluster) -> Holdings:
    """``kubectl vcuda top -A``."""
    found = kubectl(cluster, "top", "-A")
    assert not found["silent"], found["silent"]
    return {
        (one["namespace"], one["pod"], one["container"], one["uuid"]): (one["cores"], one["memory"])
        for one in found["containers"]
    }


def metrics(cluster: Cluster) -> Holdings:
    """The limits of each container on each card, by ``/metric``."""
    found: defaultdict[tuple[str, str, str, str], dict[str, float]] = defaultdict(dict)
    for name, labels, value in _samples(cluster):
        if name in (_CORES, _MEMORY):
            found[labels["namespace"], labels["pod"], labels["container"], labels["uuid"]][name] = value
    return {key: (round(one[_CORES] * 100), int(one[_MEMORY])) for key, one in found.items()}


def total(cluster: Cluster, name: str) -> float:
    """The sum of a metric's series by ``/metric``."""
    return sum(value for found, _, value in _samples(cluster) if found == name)


_CORES: Final = "vcuda_container_core_limit_ratio"
_MEMORY: Final = "vcuda_container_memory_limit_bytes"
# View → how to read it, and whether it shows what an init container holds that has ended.
VIEWS: Final[Mapping[str, tuple[Callable[[Cluster], Holdings], bool]]] = {
    "/graph": (graph, True),
    "/metric": (metrics, False),
    "kubectl vcuda graph": (kubectl_graph, True),
    "kubectl vcuda top": (kubectl_top, False),
}


def disagreements(cluster: Cluster) -> list[str]:
    """How each view differs from the ledger, in words; empty is good. Ask while nothing is being admitted."""
    pods, found = running(cluster), list[str]()
    names = set(pods.values())
    for name, (view, ended) in VIEWS.items():
        books = booked(cluster, pods, ended=ended)
        shown = {key: held for key, held in view(cluster).items() if key[:2] in names}
        found += [
            f"{name}: {'/'.join(key)} has {shown.get(key)}, the ledger {books.get(key)}"
            for key in sorted(shown.keys() | books.keys())
            if shown.get(key) != books.get(key)
        ]
    return [*found, *_sums(cluster, pods, names)]


def agreed(cluster: Cluster, seconds: float = GRACE_SECONDS) -> None:
    """Wait until every view shows what the ledger holds; raises AssertionError with how they differ."""
    last: list[str] = []

    def agree() -> bool:
        last[:] = disagreements(cluster)
        return not last

    try:
        cluster.wait(agree, seconds, "the views do not agree")
    except TimeoutError:
        raise AssertionError("\n".join(last)) from None


def _sums(cluster: Cluster, pods: Collection[str], names: Collection[tuple[str, str]]) -> Iterator[str]:
    """The views that show what a container has of all its cards: the predecessor's metrics and ``/usage``."""
    for view, found, ended in (
        ("the predecessor's metrics", _predecessors(cluster), False),
        ("/usage", _usage(cluster), True),
    ):
        containers: defaultdict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
        for (namespace, pod, name, _), held in booked(cluster, pods, ended=ended).items():
            containers[namespace, pod, name].append(held)
        asked = {
            key: (sum(cores for cores, _ in held) / 100, sum(size for _, size in held) / MIB)
            for key, held in containers.items()
        }
        shown = {key: amounts for key, amounts in found.items() if key[:2] in names}
        if shown != asked:
            yield f"{view}: {shown}, by the ledger {asked}"


def _predecessors(cluster: Cluster) -> Mapping[tuple[str, str, str], tuple[float, float]]:
    """Cards and MiB that a container asked for."""
    found: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for name, labels, value in _samples(cluster):
        if name.startswith("container_request_gpu_"):
            found[labels["namespace"], labels["pod_name"], labels["container_name"]][name] = value
    return {
        key: (one["container_request_gpu_utilization"], one["container_request_gpu_memory"])
        for key, one in found.items()
    }


def _usage(cluster: Cluster) -> Mapping[tuple[str, str, str], tuple[float, float]]:
    return {
        (pod["project"], pod["pod"], name): (asked["gpu"], asked["mem"])
        for pod in product.ask_json(cluster, "/usage")["usage"].values()
        for name, asked in pod["spec"].items()
        if pod["pod"]
    }


def _samples(cluster: Cluster) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(product.ask(cluster, "/metric")):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
