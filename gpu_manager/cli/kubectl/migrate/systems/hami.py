"""HAMi, and Volcano vGPU, which has the same resources under other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.domain.contract import CORE_LIMIT, GPU_MODEL, GPU_UUID, NVIDIA, PLACEMENT
from gpu_manager.domain.resources import CORES_PER_CARD, MIB


@dataclass(frozen=True, slots=True)
class _Names:
    """Resource names: the number of shares, and the memory (MiB), memory (percent) and cores of each."""

    count: str
    memory: str
    percent: str
    cores: str
    priority: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.count, self.memory, self.percent, self.cores, self.priority)))

    def share(self, asked: model.Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
        """Return the equivalent of a container's request; None if it asks for no card."""
        count = model.whole(
            asked.get(self.count, Fraction(1)), self.count
        )  # its webhook writes 1 beside the others
        cores = model.percent(asked.get(self.cores, Fraction(0)), self.cores)
        notes: tuple[str, ...] = ()
        if self.priority in asked:
            low = bool(asked[self.priority])
            notes = (f"{self.priority} removed: {model.BEST_EFFORT if low else model.PROTECTED}",)
        memory, percent = asked.get(self.memory), asked.get(self.percent)
        if count == 0:
            return None
        if cores >= CORES_PER_CARD or (not memory and (percent is None or percent in (0, CORES_PER_CARD))):
            if cores not in (0, CORES_PER_CARD):
                notes = (*notes, "all memory of a card was asked for, so nobody could share it: whole cards")
            return model.MigratedShare(count * CORES_PER_CARD, None, None, notes)
        if memory:
            units, rounded = model.units_of(memory, MIB, terms, self.memory)
        else:
            units, rounded = model.part_of((percent or Fraction(0)) / 100, terms, self.percent), ()
        return replace(model.fraction(cores, units, terms, (*notes, *rounded)), parts=count)


_HAMI: Final = _Names(
    NVIDIA, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority"
)
_VOLCANO: Final = _Names(
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
)
_LIBRARY: Final[Mapping[str, model.Fate]] = {  # both run HAMi-core in the container
    "CUDA_DEVICE_MEMORY_LIMIT*": model.Needless(model.OTHER_LIBRARY),
    "CUDA_DEVICE_SM_LIMIT*": model.Needless(model.OTHER_LIBRARY),
    "CUDA_OVERSUBSCRIBE": model.Lost("memory is never promised twice"),
    "CUDA_DISABLE_CONTROL": model.Lost("limits cannot be switched off by the container"),
    "CUDA_TASK_PRIORITY": model.Lost(f"for 0, {model.PROTECTED}; for 1, {model.BEST_EFFORT}"),
    "GPU_CORE_UTILIZATION_POLICY": model.Lost(
        f"annotate the pod with {CORE_LIMIT}: the share it may reach when idle"
    ),
}
_HAMI_POLICIES = {"binpack": "binpack", "spread": "spread", "topology-aware": "topology"}
HAMI: Final = model.System(
    name="hami",
    title="HAMi",
    resources=_HAMI.all,
    share=_HAMI.share,
    annotations={
        "nvidia.com/use-gputype": model.Becomes(GPU_MODEL, change=model.models, note=model.MODEL_NOTE),
        "nvidia.com/nouse-gputype": model.Lost(model.NO_DENY_LIST),
        "nvidia.com/use-gpuuuid": model.Becomes(GPU_UUID, change=model.models),
        "nvidia.com/nouse-gpuuuid": model.Lost(model.NO_DENY_UUID),
        "nvidia.com/numa-bind": model.Lost(
            f"cards of one NUMA node are preferred by {PLACEMENT}: topology, not forced"
        ),
        "nvidia.com/vgpu-mode": model.Becomes("", {"hami-core": ""}),
        "hami.io/gpu-scheduler-policy": model.Becomes(PLACEMENT, _HAMI_POLICIES),
        "hami.io/node-scheduler-policy": model.Lost(model.NODES),
        "hami.io/device-scoring-weights": model.Lost("cards are chosen by best fit; weights cannot be set"),
    },
    labels={
        "hami.io/webhook": model.Needless("the namespace selector of our webhook decides who passes it by")
    },
    variables=_LIBRARY,
    state=("hami.io/vgpu-", "hami.io/bind-", "hami.io/resource-pool"),
    selectors={"gpu": model.Needless("nodes with cards are found by what they offer", "on")},
    schedulers=("hami-scheduler",),
    marks=("hami.io/", "nvidia.com/use-gpu", "nvidia.com/nouse-gpu", "nvidia.com/vgpu-mode"),
)
VOLCANO: Final = model.System(
    name="volcano",
    title="Volcano vGPU",
    resources=_VOLCANO.all,
    share=_VOLCANO.share,
    annotations={"volcano.sh/vgpu-mode": model.Becomes("", {"hami-core": ""})},
    variables=_LIBRARY,
    state=(
        "volcano.sh/vgpu-ids",
        "volcano.sh/vgpu-node",
        "volcano.sh/vgpu-time",
        "volcano.sh/devices-to-allocate",
        "volcano.sh/bind-",
    ),
)
