"""A node for tests: the kubelet stand-in in a directory of its own, with the smallest plugins on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gpu_manager.adapters.kubelet.client import KubeletClient
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2
from sandbox.kubelet import Limiter, NumaPolicy, StandInKubelet
from tests.fakes.plugin import CORE, MEMORY, Plugin, devices
from tests.fakes.ports import FakeClock
from tests.fakes.waiting import PATIENCE

OPEN = Limiter(rate=1e6, burst=1_000_000)


class Node:
    """The stand-in, started, and what a test needs around it; a short path, for sockets have room for 107."""

    def __init__(
        self,
        *,
        seed: int = 0,
        limiter: Limiter = OPEN,
        numa: NumaPolicy = NumaPolicy.NONE,
        dial_seconds: float = PATIENCE,
        pre_start_seconds: float = PATIENCE,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vk"))
        self.clock = FakeClock()
        self.kubelet = StandInKubelet(
            self.directory,
            clock=self.clock,
            seed=seed,
            limiter=limiter,
            numa=numa,
            dial_seconds=dial_seconds,
            pre_start_seconds=pre_start_seconds,
        )
        self.kubelet.start()
        self.plugins: list[Plugin] = []
        self.client = KubeletClient(self.kubelet.device_plugins, self.kubelet.pod_resources)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.kubelet.stop()
        for plugin in self.plugins:
            plugin.stop()
        shutil.rmtree(self.directory)

    def serve(self, resource: str, offered: Sequence[api_pb2.Device], *, endpoint: str = "") -> Plugin:
        """A plugin that serves and is not registered."""
        plugin = Plugin(resource, offered, endpoint=endpoint).serve(self.kubelet.device_plugins)
        self.plugins.append(plugin)
        return plugin

    def plugin(self, resource: str, offered: Sequence[api_pb2.Device], *, endpoint: str = "") -> Plugin:
        """A plugin whose devices the kubelet knows."""
        plugin = self.serve(resource, offered, endpoint=endpoint)
        self.register(plugin)
        return plugin

    def register(self, plugin: Plugin) -> None:
        plugin.register(self.kubelet.device_plugins)
        self.kubelet.wait({plugin.resource: sum(d.health == "Healthy" for d in plugin.offered)})

    def both(self, cores: int = 100, memory: int = 100) -> tuple[Plugin, Plugin]:
        return self.plugin(CORE, devices("c", cores)), self.plugin(MEMORY, devices("m", memory))


Limits = Mapping[str, Mapping[str, int]]


def pod(
    uid: str,
    apps: Limits,
    *,
    init: Limits | None = None,
    sidecars: Limits | None = None,
    name: str = "",
    created: str = "2026-01-01T00:00:00Z",
) -> dict[str, object]:
    """A pod object: limits by container name; sidecars come after the ordinary init containers."""

    def container(name: str, limits: Mapping[str, int], **more: str) -> dict[str, object]:
        texts = {resource: str(count) for resource, count in limits.items()}
        return {"name": name, "image": "busybox", "resources": {"limits": texts, "requests": texts}, **more}

    return {
        "metadata": {"uid": uid, "name": name or uid, "namespace": "default", "creationTimestamp": created},
        "spec": {
            "initContainers": [
                *(container(n, limits) for n, limits in (init or {}).items()),
                *(container(n, limits, restartPolicy="Always") for n, limits in (sidecars or {}).items()),
            ],
            "containers": [container(n, limits) for n, limits in apps.items()],
        },
    }


def lowest(request: api_pb2.ContainerPreferredAllocationRequest) -> list[str]:
    """Prefers the ids that come first by name, and what must be included."""
    must = list(request.must_include_deviceIDs)
    rest = sorted(set(request.available_deviceIDs) - set(must))
    return must + rest[: request.allocation_size - len(must)]
