"""vgpu-manager, by the names of its default domain."""

from __future__ import annotations

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
    Asked,
    models,
)
from gpu_manager.domain.contract import CORE_LIMIT, GPU_MODEL, GPU_UUID, PLACEMENT
from gpu_manager.domain.resources import CORES_PER_CARD, MIB

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
        f"{domain}/node-scheduler-policy": Lost(NODES),
        f"{domain}/memory-scheduler-policy": Becomes("", {"physical": ""}),
        f"{domain}/cross-pod-topology": Lost("cards are chosen for one pod at a time"),
        f"{domain}/stuck-grace-period": Needless("no pod waits for a hand after a failed start"),
        f"{domain}/include-gpu-type": Becomes(GPU_MODEL, change=models, note=MODEL_NOTE),
        f"{domain}/exclude-gpu-type": Lost(NO_DENY_LIST),
        f"{domain}/include-gpu-uuid": Becomes(GPU_UUID, change=models),
        f"{domain}/exclude-gpu-uuid": Lost(NO_DENY_UUID),
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
