"""A thread that waits for NVML events and reports cards that fail or recover."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from gpu_manager.adapters.nvml.errors import sentence
from gpu_manager.adapters.nvml.faults import CardFaults, FaultPolicy
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.ports.cards import CardEvent, HealthChange, XidError
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

_WAIT_MS = 500  # bounds how late a change is told and how long stop() takes
_STOP_SECONDS = 5.0  # a driver that hangs in the wait must not hang the agent's end


@dataclass(frozen=True, slots=True)
class WatchedCard:
    """A card at an NVML index. The handle is None while NVML does not give one."""

    handle: Any | None
    card: Card


class ListedCards(Protocol):
    """The cards, as the watch needs them."""

    def slots(self) -> tuple[int, tuple[WatchedCard, ...]]:
        """Return how often NVML was opened, which invalidates handles, and the cards as last listed."""

    def examine(self, slot: WatchedCard) -> None:
        """Check the health of a card and record the result."""

    def recovery_action(self, slot: WatchedCard) -> int | None:
        """Return the driver's recovery action; None if the driver cannot tell."""

    def listen(self, slot: WatchedCard, types: int, events: Any) -> bool:
        """Register for events of these types of a card; False while the driver does not answer about it."""


class EventWatch:
    """Registers for the events of every card, grades XIDs, and checks unhealthy cards until they recover."""

    def __init__(
        self,
        nvml: Any,
        cards: ListedCards,
        faults: CardFaults,
        policy: FaultPolicy,
        told: Callable[[CardEvent], None],
    ) -> None:
        """``told`` is only called from the thread that :meth:`start` starts."""
        self._nvml, self._cards, self._faults, self._policy = nvml, cards, faults, policy
        self._told = told
        self._news: queue.SimpleQueue[CardEvent] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threads.forever("nvml-events", self._run)
        self._events: Any | None = None
        self._registered: tuple[Any, ...] | None = None
        # Cards whose events could not be asked for, since the driver did not answer.
        self._unanswered: list[WatchedCard] = []

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; waits for its end, at most 5 s."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def tell(self, change: HealthChange) -> None:
        """Let the thread report a change that was found elsewhere. Does not block."""
        self._news.put(change)

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = 0.0
            try:
                self._round()
            except self._nvml.NVMLError as error:
                log.warning("nvml_events_failed", why=sentence(error.value))
                self._release()
                self._examine_all()
                pause = _WAIT_MS / 1000
            except Exception:  # noqa: BLE001 - a run loop: one bad event must not end the watch in silence
                threads.failed("nvml_watch_failed")
                pause = _WAIT_MS / 1000
            self._deliver()
            self._stopping.wait(pause)
        self._release()

    def _round(self) -> None:
        opened, slots = self._cards.slots()
        if not slots:
            self._release()
            self._stopping.wait(_WAIT_MS / 1000)
            return
        # The list is taken anew every few seconds; events are registered anew only if it says another thing.
        present = (opened, *((s.card.uuid, s.handle is not None, s.card.mig) for s in slots))
        if self._events is None or present != self._registered:
            self._register(slots)
            self._registered = present
        self._unanswered = [slot for slot in self._unanswered if not self._listen(slot)]
        event = self._wait()
        if event is not None:
            self._judge(event)
        for slot in slots:
            if slot.handle is not None and self._faults.reason(slot.card.uuid):
                self._cards.examine(slot)

    def _register(self, slots: tuple[WatchedCard, ...]) -> None:
        nvml = self._nvml
        self._release()
        self._events = nvml.nvmlEventSetCreate()
        divided = {slot.card.instance.parent for slot in slots if slot.card.instance is not None}
        for slot in slots:
            # Events of instances come from their parent; those of a card that has none concern nobody.
            unheard = slot.card.instance is not None or (slot.card.mig and slot.card.uuid not in divided)
            if slot.handle is not None and not unheard and not self._listen(slot):
                self._unanswered.append(slot)

    def _listen(self, slot: WatchedCard) -> bool:
        """Register for the card's events; False if that is to be tried again."""
        nvml = self._nvml
        wanted = (
            nvml.nvmlEventTypeXidCriticalError
            | nvml.nvmlEventTypeDoubleBitEccError
            | nvml.nvmlEventTypeDramRetirementFailure
            | nvml.nvmlEventTypeFatalPoisonError
            | nvml.nvmlEventTypeGpuUnavailableError
            | nvml.nvmlEventTypeGpuRecoveryAction
        )
        try:
            return self._cards.listen(slot, wanted, self._events)
        except nvml.NVMLError as error:
            # The card is then only asked every few seconds: lost cards are still found, XIDs are not.
            log.warning("card_has_no_events", uuid=slot.card.uuid, why=sentence(error.value))
            return True

    def _wait(self) -> Any | None:
        try:
            return self._nvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                return None
            raise

    def _judge(self, event: Any) -> None:
        slot = self._slot_of(event.device)
        if slot is None:
            log.warning("event_of_unknown_card", type=event.eventType, data=event.eventData)
            self._examine_all()
            return
        uuid = slot.card.uuid
        reason = self._reason(event, slot)
        if reason:
            self._faults.bad(uuid, reason)
        if event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
            xid = int(event.eventData)
            log.info("xid_error", uuid=uuid, card=slot.card.index, xid=xid, closes=bool(reason))
            self._news.put(XidError(uuid, xid, closes=bool(reason)))

    def _reason(self, event: Any, slot: WatchedCard) -> str:
        nvml, kind = self._nvml, event.eventType
        if kind == nvml.nvmlEventTypeXidCriticalError:
            return self._policy.closes(int(event.eventData), self._action(slot))
        if kind == nvml.nvmlEventTypeGpuRecoveryAction:
            return self._policy.closes(154, self._action(slot))
        return {
            nvml.nvmlEventTypeDoubleBitEccError: "an uncorrectable (double-bit) memory error: reset the card",
            nvml.nvmlEventTypeDramRetirementFailure: "faulty memory could not be retired: reset the card",
            nvml.nvmlEventTypeFatalPoisonError: "a fatal poisoned-memory error: reset the card",
            nvml.nvmlEventTypeGpuUnavailableError: "the card became unavailable: reset it or reboot the node",
        }.get(kind, "")

    def _action(self, slot: WatchedCard) -> int | None:
        try:
            return self._cards.recovery_action(slot)
        except self._nvml.NVMLError:
            return None  # too broken to say: the XID table decides

    def _slot_of(self, device: Any) -> WatchedCard | None:
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(device)
        except self._nvml.NVMLError:
            return None
        named = CardUuid(uuid.decode() if isinstance(uuid, bytes) else uuid)
        return next((s for s in self._cards.slots()[1] if s.card.uuid == named), None)

    def _examine_all(self) -> None:
        for slot in self._cards.slots()[1]:
            if slot.handle is not None:
                self._cards.examine(slot)

    def _deliver(self) -> None:
        while True:
            try:
                change = self._news.get_nowait()
            except queue.Empty:
                return
            self._told(change)

    def _release(self) -> None:
        events, self._events, self._registered = self._events, None, None
        unanswered, self._unanswered = self._unanswered, []
        if events is not None and not unanswered:  # a call that did not return may still use the set
            try:
                self._nvml.nvmlEventSetFree(events)
            except self._nvml.NVMLError as error:
                log.debug("event_set_not_freed", why=sentence(error.value))
