"""The node's containerd has CDI switched off under an agent that injects by it: is every container that runs without
its grant named, and no other?

``python -m tests.cluster cdi-off [PODS]``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from gpu_manager.domain.contract import EVENT_NOT_INJECTED
from tests.cluster import product
from tests.cluster.cluster import Cluster
from tests.cluster.pods import NAMESPACE, PATH, Pods, container, pod, sidecar

PODS: Final = 24
_NAMED_SECONDS: Final = 10.0
_START_SECONDS: Final = 240.0  # of all pods together
_TABLE: Final = '[plugins."io.containerd.cri.v1.runtime"]\n'
_EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"

Started = tuple[str, str]
"""Pod, container."""


@dataclass(slots=True)
class CdiOff:
    """Containers with CDI ``off`` and ``on``; ``unseen``: of the first not named in 10 s, or of the second named."""

    off: int = 0
    on: int = 0
    unseen: int = 0
    longest_seconds: float = (
        0.0  # from the first look that finds it running to the first that finds the Event
    )

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)


def measure(cluster: Cluster, count: int = PODS) -> CdiOff:
    """So many pods with CDI off, and as many with it on. Afterwards the agent injects as the chart has it."""
    result, pods = CdiOff(), Pods(cluster)
    product.install(cluster, admission=True, **{"cards.injection": "cdi"})
    try:
        with switched_off(cluster):
            waited = _until_named(cluster, pods, count, _NAMED_SECONDS)
            result.off = len(waited)
            result.unseen = sum(one is None or one > _NAMED_SECONDS for one in waited.values())
            result.longest_seconds = round(max((one or 0.0 for one in waited.values()), default=0.0), 1)
            pods.clear()
        waited = _until_named(cluster, pods, count, _NAMED_SECONDS, "sound")
        result.on = len(waited)
        result.unseen += sum(one is not None for one in waited.values())
    finally:
        pods.clear()
        back_to_simulated(cluster)
    sys.stdout.write(f"{result.as_json()}\n")
    return result


def back_to_simulated(cluster: Cluster) -> None:
    """The agent injects as the chart has it for simulated cards, and no spec stays (docs/operations, uninstall)."""
    product.install(cluster, admission=True)
    cluster.inside("sh", "-c", "rm -f /run/cdi/tencent.com-vcuda_*.json", check=True)


@contextmanager
def switched_off(cluster: Cluster) -> Iterator[None]:
    """containerd reads no CDI specs until the block ends."""
    config = cluster.scratch / "containerd.toml"
    text = config.read_text("utf-8")
    if _TABLE not in text:
        raise RuntimeError(f"{config} has no table {_TABLE.strip()}")
    try:
        _reconfigured(cluster, text.replace(_TABLE, f"{_TABLE}  enable_cdi = false\n"))
        yield
    finally:
        _reconfigured(cluster, text)


def _reconfigured(cluster: Cluster, text: str) -> None:
    (cluster.scratch / "containerd.toml").write_text(text, "utf-8")
    cluster.restart("containerd")
    cluster.wait(lambda: product.agent_ready(cluster), 90, "the agent does not come back")


def _until_named(
    cluster: Cluster, pods: Pods, count: int, seconds: float, prefix: str = "bare"
) -> dict[Started, float | None]:
    """Container → seconds from its start to its Event, as the API shows both; None: so many have gone by."""
    names = pods.create(*(_shaped(f"{prefix}-{at}", at) for at in range(count)))
    wanted = sum(2 if at % 3 else 1 for at in range(count))
    began: dict[Started, float] = {}
    named: dict[Started, float] = {}
    ends = time.monotonic() + _START_SECONDS
    while len(began) < wanted or any(
        one not in named and time.monotonic() - at <= seconds for one, at in began.items()
    ):
        if time.monotonic() > ends:
            raise TimeoutError(f"{len(began)} of {wanted} containers run after {_START_SECONDS:.0f} s")
        for one in _running(cluster, set(names)):
            began.setdefault(one, time.monotonic())
        for one in _told(cluster):
            named.setdefault(one, time.monotonic())
        time.sleep(0.2)
    return {one: max(0.0, named[one] - at) if one in named else None for one, at in began.items()}


def _shaped(name: str, at: int) -> dict[str, Any]:
    """One container, two, or one with a sidecar."""
    app, beside = container("a", 10, 4), container("b", 10, 4)
    if at % 3 == 2:
        return pod(name, app, init=[sidecar("b", 10, 4)])
    return pod(name, app, beside) if at % 3 else pod(name, app)


def _running(cluster: Cluster, names: set[str]) -> Iterator[Started]:
    for found in cluster.api.get(PATH)["items"]:
        name, status = found["metadata"]["name"], found["status"]
        if name in names:
            for one in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())):
                if "running" in one["state"]:
                    yield name, one["name"]


def _told(cluster: Cluster) -> Iterator[Started]:
    for event in cluster.api.get(_EVENTS, fieldSelector=f"reason={EVENT_NOT_INJECTED}")["items"]:
        for name in ("a", "b"):
            if event["message"].startswith(f'container "{name}"'):
                yield event["involvedObject"]["name"], name
