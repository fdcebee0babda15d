"""The node joins again and again as an autoscaler's does, new and with the startup taint, while pods wait for it: how
many of them does its kubelet refuse?

``python -m tests.cluster joins [TIMES]``.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import yaml

from gpu_manager.domain.contract import STARTUP_TAINT
from tests.cluster import auditor, layout, nodes, product, reboot
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod, why_failed

TIMES: Final = 20
LABEL: Final = {"cluster-test/joined": "yes"}  # starts the agent: set once admission serves and pods wait
VALUES: Final = {
    "startupTaint.enabled": "true",
    **{f"agent.nodeSelector.{key}": value for key, value in LABEL.items()},
    # There is one node: a scheduler that stands ready on another binds in the moment in which the taint goes.
    "admission.tolerations[0].operator": "Exists",
}
_NODE: Final = f"/api/v1/nodes/{layout.NODE}"
_WAIT_SECONDS: Final = 120.0


@dataclass(slots=True)
class Joins:
    """``failed`` must be 0."""

    times: int = 0
    pods: int = 0  # that waited for the node
    failed: int = 0  # of them, at their admission or later
    longest_taint: float = 0.0  # seconds from the label that starts the agent until the taint is gone
    longest_seconds: float = 0.0  # from there until the last pod ran

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)


def measure(cluster: Cluster, times: int = TIMES) -> Joins:
    """So many joins; every book agrees after each."""
    result = Joins()
    with _joining(cluster):
        for _ in range(times):
            _join(cluster, result)
            sys.stdout.write(f"{result.as_json()}\n")
            sys.stdout.flush()
    return result


@contextmanager
def _joining(cluster: Cluster) -> Iterator[None]:
    """The kubelet brings the taint, and the agent takes it off, until the block ends."""
    config = cluster.scratch / "kubelet.yaml"
    text = config.read_text("utf-8")
    _label(cluster)
    product.install(cluster, admission=True, **VALUES)
    taint = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
    config.write_text(yaml.safe_dump({**yaml.safe_load(text), "registerWithTaints": [taint]}), "utf-8")
    try:
        yield
    finally:
        config.write_text(text, "utf-8")
        product.install(cluster, admission=True)


def _label(cluster: Cluster) -> None:
    cluster.api.patch(_NODE, {"metadata": {"labels": LABEL}})


def leave(cluster: Cluster) -> None:
    """The node ends with all that runs there, and its object and state go."""
    reboot.halt(cluster)
    nodes.remove(cluster, layout.NODE)
    (cluster.scratch / "kubelet/device-plugins/kubelet_internal_checkpoint").unlink(missing_ok=True)
    for path in (cluster.scratch / "agent").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _join(cluster: Cluster, result: Joins) -> None:
    leave(cluster)
    for part in ("containerd", "kubelet"):
        cluster.start(part)
    cluster.wait(cluster.node_ready, 90, "the node does not join")
    assert _tainted(cluster)
    cluster.wait(lambda: product.admission_ready(cluster), 120, "admission does not come back")
    waiting = Pods(cluster)
    names = waiting.create(*_wanted())
    cluster.wait(lambda: all(_waits(waiting.get(one)) for one in names), 60, "nobody says that they wait")
    began = time.monotonic()
    _label(cluster)
    cluster.wait(lambda: not _tainted(cluster), _WAIT_SECONDS, "the taint stays")
    untainted = time.monotonic()
    found: list[dict[str, Any]] = []

    def decided() -> bool:
        found[:] = [waiting.get(one)["status"] for one in names]
        return all(one.get("phase") in ("Running", "Failed") for one in found)

    cluster.wait(decided, _WAIT_SECONDS, "pods neither run nor fail")
    ended = time.monotonic()
    failed = [why_failed(one) for one in found if one["phase"] == "Failed"]
    sys.stdout.write("".join(f"  {why}\n" for why in failed))
    result.times += 1
    result.pods += len(names)
    result.failed += len(failed)
    result.longest_taint = round(max(result.longest_taint, untainted - began), 1)
    result.longest_seconds = round(max(result.longest_seconds, ended - untainted), 1)
    auditor.settled(cluster)
    waiting.clear()


def _wanted() -> Iterator[dict[str, Any]]:
    """Shares of many sizes, whole cards, and a pod with two containers: all of them fit."""
    yield pod("join-whole", container("c", 200))
    yield pod("join-two", container("a", 30, 20), container("b", 10, 4))
    for at, (cores, units) in enumerate(((10, 4), (20, 8), (35, 20), (50, 40), (60, 80), (15, 10)) * 2):
        yield pod(f"join-{at}", container("c", cores, units))


def _tainted(cluster: Cluster) -> bool:
    taints = cluster.api.get(_NODE)["spec"].get("taints", ())
    return any(one["key"] == STARTUP_TAINT for one in taints)


def _waits(found: dict[str, Any]) -> bool:
    conditions = found["status"].get("conditions", ())
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)
