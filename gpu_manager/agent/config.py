"""The settings of the agent; the command line fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpu_manager.adapters.control_pages.limits_file import DEFAULT_POLICY, PagePolicy
from gpu_manager.adapters.control_pages.page_directory import PageMounts
from gpu_manager.adapters.nvml.faults import QUIET_SECONDS
from gpu_manager.domain.advice.demand import HALF_LIFE_SECONDS
from gpu_manager.domain.advice.size import AdvicePolicy
from gpu_manager.domain.contract import (
    CDI_DIR,
    HTTP_PORT,
    KUBELET_DIR,
    OLD_CHECKPOINT_DIR,
    PAGES_DIR,
    STATE_DIR,
)
from gpu_manager.domain.dra.sides import NO_CARDS, ClaimCards, Front
from gpu_manager.domain.enforcement.second_witness import GAP
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.topology import NumaPolicy

_NO_MOUNTS: Final = PageMounts()
CLUSTER_CA: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of ``gpu-manager run``. Paths are as the agent sees them.

    ``page_mounts``: the file system that each container's pages get. ``registers_in``: where the plugin
    registers, if not with the kubelet itself in ``device_plugins``.
    ``kubelet_ca`` is a file with the certificates of who signs the kubelet's.
    ``cards`` is ``nvml``, or ``simulated:`` with a profile's name or a file; ``unit`` is bytes of a memory
    unit; ``policy`` holds settings of every fraction's control page; ``injection`` is ``auto`` or a strategy;
    ``allow_env_from``: where a variable shows cards, envFrom, which may bring it, is taken all the same;
    ``resize_alone``: there is no extender, and the agent itself answers requests for another size.
    ``evict`` lets the agent evict pods whose card is wrong, ``evict_evaders`` pods that evade their limits;
    with ``mark_evictions`` it marks them instead, for an evictor. With ``startup_taint`` it removes the taint
    of a node that joined, once pods can be given cards there.
    ``account_gap``: the difference between account and driver that is reported, as a share of a card.
    ``program_xids`` are driver errors that never close a card, ``card_xids`` those that always do; a card
    opens again after ``quiet_seconds`` without faults. With ``lending`` whole cards are also offered as
    ``nvidia.com/gpu``; with ``mig_instances`` MIG instances are cards too. ``front`` is the way in which
    cards are given away, ``claim_cards`` those that a split node gives by claims; ``minimum_cores`` is the
    smallest part of one that claims may ask for, ``cdi`` the runtime's directory of CDI specs.
    ``numa_policy`` is the one of the node's kubelet. ``nvml`` is the path of the NVML library if the loader
    does not find it. Sizes are advised by ``advice``, and what was seen weighs half after
    ``advice_half_life`` seconds.
    """

    node: str
    api_url: str | None = None
    kubeconfig: Path | None = None
    kubelet_pods_url: str | None = None
    kubelet_ca: Path = CLUSTER_CA
    device_plugins: Path = Path(KUBELET_DIR) / "device-plugins"
    pod_resources: Path = Path(KUBELET_DIR) / "pod-resources"
    registers_in: Path | None = None
    state: Path = Path(STATE_DIR)
    pages: Path = Path(PAGES_DIR)
    old_checkpoint: Path = Path(OLD_CHECKPOINT_DIR)
    http_address: str = ""  # every address, of IPv4 and IPv6
    http_port: int = HTTP_PORT
    http_token: str | None = None
    cards: str = "nvml"
    control: Path | None = None
    nvml: Path | None = None
    program_xids: frozenset[int] = frozenset()
    card_xids: frozenset[int] = frozenset()
    quiet_seconds: float = QUIET_SECONDS
    unit: int = DEFAULT_UNIT
    policy: PagePolicy = DEFAULT_POLICY
    page_mounts: PageMounts = _NO_MOUNTS
    lending: bool = False
    mig_instances: bool = False
    front: Front = Front.PLUGIN
    claim_cards: ClaimCards = NO_CARDS
    minimum_cores: int = 1
    cdi: Path = Path(CDI_DIR)
    numa_policy: NumaPolicy = NumaPolicy.NONE
    injection: str = "auto"
    allow_env_from: bool = False
    host_root: Path = Path("/")
    driver_root: Path = Path("/")
    libraries: Path | None = None
    stand_in: Path | None = None
    extra_devices: tuple[str, ...] = ()
    proc: Path = Path("/proc")
    evict: bool = True
    resize_alone: bool = False
    evict_evaders: bool = False
    account_gap: float = GAP
    mark_evictions: bool = False
    startup_taint: bool = False
    reclaim_seconds: float = 30.0
    legacy_metrics: bool = True
    advice: AdvicePolicy = field(default_factory=AdvicePolicy)
    advice_half_life: float = HALF_LIFE_SECONDS
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """True if the cards are made of numbers: there is no driver."""
        return self.cards.partition(":")[0] == "simulated"

    @property
    def evicts_itself(self) -> bool:
        """True if pods are evicted with the agent's own account."""
        return (self.evict or self.evict_evaders) and not self.mark_evictions and self.api_url is None
