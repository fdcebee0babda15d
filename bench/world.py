"""A node to measure: API server and kubelet stand-ins here, the agent a process of its own, to be killed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpu_manager.adapters.http import HttpClient
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    INVENTORY,
    MEMORY,
    Assignment,
    decode_inventory,
    encode_assignment,
)
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.topology import Topology
from sandbox.api import StandInApi
from sandbox.kubelet import AdmissionResult, StandInKubelet
from vcuda.page.layout import uuid_text
from vcuda.page.limits import read_limits

NODE = "bench"
PATIENCE = 300.0  # seconds for an agent to come up; the time only ends the wait for what never comes


class World:
    """Start, admit, judge. ``kill`` is SIGKILL; the next ``start_agent`` finds what the dead one left."""

    def __init__(
        self,
        *,
        profile: str = "a100x8",
        seed: int = 0,
        reclaim_seconds: float = 1.0,
        pages: Path | None = None,
        control: Path | None = None,
    ) -> None:
        """``pages`` may lie on a tmpfs, as a node's do; ``control`` is the simulated cards' control file."""
        self._directory = tempfile.TemporaryDirectory(prefix="vcuda-bench-")
        self.root = Path(self._directory.name)
        self.pages = pages or self.root / "pages"
        self.profile, self.reclaim_seconds, self.control = profile, reclaim_seconds, control
        self.api = StandInApi()
        self.kubelet = StandInKubelet(self.root / "kubelet", seed=seed)
        self.agent: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.port = 0  # of the agent's HTTP, once it has said so
        self._names = itertools.count()

    def __enter__(self) -> Self:
        self.api.start()
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.kubelet.start()
        self.start_agent()
        node = self.api.get("nodes", NODE)
        deadline = time.monotonic() + PATIENCE
        while node is None or INVENTORY not in (node["metadata"].get("annotations") or {}):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no inventory was published; see {self.log}")
            time.sleep(0.02)
            node = self.api.get("nodes", NODE)
        inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
        if inventory is None:
            raise RuntimeError("the published inventory cannot be read")
        self.cards: tuple[CardState, ...] = inventory.cards
        self.topology: Topology = inventory.topology
        self.unit = inventory.unit
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait(15)
        self.kubelet.stop()
        self.api.stop()
        self._directory.cleanup()

    @property
    def log(self) -> Path:
        """What the agent wrote."""
        return self.root / "agent.log"

    def start_agent(self, *, wait: bool = True) -> None:
        """Start the agent and wait until the kubelet has its devices, unless told not to."""
        self.starts += 1
        arguments = {
            "--node-name": NODE,
            "--api-url": self.api.url,
            "--kubelet-dir": str(self.root / "kubelet"),
            "--state-dir": str(self.root / "state"),
            "--pages-dir": str(self.pages),
            "--http-address": "127.0.0.1",
            "--http-port": "0" if self.starts == 1 else str(self.port),
            "--cards": f"simulated:{self.profile}",
            "--device-injection": "simulated",
            "--log-level": os.environ.get("BENCH_LOG_LEVEL", "info"),
            "--reclaim-seconds": str(self.reclaim_seconds),
            **({"--control": str(self.control)} if self.control else {}),
        }
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                self.command(arguments),
                stdout=log,
                stderr=log,
            )
        if wait:
            self.await_devices()
        if self.starts == 1:
            self.port = self._find_port()

    def command(self, arguments: Mapping[str, str]) -> list[str]:
        """The agent's command line."""
        return [sys.executable, "-m", "gpu_manager", "run", *itertools.chain(*arguments.items())]

    def await_devices(self) -> None:
        """Until both resources are allocatable."""
        deadline = time.monotonic() + PATIENCE
        while not all(self.kubelet.allocatable().get(r, 0) for r in (CORE, MEMORY)):
            if time.monotonic() > deadline or (self.agent is not None and self.agent.poll() is not None):
                raise RuntimeError(f"the agent did not register: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)
        self.kubelet.publish_node()

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        if self.agent is not None:
            self.agent.send_signal(signal.SIGKILL)
            self.agent.wait()
            self.agent = None

    def create(
        self,
        containers: Sequence[tuple[str, int, int]],
        *,
        init: Sequence[tuple[str, int, int]] = (),
        sidecars: Sequence[tuple[str, int, int]] = (),
        name: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """A pod in the API, not bound yet: (name, cores, memory units) for each container."""
        made = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name or f"p{next(self._names)}",
                    "namespace": "default",
                    "annotations": dict(annotations or {}),
                },
                "spec": {
                    "initContainers": [_container(*c) for c in init]
                    + [{**_container(*c), "restartPolicy": "Always"} for c in sidecars],
                    "containers": [_container(*c) for c in containers],
                },
            }
        )
        return dict(made)

    def bind(self, pod: Mapping[str, Any], placement: Mapping[str, Sequence[Share]] | None) -> dict[str, Any]:
        """Bind it here, with the extender's choice in the same write, as the real one does."""
        annotations = {}
        if placement is not None:
            chosen = {n: tuple((s.card, s.amount) for s in shares) for n, shares in placement.items()}
            annotations[ALLOCATION] = encode_assignment(Assignment(NODE, pod["metadata"]["uid"], chosen))
        self.api.bind(pod["metadata"]["name"], NODE, annotations=annotations)
        bound = self.api.get("pods", pod["metadata"]["name"])
        if bound is None:
            raise RuntimeError("a pod vanished while it was bound")
        return dict(bound)

    def limits(self, result: AdmissionResult, container: str) -> dict[CardUuid, tuple[int, int]]:
        """Card → (cores, memory bytes) in force under the mounts that the kubelet was handed."""
        response = result.containers[container]
        mounts = {m.container_path: m.host_path for m in response.mounts}
        if "/etc/vcuda/limits" not in mounts:
            return {CardUuid(u): (100, -1) for u in response.envs["VCUDA_CARDS"].split(",")}
        limits = read_limits(Path(mounts["/etc/vcuda/limits"]).read_bytes())
        return {
            CardUuid(uuid_text(card.uuid, card.instance)): (
                int(card.core_limit or 0),
                int(card.memory_limit or 0),
            )
            for card in limits.cards
        }

    def get(self, path: str) -> str:
        """One page of the agent."""
        client = HttpClient(f"http://127.0.0.1:{self.port}")
        try:
            return client.ask("GET", path, headers={"Accept": "application/json"}).body.decode()
        finally:
            client.close()

    def _find_port(self) -> int:
        for line in self.log.read_text().splitlines():
            if '"event": "running"' in line:
                return int(line.split('"port": ')[1].split(",")[0].rstrip("}"))
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            time.sleep(0.02)
            text = self.log.read_text()
            if '"event": "running"' in text:
                return self._find_port()
        raise RuntimeError("the agent did not say its port")


def _container(name: str, cores: int, units: int) -> dict[str, Any]:
    amounts = {k: str(v) for k, v in ((CORE, cores), (MEMORY, units)) if v}
    return {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}}
