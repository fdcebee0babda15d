"""The agent's composition root: builds the components, connects them, runs their threads, and stops them.

Three parts of it stand in files of their own: how cards are offered (:mod:`gpu_manager.agent.fronts`,
:mod:`gpu_manager.agent.fronts`) and what is done about containers that run
(:mod:`gpu_manager.agent.running_containers`). Only these modules import both services and adapters, and none
of them decides anything.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kubelet.checkpoint import read_old_checkpoint
from gpu_manager.adapters.kubelet.client import KubeletClient
from gpu_manager.adapters.kubelet.pods_api import PodsApi
from gpu_manager.adapters.machine import SystemClock, label_of
from gpu_manager.adapters.processes import CgroupProcesses
from gpu_manager.adapters.store import FileStore
from gpu_manager.agent.backends import build_cards, build_injector, gate_program, newest_record, recorder_of
from gpu_manager.agent.config import Config
from gpu_manager.agent.fronts import DraFront, Fronts
from gpu_manager.agent.running_containers import RunningContainers, store_of
from gpu_manager.domain.contract import KUBELET_SOCKET, MIG_LABEL, PODS_API_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.topology import Topology
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.runtime import threads
from gpu_manager.runtime.program import Ending, tell_started
from gpu_manager.servers.device_plugin import DevicePlugin
from gpu_manager.servers.exporter import Exporter
from gpu_manager.servers.http import PageAccess, StatusServer
from gpu_manager.servers.plugin_registration import LENDING, SOCKETS
from gpu_manager.servers.status import Status
from gpu_manager.services.allocation.admission_window import AdmissionWindow
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.association import Association
from gpu_manager.services.allocation.books import Books, NodeCards
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.prestart import AnnotationWriteback, LimitPages, PreStart, serve_the_last
from gpu_manager.services.allocation.reclaim import DepartedPods
from gpu_manager.services.cards.closed_cards import InjectionWatch, OtherPlugins
from gpu_manager.services.cards.health import VANISHED, Health
from gpu_manager.services.cards.inventory import InventoryService, KnownCards, MigInstances
from gpu_manager.services.metrics import ServiceMetrics
from gpu_manager.services.recovery import reclaimer, repairs
from gpu_manager.services.recovery.rebuild import load_books, rebuild
from gpu_manager.services.recovery.repairs import InjectionKeeper, PodsWithoutDevices

log = structlog.get_logger(__name__)

SYNC_SECONDS = 5.0  # how long the agent waits for the API server before it starts without it


class Agent:
    """One node's agent. ``start`` returns once everything runs; ``stop`` once everything has ended."""

    def __init__(self, config: Config) -> None:
        """Build the components. Raises VcudaError for an invalid setting."""
        self._config = config
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._registry = CollectorRegistry()
        self.metrics = ServiceMetrics(self._registry)
        clock = SystemClock()
        self.cards = build_cards(config, lambda: self.mig.given())  # noqa: PLW0108 - it is made below
        connection = connect(kubeconfig=config.kubeconfig, url=config.api_url)
        self._kube = Kube(
            connection,
            config.node,
            clock=clock,
            kubelet_url=config.kubelet_pods_url,
            kubelet_ca=config.kubelet_ca,
            lending=config.lending,
            mark_evictions=config.mark_evictions,
            pods_api=PodsApi(config.pod_resources.parent / PODS_API_SOCKET, clock),
            cordons=store_of(config, "cordons", "only the Node object has them"),
            startup_taint=config.startup_taint,
        )
        self._kubelet = KubeletClient(
            config.device_plugins, config.pod_resources, resources=LENDING if config.lending else SOCKETS
        )
        self._store = FileStore(config.state / "ledger")
        label = label_of(config.proc)
        self.known_cards = KnownCards(store_of(config, "cards", "vanished cards are not missed"))
        tenants = FileControlPages(
            config.pages, config.policy, label=label, proc=config.proc, mounts=config.page_mounts
        )
        self._pages_among_others = lambda: tenants.shared(_device(config.host_root / "run"))
        processes = CgroupProcesses(config.proc, kubelet=config.pod_resources / KUBELET_SOCKET)
        injector = build_injector(config, lambda: self.state.node.cards, label)
        pods = self._kube.pods
        self._recorder = recorder_of(config, clock)
        self.state = NodeState(
            Books(NodeCards.of(config.node, config.unit, (), Topology(()))),
            self._store,
            self.metrics,
            self._recorder.decided if self._recorder else None,
        )
        node = self._kube.node
        self.mig = MigInstances(
            self.state,
            config.mig_instances,
            lambda: node.label(MIG_LABEL),
            node.event,
            lambda: self.health.look(),  # noqa: PLW0108 - it is made below
        )
        window = AdmissionWindow(clock)
        departed = DepartedPods(self.state, pods, processes)
        allocator = Allocator(
            self.state,
            association=Association(self._kubelet, pods, clock, self.metrics, config.node),
            window=window,
            departed=departed,
            pods=pods,
            tenants=tenants,
            injector=injector,
            clock=clock,
            metrics=self.metrics,
            not_injected=lambda: self.injection_watch.look(),  # noqa: PLW0108 - it is made below
        )
        self._limits = limits = LimitPages(self.state, tenants)
        prestart = PreStart(
            self.state,
            self._kubelet,
            pods,
            limits,
            clock,
            self.metrics,
            evict=config.evict,
            not_injectable=lambda cards: self.injection_watch.why_not(cards),  # noqa: PLW0108 - as above
        )
        self._writeback = AnnotationWriteback(self.state, pods, clock)
        plugin = DevicePlugin(
            config.registers_in or config.device_plugins,
            self.state,
            allocator,
            prestart,
            self.metrics,
            self._stop,
            lending=config.lending,
            lost=lambda: self.inventory.changed(),  # noqa: PLW0108 - it is made below
        )
        dra = DraFront(
            config,
            self.state,
            connection,
            pods,
            tenants,
            injector,
            processes,
            clock,
            self.metrics,
            self._stop,
            self._books_changed,
        )
        self.stranded = PodsWithoutDevices(
            self.state,
            window,
            self._kubelet,
            pods,
            processes,
            clock,
            self.metrics,
            config.reclaim_seconds,
            evict=config.evict,
        )
        self.fronts = Fronts(config, self.state, plugin, dra, self.metrics, _restart)
        self.health = Health(
            self.cards,
            self._kube.node,
            clock,
            numa_policy=config.numa_policy,
            no_instances=lambda: self.mig.trouble,
        )
        self.injection_watch = InjectionWatch(injector, self.health, self.metrics)
        self.inventory = InventoryService(
            self.state,
            allocator,
            departed,
            self.health,
            self._kube.node,
            self.fronts.announce,
            config.labels,
            clock,
            self.fronts.offering,
            lambda: self.fronts.in_force,
            stranded=lambda: self.stranded.uids,
            no_injection=lambda: self.injection_watch.why,
            gates=gate_program(config) is not None,
            injects_by=injector.strategy.value,
        )
        self.other_plugins = OtherPlugins(
            self._kubelet.other_offers, self.health, self._kube.node.event, clock, self._kubelet.rest
        )
        self.running = RunningContainers(
            config,
            self.state,
            self.cards,
            pods,
            tenants,
            processes,
            limits,
            self._writeback,
            injector.strategy.value,
            clock,
            self.metrics,
            self.health,
        )
        self.keeper = InjectionKeeper(self.state, pods, injector, clock, _restart, injector.outdated)
        self.reclaimer = reclaimer.Reclaimer(
            self.state,
            window,
            departed,
            self._kubelet,
            pods,
            tenants,
            injector,
            processes,
            clock,
            self.metrics,
            config.reclaim_seconds,
        )
        self._register(config)
        status = Status(
            self.state,
            self.running.usage,
            self._registry,
            version("gpu-manager"),
            self.ready,
            self.why,
            lambda: self.running.sizes.told,
            self.health,
            lambda: self.running.accounts.found.differing,
            self.running.past,
            lambda: newest_record(config),
        )
        self.http = StatusServer(
            status,
            config.http_address,
            config.http_port,
            config.http_token,
            PageAccess(self._kube.access, clock),
        )

    def _register(self, config: Config) -> None:
        exporter = Exporter(
            self.state,
            self.running.usage,
            version("gpu-manager"),
            legacy=config.legacy_metrics,
            bills=lambda: self.running.bills.told,
            events=self.health.counts,
            xids=self.health.xids,
            offered_elsewhere=lambda: self.other_plugins.offers,
            energy=lambda: self.running.energy.told,
            outside=lambda: self.running.outside.held,
            writes_dropped=lambda: self._kube.writes_dropped,
            unreadable=lambda: self._kube.unreadable,
            kubelet_unverified=lambda: self._kube.kubelet_unverified,
            pages_among_others=self._pages_among_others,
            evicts_itself=config.evicts_itself,
            pods=self._kube.pods.local,
            sized=lambda: self.running.sizes.told,
            front=lambda: self.fronts.in_force,
        )
        self._registry.register(exporter)
        self.running.register(self._registry)

    def ready(self) -> dict[str, bool]:
        """Return the readiness conditions, by name."""
        return {
            "registered": self.fronts.registered(),
            "cards": any(not s.missing for s in self.state.node.cards)
            and not (self.health.trouble or self.mig.trouble),
            "pods": self._kube.pods.error is None,
            "only_plugin": not self.other_plugins.offers,
            "injection": not (self.keeper.trouble or self.injection_watch.why),
            "front": not self.fronts.trouble,
        }

    def why(self) -> str:
        """Return why the agent is not ready, if known, and what it cannot read; empty otherwise."""
        cards = self.state.node.cards
        away = f"all {len(cards)} cards {VANISHED}" if cards and all(s.missing for s in cards) else ""
        whys = (
            self.health.trouble or away,
            self.mig.trouble,
            self.other_plugins.trouble,
            self.keeper.trouble,
            self.injection_watch.why,
            self.fronts.trouble,
            self._kube.pods.error,
            self._kube.trouble,
        )
        return "; ".join(filter(None, whys))

    def start(self) -> None:
        """Recover the books, then start to serve.

        Without cards (no driver yet) the agent runs, but offers nothing and is not ready.

        Raises:
            NodeUnready: the ledger cannot be written.
        """
        self._kube.start()
        self._kube.pods.wait(SYNC_SECONDS)
        stored = load_books(self._store, self._kube.node.event, self.metrics)
        self._find_cards()
        self._recover_books(stored)
        assumed, self.mig.assumed = self.mig.assumed, False
        if assumed and not self.mig.given():
            self._take_in_cards()
        self.fronts.settle()
        self._limits.apply_settings()
        self.health.subscribe(self.known_cards.cards_changed)
        self.health.subscribe(self.inventory.cards_changed)
        self.state.changed = self._books_changed
        self.keeper.look()
        self.running.restore()
        self.health.start()
        self.http.start()
        self._threads = self._all_threads()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop everything; running containers keep their limits."""
        self._stop.set()
        self.state.touched.set()
        self.inventory.wake()
        self.fronts.wake()
        self.running.wake()
        self._kubelet.wake()
        for thread in self._threads:
            thread.join(10)
        if self._recorder is not None:
            self._recorder.write()
        self.running.close()
        self.http.stop()
        self.health.stop()
        self.cards.close()
        self._kube.close()
        self._kubelet.close()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        ending = Ending()
        self.start()
        gc.collect()
        gc.freeze()  # what exists now stays: collecting it again would pause every Allocate for 25 ms
        log.info("running", node=self._config.node, port=self.http.port)
        tell_started()
        ending.wait()
        log.info("leaving")
        self.inventory.leave()
        serve_the_last(self.state, self._kube.pods, SystemClock(), self.inventory.told_leaving)
        log.info("stopping")
        self.stop()

    # The start.

    def _find_cards(self) -> None:
        known = self.known_cards.load()
        self.mig.assumed = any(card.instance for card in known)
        self.health.remember(known)
        self._take_in_cards()

    def _take_in_cards(self) -> None:
        self.health.discover()
        self.health.settle()
        self.other_plugins.look()  # before the kubelet hears of any card
        self.injection_watch.look()
        self.health.settle()
        self.inventory.cards_changed(self.health.states())

    def _recover_books(self, stored: bytes | None) -> None:
        """From the stored ledger, the kubelet's checkpoint or its listing, and the pods."""
        entries = self._kubelet.checkpoint()
        listing = None
        if entries is None:
            try:
                listing = self._kubelet.listing()
            except NodeUnready as error:
                log.info("kubelet_not_asked", reason=str(error))
        predecessor = read_old_checkpoint(self._config.old_checkpoint) if stored is None else ()
        local = self._kube.pods.local()
        # No plugin is better than one that refuses every pod: a node without devices gets no pods.
        self.state.open(rebuild(stored, entries, listing, local, self.state.node, self.metrics, predecessor))
        self._kube.pods.on_change(self._pod_changed)  # first: a pod that arrives meanwhile is seen twice
        for found in [f for named in self._kube.pods.local().values() for f in named]:
            self._pod_changed(found)

    def _all_threads(self) -> list[threading.Thread]:
        return [
            *self.fronts.threads(),
            threads.forever("inventory", lambda: self.inventory.run(self._stop)),
            *self.running.threads(self._stop),
            *([self._recorder.thread(self._stop)] if self._recorder else []),
            self._rounds(
                repairs.PERIOD_SECONDS,
                "injection-kept",
                {"injection-kept": self.keeper.look, "injection-possible": self.injection_watch.look},
            ),
            self._rounds(0.0, "other-plugins", {"other-plugins": self.other_plugins.round}),
            self._rounds(
                min(reclaimer.LOOK_SECONDS, self._config.reclaim_seconds),
                "reclaim",
                {
                    "reclaim": self.reclaimer.look,
                    "stranded": self.stranded.look,
                    "front": self.fronts.look,
                    "mig": self.mig.look,
                },
            ),
        ]

    def _rounds(
        self, seconds: float, name: str, steps: Mapping[str, Callable[[], object]]
    ) -> threading.Thread:
        return threads.rounds(seconds, name, steps, self.metrics.reading_failed, self._stop)

    # What the running agent follows.

    def _books_changed(self) -> None:
        self.inventory.changed()
        self.fronts.books_changed()
        self.running.wake()

    def _pod_changed(self, found: KnownPod) -> None:
        if found.tombstone or found.pod.terminal or found.unread:
            self.inventory.changed()  # its processes may still run
            self.state.touched.set()
        if not (found.tombstone or found.unread):
            self.state.introduce(found.pod)
            self.running.follow(found.pod)
            self._writeback.tell(found.pod)


def _device(path: Path) -> int:
    """The file system of a path; one that nothing lies on where the path cannot be seen."""
    try:
        return path.stat().st_dev
    except OSError:
        return -1


def _restart() -> None:
    """End as on SIGTERM: what started the agent starts it again, with its mounts made anew."""
    os.kill(os.getpid(), signal.SIGTERM)


def main(config: Config) -> None:
    """Build the agent and run until SIGTERM. Raises VcudaError, which the command line prints."""
    Agent(config).run()
