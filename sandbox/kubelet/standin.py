"""The stand-in itself: admits pods one at a time, starts their containers, restarts, lets pods go."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from gpu_manager.domain.errors import NodeUnready, VcudaError
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from gpu_manager.ports.clock import Clock
from sandbox.kubelet.admission import PodAdmission
from sandbox.kubelet.books import DeviceBooks
from sandbox.kubelet.checkpoint import CheckpointGrant
from sandbox.kubelet.granting import Granter
from sandbox.kubelet.plugins import DIAL_SECONDS, PRE_START_SECONDS, ForeignPlugin, PluginServer
from sandbox.kubelet.podresources import Limiter, PodResourcesServer
from sandbox.kubelet.pods import AdmittedPod, PodTable, timestamp
from sandbox.kubelet.values import (
    AdmissionResult,
    Device,
    Hooks,
    Step,
    WallClock,
)

STATUS_SECONDS: Final = 10.0  # how often the kubelet publishes the node's capacity
RECORDED_STEPS: Final = 200_000


@dataclass(frozen=True, slots=True)
class _Process:
    """What lives and dies with one kubelet process."""

    books: DeviceBooks
    granter: Granter
    admission: PodAdmission
    plugins: PluginServer
    pod_resources: PodResourcesServer

    def start(self) -> None:
        self.plugins.start()
        self.pod_resources.start()

    def stop(self, *, leave: bool = False) -> None:
        self.books.end()
        self.plugins.stop(leave=leave)
        self.pod_resources.stop(leave=leave)


class StandInKubelet:
    """A kubelet for device plugins, over real sockets, in ``directory`` (as ``/var/lib/kubelet``).

    Same seed, plugin and calls, same choices. ``limiter`` is PodResources' (the real one when None);
    ``changed`` is called with a pod object whenever its status changed, without a lock held. With
    ``lists_ended`` PodResources lists pods that have ended too, as kubelets before 1.34 do.
    All methods are thread-safe; pods are admitted one at a time, whoever calls.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock | None = None,
        seed: int = 0,
        numa: NumaPolicy = NumaPolicy.NONE,
        limiter: Limiter | None = None,
        dial_seconds: float = DIAL_SECONDS,
        pre_start_seconds: float = PRE_START_SECONDS,
        changed: Callable[[Mapping[str, Any]], None] = lambda _pod: None,
        lists_ended: bool = False,
    ) -> None:
        self.device_plugins = directory / "device-plugins"
        self.pod_resources = directory / "pod-resources"
        self.checkpoint_path = self.device_plugins / "kubelet_internal_checkpoint"
        self.hooks = Hooks()
        self.steps: deque[Step] = deque(maxlen=RECORDED_STEPS)
        self.registrations: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()
        self._clock = clock or WallClock()
        self._rng = Random(seed)
        self._names = Random(seed)
        self._numa = numa
        self._limiter = limiter or Limiter()
        self._dial_seconds = dial_seconds
        self._pre_start_seconds = pre_start_seconds
        self._changed = changed
        self._lists_ended = lists_ended
        self._pods = PodTable()
        self._sync = threading.Lock()  # the sync loop: one admission at a time
        self._foreign: dict[str, tuple[int, Sequence[int]]] = {}
        self._node: dict[str, int] = {}  # allocatable as last published
        self._published_at = self._clock.monotonic()
        self._process: _Process | None = None
        self._started = False
        self._ending = threading.Lock()

    # The process.

    def start(self) -> None:
        """Read the checkpoint, delete every socket in the plugins' directory, listen.

        The first time it admits at once; later it waits for :meth:`resume` to tell all the node's pods.

        Raises:
            NodeUnready: a socket cannot be made.
        """
        self.device_plugins.mkdir(parents=True, exist_ok=True)
        self.pod_resources.mkdir(parents=True, exist_ok=True)
        self._pods.forget_added()
        process = self._build()
        process.books.sources_ready = not self._started
        self._started = True
        try:
            process.start()
        except NodeUnready:
            process.stop()
            raise
        self._process = process
        for resource, (count, nodes) in self._foreign.items():
            self._offer(resource, count, nodes)

    def stop(self, *, leave: bool = False) -> None:
        """End: connections break, an admission in flight leaves nothing, containers run on.

        ``leave`` the sockets' files, where nobody listens any more, as a kubelet does that is killed.
        """
        process, self._process = self._process, None
        with self._ending:  # who comes second returns when it has ended too
            if process is not None:
                process.stop(leave=leave)

    def restart(self, *, reboot: bool = False) -> None:
        """Stop and start. Pods come back with :meth:`resume`; a ``reboot`` ends all containers first."""
        self.stop()
        if reboot:
            self._pods.stopped([pod.uid for pod in self._pods.all()])
        self.start()

    def resume(self, bound_meanwhile: Sequence[Mapping[str, Any]] = ()) -> list[AdmissionResult]:
        """The first ADD after a restart: all pods of the node at once, by age in whole seconds.

        Until it is handled entirely nothing is freed, and PodResources lists only the pods handled so far.
        """
        process = self._live()
        for obj in bound_meanwhile:
            self._pods.learn(obj)
        waiting = [
            pod
            for pod in self._pods.all()
            if not pod.added and not pod.removed and pod.phase not in ("Succeeded", "Failed")
        ]
        results = self._handle(process, waiting)
        process.books.sources_ready = True
        return results

    # Pods.

    def admit(self, pod: Mapping[str, Any]) -> AdmissionResult:
        """One pod bound to this node. Returns when its admission is over, either way.

        Raises:
            RequestInvalid: the object has no UID or a limit that is no quantity.
            NodeUnready: the kubelet is down, or was stopped meanwhile; the pod comes with :meth:`resume`.
        """
        return self.add([pod])[0]

    def add(self, pods: Sequence[Mapping[str, Any]]) -> list[AdmissionResult]:
        """Several pods in one ADD, admitted by age in whole seconds, within one in arbitrary order."""
        process = self._live()
        if not process.books.sources_ready:
            raise NodeUnready("the kubelet has not seen its pods since its restart: resume() comes first")
        return self._handle(process, [self._pods.learn(pod) for pod in pods])

    def start_container(self, uid: str, name: str, container_id: str = "") -> ContainerAllocateResponse:
        """Start a container, for the first time or again: PreStartContainer, then what it receives.

        Pods deleted by force are served too, until their devices are collected.

        Raises:
            NodeUnready: creation failed, in the kubelet's words.
        """
        process, pod = self._live(), self._pods.get(uid)
        asked = next((c for c in pod.asked if c.name == name), None)
        if asked is None or pod.phase in ("Succeeded", "Failed"):
            raise NodeUnready(f"pod {uid} has no container {name} to start (phase {pod.phase})")
        if not pod.added:  # after a reboot too: what ran before is started once its pod is admitted again
            raise NodeUnready(
                f"pod {uid} has not been admitted since the kubelet's start: resume() comes first"
            )
        process.granter.pre_start(uid, name, asked.limits, active=pod.active)
        container = pod.containers[name]
        if container.id:
            container.restarts += 1
        container.id = container_id or f"{self._names.getrandbits(256):064x}"
        container.running = True
        if asked.kind is ContainerKind.APP:
            pod.phase = "Running"
        self._tell(pod)
        return process.granter.merged(uid, name)

    def stop_container(self, uid: str, name: str, exit_code: int = 0) -> None:
        """A container ended; it may be started again."""
        pod = self._pods.get(uid)
        pod.containers[name].running = False
        pod.containers[name].exit_code = exit_code
        self._tell(pod)

    def finish(self, uid: str, phase: str = "Succeeded") -> None:
        """All containers ended for good: the pod is no longer active, its object stays."""
        pod = self._pods.get(uid)
        for container in pod.containers.values():
            container.running, container.exit_code = False, 0 if phase == "Succeeded" else 1
        pod.phase = phase
        self._tell(pod)

    def begin_delete(self, uid: str) -> None:
        """Graceful deletion begins: deletionTimestamp is set, the pod is active until :meth:`delete`."""
        pod = self._pods.get(uid)
        pod.deleting = timestamp(self._clock.now())
        self._tell(pod)

    def delete(self, uid: str, *, force: bool = False) -> None:
        """The pod is gone. By ``force``, only its object is: it leaves the active set at once and runs on."""
        if force:
            self._pods.get(uid).removed = True
        else:
            self._pods.forget(uid)

    def reap(self, uid: str) -> None:
        """The containers of a pod that was deleted by force have ended."""
        self._pods.forget(uid)

    # What it shows.

    def pods(self) -> list[dict[str, Any]]:
        """Pod objects with their status, as the kubelet's own /pods endpoint shows them."""
        return self._pods.view() if self._process else []

    def pod(self, uid: str) -> dict[str, Any]:
        """One pod object with its status."""
        return self._pods.shown(uid)

    def running(self, uid: str) -> frozenset[str]:
        """The containers of a pod that the runtime runs."""
        return frozenset(name for name, c in self._pods.get(uid).containers.items() if c.running)

    def capacity(self) -> dict[str, int]:
        """Devices by resource, healthy or not."""
        return self._live().books.counts()[0]

    def allocatable(self) -> dict[str, int]:
        """Healthy devices by resource."""
        return self._live().books.counts()[1]

    def wait(self, allocatable: Mapping[str, int], seconds: float = 120.0) -> None:
        """Wait until these resources have exactly so many healthy devices.

        Raises:
            NodeUnready: they have not, within ``seconds`` of real time.
        """
        self._live().books.wait(allocatable, seconds)

    def publish_node(self) -> dict[str, int]:
        """Publish the node's allocatable now; admission compares with what was published last."""
        _, allocatable, dropped = self._live().books.counts()
        self._node |= allocatable | dict.fromkeys(dropped, 0)
        self._published_at = self._clock.monotonic()
        return dict(self._node)

    def grants(self) -> tuple[CheckpointGrant, ...]:
        """The books: who holds what. Ended pods stand here until something collects them."""
        return self._live().books.holders()

    def lists(self) -> Counter[str]:
        """Calls of PodResources by name, and those ``refused`` by the limiter."""
        return Counter(self._live().pod_resources.calls)

    # Faults and neighbours.

    def set_foreign(self, resource: str, count: int, nodes: Sequence[int] = ()) -> None:
        """Another vendor's plugin with ``count`` devices on NUMA ``nodes``; they may run out."""
        self._foreign[resource] = count, nodes
        if self._process is not None:
            self._offer(resource, count, nodes)

    def cut(self, resource: str) -> None:
        """Break the connection to a plugin; the kubelet does not redial."""
        self._live().plugins.cut(resource)

    # Inside.

    def _build(self) -> _Process:
        books = DeviceBooks(self.checkpoint_path, self._clock, self._pods.holding)
        granter = Granter(books, self._rng, self.hooks, self.steps, self._pods.running)
        return _Process(
            books,
            granter,
            PodAdmission(books, granter, self._pods, self._numa),
            PluginServer(
                self.device_plugins,
                books,
                self.registrations,
                dial_seconds=self._dial_seconds,
                pre_start_seconds=self._pre_start_seconds,
            ),
            PodResourcesServer(
                self.pod_resources,
                books,
                self._pods.handed if self._lists_ended else self._pods.active,
                self._limiter,
            ),
        )

    def _live(self) -> _Process:
        process = self._process
        if process is None:
            raise NodeUnready("the kubelet is not running")
        return process

    def _offer(self, resource: str, count: int, nodes: Sequence[int]) -> None:
        books = self._live().books
        books.connected(resource, ForeignPlugin())
        books.update(
            resource, [Device(f"{resource}-{i}", healthy=True, nodes=tuple(nodes)) for i in range(count)]
        )

    def _handle(self, process: _Process, pods: Sequence[AdmittedPod]) -> list[AdmissionResult]:
        with self._sync:
            order = self._rng.sample(list(pods), len(pods))
            order.sort(key=lambda pod: str((pod.obj.get("metadata") or {}).get("creationTimestamp") or ""))
            return [self._admit(process, pod) for pod in order]

    def _admit(self, process: _Process, pod: AdmittedPod) -> AdmissionResult:
        self._still(process, pod)
        self._pods.begin(pod)
        try:
            result = process.admission.decide(pod, self._known_node())
        finally:
            self._pods.end()
        self._still(process, pod)
        if not result.admitted:
            pod.phase, pod.reason = "Failed", result.reason
            pod.message = f"Pod was rejected: {result.message}"
            kind = "OutOfExtendedResources" if result.reason.startswith("OutOf") else result.reason
            self.rejections[kind] += 1
        pod.started_at = pod.started_at or timestamp(self._clock.now())
        self._tell(pod)
        return result

    def _still(self, process: _Process, pod: AdmittedPod) -> None:
        if process is not self._process:
            raise NodeUnready(f"the kubelet was stopped while it admitted pod {pod.uid}")

    def _known_node(self) -> Mapping[str, int]:
        if self._clock.monotonic() - self._published_at >= STATUS_SECONDS:
            self.publish_node()
        return self._node

    def _tell(self, pod: AdmittedPod) -> None:
        try:
            shown = self._pods.shown(pod.uid)
        except VcudaError:
            return  # deleted meanwhile
        self._changed(shown)
