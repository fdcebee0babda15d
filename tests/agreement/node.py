"""A node as the cases see it: its API server, the kubelet's sockets, and plugins that a case writes down."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse, Device
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc
from tests.agreement.world import NAMESPACE, PODS, World, plain, pod
from tests.fakes.plugin import Plugin, device
from tests.fakes.waiting import PATIENCE

FOREVER: Final = "trap 'exit 0' TERM; sleep 1000000 & wait"
_ENDED: Final = ("Succeeded", "Failed")
Obj = dict[str, Any]


@dataclass
class NodeWorld:
    """One node. ``directory`` is its ``/var/lib/kubelet``; ``restart`` ends its kubelet and begins it anew.

    Resources are named by the case, ``self("a")``, as a kubelet remembers those of plugins that have gone.
    """

    world: World
    node: str
    directory: Path
    image: str
    restart: Callable[[], None]
    case: str = ""
    plugins: list[Plugin] = field(default_factory=list)

    def begin(self, case: str) -> None:
        """A case of its own resources."""
        self.case = case.replace("_", "-")

    def clear(self) -> None:
        """Pods first: a kubelet does not miss the plugins of none."""
        self.world.clear()
        for plugin in self.plugins:
            plugin.stop()
        self.plugins.clear()

    def __call__(self, short: str) -> str:
        """A resource of the case."""
        return f"example.test/{self.case}-{short}"

    # Plugins.

    @property
    def sockets(self) -> Path:
        """Where plugins serve and register."""
        return self.directory / "device-plugins"

    def serve(self, short: str, devices: int | Sequence[Device] = 8, *, endpoint: str = "") -> Plugin:
        """A plugin that serves and has not registered; its ids are ``<short>0``, ``<short>1``, …"""
        many = [device(f"{short}{i}") for i in range(devices)] if isinstance(devices, int) else devices
        plugin = Plugin(self(short), many, endpoint=endpoint or f"{self.case}-{short}.sock")
        (self.sockets / plugin.endpoint).unlink(missing_ok=True)
        self.plugins.append(plugin.serve(self.sockets))
        return plugin

    def plugin(self, short: str, devices: int | Sequence[Device] = 8) -> Plugin:
        """A plugin whose devices the node offers."""
        plugin = self.serve(short, devices)
        self.register(plugin)
        return plugin

    def register(self, plugin: Plugin) -> None:
        """Register, and wait until the node offers what is healthy."""
        plugin.register(self.sockets)
        wanted = sum(d.health == "Healthy" for d in plugin.offered)
        self.offers(plugin.resource, wanted)

    def offers(self, resource: str, count: int, capacity: int | None = None) -> None:
        """Wait until the node's object says so."""

        def found() -> bool:
            status = self.world.get(f"/api/v1/nodes/{self.node}")["status"]
            enough = capacity is None or int(status["capacity"].get(resource, -1)) == capacity
            return enough and int(status["allocatable"].get(resource, -1)) == count

        self.world.until(found, f"{resource} is not {count}")

    # Pods.

    def create(
        self,
        name: str,
        apps: Mapping[str, Mapping[str, int]],
        init: Mapping[str, Mapping[str, int]] | None = None,
        sidecars: Iterable[str] = (),
        script: str = FOREVER,
        **spec: Any,
    ) -> Obj:
        """A pod on the node: container → short resource → count. ``sidecars`` are named among ``init``."""

        def container(which: str, counts: Mapping[str, int], text: str) -> Obj:
            limits = {self(short) if len(short) == 1 else short: str(n) for short, n in counts.items()}
            made = {"name": which, "image": self.image, "imagePullPolicy": "IfNotPresent"}
            return {**made, "command": ["/bin/sh", "-c", text], "resources": {"limits": limits}}

        first = []
        for which, counts in (init or {}).items():
            lasting = which in sidecars
            made = container(which, counts, FOREVER if lasting else "true")
            first.append({**made, "restartPolicy": "Always"} if lasting else made)
        containers = [container(which, counts, script) for which, counts in apps.items()]
        spec = {"restartPolicy": "Never", "enableServiceLinks": False, **spec}
        body = pod(name, containers=containers, initContainers=first, nodeName=self.node, **spec)
        return dict(self.world.make(PODS, body))

    def run(self, name: str, *args: Any, **kwargs: Any) -> Obj:
        """Create, and wait until it runs or has ended; its status."""
        self.create(name, *args, **kwargs)
        return self.settled(name)

    def settled(self, name: str) -> Obj:
        """The status of a pod once all its containers run, or it has ended."""

        def found() -> Obj | None:
            status = self.status(name)
            rows = status.get("containerStatuses") or ()
            runs = status.get("phase") == "Running" and all("running" in r["state"] for r in rows)
            return status if status.get("phase") in _ENDED or runs else None

        return dict(self.world.until(found, f"{name} neither runs nor ends"))

    def status(self, name: str) -> Obj:
        """The pod's status now."""
        return dict(self.world.get(f"{PODS}/{name}").get("status", {}))

    def ended(self, name: str) -> str:
        """The phase of a pod once it has ended."""
        return str(
            self.world.until(
                lambda: (phase := self.status(name).get("phase")) in _ENDED and phase,
                f"{name} does not end",
            )
        )

    def delete(self, name: str) -> None:
        """Delete with grace, and wait until it is gone."""
        self.world.ask("DELETE", f"{PODS}/{name}").ok()
        self.world.until(lambda: self.world.ask("GET", f"{PODS}/{name}").code == 404, f"{name} does not go")

    # What the kubelet shows.

    def ask(self, call: Callable[[api_pb2_grpc.PodResourcesListerStub], Any]) -> Any:
        """PodResources; an error is (code, details)."""
        target = f"unix://{(self.directory / 'pod-resources/kubelet.sock').absolute()}"
        with grpc.insecure_channel(target, options=(("grpc.default_authority", "localhost"),)) as channel:
            try:
                return call(api_pb2_grpc.PodResourcesListerStub(channel))
            except grpc.RpcError as error:
                return error.code().name, error.details()

    def listed(self) -> dict[str, dict[str, dict[str, set[str]]]]:
        """List: pod → container → short resource → ids, of the case's own."""
        answer = self.ask(lambda stub: stub.List(api_pb2.ListPodResourcesRequest(), timeout=PATIENCE))
        return {p.name: self.holds(p) for p in answer.pod_resources if p.namespace == NAMESPACE}

    def holds(self, found: api_pb2.PodResources) -> dict[str, dict[str, set[str]]]:
        """What each container of an answer has."""
        pods: dict[str, dict[str, set[str]]] = {}
        for container in found.containers:
            here = pods.setdefault(container.name, {})
            for entry in container.devices:
                here.setdefault(entry.resource_name.rpartition("-")[2], set()).update(entry.device_ids)
        return pods

    def checkpoint(self) -> Obj:
        """The kubelet's own file."""
        return dict(json.loads((self.sockets / "kubelet_internal_checkpoint").read_text("utf-8")))

    def entries(self, uid: str) -> dict[tuple[str, str], tuple[Obj, ContainerAllocateResponse]]:
        """A pod's rows there: (container, short resource) → ids by NUMA node, and the plugin's answer."""
        rows = self.checkpoint()["Data"]["PodDeviceEntries"] or ()
        return {
            (row["ContainerName"], row["ResourceName"].rpartition("-")[2]): (
                row["DeviceIDs"],
                ContainerAllocateResponse.FromString(base64.b64decode(row["AllocResp"])),
            )
            for row in rows
            if row["PodUID"] == uid
        }


def letters(plugin: Plugin) -> str:
    """P, A and S for the calls so far: GetPreferredAllocation, Allocate, PreStartContainer."""
    return "".join(letter for letter, _ in plugin.calls)


def verdict(status: Mapping[str, Any]) -> tuple[str, str, str]:
    """Phase, reason and message of a pod."""
    return status.get("phase", ""), status.get("reason", ""), plain(status.get("message", ""))


def refusing(words: str) -> Callable[[object], Any]:
    """A call of a plugin that fails."""

    def answer(_: object) -> Any:
        raise ValueError(words)

    return answer
