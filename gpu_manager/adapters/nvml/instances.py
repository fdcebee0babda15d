"""The MIG instances of a card, as cards of their own.

The driver has memory and processes of an instance; use, sensors, events and health are its parent's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from gpu_manager.adapters.nvml.errors import maybe
from gpu_manager.adapters.nvml.usage import Memory
from gpu_manager.adapters.nvml.watch import WatchedCard
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.mig import MigInstance, number_of, profile_name

_NAMED: Final = re.compile(r".*\sMIG\s\S+")


def read_instances(
    nvml: Any, handle: Any, parent: Card, memory_of: Callable[[Any], Memory | None]
) -> Iterator[WatchedCard]:
    """Yield the instances of a card in MIG mode, by place. Raises NVMLError."""
    for place in range(maybe(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # no instance there
            raise
        memory = memory_of(part) or Memory(0, 0, 0)
        gi, ci = nvml.nvmlDeviceGetGpuInstanceId(part), nvml.nvmlDeviceGetComputeInstanceId(part)
        card = replace(
            parent,
            index=number_of(parent.index, place),
            uuid=CardUuid(text_of(nvml.nvmlDeviceGetUUID(part))),
            model=_model(nvml, part, parent, memory),
            memory=memory.total,
            reserved=memory.reserved,
            mig=False,
            instance=MigInstance(parent.uuid, int(gi), int(ci)),
        )
        yield WatchedCard(part, card)


def _model(nvml: Any, part: Any, parent: Card, memory: Memory) -> str:
    """Return the model with the profile, which drivers before R470 do not name."""
    name = text_of(maybe(nvml, nvml.nvmlDeviceGetName, part) or "")
    if _NAMED.fullmatch(name):
        return "-".join(name.split())
    told = maybe(nvml, nvml.nvmlDeviceGetAttributes, part)
    if told is None:
        return f"{parent.model}-MIG-unknown"
    slices = int(told.computeInstanceSliceCount), int(told.gpuInstanceSliceCount)
    return f"{parent.model}-MIG-{profile_name(slices, memory.total, parent.memory)}"


def text_of(value: str | bytes) -> str:
    """Return what the binding says as text: older ones say bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
