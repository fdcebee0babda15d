"""The agent's work on running containers: measures, limits, corrects, warns, evicts. Composed.

Everything here follows the ledger and does not change it, except for a container that is resized.
"""

from __future__ import annotations

import threading
from itertools import chain

from prometheus_client import CollectorRegistry

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.driver_memory_limit import CgroupMemoryLimit
from gpu_manager.adapters.machine import boot_id
from gpu_manager.adapters.processes import CgroupProcesses
from gpu_manager.adapters.store import FileStore
from gpu_manager.agent.backends import build_driver_limits, gate_watcher
from gpu_manager.agent.config import Config
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.cards import Cards
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads
from gpu_manager.servers import exporter
from gpu_manager.servers.exporter import Findings
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.prestart import AnnotationWriteback, LimitPages
from gpu_manager.services.billing import BillMeter, EnergyMeter
from gpu_manager.services.cards.closed_cards import MemoryOutside
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement import container_starts, usage
from gpu_manager.services.enforcement.account_check import AccountCheck
from gpu_manager.services.enforcement.container_starts import DriverMemoryLimits, InjectionCheck
from gpu_manager.services.enforcement.evasion_detector import EvasionDetector
from gpu_manager.services.enforcement.gates import CardGates
from gpu_manager.services.enforcement.library_messages import LibraryMessages
from gpu_manager.services.enforcement.resizer import ElasticLimit, Resizer
from gpu_manager.services.enforcement.time_sharing import TimeSharing
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import PageSlots, UsagePast
from gpu_manager.services.metrics import ServiceMetrics
from gpu_manager.services.size_advice import SizeAdviser


class RunningContainers:
    """Built with every agent; :meth:`threads` do the work."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        cards: Cards,
        pods: Pods,
        pages: FileControlPages,
        processes: CgroupProcesses,
        limits: LimitPages,
        writeback: AnnotationWriteback,
        strategy: str,
        clock: Clock,
        metrics: ServiceMetrics,
        health: Health,
    ) -> None:
        """``strategy``: by which way driver files come into containers (:class:`InjectionCheck`)."""
        self._state = state
        self._metrics = metrics
        slots = PageSlots(pages, processes)
        self.usage = UsageSampler(
            state,
            cards,
            pods,
            pages,
            processes,
            clock,
            metrics,
            slots,
            gains=lambda: self.accounts.found.gains,
        )
        self.accounts = AccountCheck(
            state, lambda: self.usage.last, pods, processes.host_pid, clock, config.account_gap
        )
        self.energy = EnergyMeter()
        self.outside = MemoryOutside(processes, health, clock)
        demands = store_of(config, "demands", "containers are watched anew")
        self.sizes = SizeAdviser(pods, demands, clock, metrics, config.advice, config.advice_half_life)
        bills = store_of(config, "bills", "its sums begin anew")
        self.past = UsagePast(state.node.name)
        self.bills = BillMeter(state, self.usage, bills, clock, metrics, boot_id(config.proc))
        self._time_sharing = TimeSharing(pages, self.usage.tenants, clock, metrics)
        watcher = gate_watcher(config, pages)
        self._gates = CardGates(
            lambda: state.view.grants, lambda: self.usage.last, pages, pages.gates, watcher, clock, metrics
        )
        self._evasion = EvasionDetector(
            state,
            lambda: self.usage.last,
            pods,
            pages,
            processes,
            metrics,
            evict=config.evict_evaders,
            leases=pages.gates.leases,
        )
        self._library_messages = LibraryMessages(state, pods, pages, clock, metrics)
        cgroups = CgroupMemoryLimit(
            config.host_root / "sys/fs/cgroup", lambda: state.node.cards, build_driver_limits(config)
        )
        self._memory_limits = DriverMemoryLimits(state, pods, cgroups, clock, metrics)
        self._injection = InjectionCheck(state, pods, processes, clock, strategy, driver=not config.simulated)
        self._elastic_limit = ElasticLimit(state, limits)
        self._resizer = Resizer(
            state,
            pods,
            limits,
            pages,
            lambda: self.usage.last,
            clock,
            writeback.tell,
            alone=config.resize_alone,
            minimum_cores=config.minimum_cores,
        )

    def register(self, registry: CollectorRegistry) -> None:
        """Export the results as metrics."""
        registry.register(
            Findings(
                self._state,
                lambda index: chain(
                    exporter.guards(
                        self._evasion.evaders,
                        index,
                        self._evasion.blind,
                        self._memory_limits.kinds,
                        self._injection.found,
                    ),
                    exporter.accounts(self.usage.last, self.accounts.found, index),
                    exporter.gates(self._gates.told, index),
                ),
            )
        )

    def restore(self) -> None:
        """Take up the sums that an agent before this one has stored."""
        self.bills.restore()
        self.sizes.restore()

    def follow(self, pod: Pod) -> None:
        """Apply a pod's annotations to its limits."""
        self._elastic_limit.follow(pod)
        self._resizer.follow(pod)

    def threads(self, stop: threading.Event) -> list[threading.Thread]:
        """The threads, to be started."""
        count = self._metrics.reading_failed
        return [
            threads.forever("bills", lambda: self.bills.run(stop)),
            threads.forever("time-sharing", lambda: self._time_sharing.run(stop)),
            threads.rounds(
                usage.PERIOD_SECONDS,
                "usage",
                {
                    "sampler": self._sample,
                    "accounts": self.accounts.look,
                    "evasion": self._evasion.look,
                    "library-messages": self._library_messages.look,
                    "memory-limits": self._memory_limits.look,
                    "resizer": self._resizer.look,
                },
                count,
                stop,
            ),
            threads.rounds(
                lambda: self._gates.pause,
                "gates",
                {"gates": self._gates.look},
                count,
                stop,
                due=self._gates.due,
            ),
            threads.rounds(
                container_starts.PERIOD_SECONDS, "injection", {"injection": self._injection.look}, count, stop
            ),
        ]

    def wake(self) -> None:
        """Call it when the ledger has changed, and to end the threads: the gates are updated now."""
        self._gates.due.set()
        self._time_sharing.due.set()

    def close(self) -> None:
        """Call it once the threads have ended."""
        self._gates.close()

    def _sample(self) -> None:
        before, sample = self.usage.last, self.usage.sample()
        if sample.shares is not before.shares:
            self._time_sharing.due.set()
        self.energy.add(sample)
        self.outside.look(sample)
        self.past.record(sample)
        self.sizes.add(sample, self._state.node.unit)


def store_of(config: Config, what: str, without: str) -> FileStore:
    """A file of the agent's state directory; ``without`` describes the effect of losing it."""
    return FileStore(config.state / what, what=what, without=without)
