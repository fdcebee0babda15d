"""A whole node for component tests: the kubelet stand-in, our plugin over real sockets, fakes behind the ports."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from prometheus_client import CollectorRegistry

from gpu_manager.adapters.kubelet.checkpoint import read_old_checkpoint
from gpu_manager.adapters.kubelet.client import DEADLINE_SECONDS, KubeletClient
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import ALLOCATION, CORE, MEMORY, NVIDIA, Assignment, encode_assignment
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import Limit
from gpu_manager.servers.device_plugin import DevicePlugin
from gpu_manager.servers.plugin_registration import LENDING, SOCKETS
from gpu_manager.services.allocation.admission_window import AdmissionWindow
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.association import Association
from gpu_manager.services.allocation.books import NodeCards
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.prestart import LimitPages, PreStart
from gpu_manager.services.allocation.reclaim import DepartedPods
from gpu_manager.services.allocation.record import AgentPlayer, AgentRecorder
from gpu_manager.services.metrics import ServiceMetrics
from gpu_manager.services.recovery.rebuild import rebuild
from gpu_manager.services.recovery.reclaimer import Reclaimer
from gpu_manager.services.recovery.repairs import PodsWithoutDevices
from sandbox.kubelet import AdmissionResult, StandInKubelet
from tests.fakes.ports import FakeInjector, FakePods, FakeProcesses, FakeStore, FakeTenants, cards
from tests.fakes.waiting import PATIENCE, until

NODE = "n1"
_serial = itertools.count()


def container(name: str, core: int, memory: int, *, sidecar: bool = False) -> dict[str, Any]:
    amounts = {k: v for k, v in ((CORE, core), (MEMORY, memory)) if v}
    return {
        "name": name,
        **({"restartPolicy": "Always"} if sidecar else {}),
        "resources": {"limits": amounts, "requests": amounts},
    }


def pod(
    name: str,
    *containers: dict[str, Any],
    init: Sequence[dict[str, Any]] = (),
    uid: str | None = None,
    on: Mapping[str, Sequence[tuple[CardState, int, int]]] | None = None,
    annotations: Mapping[str, str] | None = None,
    controlled: bool = False,
) -> dict[str, Any]:
    """A bound pod; ``on`` is the extender's choice: container → (card, cores, memory bytes)."""
    uid = uid or f"uid-{name}-{next(_serial):06}"  # in the order of making, whatever was made before
    written = dict(annotations or {})
    if on is not None:
        chosen = {c: tuple((s.card.uuid, Amount(k, m)) for s, k, m in shares) for c, shares in on.items()}
        written[ALLOCATION] = encode_assignment(Assignment(NODE, uid, chosen))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": "2026-11-21T00:00:00Z",
            "annotations": written,
            "ownerReferences": [{"controller": True}] if controlled else [],
        },
        "spec": {"nodeName": NODE, "containers": list(containers), "initContainers": list(init)},
        "status": {"phase": "Pending"},
    }


class KeptLines:
    """A record in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    @property
    def full(self) -> bool:
        return not self.lines

    def begin(self, lines: Iterable[bytes]) -> None:
        self.lines += lines

    def append(self, lines: Iterable[bytes]) -> None:
        self.lines += lines


class NodeRig:
    """Start, admit, look, stop. ``restart_agent`` is a kill and a fresh process over the same disk."""

    def __init__(
        self,
        directory: Path,
        states: Sequence[CardState] | None = None,
        *,
        topology: Topology | None = None,
        seed: int = 0,
        clock: Clock | None = None,
        evict: bool = True,
        lending: bool = False,
        list_seconds: float = DEADLINE_SECONDS,
        patience: float = 0.5,
        back_off: tuple[float, float] = (1.0, 30.0),
        **kubelet: Any,
    ) -> None:
        self.states = tuple(states if states is not None else cards())
        self.topology = topology or Topology.uniform(len(self.states), Link(LinkKind.SYS))
        self.kubelet = self._make_kubelet(directory, seed=seed, **kubelet)
        self.clock = clock or SystemClock()
        self.pods, self.store = FakePods(), FakeStore()
        self.tenants, self.processes = FakeTenants(), FakeProcesses()
        self.injector = FakeInjector()
        self.not_injected: list[str] = []
        self.registry = CollectorRegistry()
        self.metrics = ServiceMetrics(self.registry)
        self.evict = evict
        self.list_seconds = list_seconds
        self.patience = patience  # with deleted pods whose processes run
        self.back_off = back_off  # between registrations that fail
        self.lending = lending  # whole cards as nvidia.com/gpu too
        self.old_checkpoint = directory / "old"
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.kubelet.start()
        self.start_agent()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_agent()
        self.kubelet.stop()

    def start_agent(self, *, wait: bool = True) -> None:
        node = NodeCards.of(NODE, DEFAULT_UNIT, self.states, self.topology)
        self.client = self._connect()
        entries = self.client.checkpoint()
        listing = None
        if entries is None:
            with contextlib.suppress(NodeUnready):
                listing = self.client.listing()
        stored = self.store.load()
        inherited = read_old_checkpoint(self.old_checkpoint) if stored is None else ()
        books = rebuild(stored, entries, listing, self.pods.local(), node, self.metrics, inherited)
        self.recorded = KeptLines()
        self.recorder = AgentRecorder(self.recorded, self.clock, "")
        self.state = NodeState(books, self.store, self.metrics, self.recorder.decided)
        self.window = AdmissionWindow(self.clock)
        self.departed = DepartedPods(self.state, self.pods, self.processes, self.patience)
        self.allocator = Allocator(
            self.state,
            association=Association(self.client, self.pods, self.clock, self.metrics, NODE),
            window=self.window,
            departed=self.departed,
            pods=self.pods,
            tenants=self.tenants,
            injector=self.injector,
            clock=self.clock,
            metrics=self.metrics,
            not_injected=lambda: self.not_injected.append(self.injector.lacking),
        )
        self.limit_pages = LimitPages(self.state, self.tenants)
        proof = PreStart(
            self.state, self.client, self.pods, self.limit_pages, self.clock, self.metrics, evict=self.evict
        )
        self.reclaimer = Reclaimer(
            self.state,
            self.window,
            self.departed,
            self.client,
            self.pods,
            self.tenants,
            self.injector,
            self.processes,
            self.clock,
            self.metrics,
            30.0,
        )
        self.stranded = PodsWithoutDevices(
            self.state,
            self.window,
            self.client,
            self.pods,
            self.processes,
            self.clock,
            self.metrics,
            30.0,
            evict=self.evict,
        )
        self._serve(proof)
        if wait:
            self.await_registered()

    def _make_kubelet(self, directory: Path, **given: Any) -> StandInKubelet:
        return StandInKubelet(directory, **given)

    def _connect(self) -> KubeletClient:
        return KubeletClient(
            self.kubelet.device_plugins,
            self.kubelet.pod_resources,
            resources=LENDING if self.lending else SOCKETS,
            deadline=self.list_seconds,
        )

    def _serve(self, proof: PreStart) -> None:
        self.stop, self.lost = threading.Event(), threading.Event()
        self.plugin = DevicePlugin(
            self.kubelet.device_plugins,
            self.state,
            self.allocator,
            proof,
            self.metrics,
            self.stop,
            lending=self.lending,
            back_off=self.back_off,
            lost=self.lost.set,
        )
        self.state.changed = self.plugin.announce
        self._thread = threading.Thread(target=self.plugin.run, name="plugin", daemon=True)
        self._thread.start()

    def await_registered(self) -> None:
        assert self.plugin.registered.wait(PATIENCE), "the plugin did not register"
        offer = self.state.offer
        open_cards = sum(s.healthy and s.card.uuid not in offer.lent for s in self.states)
        wanted = 100 * open_cards - len(offer.withdrawn.get(CORE, ()))
        self.until(
            lambda: (
                self.kubelet.allocatable().get(CORE) == wanted
                and (self.kubelet.allocatable().get(MEMORY, 0) > 0 or not wanted)
                and (NVIDIA in self.kubelet.capacity() or not self.lending)
            )
        )
        self.kubelet.publish_node()

    def stop_agent(self) -> None:
        self.stop.set()
        self.plugin.wake()
        if self._thread is not None:
            self._thread.join(PATIENCE)
        self.client.close()
        self.recorder.write()  # whatever was decided, it is decided so again
        player = AgentPlayer()
        judged = player.play(self.recorded.lines)
        assert [(one.line, one.now) for one in judged if one.recorded != one.now] == []
        assert not player.passed

    def restart_agent(self) -> None:
        self.stop_agent()
        self.start_agent()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what another thread is about to do."""
        until(holds)

    def admit(self, obj: dict[str, Any], *, watched: bool = True) -> AdmissionResult:
        self.pods.bind(self.parsed(obj), watched=watched)
        return self.kubelet.admit(obj)

    def parsed(self, obj: dict[str, Any]) -> Pod:
        """As our adapter shows it."""
        found = parse_pod(obj).as_on_node()
        return found.with_lent_cards() if self.lending else found

    def start(self, obj: dict[str, Any]) -> None:
        """Start every asking container of an admitted pod."""
        for group in ("initContainers", "containers"):
            for entry in obj["spec"].get(group) or ():
                self.kubelet.start_container(obj["metadata"]["uid"], entry["name"])

    def delete(self, obj: dict[str, Any], *, force: bool = False) -> None:
        self.pods.forget(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")
        self.kubelet.delete(obj["metadata"]["uid"], force=force)

    def limits(self, result: AdmissionResult, name: str) -> tuple[Limit, ...]:
        """What is in force under the mounts that the kubelet was handed for this container."""
        mount = next(m for m in result.containers[name].mounts if m.container_path == "/etc/vcuda/limits")
        return self.tenants.limits[Path(mount.host_path).parent.name]

    def listed(self) -> dict[tuple[str, str], dict[str, frozenset[str]]]:
        """PodResources: (pod name, container) → resource → ids, of those that hold any."""
        return {
            (one.pod, one.container): dict(one.ids)
            for containers in self.client.listing().values()
            for one in containers
            if one.ids
        }

    def cards_of(self, obj: dict[str, Any], name: str) -> tuple[int, ...]:
        """The indices of the cards that a container of the pod holds by the books."""
        uid = PodUid(obj["metadata"]["uid"])
        index = {s.card.uuid: s.card.index for s in self.states}
        held = self.state.view.ledger.get(uid, name)
        return tuple(index[c] for c in held.cards) if held else ()
