# ruff: noqa: N802 - the names are the binding's
"""A machine behind the driver's binding, made by hand: constants, structs and errors are the real binding's.

A function that is not written here does not exist in this "driver" (FUNCTION_NOT_FOUND), as with an old one.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from tests.fakes.waiting import PATIENCE

GIB = 1 << 30


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


@dataclass
class Gpu:
    index: int
    uuid: str = ""
    name: str = "NVIDIA A100-SXM4-40GB"
    total: int = 40 * GIB
    reserved: int = GIB // 2
    used: int = 3 * GIB
    gpu_percent: int | None = 7
    mig: int | None = 0
    compute_mode: int = 0
    links: list[tuple[int | None, str]] = field(default_factory=list)  # (remote kind, remote bus id), active
    compute: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    samples: list[tuple[int, int, int]] | None = field(default_factory=list)  # pid, stamp, sm
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    retired_pending: int = 0
    action: int | None = 0
    affinity: int = 0
    temperature: int | None = None
    milliwatts: int | None = None
    clocks: dict[int, int] = field(default_factory=dict)  # MHz, by kind
    millijoules: int | None = None
    parts: list[Part | None] = field(default_factory=list)  # MIG instances by place, None where none is
    failing: int = 0  # every question about the card fails with this code
    fail: dict[str, int] = field(default_factory=dict)  # function → code

    def __post_init__(self) -> None:
        self.uuid = self.uuid or f"GPU-{self.index:08x}-0000-4000-8000-000000000000"

    @property
    def bus(self) -> str:
        return f"00000000:{self.index + 0x10:02X}:00.0"


@dataclass
class Part(Gpu):
    """A MIG instance, as its handle tells it."""

    gi: int = 7
    ci: int = 0
    slices: tuple[int, int] = (1, 1)  # of the compute instance, of the GPU instance

    def __post_init__(self) -> None:
        self.uuid = self.uuid or f"MIG-{self.index:08x}-0000-5000-8000-000000000000"
        self.reserved, self.gpu_percent, self.samples = 0, None, None
        self.remapped, self.action, self.mig = None, None, None


class FakeNvml:
    def __init__(self, *gpus: Gpu, levels: dict[tuple[int, int], int] | None = None, v2: bool = True) -> None:
        self.gpus = list(gpus)
        self.levels = levels or {}
        self.v2 = v2
        self.broken = 0  # the driver as a whole fails with this code
        self.open = 0
        self.opened = 0
        self.events: queue.Queue[Any] = queue.Queue()
        self.registered: dict[str, int] = {}
        self.sets = 0

    def __getattr__(self, name: str) -> Any:
        if name[:4] == "nvml" and name[4:5].isupper() and callable(getattr(pynvml, name)):

            def missing(*_: Any) -> Any:
                raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

            return missing
        return getattr(pynvml, name)

    # The library.
    def nvmlInit(self) -> None:
        self._whole()
        self.open += 1
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._whole()
        return len(self.gpus)

    def _whole(self) -> None:
        if self.broken:
            raise error(self.broken)

    def _ask(self, gpu: Gpu, function: str) -> Gpu:
        self._whole()
        if not self.open:
            raise error(pynvml.NVML_ERROR_UNINITIALIZED)
        code = gpu.fail.get(function) or gpu.failing
        if code:
            raise error(code)
        return gpu

    def _known(self, value: Any) -> Any:
        if value is None:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    # A card.
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self._ask(self.gpus[index], "handle")

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return self._ask(gpu, "uuid").uuid

    def nvmlDeviceGetName(self, gpu: Gpu) -> bytes:
        return self._ask(gpu, "name").name.encode()

    def nvmlDeviceGetMinorNumber(self, gpu: Gpu) -> int:
        return self._ask(gpu, "minor").index

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> Any:
        return SimpleNamespace(busId=self._ask(gpu, "pci").bus.encode())

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu, version: int | None = None) -> Any:
        self._ask(gpu, "memory")
        if version is not None and not self.v2:
            raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        used = gpu.used if version is not None else gpu.used + gpu.reserved
        return SimpleNamespace(total=gpu.total, reserved=gpu.reserved, used=used)

    def nvmlDeviceGetComputeMode(self, gpu: Gpu) -> int:
        return self._ask(gpu, "compute_mode").compute_mode

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        return [self._known(self._ask(gpu, "mig").mig), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        self._ask(gpu, "mig_count")
        return 7 if gpu.mig is not None else self._known(None)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, place: int) -> Gpu:
        self._ask(gpu, "mig_handle")
        part = gpu.parts[place] if place < len(gpu.parts) else None
        if part is None:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return part

    def nvmlDeviceGetGpuInstanceId(self, part: Part) -> int:
        self._ask(part, "gi")
        return part.gi

    def nvmlDeviceGetComputeInstanceId(self, part: Part) -> int:
        self._ask(part, "ci")
        return part.ci

    def nvmlDeviceGetAttributes(self, part: Part) -> Any:
        self._ask(part, "attributes")
        compute, gpu = part.slices
        return SimpleNamespace(computeInstanceSliceCount=compute, gpuInstanceSliceCount=gpu)

    def nvmlDeviceGetMemoryAffinity(self, gpu: Gpu, size: int, scope: int) -> list[int]:
        self._ask(gpu, "affinity")
        return [gpu.affinity] + [0] * (size - 1)

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> Any:
        return SimpleNamespace(gpu=self._known(self._ask(gpu, "rates").gpu_percent), memory=0)

    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._known(self._ask(gpu, "temperature").temperature)

    def nvmlDeviceGetPowerUsage(self, gpu: Gpu) -> int:
        return self._known(self._ask(gpu, "power").milliwatts)

    def nvmlDeviceGetClockInfo(self, gpu: Gpu, clock: int) -> int:
        return self._known(self._ask(gpu, "clock").clocks.get(clock))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Gpu) -> int:
        return self._known(self._ask(gpu, "energy").millijoules)

    def nvmlDeviceGetRemappedRows(self, gpu: Gpu) -> tuple[int, int, int, int]:
        return self._known(self._ask(gpu, "rows").remapped)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: Gpu) -> int:
        return self._ask(gpu, "pages").retired_pending

    def nvmlDeviceGetFieldValues(self, gpu: Gpu, fields: list[int]) -> list[Any]:
        self._ask(gpu, "fields")
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        unknown = gpu.action is None
        code = pynvml.NVML_ERROR_NOT_SUPPORTED if unknown else pynvml.NVML_SUCCESS
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=gpu.action or 0))]

    # Processes. A driver with v2 lists alone is made by ``fail={"processes_v3": 13}``.
    def _processes(self, gpu: Gpu, function: str, listed: dict[int, int | None]) -> list[Any]:
        self._ask(gpu, function)
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in listed.items()]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: Gpu) -> list[Any]:
        return self._processes(gpu, "processes_v3", gpu.compute)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu: Gpu) -> list[Any]:
        return self._processes(gpu, "processes_v2", gpu.compute)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: Gpu) -> list[Any]:
        return self._processes(gpu, "processes_v3", gpu.graphics)

    def nvmlDeviceGetProcessUtilization(self, gpu: Gpu, since: int) -> list[Any]:
        self._ask(gpu, "samples")
        fresh = [s for s in self._known(gpu.samples) if s[1] > since - 1_000_000]  # drivers repeat old ones
        if not fresh:
            raise error(pynvml.NVML_SUCCESS)  # the binding's answer to an empty list
        return [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in fresh]

    # Links.
    def nvmlDeviceGetTopologyCommonAncestor(self, a: Gpu, b: Gpu) -> int:
        self._ask(a, "topology")
        self._ask(b, "topology")
        return self.levels.get((a.index, b.index), self.levels.get((b.index, a.index), 50))

    def nvmlDeviceGetNvLinkState(self, gpu: Gpu, link: int) -> int:
        self._ask(gpu, "nvlink")
        if link >= len(gpu.links):
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1 if gpu.links[link][1] else 0

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: Gpu, link: int) -> int:
        self._ask(gpu, "nvlink_type")
        kind = gpu.links[link][0]
        if kind is None:
            raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return kind

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: Gpu, link: int) -> Any:
        return SimpleNamespace(busId=self._ask(gpu, "nvlink_pci").links[link][1].encode())

    # Events.
    def nvmlEventSetCreate(self) -> object:
        self._whole()
        self.sets += 1
        return object()

    def nvmlEventSetFree(self, events: object) -> None:
        self.sets -= 1

    def nvmlDeviceGetSupportedEventTypes(self, gpu: Gpu) -> int:
        self._ask(gpu, "event_types")
        return pynvml.nvmlEventTypeAll

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, types: int, events: object) -> None:
        self.registered[gpu.uuid] = types

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        self._whole()
        try:
            event = self.events.get(timeout=min(timeout_ms, 20) / 1000)
        except queue.Empty:
            raise error(pynvml.NVML_ERROR_TIMEOUT) from None
        if isinstance(event, Exception):
            raise event
        return event

    def hang(self, gpu: Gpu, where: str = "") -> threading.Event:
        """From now on the driver answers nothing about the card, or not this one, until the event is set."""
        free, ask = threading.Event(), self._ask

        def hanging(asked: Gpu, function: str) -> Gpu:
            if asked is gpu and where in {"", function}:
                free.wait(PATIENCE)
            return ask(asked, function)

        self._ask = hanging  # type: ignore[method-assign]  # on this machine alone
        return free

    def xid(self, gpu: Gpu, number: int) -> None:
        kind = pynvml.nvmlEventTypeXidCriticalError
        self.events.put(SimpleNamespace(device=gpu, eventType=kind, eventData=number))
