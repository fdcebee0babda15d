"""Decides when a card is faulty: the XID table, the driver's recovery actions, and past faults.

An XID is the driver's error number. Most are the fault of one program and must never close a card that
others share: a tenant could close it at will. The grades follow NVIDIA's catalogue
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, immediate action): restart the
application or ignore → :attr:`Grade.APPLICATION`; reset, reboot → :attr:`Grade.CARD`; workflows, and
numbers not listed → :attr:`Grade.DRIVER`: the driver's own recovery action (R565 and newer) decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from gpu_manager.domain.card import CardUuid
from gpu_manager.ports.cards import HealthChange


class Grade(Enum):
    """The cause of an XID: application, card or driver."""

    APPLICATION = "application"  # one program's; the card stays open unless the driver asks for an action
    CARD = "card"  # the card takes no new work
    DRIVER = "driver"  # as the driver's recovery action says; a driver that cannot say: as CARD


_RESET = "drain the card and reset it"
_APP = "the program that ran into it must be restarted; the card is fine"

XIDS: Mapping[int, tuple[Grade, str]] = {
    8: (Grade.APPLICATION, f"a program stopped making progress: {_APP}"),
    11: (Grade.APPLICATION, f"a program sent a corrupted command stream: {_APP}"),
    13: (Grade.APPLICATION, f"a kernel faulted (bad index, illegal instruction): {_APP}"),
    14: (Grade.APPLICATION, "an injected test error"),
    25: (Grade.APPLICATION, f"a program sent an illegal command stream: {_APP}"),
    31: (Grade.APPLICATION, f"a program touched memory that it does not own: {_APP}"),
    32: (Grade.APPLICATION, f"a command stream arrived corrupted: {_APP}"),
    37: (Grade.APPLICATION, "a firmware method was missing: the driver went on"),
    38: (Grade.APPLICATION, "a firmware watchdog fired: the driver went on"),
    43: (Grade.APPLICATION, f"a program was stopped after a fault of its own: {_APP}"),
    44: (Grade.APPLICATION, "a fault during a context switch: the driver went on"),
    45: (Grade.APPLICATION, "a program's channels were cleaned up after it died or another error"),
    46: (Grade.CARD, f"the card stopped processing: {_RESET}"),
    48: (Grade.CARD, f"an uncorrectable (double-bit) memory error: {_RESET}"),
    54: (Grade.CARD, "auxiliary power is not connected: attach the cable"),
    62: (Grade.CARD, f"the card's micro-controller halted: {_RESET}"),
    63: (Grade.APPLICATION, "a memory row was set aside for remapping; it takes effect at the next reset"),
    64: (Grade.CARD, f"a memory row could not be remapped: {_RESET}, replace the card if it returns"),
    66: (Grade.APPLICATION, "an illegal access by the driver, contained"),
    67: (Grade.APPLICATION, "an illegal access by the driver, contained"),
    69: (Grade.APPLICATION, f"a program sent a wrong class of command: {_APP}"),
    74: (Grade.DRIVER, "an NVLink error: see nvidia-smi nvlink -e; reset the card if it lasts"),
    78: (Grade.CARD, "a vGPU could not start: update the host's driver"),
    79: (Grade.CARD, "fallen off the bus: reboot the node, then check seat, power and cooling"),
    80: (Grade.APPLICATION, f"data sent to the card arrived corrupted: {_APP}"),
    92: (Grade.APPLICATION, "many corrected (single-bit) memory errors: watch the card"),
    93: (Grade.APPLICATION, "the infoROM's wear limit is reached"),
    94: (Grade.APPLICATION, f"a memory error contained to one program: {_APP}; reset it when convenient"),
    95: (Grade.CARD, f"an uncontained memory error: {_RESET}"),
    106: (Grade.APPLICATION, "a test message"),
    107: (Grade.APPLICATION, "a test message"),
    108: (Grade.APPLICATION, f"a remote NVLink access was refused: {_APP}"),
    # The catalogue asks for a reset; in the field a program's endless kernel raises it too, and NVIDIA's own
    # device plugin counts it as an application error. A driver with recovery actions settles it.
    109: (Grade.APPLICATION, f"a context switch timed out: {_APP}"),
    110: (Grade.CARD, "a security fault: cold-reset the node"),
    119: (Grade.CARD, f"the card's system processor (GSP) did not answer: {_RESET}"),
    120: (Grade.CARD, f"the card's system processor (GSP) failed: {_RESET}"),
    121: (Grade.APPLICATION, "corrected errors on the link to the CPU"),
    136: (Grade.CARD, f"an NVLink could not be trained: {_RESET}"),
    137: (Grade.APPLICATION, f"an illegal peer access over NVLink: {_APP}"),
    140: (Grade.CARD, f"an uncorrectable memory error escaped page retirement: {_RESET}"),
    141: (Grade.APPLICATION, "a CUDA fast-path error"),
    143: (Grade.CARD, f"the card could not be initialised: {_RESET}"),
    151: (Grade.CARD, "a key rotation failed: restart the virtual machine"),
    155: (Grade.CARD, f"an NVLink went down: {_RESET}"),
    156: (Grade.CARD, f"a faulty part was retired: {_RESET}"),
    157: (Grade.APPLICATION, "a faulty part could not be retired: work goes on, the error may return"),
    158: (Grade.CARD, f"a fatal timeout: {_RESET}"),
    160: (Grade.APPLICATION, "a memory channel was retired"),
    161: (Grade.APPLICATION, "a memory channel could not be retired"),
    162: (Grade.APPLICATION, "power smoothing is engaged again"),
    163: (Grade.APPLICATION, "power smoothing is off"),
    164: (Grade.APPLICATION, "power smoothing is near its end of life"),
    165: (Grade.APPLICATION, "power smoothing is at its end of life"),
    # Copy engines, video and JPEG decoders, optical flow: one program's command failed in one engine.
    **dict.fromkeys(
        (
            39,
            40,
            41,
            60,
            68,
            *range(70, 73),
            *range(75, 78),
            *range(82, 87),
            88,
            89,
            *range(96, 106),
            *range(126, 136),
            139,
        ),
        (Grade.APPLICATION, f"an engine (copy, video, JPEG, optical flow) failed a program: {_APP}"),
    ),
}

# NVML_GPU_RECOVERY_ACTION_*: what the driver itself wants done (field 230, R565 and newer).
RECOVERY_ACTIONS: Mapping[int, str] = {
    0: "",
    1: "the driver asks for a reset of the card",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to end all peer-to-peer traffic with the card",
    4: "the driver asks to drain the card and reset it",
    5: "the driver asks to recover the IMEX domain",
    6: "the driver asks for a bus reset of the card",
    7: "the driver asks for a reboot of the system",
}


def recovery_text(action: int) -> str:
    """Empty for no action; an action newer than the table is named by its number."""
    return RECOVERY_ACTIONS.get(action, f"the driver asks for recovery action {action}")


QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """What closes a card, and for how long at least.

    ``application`` and ``critical`` are XIDs that the operator grades differently from the table.
    ``quiet_seconds``: a card opens again when it answers and had no critical fault for this long.
    ``pending_remap_closes``: a card that waits for a reset to remap a memory row takes no new work, so that
    it runs empty and can be reset; running work is not touched.
    """

    application: frozenset[int] = frozenset()
    critical: frozenset[int] = frozenset()
    quiet_seconds: float = QUIET_SECONDS
    pending_remap_closes: bool = True

    def closes(self, xid: int, action: int | None) -> str:
        """Why this XID closes the card; empty if it does not. ``action`` None: unknown to the driver."""
        grade, text = XIDS.get(
            xid, (Grade.DRIVER, "an error that this version does not know: see NVIDIA's XID list")
        )
        named = f"XID {xid}: {text}"
        if xid in self.critical:
            return named
        if xid in self.application:
            return ""
        if xid == 154:  # announces a change of the recovery action and nothing else
            return recovery_text(action) if action else ""
        if grade is Grade.CARD or action:
            return f"{named}; {recovery_text(action)}" if action else named
        return named if grade is Grade.DRIVER and action is None else ""


class CardFaults:
    """Faulty cards and the times of their faults. Thread-safe; calls ``changed`` on each change.

    A fault is kept until the card is healthy *and* ``quiet`` seconds have passed since it was last unhealthy.
    """

    def __init__(
        self, quiet: float, now: Callable[[], float], changed: Callable[[HealthChange], None]
    ) -> None:
        """``now`` is a monotonic clock in seconds; ``changed`` must not block."""
        self._quiet, self._now, self._changed = quiet, now, changed
        self._lock = threading.Lock()
        self._since: dict[CardUuid, tuple[str, float]] = {}

    def bad(self, uuid: CardUuid, reason: str) -> None:
        """The card shows a fault now."""
        with self._lock:
            known = self._since.get(uuid)
            self._since[uuid] = (reason, self._now())
            if known is None or known[0] != reason:
                self._changed(HealthChange(uuid, healthy=False, reason=reason))

    def good(self, uuid: CardUuid) -> None:
        """Record that the card is healthy now."""
        with self._lock:
            known = self._since.get(uuid)
            if known is not None and self._now() - known[1] >= self._quiet:
                del self._since[uuid]
                text = f"answers again, quiet for {self._quiet:g} s (was: {known[0]})"
                self._changed(HealthChange(uuid, healthy=True, reason=text))

    def reason(self, uuid: CardUuid) -> str:
        """Why the card is closed; empty if it is not."""
        with self._lock:
            return self._since.get(uuid, ("", 0.0))[0]
