"""The systems, one table each: HAMi, Aliyun gpushare, NVIDIA time-slicing, vgpu-manager, the predecessor.

Names and meanings are those of the projects' documentation and source as of mid 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from gpu_manager.domain.contract import (
    ASSIGNED,
    CORE,
    CORE_LIMIT,
    GPU_MODEL,
    GPU_UUID,
    MEMORY,
    NVIDIA,
    PLACEMENT,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    PREDICATE_TIME,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import CORES_PER_CARD, MIB

Asked = Mapping[str, Fraction]

_NO_DENY_LIST = "there are lists of what may be used, none of what may not: name the models in " + GPU_MODEL
_NO_DENY_UUID = "there are lists of what may be used, none of what may not: name the cards in " + GPU_UUID
_NODES = "which node is taken is decided for the whole cluster, not by the pod"
_MODEL_NOTE = "models match whole words of a name here (V100 of Tesla-V100-SXM2-32GB), not any piece of it"
_OTHER_LIBRARY = "the limits stand in a file that the container cannot write; the variable has no effect here"


def _models(text: str) -> str:
    return ",".join(part.strip() for part in text.split(",") if part.strip())


# The predecessor.


def _predecessor(asked: Asked, _terms: MigrationTerms) -> MigratedShare | None:
    cores, memory = asked.get(CORE, Fraction(0)), asked.get(MEMORY)
    if cores >= CORES_PER_CARD and memory:
        return MigratedShare(cores, None, None, ("memory beside whole cards never had an effect: removed",))
    return MigratedShare(cores, memory)


def _ceiling(text: str) -> str:
    plain = text.strip()
    is_above = re.fullmatch(r"\+?[0-9]{1,18}", plain) is not None and int(plain) > CORES_PER_CARD
    return str(CORES_PER_CARD) if is_above else plain


PREDECESSOR: Final = System(
    name="gpu-manager",
    title="gpu-manager (tkestack)",
    resources=(CORE, MEMORY),
    share=_predecessor,
    annotations={CORE_LIMIT: Becomes(CORE_LIMIT, change=_ceiling)},
    state=(PREDICATE_INDEX, PREDICATE_NODE, PREDICATE_TIME, ASSIGNED),
    paths={
        "/usr/local/nvidia": "the driver's libraries are where the loader looks, nvidia-smi is in /usr/bin; "
        "nothing is mounted at that path"
    },
    drops_runtime_class=False,
)


# HAMi.

_GPU, _GPUMEM, _GPUMEM_PERCENT = NVIDIA, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
_GPUCORES, _PRIORITY = "nvidia.com/gpucores", "nvidia.com/priority"


def _hami(asked: Asked, terms: MigrationTerms) -> MigratedShare | None:
    count = whole(asked.get(_GPU, Fraction(1)), _GPU)  # its webhook writes 1 beside the others
    cores = whole(asked.get(_GPUCORES, Fraction(0)), _GPUCORES)
    notes = (
        (f"{_PRIORITY} has no equivalent: pods are ranked by PriorityClass",) if _PRIORITY in asked else ()
    )
    memory, percent = asked.get(_GPUMEM), asked.get(_GPUMEM_PERCENT)
    if count == 0:
        return None
    if cores >= CORES_PER_CARD or (not memory and (percent is None or percent in (0, CORES_PER_CARD))):
        if cores not in (0, CORES_PER_CARD):
            notes = (*notes, "all memory of a card was asked for, so nobody could share it: whole cards")
        return MigratedShare(count * CORES_PER_CARD, None, None, notes)
    if count > 1:
        raise several(count, _GPU)
    if memory:
        units, rounded = units_of(memory * MIB, terms, _GPUMEM)
    else:
        share = (percent or Fraction(0)) / 100
        units, rounded = units_of(share * card_memory(terms, _GPUMEM_PERCENT), terms, _GPUMEM_PERCENT)
    return fraction(cores, units, terms, (*notes, *rounded))


_HAMI_POLICIES = {"binpack": "binpack", "spread": "spread", "topology-aware": "topology"}
HAMI: Final = System(
    name="hami",
    title="HAMi",
    resources=(_GPU, _GPUMEM, _GPUMEM_PERCENT, _GPUCORES, _PRIORITY),
    share=_hami,
    annotations={
        "nvidia.com/use-gputype": Becomes(GPU_MODEL, change=_models, note=_MODEL_NOTE),
        "nvidia.com/nouse-gputype": Lost(_NO_DENY_LIST),
        "nvidia.com/use-gpuuuid": Becomes(GPU_UUID, change=_models),
        "nvidia.com/nouse-gpuuuid": Lost(_NO_DENY_UUID),
        "nvidia.com/numa-bind": Lost(
            f"cards of one NUMA node are preferred by {PLACEMENT}: topology, not forced"
        ),
        "nvidia.com/vgpu-mode": Becomes("", {"hami-core": ""}),
        "hami.io/gpu-scheduler-policy": Becomes(PLACEMENT, _HAMI_POLICIES),
        "hami.io/node-scheduler-policy": Lost(_NODES),
        "hami.io/device-scoring-weights": Lost("cards are chosen by best fit; weights cannot be set"),
    },
    labels={"hami.io/webhook": Needless("the namespace selector of our webhook decides who passes it by")},
    variables={
        "CUDA_DEVICE_MEMORY_LIMIT": Needless(_OTHER_LIBRARY),
        "CUDA_DEVICE_SM_LIMIT": Needless(_OTHER_LIBRARY),
        "CUDA_OVERSUBSCRIBE": Lost("memory is never promised twice"),
        "CUDA_DISABLE_CONTROL": Lost("limits cannot be switched off by the container"),
        "CUDA_TASK_PRIORITY": Lost("pods are ranked by PriorityClass"),
        "GPU_CORE_UTILIZATION_POLICY": Lost(
            f"annotate the pod with {CORE_LIMIT}: the share it may reach when idle"
        ),
    },
    state=("hami.io/vgpu-", "hami.io/bind-", "hami.io/resource-pool"),
    schedulers=("hami-scheduler",),
    marks=("hami.io/", "nvidia.com/use-gpu", "nvidia.com/nouse-gpu", "nvidia.com/vgpu-mode"),
)


# Aliyun gpushare.

_GPU_MEM, _GPU_COUNT, _GPU_PERCENT = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "aliyun.com/gpu-core.percentage",
)


def _gpushare(asked: Asked, terms: MigrationTerms) -> MigratedShare | None:
    count = whole(asked.get(_GPU_COUNT, Fraction(1)), _GPU_COUNT)
    memory = asked.get(_GPU_MEM, Fraction(0))
    cores = whole(asked.get(_GPU_PERCENT, Fraction(0)), _GPU_PERCENT)
    if not memory:
        if _GPU_COUNT in asked and not cores:
            return MigratedShare(count * CORES_PER_CARD)
        return None if not cores else MigratedShare(cores, 0)
    if count > 1:
        raise several(count, _GPU_COUNT)
    units, rounded = units_of(memory * terms.gpushare_unit, terms, _GPU_MEM)
    return fraction(cores, units, terms, rounded)


_HONOUR = "the limit is held by the library; the program need not keep to a part of the memory by itself"
GPUSHARE: Final = System(
    name="gpushare",
    title="Aliyun gpushare",
    resources=(_GPU_MEM, _GPU_COUNT, _GPU_PERCENT),
    share=_gpushare,
    selectors={"gpushare": Needless("nodes with cards are found by what they offer")},
    variables={
        "ALIYUN_COM_GPU_MEM_CONTAINER": Needless(_HONOUR),
        "ALIYUN_COM_GPU_MEM_DEV": Needless(_HONOUR),
        "ALIYUN_COM_GPU_MEM_IDX": Needless(_HONOUR),
    },
    state=("ALIYUN_COM_GPU_", "scheduler.framework.gpushare"),
    schedulers=("gpushare-scheduler",),
)


# NVIDIA's plugin: time-slicing, or whole cards.

_SHARED = "nvidia.com/gpu.shared"


def _nvidia(asked: Asked, terms: MigrationTerms) -> MigratedShare | None:
    name = _SHARED if _SHARED in asked else _GPU
    count = whole(asked.get(name, Fraction(0)), name)
    if count == 0:
        return None
    if terms.replicas is None:
        if name == _SHARED:
            raise RequestInvalid(
                f"{_SHARED} is a turn on a card whose number of users stands in the plugin's configuration: "
                "give --replicas and --card-memory"
            )
        told = f"{_GPU} taken for whole cards; if time-slicing shares them, give --replicas and --card-memory"
        return MigratedShare(count * CORES_PER_CARD, None, None, (told,))
    if count > 1:
        raise RequestInvalid(
            f"{name} is {count}: turns on a card, perhaps of one card, which do not add up; ask for one part "
            "of a card, or for whole cards"
        )
    cores = CORES_PER_CARD // terms.replicas
    units = card_memory(terms, name) // terms.replicas // terms.unit
    note = f"1 of {terms.replicas} turns: {cores} cores, up to 100 while the card is idle"
    return MigratedShare(cores, units, CORES_PER_CARD, (note,))


def _product(text: str) -> str:
    return text.removesuffix("-SHARED").removeprefix("NVIDIA-")


_ITS_PLUGIN = "set up by its own plugin, which does not run on these nodes"
TIME_SLICING: Final = System(
    name="nvidia",
    title="NVIDIA time-slicing",
    resources=(_GPU, _SHARED),
    share=_nvidia,
    selectors={
        "nvidia.com/gpu.product": Becomes(GPU_MODEL, change=_product, note=_MODEL_NOTE),
        "nvidia.com/gpu.sharing-strategy": Needless(_ITS_PLUGIN),
        "nvidia.com/gpu.replicas": Needless(_ITS_PLUGIN),
        "nvidia.com/device-plugin.config": Needless(_ITS_PLUGIN),
    },
    variables={
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": Lost("the share of time is tencent.com/vcuda-core"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": Lost("the share of memory is tencent.com/vcuda-memory"),
    },
)


# vgpu-manager.

_NUMBER, _VCORES, _VMEMORY = "nvidia.com/vgpu-number", "nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"


def _vgpu(asked: Asked, terms: MigrationTerms) -> MigratedShare | None:
    count = whole(asked.get(_NUMBER, Fraction(1)), _NUMBER)
    memory = whole(asked.get(_VMEMORY, Fraction(0)), _VMEMORY)
    cores = whole(asked.get(_VCORES, Fraction(0 if memory else CORES_PER_CARD)), _VCORES)
    if count == 0:
        return None
    if cores >= CORES_PER_CARD and not memory:
        return MigratedShare(count * CORES_PER_CARD)
    if count > 1:
        raise several(count, _NUMBER)
    if not memory:
        units, rounded = units_of(card_memory(terms, _VCORES), terms, _VCORES)
    else:
        units, rounded = units_of(memory * MIB, terms, _VMEMORY)
    if cores >= CORES_PER_CARD:
        whole_card = "all of a card's time was asked for: a whole card, with all its memory"
        return MigratedShare(CORES_PER_CARD, None, None, (*rounded, whole_card))
    return fraction(cores, units, terms, rounded)


_VGPU_PLACEMENT = {"binpack": "binpack", "spread": "spread"}
_VGPU_TOPOLOGY = {"link": "topology", "none": ""}
_VGPU_COMPUTE = {"fixed": "", "balance": "100", "none": "100"}


def _vgpu_annotations(domain: str) -> dict[str, Fate]:
    return {
        f"{domain}/vgpu-compute-policy": Becomes(CORE_LIMIT, _VGPU_COMPUTE),
        f"{domain}/device-scheduler-policy": Becomes(PLACEMENT, _VGPU_PLACEMENT),
        f"{domain}/device-topology-mode": Becomes(PLACEMENT, _VGPU_TOPOLOGY),
        f"{domain}/node-scheduler-policy": Lost(_NODES),
        f"{domain}/memory-scheduler-policy": Becomes("", {"physical": ""}),
        f"{domain}/cross-pod-topology": Lost("cards are chosen for one pod at a time"),
        f"{domain}/stuck-grace-period": Needless("no pod waits for a hand after a failed start"),
        f"{domain}/include-gpu-type": Becomes(GPU_MODEL, change=_models, note=_MODEL_NOTE),
        f"{domain}/exclude-gpu-type": Lost(_NO_DENY_LIST),
        f"{domain}/include-gpu-uuid": Becomes(GPU_UUID, change=_models),
        f"{domain}/exclude-gpu-uuid": Lost(_NO_DENY_UUID),
    }


VGPU_MANAGER: Final = System(
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
    schedulers=("vgpu-scheduler",),
    marks=("nvidia.com/vgpu-compute-policy", "nvidia.com/device-topology-mode"),
)

SYSTEMS: Final = (PREDECESSOR, GPUSHARE, VGPU_MANAGER, HAMI, TIME_SLICING)
MIG: Final = "nvidia.com/mig-"
