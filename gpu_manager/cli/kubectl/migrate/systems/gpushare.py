"""Aliyun gpushare: requests memory of a card; the limit is not enforced there."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.cli.kubectl.migrate.systems.words import Asked
from gpu_manager.domain.resources import CORES_PER_CARD

_GPU_MEM, _GPU_COUNT, _GPU_PERCENT = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "aliyun.com/gpu-core.percentage",
)


def _gpushare(asked: Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
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
