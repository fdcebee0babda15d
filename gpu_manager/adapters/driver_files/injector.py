"""Turns shares into a container's injection, by one of four strategies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gpu_manager.adapters.driver_files import cdi
from gpu_manager.adapters.driver_files.cdi import (
    HOOK_PATH,
    driver_mounts,
    enforcement_mounts,
    gate_mounts,
    trusted_directories,
)
from gpu_manager.adapters.driver_files.delivery import (
    LDCACHE,
    Delivered,
    Delivery,
    InjectionRecord,
    Records,
    is_name,
)
from gpu_manager.adapters.driver_files.device_nodes import CONTROL, DeviceNodes
from gpu_manager.adapters.driver_files.driver import Driver, DriverFinder
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.card import Card, CardState
from gpu_manager.domain.contract import (
    ALLOCATION,
    CARDS_ENV,
    CDI_DIR,
    CRI_CORE,
    CRI_DEVICE,
    CRI_MEMORY,
    PRELOAD,
    TRITON_ENV,
    VISIBLE_ENV,
)
from gpu_manager.domain.errors import Bug, NodeUnready, RequestInvalid
from gpu_manager.domain.injection import DeviceNode, Injection, Mount, RuntimeHook
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.mig import draws
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.rules.pod_annotations import preload_of, priority_of
from gpu_manager.domain.rules.unknown_names import check_env_from
from gpu_manager.ports.containers import HeldInjection, Injectable

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What a pod, or a claim, says of its containers: the library is preloaded, they see the gates of their
    cards, and have the driver's graphics libraries.
    """

    preload: bool = True
    gates: bool = False
    graphics: bool = False


class DriverFiles:
    """:class:`gpu_manager.ports.containers.Injector`. Thread-safe; asks neither NVML nor the network.

    ``cards`` answers from memory with the node's cards; ``state``, ``pages`` and ``cdi_dir`` have the same
    path on the node and in the agent, everything else is looked up through ``host``. ``libraries`` holds
    libvcuda.so and libvcuda-ml.so as the package ships them. With ``simulated``, which the strategy of that
    name implies, there are no device nodes, and ``stand_in`` holds the stand-in driver's libraries; None
    leaves containers without a driver, as a laptop without a compiler is.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        cards: Callable[[], Sequence[CardState]],
        state: Path,
        pages: Path,
        libraries: Path | None,
        host: HostFiles | None = None,
        driver_root: str = "/",
        stand_in: Path | None = None,
        cdi_dir: Path = Path(CDI_DIR),
        label: bytes | None = None,
        simulated: bool = False,
        nodes: DeviceNodes | None = None,
        allow_env_from: bool = False,
        outdated: Callable[[], str] = str,
    ) -> None:
        """``outdated``: why the strategy no longer gives containers their cards, empty if it does."""
        self.strategy = strategy
        self.outdated = outdated
        self._allow_env_from = allow_env_from
        self._cards = cards
        self._pages = pages
        self._host = host or HostFiles()
        self._driver_root = "/" + driver_root.strip("/")
        self._nodes = nodes or DeviceNodes(self._host, self._driver_root)
        self._lock = threading.Lock()
        self._simulated = strategy is Strategy.SIMULATED or simulated
        self._finder = self._make_finder(state / "driver", stand_in)
        self._delivery = (
            None if self._simulated and libraries is None else Delivery(libraries, state / "lib", label)
        )
        self._records = Records(state / "tenants")
        self._specs = cdi.Specs(cdi_dir) if strategy is Strategy.CDI else None
        self._orphans: frozenset[str] = frozenset()
        self._looked = False  # for the driver, since the start
        self._without_pod: set[str] = set()  # specs that were rebuilt before the API showed the pod

    def _make_finder(self, links: Path, stand_in: Path | None) -> DriverFinder | None:
        if self._simulated:
            return DriverFinder(HostFiles(), "/", links, (str(stand_in),)) if stand_in is not None else None
        return DriverFinder(self._host, self._driver_root, links)

    def inject(self, name: str, shares: Sequence[Share], pod: Pod | None, annotation: str) -> Injection:
        """Everything the container needs to use its cards. The driver's files may be away for a moment: the
        container's start waits for them (:meth:`probe`); everything else exists when this returns.

        Raises:
            NodeUnready: the driver or its device nodes never existed, library or pages are missing; the
                text has the cure.
            RequestInvalid: the pod opts out of the only mechanism that would enforce its limit here, or its
                envFrom may show it other cards.
        """
        if not is_name(name):
            raise Bug(f"{name[:64]!r} is not the name of an allocation's directory")
        fraction = any(not share.whole for share in shares)
        with self._lock:
            installed = self._installed(fraction=fraction)
            library = installed if fraction else None
            hooks, hook_mounts = self._hooks(installed)
            self._check_pages(name, fraction=fraction)
            wishes = self._wishes(pod, fraction)
            whole = Injection(
                env=self._env(shares),
                mounts=(
                    *self._mounts(name, library, wishes, shares, fraction=fraction, now=False),
                    *hook_mounts,
                ),
                devices=tuple(self._devices(shares, wishes, now=False)),
                annotations=self._annotations(shares, annotation),
                hooks=hooks,
            )
            if self._specs is None:
                self._records.put(name, InjectionRecord(library.sha256 if library else None))
                return whole
            spec = cdi.encode(name, whole)
            self._records.put(name, InjectionRecord(installed.sha256 if installed else None, spec))
            self._specs.put(name, spec)
            device = cdi.device_name(name)
            return replace(
                whole,
                mounts=(),
                devices=(),
                hooks=(),
                annotations={**whole.annotations, cdi.ANNOTATION: device},
                cdi=(device,),
            )

    def inject_claim(
        self,
        name: str,
        shares: Sequence[Share],
        priority: Priority = Priority.NORMAL,
        *,
        preload: bool = True,
    ) -> tuple[str, ...]:
        """See :meth:`gpu_manager.ports.containers.Injector.inject_claim`.

        Raises:
            NodeUnready: driver, device nodes, library or pages are missing, or containers are not injected
                by CDI; the text says the cure.
        """
        if not is_name(name):
            raise Bug(f"{name[:64]!r} is not the name of an allocation's directory")
        if self._specs is None:
            raise NodeUnready(
                f"claims need --device-injection cdi, and this node injects by {self.strategy.value}"
            )
        fraction = any(not share.whole for share in shares)
        with self._lock:
            installed = self._installed(fraction=fraction)
            self._check_pages(name, fraction=fraction)
            wishes = _Wishes(preload=preload, gates=priority is Priority.BEST_EFFORT)
            whole = self._of_claim(name, shares, installed, wishes, fraction=fraction)
            spec = cdi.encode_claim(name, whole, len(shares))
            self._records.put(name, InjectionRecord(installed.sha256 if installed else None, spec))
            self._specs.put(name, spec)
        return cdi.claim_device_names(name, whole, len(shares))

    def _of_claim(
        self,
        name: str,
        shares: Sequence[Share],
        installed: Delivered | None,
        wishes: _Wishes,
        *,
        fraction: bool,
    ) -> Injection:
        hooks, hook_mounts = self._hooks(installed)
        mounts = self._mounts(name, installed if fraction else None, wishes, shares, fraction=fraction)
        return Injection(
            env=self._env(shares),
            mounts=(*mounts, *hook_mounts),
            devices=tuple(self._devices(shares, wishes)),
            hooks=hooks,
        )

    def probe(self, cards: Sequence[CardState]) -> Injectable:
        """See :meth:`gpu_manager.ports.containers.InjectionProbe.probe`. Makes missing device nodes."""
        with self._lock:
            try:
                if self._finder is not None:
                    self._finder.find()
                if self._simulated:
                    return Injectable()
                self._nodes.require(*CONTROL)
            except NodeUnready as error:
                return Injectable(str(error))
            closed = {s.card.uuid: why for s in cards if not s.card.mig and (why := self._no_node(s.card))}
        return Injectable(cards=closed)

    def _no_node(self, card: Card) -> str:
        if card.minor is None:
            wsl = "; Windows Subsystem for Linux gives none to any card" if self._nodes.wsl() else ""
            return f"the card has no device node of its own, by which a container could be given it{wsl}"
        try:
            self._nodes.require(f"nvidia{card.minor}", *self._capabilities(card))
        except NodeUnready as error:
            return str(error)
        return ""

    def _installed(self, *, fraction: bool) -> Delivered | None:
        """Our files on the node: fractions cannot do without them, whole cards under CDI use the hook."""
        if self._delivery is None or not (fraction or self._specs):
            return None
        try:
            return self._delivery.install()
        except NodeUnready as error:
            if fraction:
                raise
            log.warning("ldconfig_cache_not_rebuilt", reason=str(error))
            return None

    def _hooks(self, installed: Delivered | None) -> tuple[tuple[RuntimeHook, ...], tuple[Mount, ...]]:
        """Under CDI: refresh ldconfig's cache as the container starts, and the program that does it."""
        if self._specs is None or installed is None or not installed.runnable:
            return (), ()
        return (RuntimeHook("startContainer", HOOK_PATH),), (Mount(HOOK_PATH, installed.path(LDCACHE)),)

    def restore(self, held: Mapping[str, HeldInjection]) -> None:
        """Create again the specs that a reboot or a person removed: as recorded, or from the grant if the
        record is lost or a newer agent's. Call it before the kubelet can start a container, and any time.

        Raises:
            NodeUnready: a spec cannot be made or written; all others are.
        """
        failed = ""
        with self._lock:
            if not self._looked:
                self._find_driver()
                self._looked = True
            if self._specs is None:
                return
            if self._specs.detached():
                raise NodeUnready(
                    f"{self._specs.directory} was removed on the node while the agent has it mounted: no "
                    "container with a card can start until the agent has restarted, which it does by itself"
                )
            known = self._specs.names()
            for name, one in held.items():
                if is_name(name) and (name not in known or (name in self._without_pod and one.pod)):
                    try:
                        self._respec(self._specs, name, one)
                    except NodeUnready as error:
                        failed = failed or str(error)
        if failed:
            raise NodeUnready(failed)

    def _respec(self, specs: cdi.Specs, name: str, held: HeldInjection) -> None:
        record = self._records.get(name)
        if record is not None:
            if record.cdi is not None:
                specs.put(name, record.cdi)
            return  # else the container was injected without CDI
        fraction = any(not share.whole for share in held.shares)
        installed = self._installed(fraction=fraction)
        if held.by_claim:
            wishes = _Wishes(preload=held.preload, gates=held.priority is Priority.BEST_EFFORT)
            whole = self._of_claim(name, held.shares, installed, wishes, fraction=fraction)
            specs.put(name, cdi.encode_claim(name, whole, len(held.shares)))
            log.info("injection_rebuilt_from_grant", directory=name)
            return
        hooks, hook_mounts = self._hooks(installed)
        library = installed if fraction else None
        wishes = self._wishes(held.pod, fraction)
        mounts = tuple(self._mounts(name, library, wishes, held.shares, fraction=fraction))
        devices = tuple(self._devices(held.shares, wishes))
        whole = Injection(mounts=(*mounts, *hook_mounts), devices=devices, hooks=hooks)
        specs.put(name, cdi.encode(name, whole))
        (self._without_pod.discard if held.pod else self._without_pod.add)(name)
        log.info("injection_rebuilt_from_grant", directory=name)

    def detached(self) -> bool:
        """True if the directory of CDI specs was removed on the node while it is mounted here."""
        return self._specs is not None and self._specs.detached()

    def prune(self, alive: Collection[str]) -> None:
        """Remove specs, records and libraries of names that were not alive in two consecutive calls.

        Two, because a name may have been granted between the caller's read of its ledger and this call.
        """
        if "" in alive:
            return  # a container whose directory nobody knows any more: any of them may be its own
        if not all(is_name(name) for name in alive):
            raise Bug("prune wants the names of directories")
        with self._lock:
            known = self._records.names() | (self._specs.names() if self._specs else frozenset())
            orphans = known - frozenset(alive)
            gone, self._orphans = orphans & self._orphans, orphans
            kept = known - gone
            if self._specs is not None:
                self._specs.keep(kept)
            self._find_driver()
        # Slow, and about names that nobody asks for any more: no Allocate must wait for it.
        for name in gone:
            self._records.remove(name)
            log.info("injection_record_removed", directory=name)
        settled = kept | frozenset(alive)
        used = self._records.libraries(settled)
        if used is None or self._delivery is None:
            return
        with self._lock:
            since = self._records.libraries(self._records.names() - settled)
            if since is not None:
                self._delivery.prune(used | since)

    def _find_driver(self) -> None:
        """So that links to the driver's files are there again after a reboot."""
        if self._finder is not None:
            try:
                self._finder.find()
            except NodeUnready as error:
                log.warning("driver_not_found", reason=str(error))

    def _env(self, shares: Sequence[Share]) -> dict[str, str]:
        uuids = ",".join(share.card for share in shares)
        if self.strategy is Strategy.NVIDIA:
            return {VISIBLE_ENV: uuids, CARDS_ENV: uuids}
        seen = {VISIBLE_ENV: "void", CARDS_ENV: uuids}
        if self._simulated:
            return {**seen, **self._stand_ins(shares)}
        # The kubelet puts the pod's own variables after a plugin's: a value of the pod wins.
        return {**seen, TRITON_ENV: trusted_directories()[0]}

    def _stand_ins(self, shares: Sequence[Share]) -> dict[str, str]:
        """What device nodes tell a real driver: which cards there are. Else it would show one of its own."""
        cards = {state.card.uuid: state.card for state in self._cards()}
        env = {"VCUDA_STANDIN_CARDS": str(len(shares))}
        for index, share in enumerate(shares):
            env[f"VCUDA_STANDIN_CARD_{index}_UUID"] = share.card
            if share.card in cards:
                env[f"VCUDA_STANDIN_CARD_{index}_MEMORY_MIB"] = str(cards[share.card].memory >> 20)
        return env

    def _annotations(self, shares: Sequence[Share], annotation: str) -> dict[str, str]:
        """The predecessor's three, and the exact allocation for the kubelet's checkpoint."""
        return {
            CRI_CORE: str(sum(share.amount.cores for share in shares)),
            CRI_MEMORY: str(sum(share.amount.memory for share in shares)),
            CRI_DEVICE: ",".join(f"/dev/nvidia{self._minor(share)}" for share in shares),
            ALLOCATION: annotation,
        }

    def _wishes(self, pod: Pod | None, fraction: bool) -> _Wishes:  # noqa: FBT001  # private
        if pod is None:
            return _Wishes()
        if self.strategy is Strategy.NVIDIA and not self._allow_env_from:
            for fault in check_env_from(pod, "this node"):
                raise RequestInvalid(fault.message)
        preload = preload_of(pod)
        if fraction and not preload and self.strategy is Strategy.NVIDIA:
            raise RequestInvalid(
                f'annotation {PRELOAD}: "false" would leave no limit in force on this node, where the NVIDIA '
                "runtime brings the driver: remove it, or ask for whole cards"
            )
        gates = priority_of(pod) is Priority.BEST_EFFORT
        return _Wishes(preload=preload, gates=gates, graphics=pod.graphics)

    def _mounts(
        self,
        name: str,
        library: Delivered | None,
        wishes: _Wishes,
        shares: Sequence[Share],
        *,
        fraction: bool,
        now: bool = True,
    ) -> Iterator[Mount]:
        runtime_brings_driver = self.strategy is Strategy.NVIDIA
        driver: Driver | None = None
        if self._finder is not None and (fraction or not runtime_brings_driver):
            driver = self._finder.find() if now else self._finder.find_last()
        if driver is not None and not runtime_brings_driver:
            yield from driver_mounts(driver, library, graphics=wishes.graphics)
        if not fraction:
            return
        yield from enforcement_mounts(self._pages / name, library, driver, preload=wishes.preload)
        if wishes.gates:
            yield from gate_mounts(self._pages, [share.card for share in shares if not share.whole])

    def _check_pages(self, name: str, *, fraction: bool) -> None:
        for page in ("limits", "usage") if fraction else ():
            path = self._pages / name / page
            if not path.is_file():
                raise NodeUnready(f"the control page {path} is missing: the start is tried again")

    def _devices(self, shares: Sequence[Share], wishes: _Wishes, *, now: bool = True) -> Iterator[DeviceNode]:
        if self._simulated:
            return
        named = {share.card for share in shares}
        there = [state.card for state in self._cards() if state.card.uuid in named]
        capabilities = [name for card in there for name in self._capabilities(card)]
        yield from self._nodes.of([self._minor(share) for share in shares], capabilities, now=now)
        for card in there if wishes.graphics else ():
            if card.instance is not None and draws(card.model):
                yield from self._nodes.drawing(card.pci_bus_id)

    def _capabilities(self, card: Card) -> tuple[str, ...]:
        if card.instance is None or card.minor is None:
            return ()
        return self._nodes.capabilities(card.minor, card.instance)

    def _minor(self, share: Share) -> int:
        for state in self._cards():
            if state.card.uuid == share.card:
                minor = state.card.minor
                if minor is None and self._simulated:
                    return state.card.index
                if minor is not None:
                    return minor
        raise NodeUnready(
            f"card {share.card} has no known device node: it may have left the node; see its health"
        )
