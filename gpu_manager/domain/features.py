"""How far each feature can be relied on: one table, which flags, chart, docs and ``/version`` read.

``alpha``: judged on models of a card or a cluster alone; it may change or go with any release.
``beta``: judged on a real card or a real cluster in part; a release that renames anything takes both names.
``stable``: held by tests on a real cluster or by proofs over the ledger; names stay within a major version.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class FeatureStage(Enum):
    """How far a feature can be relied on."""

    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature. ``values`` are the chart values that turn it on or set it, ``page`` is the page of the docs
    about it, and ``next`` what has to be seen before it gets a higher stage.
    """

    name: str
    stage: FeatureStage
    what: str
    page: str
    values: tuple[str, ...] = ()
    next: str = ""

    @property
    def mark(self) -> str:
        """What a flag's help and a chart's value say of it: nothing of a stable one."""
        return "" if self.stage is FeatureStage.STABLE else f"({self.stage.value})"


_ALPHA, _BETA, _STABLE = FeatureStage
_CARD: Final = "the programs of the card's kit within their bars on two generations of cards"

MEMORY_LIMITS: Final = Feature(
    "memory-limits", _STABLE, "A container gets no more of a card's memory than its share", "isolation.md"
)
CORE_LIMITS: Final = Feature(
    "core-limits", _BETA, "A container uses no more of a card's time than its share", "isolation.md",
    next=_CARD,
)  # fmt: skip
ELASTIC: Final = Feature(
    "elastic-ceilings", _BETA, "A container goes past its share while nobody else uses the card",
    "isolation.md", next=_CARD,
)  # fmt: skip
DEVICE_PLUGIN: Final = Feature(
    "device-plugin", _STABLE, "Cards by extended resources, with each container's card found out",
    "architecture.md",
)  # fmt: skip
PLACEMENT: Final = Feature(
    "extender", _STABLE, "Nodes and cards are chosen beside kube-scheduler, and bound", "placement.md",
    values=("scheduler.mode",),
)  # fmt: skip
QUOTA: Final = Feature("quota", _STABLE, "Cores and memory by namespace and model", "quota.md", ("quota",))
EXPLAIN: Final = Feature(
    "explain", _STABLE, "Why a pod waits, and the smallest change that helps", "troubleshooting.md"
)
DOCTOR: Final = Feature("doctor", _STABLE, "Checks of nodes and clusters, each with its cure", "doctor.md")
PREDECESSOR: Final = Feature(
    "predecessor", _STABLE, "Names, metrics and books of the predecessor", "migration/index.md",
    values=("agent.legacyMetrics",),
)  # fmt: skip
CONSOLE: Final = Feature(
    "console", _BETA, "The cluster's cards in a browser", "monitoring.md", ("admission.prometheus.url",),
    next="a cluster of a hundred nodes that people looked at for a week",
)  # fmt: skip
WHOLE_CARDS: Final = Feature(
    "whole-card-name", _BETA, "Whole cards under nvidia.com/gpu beside fractions", "concepts.md",
    values=("cards.nvidiaResource",), next="a node with the GPU operator's own plugin taken off and put back",
)  # fmt: skip
OVERSUBSCRIBE: Final = Feature(
    "oversubscription", _ALPHA, "Allocations past the limit come from managed memory", "isolation.md",
    values=("cards.oversubscribe",), next="throughput of two frameworks that page on a card",
)  # fmt: skip
CLAIMS: Final = Feature(
    "claims", _BETA, "Shares of cards by ResourceClaims (DRA)", "dra.md",
    values=("agent.front", "agent.claimCards"),
    next="a release of Kubernetes in which consumable capacity is on by default",
)  # fmt: skip
PRIORITIES: Final = Feature(
    "priorities", _BETA, "Protected containers are served before best-effort ones", "protected.md",
    next="the bars of waiting times on a card whose kernels run out their turns",
)  # fmt: skip
PARTS_OF_CARDS: Final = Feature(
    "several-cards", _ALPHA, "A container has equal parts of several cards", "several-cards.md",
    next="tensor parallelism of a framework over halves of two cards, with NCCL, on a real node",
)  # fmt: skip
MIG: Final = Feature(
    "mig-instances", _ALPHA, "MIG instances are given as cards, whole or in parts", "mig.md",
    values=("agent.migInstances",), next="a day of pods in the instances of a real card",
)  # fmt: skip
RESIZE: Final = Feature(
    "resize", _BETA, "A running container gets another share", "resize.md",
    values=("admission.resizeWithinQuota",), next="a month of a cluster's resizes without a refused start",
)  # fmt: skip
ADVICE: Final = Feature(
    "advice", _ALPHA, "Sizes are advised by what containers were seen to need", "sizing.md",
    next="advice that was followed for a month on cards",
)  # fmt: skip
BILLS: Final = Feature(
    "bills", _ALPHA, "What namespaces held and used, as sums", "monitoring.md",
    next="a month that was billed and checked",
)  # fmt: skip
GANGS: Final = Feature(
    "gangs", _ALPHA, "Pods of a group get all their places or none", "placement.md",
    values=("admission.gangs.seconds", "admission.gangs.podGroups"),
    next="twenty gangs beside each controller on a real cluster",
)  # fmt: skip
AUTOSCALERS: Final = Feature(
    "autoscalers", _ALPHA, "Autoscalers add the nodes that pods with shares need",
    "beside/cluster-autoscaler.md",
    values=("startupTaint.enabled", "placeholders.enabled", "placeholders.namespace"),
    next="a node group of each that grows and shrinks for a week",
)  # fmt: skip
WITNESS: Final = Feature(
    "second-witness", _ALPHA, "An account that the driver contradicts is reported, and corrected",
    "isolation.md", values=("agent.accountGapPoints",),
    next="a day of honest frameworks on a card, of which none is named",
)  # fmt: skip
EVADERS: Final = Feature(
    "evicting-evaders", _ALPHA, "A container that bypasses its limits is evicted", "isolation.md",
    values=("agent.evictEvaders",), next="a day of honest frameworks on a card, of which none is evicted",
)  # fmt: skip
HELD_REGISTRATION: Final = Feature(
    "held-registration", _BETA, "The kubelet keeps the node's devices while the agent is killed",
    "operations.md", values=("agent.holdRegistration",), next="a month of a fleet's rollouts",
)  # fmt: skip
PAGE_MOUNTS: Final = Feature(
    "page-file-systems", _BETA, "What a container does to its control pages fills nothing else",
    "security.md", values=("agent.pageFileSystem.kib", "agent.pageFileSystem.inodes"),
    next="nodes of three distributions that mount them",
)  # fmt: skip

RECORDS: Final = Feature(
    "records", _ALPHA, "Decisions are recorded with their inputs and can be judged again by another release",
    "replay.md", values=("admission.recordMib",),
    next="a week of a real cluster's decisions, replayed",
)  # fmt: skip

FEATURES: Final = tuple(one for one in tuple(vars().values()) if isinstance(one, Feature))
"""Each feature above, in that order."""


def stages() -> dict[str, str]:
    """Name → stage of every feature, as ``/version`` tells it."""
    return {feature.name: feature.stage.value for feature in FEATURES}
