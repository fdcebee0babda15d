"""KAI and Run:ai: an annotation of the pod requests a part of a card for one of its containers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from typing import Final

from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.cli.kubectl.migrate.model import Asked, number
from gpu_manager.domain.contract import CORE_LIMIT
from gpu_manager.domain.resources import CORES_PER_CARD, MIB

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
