"""The kubelet loses its checkpoint again and again under running pods: is every container that it cannot start again
named within 10 s and no other, and is each pod of a controller replaced?

``python -m tests.cluster lost-checkpoint [TIMES]``. Runs of one image are added up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from gpu_manager.domain.contract import EVENT_WITHOUT_DEVICES
from tests.cluster import auditor, product, record
from tests.cluster.cluster import Cluster
from tests.cluster.pods import NAMESPACE, Pods, container, pod, sidecar
from tests.cluster.workloads import Workload

TIMES: Final = 20
OWNED: Final = 6  # pods of a Deployment
FAST: Final = {"evictor.perMinute": "100", "evictor.nodePerMinute": "60"}  # or each time takes minutes
NAMED_SECONDS: Final = 10.0
_LOOKED_SECONDS: Final = 40.0  # for Events that are late
_REPLACED_SECONDS: Final = 180.0
_FILE: Final = "kubelet/device-plugins/kubelet_internal_checkpoint"
_EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"


@dataclass(slots=True)
class LostCheckpoint:
    """``late``, ``wrongly`` and ``stayed`` must be 0."""

    image: str = ""
    times: int = 0
    pods: int = 0  # with a container that cannot start again
    late: int = 0  # of them not named within 10 s after the kubelet was back
    wrongly: int = 0  # pods that were named and need nothing
    stayed: int = 0  # pods of a controller that were not replaced
    longest_seconds: float = 0.0  # from the kubelet's return to the Event
    longest_replaced: float = 0.0  # to the last ready pod in their place

    def added(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """This run and the earlier ones of the same image, for the record."""
        return record.added(asdict(self), before)


def measure(cluster: Cluster, times: int = TIMES, owned: int = OWNED) -> LostCheckpoint:
    """So many losses, each under ``owned`` pods of a Deployment, one of its own with three containers and one that
    restarts nothing, which alone needs no record.
    """
    result, pods = LostCheckpoint(record.image()), Pods(cluster)
    try:
        with Workload(cluster, "Deployment", "stranded", container("c", 30, 20), replicas=owned) as workload:
            for _ in range(times):
                _once(cluster, pods, workload, owned, result)
                sys.stdout.write(f"{asdict(result)}\n")
                sys.stdout.flush()
    finally:
        pods.clear()
    return result


def lose(cluster: Cluster) -> None:
    """The kubelet ends, its checkpoint goes, and it starts; returns once it answers."""
    cluster.kill("kubelet")
    (cluster.scratch / _FILE).unlink()
    cluster.start("kubelet")
    cluster.wait(cluster.node_ready, 60, "the node is not ready")


def named(cluster: Cluster) -> set[str]:
    """UIDs of the pods that an Event says were stranded."""
    found = cluster.api.get(_EVENTS, fieldSelector=f"reason={EVENT_WITHOUT_DEVICES}")["items"]
    return {event["involvedObject"]["uid"] for event in found}


def _once(cluster: Cluster, pods: Pods, workload: Workload, owned: int, result: LostCheckpoint) -> None:
    workload.wait_ready(owned)
    bare, once = pods.run(
        pod(
            "bare",
            *(container("a", 10, 4), container("b", 10, 4)),
            init=[sidecar("s", 5, 4)],
            restartPolicy="Always",
        ),
        pod("once", container("c", 10, 4)),
    )
    auditor.settled(cluster)
    before = {one["metadata"]["uid"] for one in workload.pods()}
    lose(cluster)
    began = time.monotonic()
    missing = {*before, bare["metadata"]["uid"]}
    result.times += 1
    result.pods += len(missing)
    while (missing := missing - named(cluster)) and time.monotonic() - began < _LOOKED_SECONDS:
        if time.monotonic() - began < NAMED_SECONDS:
            late = len(missing)
        time.sleep(0.2)
    took = time.monotonic() - began
    result.longest_seconds = round(max(result.longest_seconds, took), 1)
    result.late += late if took > NAMED_SECONDS else 0
    result.stayed += _staying(cluster, workload, before, owned)
    result.longest_replaced = round(max(result.longest_replaced, time.monotonic() - began), 1)
    result.wrongly += once["metadata"]["uid"] in named(cluster)
    pods.clear()
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the agent is not ready")


def _staying(cluster: Cluster, workload: Workload, before: set[str], owned: int) -> int:
    """How many of the pods are there after all the time that they have to be replaced."""

    def staying() -> set[str]:
        return before & {one["metadata"]["uid"] for one in workload.pods()}

    try:
        cluster.wait(lambda: not staying(), _REPLACED_SECONDS, "pods stay")
    except TimeoutError:
        return len(staying())
    workload.wait_ready(owned)
    return 0
