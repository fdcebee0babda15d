"""A whole node for unit tests: the kubelet stand-in's own rules, and the agent's services called by function.

As :class:`tests.fakes.node.NodeRig`, without sockets, gRPC, or a thread: what the kubelet decides is the
stand-in's, how its calls travel is left out.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_manager.adapters.kubelet.client import KubeletClient
from gpu_manager.domain.contract import CARRIERS
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import AllocateResponse
from gpu_manager.ports.records import PodResourcesEntry
from gpu_manager.servers.device_plugin import _response, devices_of, options_of
from gpu_manager.servers.plugin_registration import LENDING, SOCKETS
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.prestart import PreStart
from sandbox.kubelet import StandInKubelet
from sandbox.kubelet.checkpoint import CheckpointGrant
from sandbox.kubelet.values import Device
from tests.fakes.node import NodeRig
from tests.fakes.waiting import until

CODES = {RequestInvalid: "InvalidArgument", DoesNotFit: "FailedPrecondition", NodeUnready: "Unavailable"}


class Silent:
    """In place of a server on a socket."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def start(self) -> None:
        """Nobody listens."""

    def stop(self, *, leave: bool = False) -> None:
        """Nothing to end."""


class DirectKubelet(StandInKubelet):
    """The stand-in with no socket open."""

    def _build(self) -> Any:
        return replace(super()._build(), plugins=Silent(), pod_resources=Silent())

    def connect(self, resource: str, endpoint: DirectPlugin | None) -> None:
        """A plugin has registered, or has gone."""
        if endpoint is not None:
            self._live().books.connected(resource, endpoint)
        elif self._process is not None:
            self._process.books.disconnected(resource)

    def update(self, resource: str, devices: Sequence[Device]) -> None:
        self._live().books.update(resource, devices)

    def list_pods(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        """As PodResources answers List."""
        process = self._live()
        process.pod_resources.calls["List"] += 1
        pods = self._pods.active()
        process.books.collect()
        listing: dict[tuple[str, str], tuple[PodResourcesEntry, ...]] = {}
        for pod in pods:
            name = pod.namespace, pod.name
            containers = tuple(
                PodResourcesEntry(*name, asked.name, _ids(process.books.held(pod.uid, asked.name)))
                for asked in pod.containers
                if asked.kind is not ContainerKind.INIT
            )
            listing[name] = (*listing.get(name, ()), *containers)
        return listing


def _ids(held: Mapping[str, CheckpointGrant]) -> dict[str, frozenset[str]]:
    return {resource: frozenset(grant.ids) for resource, grant in held.items() if resource in LENDING}


class DirectClient(KubeletClient):
    """Reads the checkpoint's file as the real one does, and lists by function."""

    def __init__(self, kubelet: DirectKubelet, resources: Mapping[str, str]) -> None:
        super().__init__(kubelet.device_plugins, kubelet.pod_resources, resources=resources)
        self._kubelet = kubelet

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        return self._kubelet.list_pods()

    def close(self) -> None:
        """Nothing is open."""


class DirectPlugin:
    """One resource, as the kubelet's endpoint: errors in the kubelet's words."""

    def __init__(self, resource: str, allocator: Allocator, proof: PreStart) -> None:
        self.options = options_of(resource)
        self._resource, self._allocator, self._proof = resource, allocator, proof

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> frozenset[str]:
        return frozenset(self._allocator.prefer(self._resource, available, must_include, size))

    def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        try:
            answer = _response(self._allocator.allocate(self._resource, ids))
        except VcudaError as error:
            raise NodeUnready(f"rpc error: code = {CODES[type(error)]} desc = {error}") from error
        return AllocateResponse(container_responses=[answer])

    def pre_start(self, ids: Sequence[str]) -> None:
        if self._resource in CARRIERS:
            try:
                self._proof.prove(self._resource, ids)
            except VcudaError as error:
                raise NodeUnready(f"rpc error: code = {CODES[type(error)]} desc = {error}") from error


class DirectPlugins:
    """All resources of one agent."""

    def __init__(
        self,
        kubelet: DirectKubelet,
        state: NodeState,
        allocator: Allocator,
        proof: PreStart,
        *,
        lending: bool,
    ) -> None:
        self._kubelet, self._state, self._allocator = kubelet, state, allocator
        resources = LENDING if lending else SOCKETS
        self._endpoints = {r: DirectPlugin(r, allocator, proof) for r in resources}
        self.registered = threading.Event()

    def register(self) -> None:
        self._allocator.registered()
        for resource, endpoint in self._endpoints.items():
            self._kubelet.connect(resource, endpoint)
        self.registered.set()
        self.announce()

    def announce(self) -> None:
        """Send the devices as they are now."""
        if self.registered.is_set():
            offer = self._state.offer
            for resource in self._endpoints:
                devices = [
                    Device(d.ID, d.health == "Healthy", tuple(n.ID for n in d.topology.nodes))
                    for d in devices_of(resource, offer)
                ]
                self._kubelet.update(resource, devices)

    def end(self) -> None:
        self.registered.clear()
        for resource in self._endpoints:
            self._kubelet.connect(resource, None)


class DirectRig(NodeRig):
    """The same node; whatever is waited for has happened already, or happens when the plugin speaks again."""

    plugin: Any

    def _make_kubelet(self, directory: Path, **given: Any) -> StandInKubelet:
        return DirectKubelet(directory, **given)

    def _connect(self) -> KubeletClient:
        assert isinstance(self.kubelet, DirectKubelet)
        return DirectClient(self.kubelet, LENDING if self.lending else SOCKETS)

    def _serve(self, proof: PreStart) -> None:
        assert isinstance(self.kubelet, DirectKubelet)
        self.plugin = DirectPlugins(self.kubelet, self.state, self.allocator, proof, lending=self.lending)
        self.state.changed = self.plugin.announce
        self.plugin.register()

    def stop_agent(self) -> None:
        self.plugin.end()

    def admit(self, obj: dict[str, Any], *, watched: bool = True) -> Any:
        self.plugin.announce()
        return super().admit(obj, watched=watched)

    def until(self, holds: Any) -> None:
        self.plugin.announce()
        until(holds)
