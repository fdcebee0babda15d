"""Builds the node's hardware from the settings: cards, their limits, the injector; and reads
from its kubelet what they leave open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.control_pages.pages import FileControlPages, NativeGateWatcher
from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes
from gpu_manager.adapters.driver_files.driver import find_nvml
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.node_config import kubelet_root, topology_policy
from gpu_manager.adapters.driver_files.runtimes import Detected, Strategy
from gpu_manager.adapters.driver_memory_limit import DriverLimits
from gpu_manager.adapters.nvml.faults import FaultPolicy
from gpu_manager.adapters.record_ring import RecordRing, segments
from gpu_manager.agent.config import Config
from gpu_manager.domain.card import CardState
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.ports.cards import Cards
from gpu_manager.ports.clock import Clock
from gpu_manager.services.allocation.record import AgentRecorder

log = structlog.get_logger(__name__)

_RECORDS: Final = "records"  # in the state directory
_RECORD_PARTS: Final = 16  # so that the newest is small enough to be sent


def build_cards(config: Config, instances: Callable[[], bool]) -> Cards:
    """Return the cards that ``config.cards`` names; NVML's library is loaded only for real ones. While
    ``instances`` is true, MIG instances are cards too.

    Every access looks for a missing library again: a driver may be installed after the agent has started.

    Raises:
        RequestInvalid: an unknown kind or profile.
    """
    kind, _, name = config.cards.partition(":")
    if kind == "simulated":
        from gpu_manager.adapters.simulated import SimulatedCards  # noqa: PLC0415  # one of two, never both

        if Path(name).suffix == ".txt":
            return SimulatedCards.from_topology(Path(name), node=config.node, control=config.control)
        return SimulatedCards.named(name, node=config.node, control=config.control, instances=instances)
    if kind != "nvml":
        raise RequestInvalid(f"--cards is {config.cards!r}: use nvml, or simulated:<profile or file>")
    from gpu_manager.adapters.nvml.cards import NvmlCards  # noqa: PLC0415  # as above

    policy = FaultPolicy(config.program_xids, config.card_xids, config.quiet_seconds)
    host = HostFiles(config.host_root)
    return NvmlCards(
        policy=policy,
        library=lambda: config.nvml or find_nvml(host, str(config.driver_root)),
        instances=instances,
    )


def build_driver_limits(config: Config) -> DriverLimits | None:
    """Return the driver's own memory limits; None for simulated cards."""
    if config.simulated:
        return None
    from gpu_manager.adapters.nvml.usage import NvmlMemoryLimits  # noqa: PLC0415  # as above

    return NvmlMemoryLimits()


def build_injector(
    config: Config, cards: Callable[[], Sequence[CardState]], label: bytes | None = None
) -> DriverFiles:
    """Build the injector of the strategy that ``config.injection`` names or that is detected.

    ``label`` is SELinux's.

    Raises:
        RequestInvalid: the strategy does not exist.
    """
    by_claims = config.front is not Front.PLUGIN
    outdated: Callable[[], str] = str
    if by_claims and config.injection in ("auto", Strategy.CDI.value):
        strategy = Strategy.CDI  # the kubelet hands devices of claims to the runtime by CDI alone
    elif by_claims:
        raise RequestInvalid(
            f"--front {config.front.value} gives cards by CDI alone, and --device-injection is "
            f"{config.injection!r}: use cdi"
        )
    elif config.injection == "auto":
        detected = Detected(config.host_root, str(config.device_plugins.parent), config.proc)
        strategy, outdated = detected.strategy, detected.outdated
        log.info("injection_chosen", strategy=strategy.value, why=detected.why)
    else:
        names = [s.value for s in Strategy]
        if config.injection not in names:
            raise RequestInvalid(f"--device-injection is {config.injection!r}: use auto, {', '.join(names)}")
        strategy = Strategy(config.injection)
    host = HostFiles(config.host_root)
    return DriverFiles(
        strategy,
        cards=cards,
        state=config.state,
        pages=config.pages,
        libraries=config.libraries or installed_libraries(),
        label=label,
        host=host,
        driver_root=str(config.driver_root),
        stand_in=config.stand_in,
        cdi_dir=config.cdi,
        nodes=DeviceNodes(host, str(config.driver_root), config.extra_devices, proc=config.proc),
        simulated=config.simulated and strategy is Strategy.CDI,
        allow_env_from=config.allow_env_from,
        outdated=outdated,
    )


def gate_program(config: Config) -> Path | None:
    """Return the program that watches the gates of cards; None if the package was installed without."""
    directory = config.libraries or installed_libraries()
    program = directory / "vcuda-gates" if directory is not None else None
    return program if program is not None and program.exists() else None


def gate_watcher(config: Config, pages: FileControlPages) -> NativeGateWatcher:
    """Return what starts and instructs that program."""
    return NativeGateWatcher(gate_program(config), config.pages, pages.gates.path)


def installed_libraries() -> Path | None:
    """Return the directory of the package's libvcuda; None if it was installed without."""
    spec = find_spec("vcuda")
    places = (
        [Path(place) / "native" for place in (spec.submodule_search_locations or ()) if place] if spec else []
    )
    return next((place for place in places if (place / "libvcuda.so").exists()), None)


AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class KubeletView:
    """The kubelet of the node ``host``; ``directory`` is where it has its device plugins."""

    host: HostFiles
    directory: Path
    proc: Path = Path("/proc")

    def pod_resources(self, socket: Path | None) -> Path:
        """The directory of the PodResources socket, which lies elsewhere if the kubelet has a --root-dir.

        That directory need not be mounted into the agent: it is found below the node's root, too.
        """
        if socket is not None:
            return socket.parent
        root = kubelet_root(self.host, str(self.directory), self.proc)
        if root == str(self.directory):
            return self.directory / "pod-resources"
        log.info("kubelet_root_dir", root=root, device_plugins=str(self.directory))
        own = Path(root) / "pod-resources"
        return own if own.is_dir() else self.host.seen(self.host.resolve(str(own)) or str(own))

    def numa_policy(self, told: str) -> NumaPolicy:
        """The kubelet's policy, named by ``told``; ``auto``: as read from the kubelet. A difference is
        logged.

        Raises:
            RequestInvalid: ``told`` is not a policy.
        """
        known = {policy.value: policy for policy in NumaPolicy}
        if told != AUTO and told not in known:
            raise RequestInvalid(
                f"--topology-manager-policy is {quoted(told)}: one of {AUTO}, {', '.join(known)}"
            )
        seen = topology_policy(self.host, str(self.directory), self.proc)
        if told == AUTO:
            if seen is not None:
                log.info("topology_manager_policy", kubelet=seen)
            return known.get(seen or "", NumaPolicy.NONE)
        if seen is not None and seen != told:
            log.warning("topology_manager_policy_differs", kubelet=seen, told=told)
        return known[told]


def recorder_of(config: Config, clock: Clock) -> AgentRecorder | None:
    """Records decisions in the state directory; None if none are recorded, or none can be."""
    if not config.records_mib:
        return None
    try:
        ring = RecordRing(config.state / _RECORDS, config.records_mib << 20, _RECORD_PARTS)
    except NodeUnready as error:
        log.warning("record_stopped", reason=str(error))
        return None
    return AgentRecorder(ring, clock, version("gpu-manager"))


def newest_record(config: Config) -> Sequence[bytes]:
    """The newest file of recorded decisions, a line of JSON each; without one that a kill has cut off."""
    try:
        files = segments(config.state / _RECORDS)
        return files[-1].read_bytes().split(b"\n")[:-1] if files else ()
    except OSError:
        return ()
