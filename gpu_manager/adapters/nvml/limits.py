"""The driver's limit of a cgroup's memory on a card (R615, CUDA 13.4 or newer), which no program can bypass.

The driver enforces it by the kernel's dmem controller if there is one, else itself. Cards in MIG mode have no
such limit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from gpu_manager.adapters.nvml.errors import (
    TIMEOUT,
    DriverHangsError,
    NvmlErrorKind,
    Patience,
    maybe,
    meaning,
    to_domain,
)
from gpu_manager.domain.card import CardUuid

_CALL, _STRUCT = "nvmlDeviceSetMemoryLimits_v1", "c_nvmlSetMemoryLimits_v1_t"
_NO_LIMIT = 0xFFFFFFFFFFFFFFFF  # NVML_DEVICE_MEMORY_LIMIT_MAX


class NvmlMemoryLimits:
    """Sets these limits. Opens NVML for each call: a limit is set only once in a container's life."""

    def __init__(self, nvml: Any = pynvml) -> None:
        """``nvml`` is the binding or a fake of it; an older one lacks the function."""
        self._nvml = nvml
        self._patience = Patience()

    def hold(self, cgroup: Path, card: CardUuid, limit: int | None) -> bool:
        """Set the hard limit in bytes, or remove it (None). False if binding, driver or card do not support
        it.

        The soft limit stays 0: it would reserve memory in every ancestor cgroup, which is not released when
        the container's cgroup is removed.

        Raises:
            NodeUnready: the driver does not answer, or the call failed.
        """
        call, struct = getattr(self._nvml, _CALL, None), getattr(self._nvml, _STRUCT, None)
        if call is None or struct is None:
            return False
        try:
            return self._patience.call(card, partial(self._hold, call, struct, cgroup, card, limit))
        except DriverHangsError:
            raise to_domain(TIMEOUT, f"limit the memory of card {card} for {cgroup}") from None

    def _hold(self, call: Any, struct: Any, cgroup: Path, card: CardUuid, limit: int | None) -> bool:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise to_domain(error.value, "open NVML") from None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(card)
            # The name is a pointer: it must outlive the call.
            wanted = struct(str(cgroup).encode(), 0, self._within(handle, limit))
            call(handle, wanted)
        except nvml.NVMLError as error:
            if meaning(error.value).kind in (NvmlErrorKind.ABSENT, NvmlErrorKind.OURS):
                return False
            raise to_domain(error.value, f"limit the memory of card {card} for {cgroup}") from None
        finally:
            maybe(nvml, nvml.nvmlShutdown)
        return True

    def _within(self, handle: Any, limit: int | None) -> int:
        """Return the limit, at most the card's memory: the driver refuses more."""
        if limit is None:
            return _NO_LIMIT
        memory = maybe(self._nvml, self._nvml.nvmlDeviceGetMemoryInfo, handle)
        return min(limit, int(memory.total)) if memory is not None else limit
