"""HAMi, and Volcano, whose shares of cards are HAMi's under names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpu_manager.cli.kubectl.migrate.model import (
    Becomes,
    Fate,
    Lost,
    MigratedShare,
    MigrationTerms,
    Needless,
    System,
    card_memory,
    fraction,
    several,
    units_of,
    whole,
)
from gpu_manager.cli.kubectl.migrate.systems.words import (
    MODEL_NOTE,
    NO_DENY_LIST,
    NO_DENY_UUID,
    NODES,
    OTHER_LIBRARY,
    Asked,
    models,
)
from gpu_manager.domain.contract import CORE_LIMIT, GPU_MODEL, GPU_UUID, NVIDIA, PLACEMENT
from gpu_manager.domain.resources import CORES_PER_CARD, MIB


@dataclass(frozen=True, slots=True)
class _Names:
    """What a system calls a number of shares, and of each its memory (MiB), memory (percent) and time."""

    count: str
    memory: str
    percent: str
    cores: str
    priority: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.count, self.memory, self.percent, self.cores, self.priority)))

    def share(self, asked: Asked, terms: MigrationTerms) -> MigratedShare | None:
        """What it becomes."""
        count = whole(
            asked.get(self.count, Fraction(1)), self.count
        )  # its webhook writes 1 beside the others
        cores = whole(asked.get(self.cores, Fraction(0)), self.cores)
        notes: tuple[str, ...] = ()
        if self.priority in asked:
            notes = (f"{self.priority} has no equivalent: pods are ranked by PriorityClass",)
        memory, percent = asked.get(self.memory), asked.get(self.percent)
        if count == 0:
            return None
        if cores >= CORES_PER_CARD or (not memory and (percent is None or percent in (0, CORES_PER_CARD))):
            if cores not in (0, CORES_PER_CARD):
                notes = (*notes, "all memory of a card was asked for, so nobody could share it: whole cards")
            return MigratedShare(count * CORES_PER_CARD, None, None, notes)
        if count > 1:
            raise several(count, self.count)
        if memory:
            units, rounded = units_of(memory * MIB, terms, self.memory)
        else:
            share = (percent or Fraction(0)) / 100
            units, rounded = units_of(share * card_memory(terms, self.percent), terms, self.percent)
        return fraction(cores, units, terms, (*notes, *rounded))


_HAMI: Final = _Names(
    NVIDIA, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority"
)
_VOLCANO: Final = _Names(
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
)
_LIBRARY: Final[Mapping[str, Fate]] = {  # both run HAMi-core in the container
    "CUDA_DEVICE_MEMORY_LIMIT*": Needless(OTHER_LIBRARY),
    "CUDA_DEVICE_SM_LIMIT*": Needless(OTHER_LIBRARY),
    "CUDA_OVERSUBSCRIBE": Lost("memory is never promised twice"),
    "CUDA_DISABLE_CONTROL": Lost("limits cannot be switched off by the container"),
    "CUDA_TASK_PRIORITY": Lost("pods are ranked by PriorityClass"),
    "GPU_CORE_UTILIZATION_POLICY": Lost(
        f"annotate the pod with {CORE_LIMIT}: the share it may reach when idle"
    ),
}
_HAMI_POLICIES = {"binpack": "binpack", "spread": "spread", "topology-aware": "topology"}
HAMI: Final = System(
    name="hami",
    title="HAMi",
    resources=_HAMI.all,
    share=_HAMI.share,
    annotations={
        "nvidia.com/use-gputype": Becomes(GPU_MODEL, change=models, note=MODEL_NOTE),
        "nvidia.com/nouse-gputype": Lost(NO_DENY_LIST),
        "nvidia.com/use-gpuuuid": Becomes(GPU_UUID, change=models),
        "nvidia.com/nouse-gpuuuid": Lost(NO_DENY_UUID),
        "nvidia.com/numa-bind": Lost(
            f"cards of one NUMA node are preferred by {PLACEMENT}: topology, not forced"
        ),
        "nvidia.com/vgpu-mode": Becomes("", {"hami-core": ""}),
        "hami.io/gpu-scheduler-policy": Becomes(PLACEMENT, _HAMI_POLICIES),
        "hami.io/node-scheduler-policy": Lost(NODES),
        "hami.io/device-scoring-weights": Lost("cards are chosen by best fit; weights cannot be set"),
    },
    labels={"hami.io/webhook": Needless("the namespace selector of our webhook decides who passes it by")},
    variables=_LIBRARY,
    state=("hami.io/vgpu-", "hami.io/bind-", "hami.io/resource-pool"),
    schedulers=("hami-scheduler",),
    marks=("hami.io/", "nvidia.com/use-gpu", "nvidia.com/nouse-gpu", "nvidia.com/vgpu-mode"),
)
VOLCANO: Final = System(
    name="volcano",
    title="Volcano vGPU",
    resources=_VOLCANO.all,
    share=_VOLCANO.share,
    annotations={"volcano.sh/vgpu-mode": Becomes("", {"hami-core": ""})},
    variables=_LIBRARY,
    state=(
        "volcano.sh/vgpu-ids",
        "volcano.sh/vgpu-node",
        "volcano.sh/vgpu-time",
        "volcano.sh/devices-to-allocate",
        "volcano.sh/bind-",
    ),
)
