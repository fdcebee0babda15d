"""HAMi and Volcano; the predecessor, whose names are kept; Aliyun gpushare; vgpu-manager with its default
domain nvidia.com; KAI and Run:ai, where an annotation of the pod requests a part of a card for one of its
containers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import Final

from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.cli.kubectl.migrate.model import Asked, number
from gpu_manager.cli.kubectl.migrate.systems.nvidia import TIME_SLICING
from gpu_manager.domain import contract
from gpu_manager.domain.contract import CORE_LIMIT, GPU_MODEL, GPU_UUID, NVIDIA, PLACEMENT
from gpu_manager.domain.resources import CORES_PER_CARD, MIB

# HAMi, and Volcano vGPU, which has the same resources under other names.


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


def _predecessor(asked: model.Asked, _terms: model.MigrationTerms) -> model.MigratedShare | None:
    cores, memory = asked.get(contract.CORE, Fraction(0)), asked.get(contract.MEMORY)
    if cores >= CORES_PER_CARD and memory:
        return model.MigratedShare(
            cores, None, None, ("memory beside whole cards never had an effect: removed",)
        )
    return model.MigratedShare(cores, memory)


def _ceiling(text: str) -> str:
    plain = text.strip()
    is_above = re.fullmatch(r"\+?[0-9]{1,18}", plain) is not None and int(plain) > CORES_PER_CARD
    return str(CORES_PER_CARD) if is_above else plain


PREDECESSOR: Final = model.System(
    name="gpu-manager",
    title="gpu-manager (tkestack)",
    resources=(contract.CORE, contract.MEMORY),
    share=_predecessor,
    annotations={contract.CORE_LIMIT: model.Becomes(contract.CORE_LIMIT, change=_ceiling)},
    state=(contract.PREDICATE_INDEX, contract.PREDICATE_NODE, contract.PREDICATE_TIME, contract.ASSIGNED),
    paths={
        "/usr/local/nvidia": "the driver's libraries are where the loader looks, nvidia-smi is in /usr/bin; "
        "nothing is mounted at that path"
    },
    drops_runtime_class=False,
)


_GPU_MEM, _GPU_COUNT, _GPU_PERCENT = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "aliyun.com/gpu-core.percentage",
)


def _gpushare(asked: model.Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
    count = model.whole(asked.get(_GPU_COUNT, Fraction(1)), _GPU_COUNT)
    memory = asked.get(_GPU_MEM, Fraction(0))
    cores = model.percent(asked.get(_GPU_PERCENT, Fraction(0)), _GPU_PERCENT)
    if not memory:
        if _GPU_COUNT in asked and not cores:
            return model.MigratedShare(count * CORES_PER_CARD)
        return None if not cores else model.MigratedShare(cores, 0)
    if count > 1:
        raise model.several(count, _GPU_COUNT)
    units, rounded = model.units_of(memory, terms.gpushare_unit, terms, _GPU_MEM)
    return model.fraction(cores, units, terms, rounded)


_HONOUR = "the limit is held by the library; the program need not keep to a part of the memory by itself"
GPUSHARE: Final = model.System(
    name="gpushare",
    title="Aliyun gpushare",
    resources=(_GPU_MEM, _GPU_COUNT, _GPU_PERCENT),
    share=_gpushare,
    selectors={"gpushare": model.Needless("nodes with cards are found by what they offer")},
    variables={"ALIYUN_COM_GPU_*": model.Needless(_HONOUR)},
    state=("ALIYUN_COM_GPU_", "scheduler.framework.gpushare"),
    schedulers=("gpushare-scheduler",),
)


_NUMBER, _VCORES, _VMEMORY = "nvidia.com/vgpu-number", "nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"


def _vgpu(asked: model.Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
    count = model.whole(asked.get(_NUMBER, Fraction(1)), _NUMBER)
    memory = model.whole(asked.get(_VMEMORY, Fraction(0)), _VMEMORY)
    cores = model.whole(asked.get(_VCORES, Fraction(0 if memory else CORES_PER_CARD)), _VCORES)
    if count == 0:
        return None
    if cores >= CORES_PER_CARD and not memory:
        return model.MigratedShare(count * CORES_PER_CARD)
    if count > 1:
        raise model.several(count, _NUMBER)
    rounded: tuple[str, ...] = ()
    if not memory:
        units = model.part_of(Fraction(1), terms, _VCORES)
    else:
        units, rounded = model.units_of(memory, MIB, terms, _VMEMORY)
    if cores >= CORES_PER_CARD:
        whole_card = "all of a card's time was asked for: a whole card, with all its memory"
        return model.MigratedShare(CORES_PER_CARD, None, None, (*rounded, whole_card))
    return model.fraction(cores, units, terms, rounded)


_VGPU_PLACEMENT = {"binpack": "binpack", "spread": "spread"}
_VGPU_TOPOLOGY = {"link": "topology", "none": ""}
_VGPU_COMPUTE = {"fixed": "", "balance": "100", "none": "100"}


def _vgpu_annotations(domain: str) -> dict[str, model.Fate]:
    return {
        f"{domain}/vgpu-compute-policy": model.Becomes(contract.CORE_LIMIT, _VGPU_COMPUTE),
        f"{domain}/device-scheduler-policy": model.Becomes(contract.PLACEMENT, _VGPU_PLACEMENT),
        f"{domain}/device-topology-mode": model.Becomes(contract.PLACEMENT, _VGPU_TOPOLOGY),
        f"{domain}/node-scheduler-policy": model.Lost(model.NODES),
        f"{domain}/memory-scheduler-policy": model.Becomes("", {"physical": ""}),
        f"{domain}/cross-pod-topology": model.Lost("cards are chosen for one pod at a time"),
        f"{domain}/stuck-grace-period": model.Needless("no pod waits for a hand after a failed start"),
        f"{domain}/include-gpu-type": model.Becomes(
            contract.GPU_MODEL, change=model.models, note=model.MODEL_NOTE
        ),
        f"{domain}/exclude-gpu-type": model.Lost(model.NO_DENY_LIST),
        f"{domain}/include-gpu-uuid": model.Becomes(contract.GPU_UUID, change=model.models),
        f"{domain}/exclude-gpu-uuid": model.Lost(model.NO_DENY_UUID),
    }


VGPU_MANAGER: Final = model.System(
    name="vgpu-manager",
    title="vgpu-manager",
    resources=(_NUMBER, _VCORES, _VMEMORY),
    share=_vgpu,
    annotations=_vgpu_annotations("nvidia.com"),
    state=tuple(
        f"nvidia.com/{name}"
        for name in (
            "predicate-node",
            "predicate-time",
            "pre-allocated",
            "real-allocated",
            "assigned-phase",
            "metrics-node",
        )
    ),
    selectors={"vgpu-manager-enable": model.Needless("nodes with cards are found by what they offer")},
    schedulers=("vgpu-scheduler",),
    marks=("nvidia.com/vgpu-compute-policy", "nvidia.com/device-topology-mode"),
)


_FRACTION, _MEMORY, _CARDS = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
_TIME, _CONTAINER = "gpu-sm-percentage", "gpu-fraction-container-name"
_PREFIX, _MODE = "nvidia.com/container.", "kai.scheduler/gpu-compute-sharing-mode"
_REQUEST, _LIMIT, _PORTION = "gpu-memory.request", "gpu-memory.limit", "gpu-compute.portion"


def _kai(asked: Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
    """Return the equivalent request: as much of each card as is asked of one."""
    share = _of_one_card(asked, terms)
    count = model.whole(asked.get(_CARDS, Fraction(1)), _CARDS)
    if share is None or share.units is None:
        return share and replace(share, cores=share.cores * count)
    return replace(share, parts=count)


def _of_one_card(asked: Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
    """A fraction is of a card's memory; KAI enforces neither memory nor time."""
    part, memory = asked.get(_FRACTION), asked.get(_MEMORY)
    request = asked.get(_REQUEST) or asked.get(_LIMIT)
    notes: tuple[str, ...] = ()
    if part is not None:
        model.portion(part, _FRACTION)
    if not part and not memory and not request:
        return None
    if part == 1:
        return model.MigratedShare(CORES_PER_CARD)
    if memory:
        units, notes = model.units_of(memory, MIB, terms, _MEMORY)
    elif request:
        units, notes = model.units_of(request, 1, terms, _REQUEST)
    else:
        units = model.part_of(part or Fraction(0), terms, _FRACTION)
    if _PORTION in asked:
        cores = floor(model.portion(asked[_PORTION], _PORTION) * CORES_PER_CARD)
        return model.fraction(min(CORES_PER_CARD - 1, max(1, cores)), units, terms, notes)
    if _TIME in asked:
        return model.fraction(min(CORES_PER_CARD - 1, ceil(asked[_TIME])), units, terms, notes)
    if not part:
        return model.fraction(0, units, terms, notes)
    cores = min(CORES_PER_CARD - 1, max(1, floor(part * CORES_PER_CARD)))
    free = f"{_FRACTION} bounds no time: {cores} cores, up to 100 while the card is idle"
    return model.MigratedShare(cores, units, CORES_PER_CARD, (*notes, free))


_NO_QUEUES = "queues are its scheduler's own; what a namespace may hold is in docs/quota.md"
_NO_LIMIT = f"memory is never promised twice; annotate the pod with {CORE_LIMIT} for idle time"
_NO_MPS = "no MPS takes part here: the library in the container holds the share of time"
_IN_THE_SHARE = "the share stands in the container's resources"
KAI: Final = model.System(
    name="kai",
    title="KAI or Run:ai",
    resources=(),
    share=_kai,
    annotations={
        **dict.fromkeys((_FRACTION, _MEMORY, _CARDS, _TIME, _CONTAINER), model.Needless(_IN_THE_SHARE)),
        f"{_PREFIX}*.{_REQUEST}": model.Needless(_IN_THE_SHARE),
        f"{_PREFIX}*.{_LIMIT}": model.Lost(f"the request is the limit here: {_NO_LIMIT}"),
        f"{_PREFIX}*.{_PORTION}": model.Needless(_IN_THE_SHARE),
        f"{_PREFIX}*.gpu-compute.mode": model.Becomes("", {"time-slicing": ""}, note=_NO_MPS),
        f"{_PREFIX}*.gpus.devices": model.Needless("the scheduler of old wrote it"),
        f"{_PREFIX}*": model.Lost(_NO_LIMIT),
        _MODE: model.Becomes("", {"time-slicing": ""}, note=_NO_MPS),
        "gpu-fraction-limit": model.Lost(_NO_LIMIT),
        "gpu-memory-limit": model.Lost(_NO_LIMIT),
        "gpu-fraction.limit": model.Lost(_NO_LIMIT),
        "gpu-memory.limit": model.Lost(_NO_LIMIT),
    },
    labels={"kai.scheduler/queue": model.Lost(_NO_QUEUES), "runai/queue": model.Lost(_NO_QUEUES)},
    annotation_amounts=dict.fromkeys((_FRACTION, _MEMORY, _CARDS, _TIME), number),
    container_annotation=_CONTAINER,
    container_prefix=_PREFIX,
    container_amounts=dict.fromkeys((_REQUEST, _LIMIT, _PORTION), number),
    state=("received-resource-type", "runai-calculated-status"),
    schedulers=("kai-scheduler", "runai-scheduler"),
)

SYSTEMS: Final = (PREDECESSOR, GPUSHARE, VGPU_MANAGER, HAMI, VOLCANO, KAI, TIME_SLICING)
"""All systems."""
