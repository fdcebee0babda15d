"""vgpu-manager, with its default domain nvidia.com."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.cli.kubectl.migrate.systems import words
from gpu_manager.domain.contract import CORE_LIMIT, GPU_MODEL, GPU_UUID, PLACEMENT
from gpu_manager.domain.resources import CORES_PER_CARD, MIB

_NUMBER, _VCORES, _VMEMORY = "nvidia.com/vgpu-number", "nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"


def _vgpu(asked: words.Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
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
        f"{domain}/vgpu-compute-policy": model.Becomes(CORE_LIMIT, _VGPU_COMPUTE),
        f"{domain}/device-scheduler-policy": model.Becomes(PLACEMENT, _VGPU_PLACEMENT),
        f"{domain}/device-topology-mode": model.Becomes(PLACEMENT, _VGPU_TOPOLOGY),
        f"{domain}/node-scheduler-policy": model.Lost(words.NODES),
        f"{domain}/memory-scheduler-policy": model.Becomes("", {"physical": ""}),
        f"{domain}/cross-pod-topology": model.Lost("cards are chosen for one pod at a time"),
        f"{domain}/stuck-grace-period": model.Needless("no pod waits for a hand after a failed start"),
        f"{domain}/include-gpu-type": model.Becomes(GPU_MODEL, change=words.models, note=words.MODEL_NOTE),
        f"{domain}/exclude-gpu-type": model.Lost(words.NO_DENY_LIST),
        f"{domain}/include-gpu-uuid": model.Becomes(GPU_UUID, change=words.models),
        f"{domain}/exclude-gpu-uuid": model.Lost(words.NO_DENY_UUID),
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
