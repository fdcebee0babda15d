"""Memory and utilisation of a card and of the processes on it, and the driver's limit of a cgroup's memory.
A value that cannot be read is None, not 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
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
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.ports.cards import NO_SENSORS, CardSensors, CardUse, ProcessUse

# The driver's limit of a cgroup's memory on a card (R615, CUDA 13.4 or newer), which no program can bypass.
# The driver enforces it by the kernel's dmem controller if there is one, else itself. Cards in MIG mode
# have no such limit.


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


# Before there is a last-seen time samples of the last second count; none is of the future by more than that.
_WINDOW_US = 1_000_000
_LATE_US = 500_000  # a sample is there no later than so long after its time
SENSOR_SECONDS = 10.0  # between two readings of the sensors: they move slowly, and some take milliseconds


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a card in bytes. ``used`` excludes what the driver reserves, from R510 on."""

    total: int
    reserved: int
    used: int


class UsageReader:
    """Reads cards one at a time, and remembers for each which utilisation samples it has seen."""

    def __init__(self, nvml: Any, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        """``wall`` returns seconds since the epoch: NVML stamps samples by the wall clock, in
        microseconds.
        """
        self._nvml, self._wall, self._monotonic = nvml, wall, monotonic
        self._seen: dict[CardUuid, int] = {}
        self._told: dict[CardUuid, dict[int, tuple[int, float]]] = {}  # pid → its last sample and percent
        self._sensed: dict[CardUuid, tuple[float, CardSensors]] = {}

    def memory(self, handle: Any) -> Memory | None:
        """Return the card's memory; None if it has none of its own. ``reserved`` is 0 before R510."""
        nvml = self._nvml
        info = maybe(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if info is not None:
            return Memory(int(info.total), int(info.reserved), int(info.used))
        info = maybe(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        return Memory(int(info.total), 0, int(info.used)) if info is not None else None

    def read(self, handle: Any, card: Card) -> tuple[CardUse, Sequence[ProcessUse]]:
        """Return the usage of a card and its processes. In MIG mode only memory and sensors are read, of an
        instance memory and processes.
        """
        memory = self.memory(handle)
        used = memory.used if memory is not None else None
        if card.instance is not None:
            running = self._running(handle)
            listed = running is not None
            use = CardUse(card.uuid, used, lists_processes=listed, samples_processes=False)
            return use, _processes(card.uuid, running or (), None)
        sensors = self.sensors(handle, card.uuid)
        if card.mig:
            return CardUse(
                card.uuid, used, lists_processes=False, samples_processes=False, sensors=sensors
            ), ()
        rates = maybe(self._nvml, self._nvml.nvmlDeviceGetUtilizationRates, handle)
        running = self._running(handle)
        busy = self._utilisation(handle, card.uuid, {process.pid for process in running or ()})
        use = CardUse(
            card.uuid,
            used,
            float(rates.gpu) if rates is not None else None,
            lists_processes=running is not None,
            samples_processes=busy is not None,
            sensors=sensors,
        )
        return use, _processes(card.uuid, running or (), busy)

    def sensors(self, handle: Any, uuid: CardUuid) -> CardSensors:
        """Return temperature, power, clocks and energy, at most :data:`SENSOR_SECONDS` old."""
        now = self._monotonic()
        at, known = self._sensed.get(uuid, (float("-inf"), NO_SENSORS))
        if now - at >= SENSOR_SECONDS:
            nvml = self._nvml
            known = CardSensors(
                self._sensor(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
                self._sensor(nvml.nvmlDeviceGetPowerUsage, handle, scale=1e-3),  # milliwatts
                self._sensor(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM, scale=1e6),  # MHz
                self._sensor(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM, scale=1e6),
                self._sensor(nvml.nvmlDeviceGetTotalEnergyConsumption, handle, scale=1e-3),  # millijoules
            )
            self._sensed[uuid] = now, known
        return known

    def _sensor(self, call: Callable[..., Any], *arguments: Any, scale: float = 1.0) -> float | None:
        told = maybe(self._nvml, call, *arguments)
        return None if told is None else int(told) * scale

    def _running(self, handle: Any) -> list[Any] | None:
        """Return every process on the card, some twice; None if the driver cannot list processes."""
        nvml, found = self._nvml, None
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for version in (3, 2):  # R510 and newer, R450 and newer
                call = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v{version}")
                listed = maybe(nvml, call, handle)
                if listed is not None:
                    found = [*(found or ()), *listed]
                    break
        return found

    def _utilisation(self, handle: Any, uuid: CardUuid, running: Collection[int]) -> dict[int, float] | None:
        """Return SM percent by pid; None if the card keeps no such samples.

        A driver may take a sample only once a second: until the next one is due, the last one of a running
        process counts.
        """
        fresh = self._fresh(handle, uuid)
        if fresh is None:
            return None
        now, told = int(self._wall() * 1e6), self._told.get(uuid, {})
        held = {p: last for p, last in told.items() if p in running and abs(now - last[0]) < _WINDOW_US}
        self._told[uuid] = held | fresh
        return {pid: percent for pid, (_, percent) in self._told[uuid].items()}

    def _fresh(self, handle: Any, uuid: CardUuid) -> dict[int, tuple[int, float]] | None:
        """Return each pid's last sample (microseconds) and SM percent since the last call, as above.

        The driver may return several samples of a pid: of those of one moment the largest counts, and the
        moments are averaged. Old and impossible samples, which drivers return too, are ignored.
        """
        nvml, now = self._nvml, int(self._wall() * 1e6)
        since, latest = self._seen.get(uuid, now - _WINDOW_US), now + _WINDOW_US
        if since > latest:  # the clock was set back: no sample would be new until then
            since = now - _WINDOW_US
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except nvml.NVMLError as error:
            # No sample since then. The binding raises "success" where the driver succeeds with none.
            if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                self._seen[uuid] = max(since, now - _LATE_US)  # or this pause would dilute what comes next
                return {}
            if meaning(error.value).kind in (NvmlErrorKind.ABSENT, NvmlErrorKind.OURS):
                return None
            raise
        moments: dict[int, dict[int, int]] = defaultdict(dict)
        for sample in samples:
            if since < sample.timeStamp <= latest and sample.smUtil <= 100 and sample.pid:
                at = moments[sample.pid]
                at[sample.timeStamp] = max(at.get(sample.timeStamp, 0), sample.smUtil)
        self._seen[uuid] = max((stamp for at in moments.values() for stamp in at), default=since)
        return {pid: (max(at), sum(at.values()) / len(at)) for pid, at in moments.items()}


def _processes(uuid: CardUuid, running: Iterable[Any], busy: dict[int, float] | None) -> list[ProcessUse]:
    """Return the use of each process. ``running`` is NVML's list, ``busy`` SM percent by pid, None if
    unknown.
    """
    memory: dict[int, int | None] = {}
    for process in running:
        # A process in several lists (compute and graphics) shows the same bytes in each: not a sum.
        if not process.pid:
            continue  # it lives in a PID namespace that we do not see
        known, told = memory.get(process.pid), process.usedGpuMemory
        memory[process.pid] = max((m for m in (known, told) if m is not None), default=None)
    idle = None if busy is None else 0.0  # the driver samples, and had nothing to say of this process
    return [
        ProcessUse(uuid, pid, memory.get(pid), (busy or {}).get(pid, idle))
        for pid in sorted(memory.keys() | (busy or {}).keys())
    ]
