"""The driver's limit on a cgroup's memory of a card (R615, CUDA 13.4), which no program can bypass.

The driver keeps it by the kernel's dmem controller where there is one, else by itself. MIG cards have none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml

from gpu_manager.adapters.nvml.errors import NvmlErrorKind, maybe, meaning, to_domain
from gpu_manager.domain.card import CardUuid

_CALL, _STRUCT = "nvmlDeviceSetMemoryLimits_v1", "c_nvmlSetMemoryLimits_v1_t"
_NO_LIMIT = 0xFFFFFFFFFFFFFFFF  # NVML_DEVICE_MEMORY_LIMIT_MAX


class NvmlMemoryLimits:
    """Opens NVML for each call, which counts its users: a limit is set once in a container's life."""

    def __init__(self, nvml: Any = pynvml) -> None:
        """``nvml`` is the binding or a stand-in of it; it may be older than the function."""
        self._nvml = nvml

    def hold(self, cgroup: Path, card: CardUuid, limit: int | None) -> bool:
        """Set the hard limit in bytes, or lift it (None); False if binding, driver or card know none.

        The soft limit stays 0: it would reserve memory in every ancestor, which nobody gives back when the
        container's cgroup goes.

        Raises:
            NodeUnready: the driver cannot be asked, or failed.
        """
        nvml = self._nvml
        call, struct = getattr(nvml, _CALL, None), getattr(nvml, _STRUCT, None)
        if call is None or struct is None:
            return False
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
        """No driver takes more than the card has."""
        if limit is None:
            return _NO_LIMIT
        memory = maybe(self._nvml, self._nvml.nvmlDeviceGetMemoryInfo, handle)
        return min(limit, int(memory.total)) if memory is not None else limit
