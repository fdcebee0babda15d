"""The settings of the agent; the command line fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from gpu_manager.adapters.control_pages.limits_file import DEFAULT_POLICY, PagePolicy
from gpu_manager.adapters.control_pages.page_directory import PageMounts
from gpu_manager.adapters.nvml.faults import QUIET_SECONDS
from gpu_manager.domain import features
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
from gpu_manager.runtime.arguments import Option

_NO_MOUNTS: Final = PageMounts()
CLUSTER_CA: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of ``gpu-manager run``, with the options that set them. Paths are as the agent sees them.

    ``page_mounts``: the file system that each container's pages get. ``registers_in``: where the plugin
    registers, if not with the kubelet itself in ``device_plugins``. ``unit`` is bytes of a memory unit;
    ``policy`` holds settings of every fraction's control page; ``injection`` is ``auto`` or a strategy.
    ``account_gap``: the difference between account and driver that is reported, as a share of a card.
    ``program_xids`` are driver errors that never close a card, ``card_xids`` those that always do. With
    ``lending`` whole cards are also offered as ``nvidia.com/gpu``. ``claim_cards`` are those that a split
    node gives by claims. ``numa_policy`` is the one of the node's kubelet. Sizes are advised by ``advice``,
    and what was seen weighs half after ``advice_half_life`` seconds.
    """

    node: Annotated[
        str,
        Option(
            "--node-name",
            "--hostname-override",
            envvar="NODE_NAME",
            help="Name of this node; default: the hostname.",
        ),
    ] = ""
    api_url: Annotated[str | None, Option(help="Address of an API server without credentials.")] = None
    kubeconfig: Annotated[Path | None, Option(help="Path of a kubeconfig; default: the pod's own.")] = None
    kubelet_pods_url: Annotated[
        str | None, Option(help="https://<node>:10250, to ask the kubelet for its pods (needs nodes/pods).")
    ] = None
    kubelet_ca: Annotated[
        Path,
        Option(
            "--kubelet-certificate-authority",
            help="Certificates of who signs the kubelet's; a kubelet that they do not verify gets no token, "
            "and the API server is asked.",
        ),
    ] = CLUSTER_CA
    device_plugins: Path = Path(KUBELET_DIR) / "device-plugins"
    pod_resources: Path = Path(KUBELET_DIR) / "pod-resources"
    registers_in: Path | None = None
    state: Annotated[
        Path, Option("--state-dir", help="The agent's records and libraries; must survive a reboot.")
    ] = Path(STATE_DIR)
    pages: Annotated[Path, Option("--pages-dir", help="Directory of the control pages, a tmpfs.")] = Path(
        PAGES_DIR
    )
    old_checkpoint: Annotated[
        Path,
        Option(
            "--checkpoint-path", help="Directory of the predecessor's checkpoint, read at the first start."
        ),
    ] = Path(OLD_CHECKPOINT_DIR)
    http_address: Annotated[
        str, Option(help="Address that serves metrics and status; default: all, IPv4 and IPv6.")
    ] = ""
    http_port: Annotated[
        int, Option(min=0, max=65535, help="Port that serves metrics and status; 0 for a free one.")
    ] = HTTP_PORT
    http_token: str | None = None
    cards: Annotated[
        str,
        Option(
            help="nvml, or simulated:PROFILE, simulated:FILE.yaml, simulated:FILE.txt (nvidia-smi topo -m)."
        ),
    ] = "nvml"
    control: Annotated[Path | None, Option(help="Control file of simulated cards.")] = None
    nvml: Annotated[
        Path | None,
        Option("--nvml-library", help="Path of libnvidia-ml.so.1, if the loader does not find it."),
    ] = None
    program_xids: frozenset[int] = frozenset()
    card_xids: frozenset[int] = frozenset()
    quiet_seconds: Annotated[
        float, Option(min=0, help="Seconds without faults before an unhealthy card is healthy again.")
    ] = QUIET_SECONDS
    unit: int = DEFAULT_UNIT
    policy: PagePolicy = DEFAULT_POLICY
    page_mounts: PageMounts = _NO_MOUNTS
    lending: bool = False
    mig_instances: Annotated[
        bool,
        Option(
            help="Give MIG instances as cards, whole or in parts, to pods that name them. The node's label "
            "tencent.com/mig-instances counts before this.",
            feature=features.MIG,
        ),
    ] = False
    front: Annotated[
        Front,
        Option(
            help="How cards are given: plugin (extended resources), dra (ResourceClaims; needs Kubernetes "
            "1.36 and CDI), or split (each card by one of them).",
            feature=features.CLAIMS,
        ),
    ] = Front.PLUGIN
    claim_cards: ClaimCards = NO_CARDS
    minimum_cores: Annotated[
        int, Option(min=1, max=100, help="Smallest part of a card for claims, and with --resize-alone.")
    ] = 1
    cdi: Annotated[Path, Option("--cdi-dir", help="Directory of the runtime's CDI specs.")] = Path(CDI_DIR)
    numa_policy: NumaPolicy = NumaPolicy.NONE
    injection: str = "auto"
    allow_env_from: Annotated[
        bool,
        Option(
            "--allow-envfrom",
            help="With --device-injection nvidia, take pods whose envFrom may bring NVIDIA_VISIBLE_DEVICES.",
        ),
    ] = False
    host_root: Annotated[Path, Option(help="Where the host's root is mounted in the agent.")] = Path("/")
    driver_root: Annotated[Path, Option(help="Where the driver is installed on the host.")] = Path("/")
    libraries: Annotated[Path | None, Option(help="Directory of libvcuda; default: the package's.")] = None
    stand_in: Annotated[Path | None, Option(help="The stand-in driver of simulated cards.")] = None
    extra_devices: tuple[str, ...] = ()
    proc: Path = Path("/proc")
    evict: Annotated[
        bool, Option(help="Evict a controlled pod that got a wrong card, or cannot start a container again.")
    ] = True
    resize_alone: Annotated[
        bool, Option(help="Judge requests for another size on this node alone; only without an extender.")
    ] = False
    evict_evaders: Annotated[
        bool, Option(help="Evict controlled pods that bypass their limits.", feature=features.EVADERS)
    ] = False
    account_gap: float = GAP
    mark_evictions: Annotated[
        bool,
        Option(
            "--mark-evictions",
            help="Mark pods that are to be evicted for `gpu-manager evict-marked`, and evict none.",
        ),
    ] = False
    startup_taint: Annotated[
        bool,
        Option(
            "--startup-taint",
            help="Remove the taint `tencent.com/vcuda-not-ready` from the node once pods get cards there.",
            feature=features.AUTOSCALERS,
        ),
    ] = False
    reclaim_seconds: Annotated[float, Option(min=0.1, help="Seconds between searches for dead pods.")] = 30.0
    legacy_metrics: Annotated[
        bool, Option(help="Serve the predecessor's four metrics too.", feature=features.PREDECESSOR)
    ] = True
    records_mib: Annotated[
        int,
        Option(
            "--record-mib",
            min=0,
            max=1 << 16,
            help="MiB of recorded decisions in the state directory, for gpu-manager replay-node; 0: none.",
            feature=features.RECORDS,
        ),
    ] = 0
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
