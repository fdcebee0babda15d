"""The agent's DaemonSet restarted again and again while a controller's pods come and go: how many of them fail.

``python -m tests.cluster rollouts [COUNT [BACKLOG]]``, with as many pods waiting for room as ``BACKLOG``. ``kubectl rollout restart`` as operators do it; a pod that the kubelet
refuses while no agent serves is Failed for ever, and counts against a Job's backoffLimit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.cluster import auditor, product
from tests.cluster.api import ApiError
from tests.cluster.beside import Beside
from tests.cluster.cluster import Cluster
from tests.cluster.pods import PATH, Pods, container, pod

ROLLOUTS: Final = 10
AT_ONCE: Final = 4  # pods of a batch
KEPT: Final = 24  # pods at a time, beside the backlog
PENDING: Final = (
    8  # of them that do not run yet: a controller makes no more than it wants, however slow the node
)
DAEMONSET: Final = "daemonset/gpu-manager-daemonset"


@dataclass(slots=True)
class Rollouts:
    """What was counted; ``failed`` must be 0."""

    backlog: int = 0
    rollouts: int = 0
    created: int = 0
    failed: int = 0
    seconds: list[float] = field(default_factory=list)  # of each rollout, until the next agent is ready

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return {
            "backlog": self.backlog,
            "rollouts": self.rollouts,
            "created": self.created,
            "failed": self.failed,
            "longest_seconds": round(max(self.seconds, default=0.0), 1),
        }


class Load(Beside):
    """Creates pods in batches and deletes the oldest that run; each that fails is told of once, and deleted.

    ``backlog``: so many more than the node can run, which wait for room; they get it from those that are deleted.
    """

    def __init__(self, cluster: Cluster, pods: Pods, backlog: int = 0) -> None:
        super().__init__("load")
        self._backlog = backlog
        self.created = 0
        self.failed: list[str] = []
        self._cluster, self._pods = cluster, pods
        self._alive: list[str] = []

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self.look()
            for _ in range(min(AT_ONCE, PENDING + self._backlog - self._pending())):
                name = f"load-{self.created}"
                try:
                    self._pods.try_create(pod(name, container("c", 15, 10)))
                except ApiError as error:
                    if error.code not in (0, 500, 503):
                        raise
                    continue
                self.created += 1
                self._alive.append(name)
            if len(self._alive) > KEPT + self._backlog:
                self._shrink(len(self._alive) - KEPT - self._backlog)

    def _shrink(self, count: int) -> None:
        running = {found["metadata"]["name"] for found in self._in("Running")}
        oldest = sorted(self._alive, key=lambda name: name not in running)  # the order stays within both
        for name in oldest[:count]:
            self._alive.remove(name)
            self._cluster.api.delete(f"{PATH}/{name}")

    def _pending(self) -> int:
        return len(self._in("Pending"))

    def _in(self, phase: str) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self._cluster.api.get(
            PATH, fieldSelector=f"status.phase={phase}"
        )["items"]
        return found

    def look(self) -> None:
        """Count who has failed."""
        for found in self._in("Failed"):
            name, status = found["metadata"]["name"], found["status"]
            self.failed.append(f"{name}: {status.get('reason')}: {status.get('message')}")
            self._cluster.api.delete(f"{PATH}/{name}", 0)
            self._alive = [one for one in self._alive if one != name]


def measure(
    cluster: Cluster,
    count: int,
    backlog: int,
    keep: Callable[[Rollouts], object] = lambda _: None,
    *,
    end: Callable[[Cluster], None] | None = None,
) -> Rollouts:
    """So many rollouts under load, or other ``end``s of the agent; every book agrees in the end. ``keep`` is called
    with what was counted so far after each of them: what takes too long ends the run.
    """
    result, pods = Rollouts(backlog), Pods(cluster)
    try:
        with Load(cluster, pods, backlog) as load:
            cluster.wait(lambda: load.created >= backlog, 180, "the backlog is not there")
            for _ in range(count):
                began = time.monotonic()
                _replaced(cluster, end or _roll)
                result.seconds.append(time.monotonic() - began)
                result.rollouts += 1
                result.created, result.failed = load.created, len(load.failed)
                _say(f"{result.as_json()} {load.failed[-1:]}")
                keep(result)
        load.look()
        result.created, result.failed = load.created, len(load.failed)
        keep(result)
        auditor.settled(cluster)
    finally:
        pods.clear()
    return result


def _roll(cluster: Cluster) -> None:
    """Restart the DaemonSet; returns once it has another pod."""
    before = _agent(cluster)
    cluster.kubectl("-n", product.NAMESPACE, "rollout", "restart", DAEMONSET)
    cluster.wait(lambda: _agent(cluster) not in ("", before), 120, "no other agent")


def _replaced(cluster: Cluster, end: Callable[[Cluster], None]) -> None:
    """End the agent; returns once the next one has run pods for a while."""
    end(cluster)
    cluster.wait(lambda: product.agent_ready(cluster), 120, "the other agent is not ready")
    bound = set(_bound(cluster))
    cluster.wait(
        lambda: len(set(_bound(cluster)) - bound) >= AT_ONCE, 120, "no pod runs with the other agent"
    )


def _agent(cluster: Cluster) -> str:
    found = product.agent_pod(cluster)
    return found["metadata"]["uid"] if found is not None else ""


def _bound(cluster: Cluster) -> Iterator[str]:
    for found in cluster.api.get(PATH, fieldSelector="status.phase=Running")["items"]:
        yield found["metadata"]["uid"]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
