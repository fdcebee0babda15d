"""The predecessor, whose names are kept; Aliyun gpushare; vgpu-manager with its default domain nvidia.com."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.domain import contract
from gpu_manager.domain.resources import CORES_PER_CARD, MIB


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
