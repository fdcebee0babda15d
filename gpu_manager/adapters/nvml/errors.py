"""The meaning of each NVML error code, and its remedy.

The table is keyed by number, so that this file needs no driver binding; a test proves that it holds every
``NVML_ERROR_*`` constant that the binding knows. A code of a newer driver still gets a sentence.

Driver calls that may never return are made in threads that can be abandoned. A card that hangs blocks every
thread that queries it, for good or for minutes. Each call about a card runs in a thread of this module. If it
does not return in time the thread is abandoned, and further calls about that card fail at once until it has
returned: so one card delays the others by one wait at most.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from gpu_manager.domain.errors import Bug, NodeUnready, VcudaError
from gpu_manager.runtime import threads


class NvmlErrorKind(Enum):
    """What an error code means for the card of the failed call."""

    ABSENT = "absent"  # the figure does not exist on this card, driver or permission: leave it out
    CARD = "card"  # this card is out of order
    NODE = "node"  # the driver as a whole cannot be used
    OURS = "ours"  # we asked wrongly


@dataclass(frozen=True, slots=True)
class Meaning:
    """One error code: its NVML name, what happened, the cure."""

    name: str
    kind: NvmlErrorKind
    what: str
    cure: str


_ABSENT, _CARD, _NODE, _OURS = NvmlErrorKind
_REPORT = "please report this with the driver version"
_LEFT_OUT = "nothing: the figure is left out"
_RESET = "drain the card and reset it (nvidia-smi --gpu-reset -i UUID), or reboot the node"
_LOG = "look for NVRM lines in the kernel log; if it lasts, reboot the node"

MEANINGS: Mapping[int, Meaning] = {
    1: Meaning("UNINITIALIZED", _NODE, "the NVML library was shut down", "it is opened again by itself"),
    2: Meaning("INVALID_ARGUMENT", _OURS, "the driver refused an argument", _REPORT),
    3: Meaning("NOT_SUPPORTED", _ABSENT, "this card cannot tell", _LEFT_OUT),
    4: Meaning("NO_PERMISSION", _ABSENT, "the driver refuses to tell this process", "run the agent as root"),
    5: Meaning("ALREADY_INITIALIZED", _OURS, "the NVML library was opened twice", _REPORT),
    6: Meaning("NOT_FOUND", _ABSENT, "there is no such entry", _LEFT_OUT),
    7: Meaning("INSUFFICIENT_SIZE", _ABSENT, "the answer outgrew its buffer", "the next sample has it"),
    8: Meaning(
        "INSUFFICIENT_POWER",
        _CARD,
        "the card's power cables are not attached",
        "attach the auxiliary power cables",
    ),
    9: Meaning(
        "DRIVER_NOT_LOADED",
        _NODE,
        "the NVIDIA kernel driver is not loaded",
        "install it or load it (modprobe nvidia), and check that /dev/nvidiactl is visible to the agent",
    ),
    10: Meaning("TIMEOUT", _CARD, "the driver did not answer in time", _LOG),
    11: Meaning("IRQ_ISSUE", _CARD, "the card's interrupts do not arrive", _LOG),
    12: Meaning(
        "LIBRARY_NOT_FOUND",
        _NODE,
        "libnvidia-ml.so.1 was not found or does not load",
        "install the NVIDIA driver on the node; where it lies outside the usual places "
        "(/run/nvidia/driver with the GPU operator) mount it into the agent and name its root",
    ),
    13: Meaning("FUNCTION_NOT_FOUND", _ABSENT, "the driver is too old to tell", "nothing, or a newer driver"),
    14: Meaning(
        "CORRUPTED_INFOROM", _CARD, "the card's infoROM is corrupted", "ask the vendor for a replacement"
    ),
    15: Meaning(
        "GPU_IS_LOST",
        _CARD,
        "the card has fallen off the bus",
        "reboot the node; if it comes back, check the card's seat, power and cooling",
    ),
    16: Meaning("RESET_REQUIRED", _CARD, "the card needs a reset", _RESET),
    17: Meaning(
        "OPERATING_SYSTEM",
        _CARD,
        "the operating system blocked the driver",
        "give the agent /dev/nvidiactl and /dev/nvidia* and a device cgroup that allows them",
    ),
    18: Meaning(
        "LIB_RM_VERSION_MISMATCH",
        _NODE,
        "the NVML library and the loaded kernel driver are of different versions",
        "the driver was upgraded under a running system: reboot the node or reload the kernel modules, "
        "then restart the agent",
    ),
    19: Meaning("IN_USE", _CARD, "the card is held by an operation of somebody else", "it is tried again"),
    20: Meaning("MEMORY", _CARD, "the driver ran out of host memory", "free memory on the node"),
    21: Meaning("NO_DATA", _ABSENT, "the card has no data yet", _LEFT_OUT),
    22: Meaning("VGPU_ECC_NOT_SUPPORTED", _ABSENT, "ECC hides the figure on a vGPU host", _LEFT_OUT),
    23: Meaning("INSUFFICIENT_RESOURCES", _CARD, "the card ran out of internal resources", _RESET),
    24: Meaning("FREQ_NOT_SUPPORTED", _ABSENT, "the card has no such frequency", "nothing"),
    25: Meaning(
        "ARGUMENT_VERSION_MISMATCH", _ABSENT, "the driver knows another version of the question", "nothing"
    ),
    26: Meaning("DEPRECATED", _ABSENT, "the driver no longer answers this question", "nothing"),
    27: Meaning("NOT_READY", _CARD, "the card is not ready yet", "it is tried again"),
    28: Meaning("GPU_NOT_FOUND", _CARD, "the driver no longer knows the card", _LOG),
    29: Meaning("INVALID_STATE", _CARD, "the card is in a state that forbids the question", _RESET),
    30: Meaning(
        "RESET_TYPE_NOT_SUPPORTED", _ABSENT, "the card has no such reset", "nothing: we never reset cards"
    ),
    999: Meaning("UNKNOWN", _CARD, "the driver failed without saying why", _LOG),
}


def meaning(code: int) -> Meaning:
    """Return the meaning of a code; a generic one for a code that the table does not have."""
    return MEANINGS.get(
        code, Meaning(f"code {code}", _CARD, "the driver reports an error unknown to this version", _LOG)
    )


def sentence(code: int) -> str:
    """Return the text for operators: ``the card has fallen off the bus (NVML GPU_IS_LOST): reboot the node;
    …``.
    """
    row = meaning(code)
    return f"{row.what} (NVML {row.name}): {row.cure}"


def to_domain(code: int, doing: str) -> VcudaError:
    """Return the NodeUnready of a failed call about the whole node. ``doing`` is such as ``count the
    cards``.
    """
    row = meaning(code)
    if row.name == "LIBRARY_NOT_FOUND":
        return NodeUnready(f"could not load the NVML library: {row.what}: {row.cure}")
    text = f"could not {doing}: {sentence(code)}"
    return Bug(text) if row.kind is _OURS else NodeUnready(text)


def maybe(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """Call it; None if the card, the driver or the program's rights do not give a value. A broken card still
    raises.
    """
    try:
        return call(*args)
    except nvml.NVMLError as error:
        # INVALID_ARGUMENT: drivers answer so to a field, link or scope that they are too old to know.
        if meaning(error.value).kind in (_ABSENT, _OURS):
            return None
        raise


T = TypeVar("T")

TIMEOUT: Final = 10  # NVML's code for an answer that did not come in time
PATIENCE_SECONDS: Final = 3.0  # a busy driver answers within some 100 ms
_IDLE_SECONDS: Final = 30.0  # after which a thread without a call ends


class DriverHangsError(Exception):
    """The driver has not answered a call about this card."""


@dataclass(slots=True)
class _Call:
    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class Patience:
    """Thread-safe."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call]] = []
        self._stuck: dict[Hashable, _Call] = {}

    @property
    def hangs(self) -> bool:
        """True while a call that was left behind has not returned."""
        return any(not call.done.is_set() for call in list(self._stuck.values()))

    def call(self, about: Hashable, work: Callable[[], T]) -> T:
        """Call ``work`` in a thread that can be abandoned; returns its result or raises its error.

        Raises:
            DriverHangsError: ``work``, or an earlier call about the same card, has not returned in time.
        """
        with self._lock:
            stuck = self._stuck.get(about)
            if stuck is not None and not stuck.done.is_set():
                raise DriverHangsError
            self._stuck.pop(about, None)
            worker = self._idle.pop() if self._idle else None
        call = _Call(work)
        if worker is None:
            worker = queue.SimpleQueue()
            threads.forever("nvml-calls", lambda: self._work(worker)).start()
        worker.put(call)
        if not call.done.wait(self._seconds):
            with self._lock:
                self._stuck[about] = call
            raise DriverHangsError
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def _work(self, calls: queue.SimpleQueue[_Call]) -> None:
        while True:
            try:
                call = calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if calls in self._idle:
                        self._idle.remove(calls)
                        return
                continue  # a call is on its way
            try:
                call.result = call.work()
            except BaseException as error:  # noqa: BLE001 - it is raised again where the call was made
                call.error = error
            with self._lock:
                self._idle.append(calls)
            call.done.set()
