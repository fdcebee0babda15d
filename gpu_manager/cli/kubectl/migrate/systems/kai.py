"""KAI and Run:ai: an annotation of the pod requests a part of a card for one of its containers."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Final

from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.cli.kubectl.migrate.systems.words import Asked, number
from gpu_manager.domain.contract import CORE_LIMIT
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, format_number

_FRACTION, _MEMORY, _CARDS = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
_TIME, _CONTAINER = "gpu-sm-percentage", "gpu-fraction-container-name"


def _kai(asked: Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
    """Return the equivalent request. A fraction is of a card's memory; KAI enforces neither memory nor
    time.
    """
    part, memory = asked.get(_FRACTION), asked.get(_MEMORY)
    count = model.whole(asked.get(_CARDS, Fraction(1)), _CARDS)
    if part is not None and not 0 < part <= 1:
        raise RequestInvalid(f"{_FRACTION} is {format_number(part)}: it goes from 0 to 1")
    if not part and not memory:
        return None
    if part == 1:
        return model.MigratedShare(count * CORES_PER_CARD)
    if count > 1:
        raise model.several(count, _CARDS)
    if memory:
        units, notes = model.units_of(memory * MIB, terms, _MEMORY)
    else:
        units, notes = model.units_of((part or 0) * model.card_memory(terms, _FRACTION), terms, _FRACTION)
    if _TIME in asked:
        return model.fraction(min(CORES_PER_CARD - 1, ceil(asked[_TIME])), units, terms, notes)
    if not part:
        return model.fraction(0, units, terms, notes)
    cores = min(CORES_PER_CARD - 1, ceil(part * CORES_PER_CARD))
    free = f"{_FRACTION} bounds no time: {cores} cores, up to 100 while the card is idle"
    return model.MigratedShare(cores, units, CORES_PER_CARD, (*notes, free))


_NO_QUEUES = "queues are its scheduler's own; what a namespace may hold is in docs/quota.md"
_NO_LIMIT = f"memory is never promised twice; annotate the pod with {CORE_LIMIT} for idle time"
_IN_THE_SHARE = "the share stands in the container's resources"
KAI: Final = model.System(
    name="kai",
    title="KAI or Run:ai",
    resources=(),
    share=_kai,
    annotations={
        **dict.fromkeys((_FRACTION, _MEMORY, _CARDS, _TIME, _CONTAINER), model.Needless(_IN_THE_SHARE)),
        "gpu-fraction-limit": model.Lost(_NO_LIMIT),
        "gpu-memory-limit": model.Lost(_NO_LIMIT),
        "gpu-fraction.limit": model.Lost(_NO_LIMIT),
        "gpu-memory.limit": model.Lost(_NO_LIMIT),
    },
    labels={"kai.scheduler/queue": model.Lost(_NO_QUEUES), "runai/queue": model.Lost(_NO_QUEUES)},
    annotation_amounts=dict.fromkeys((_FRACTION, _MEMORY, _CARDS, _TIME), number),
    container_annotation=_CONTAINER,
    state=("received-resource-type", "runai-calculated-status"),
    schedulers=("kai-scheduler", "runai-scheduler"),
)
