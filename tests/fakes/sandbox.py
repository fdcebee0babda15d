"""What the sandbox's tests share: waiting with a deadline, short directories, a node without an agent."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sandbox.api import StandInApi
from sandbox.kubelet import StandInKubelet
from sandbox.node import NodeLoop
from sandbox.processes import ProcessTable
from sandbox.runtime import Runtime
from sandbox.scheduler import Scheduler
from tests.fakes.waiting import until

NODE = "n1"
GPU = "x.io/gpu"


def alive(pid: int) -> bool:
    """True while the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose sockets' paths are short enough."""
    made = Path(tempfile.mkdtemp(prefix="gms", dir="/tmp" if os.access("/tmp", os.W_OK) else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class BareNode:
    """API and kubelet stand-ins, node loop, scheduler: all but the agent; ``gpus`` of another vendor's kind."""

    def __init__(self, directory: Path, gpus: int = 4) -> None:
        self.api = StandInApi()
        self.kubelet = StandInKubelet(directory / "kubelet")
        self.processes = ProcessTable()
        self.runtime = Runtime(directory, self.processes)
        self.node = NodeLoop(NODE, self.api, self.kubelet, self.runtime, restart_pause=0.05)
        self.scheduler = Scheduler(self.api)
        self.directory = directory
        self._gpus = gpus

    def __enter__(self) -> Self:
        self.api.start()
        self.kubelet.start()
        self.kubelet.set_foreign(GPU, self._gpus)
        self.node.start()
        self.scheduler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()
        self.scheduler.stop()
        self.processes.close()
        self.kubelet.stop()
        self.api.stop()

    def create(self, name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
        return self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec},
            }
        )

    def pod(self, name: str) -> dict[str, Any]:
        return self.api.get("pods", name) or {}

    def status(self, name: str) -> dict[str, Any]:
        return self.pod(name).get("status") or {}

    def phase(self, name: str, wanted: str) -> dict[str, Any]:
        until(lambda: self.status(name).get("phase") == wanted)
        return self.status(name)

    def container(self, pod: str, name: str) -> dict[str, Any]:
        rows = [
            *self.status(pod).get("initContainerStatuses", ()),
            *self.status(pod).get("containerStatuses", ()),
        ]
        return next((row for row in rows if row["name"] == name), {})

    def events(self, pod: str) -> dict[str, str]:
        found = self.api.list("events")
        return {e["reason"]: e["message"] for e in found if e["involvedObject"]["name"] == pod}


def shell(name: str, script: str, **fields: Any) -> dict[str, Any]:
    """A container that runs a script."""
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], **fields}
