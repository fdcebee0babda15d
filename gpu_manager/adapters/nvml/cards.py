"""The node's real cards, through NVML. The only file that imports the driver's binding.

The binding is untyped: handles and structs are ``Any`` inside this package and become domain values here. A
card that fails is reported as unhealthy; only a driver that does not answer at all raises.
"""

from __future__ import annotations

import ctypes
import threading
import time
import uuid as uuids
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml
import structlog

from gpu_manager.adapters.nvml.errors import (
    PATIENCE_SECONDS,
    TIMEOUT,
    DriverHangsError,
    NvmlErrorKind,
    Patience,
    maybe,
    meaning,
    sentence,
    to_domain,
)
from gpu_manager.adapters.nvml.faults import CardFaults, FaultPolicy, recovery_text
from gpu_manager.adapters.nvml.instances import read_instances, text_of
from gpu_manager.adapters.nvml.links import bus_key, read_links
from gpu_manager.adapters.nvml.usage import Memory, UsageReader
from gpu_manager.adapters.nvml.watch import EventWatch, WatchedCard
from gpu_manager.domain.card import UNREAD_MODEL, Card, CardState, CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.mig import card_asked, divides_memory, profile_of
from gpu_manager.domain.topology import MAX_CARDS, Topology
from gpu_manager.ports.cards import CardEvent, CardUse, HealthChange, ProcessUse

log = structlog.get_logger(__name__)

T = TypeVar("T")

DIVIDED: Final = (
    "a compute instance that shares the memory of its GPU instance with others: give each GPU instance one "
    "compute instance (nvidia-smi mig -cgi ... -C)"
)
_DRIVER: Final = "driver"  # what a call is about that is about no card
# By NVML's number: its name, and who may use the card.
_COMPUTE_MODES: Final = {
    1: ("EXCLUSIVE_THREAD", "one thread"),
    2: ("PROHIBITED", "nobody"),
    3: ("EXCLUSIVE_PROCESS", "one process"),
}


class NvmlCards:
    """:class:`gpu_manager.ports.cards.Cards` on NVML.

    A card that :meth:`watch` reports as unhealthy stays unhealthy in :meth:`list` until it is reported as
    healthy again; :class:`FaultPolicy` decides when.
    """

    def __init__(
        self,
        nvml: Any = pynvml,
        *,
        policy: FaultPolicy | None = None,
        library: Callable[[], Path | None] = lambda: None,
        sysfs: Path = Path("/sys"),
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        patience: float = PATIENCE_SECONDS,
        instances: Callable[[], bool] = lambda: False,
    ) -> None:
        """``nvml`` is the binding or a fake of it; ``library`` finds the absolute path of libnvidia-ml.so.1
        where the loader does not, each time that NVML is opened; the first call opens it. A card
        about which the driver does not answer for ``patience`` seconds is unhealthy until it does. While
        ``instances`` is true, the MIG instances of cards are listed as cards too, after these.
        """
        self._instances = instances
        self._parts: dict[CardUuid, tuple[WatchedCard, ...]] = {}  # of each card in MIG mode, as last read
        self._nvml, self._library, self._sysfs = nvml, library, sysfs
        self._policy = policy or FaultPolicy()
        self._monotonic = monotonic
        self._patience = Patience(patience)
        self._lock = threading.RLock()
        self._opened = False
        self._openings, self._opened_at = 0, 0.0
        self._lost = False
        self._slots: tuple[WatchedCard, ...] = ()
        self._known: dict[int, Card] = {}
        self._usage = UsageReader(nvml, wall, monotonic)
        self._faults = CardFaults(self._policy.quiet_seconds, monotonic, self._changed)
        self._watch: EventWatch | None = None

    def list(self) -> Sequence[CardState]:
        """Every card, by index. Raises NodeUnready if the driver cannot be asked at all."""
        lost = self._lost and not self._patience.hangs
        if lost and self._monotonic() - self._opened_at >= self._policy.quiet_seconds:
            self._drop()  # a card that was reset shows itself to a fresh NVML only
        self._open()
        try:
            count = self._patiently(_DRIVER, self._nvml.nvmlDeviceGetCount)
        except self._nvml.NVMLError as error:
            self._drop()
            raise to_domain(error.value, "count the cards") from None
        looks = [self._patient_look(index) for index in range(count)]
        named = {look.card.uuid for look in looks if isinstance(look, WatchedCard)}
        slots = tuple(
            look if isinstance(look, WatchedCard) else self._silent(index, look, named)
            for index, look in enumerate(looks)
        )
        parts = self._read_parts(slots) if self._instances() else ()
        with self._lock:
            self._slots = (*slots, *parts)
            self._lost = any(s.handle is None for s in slots)
            self._known.update({s.card.index: s.card for s in slots if s.handle is not None})
        return tuple(self._state(slot) for slot in (*slots, *parts))

    def topology(self) -> Topology:
        """Return the links between the cards, in the order of :meth:`list`."""
        slots = self._current()
        # Instances reach each other, and cards, by the host's memory alone.
        handles = [None if s.card.instance else s.handle for s in slots]
        places = ["" if s.card.instance else s.card.pci_bus_id for s in slots]
        cells = read_links(self._nvml, handles, places)
        return Topology(tuple(map(tuple, cells)))

    def usage(self) -> tuple[Sequence[CardUse], Sequence[ProcessUse]]:
        """The present usage of each card.

        A card that does not answer is left out; it becomes unhealthy if the error means that it is broken.
        """
        cards: list[CardUse] = []
        processes: list[ProcessUse] = []
        for slot in self._current():
            if slot.handle is None:
                continue
            try:
                read = partial(self._usage.read, slot.handle, slot.card)
                card, running = self._patience.call(card_asked(slot.card.index), read)
            except DriverHangsError:
                self._blame(slot.card.uuid, TIMEOUT)
                continue
            except self._nvml.NVMLError as error:
                self._blame(slot.card.uuid, error.value)
                continue
            cards.append(card)
            processes.extend(running)
        return cards, processes

    def watch(self, told: Callable[[CardEvent], None]) -> None:
        """Report health changes and XIDs to ``told``, from a separate thread, until :meth:`close`."""
        with self._lock:
            if self._watch is None:
                self._watch = EventWatch(self._nvml, self, self._faults, self._policy, told)
                self._watch.start()

    def close(self) -> None:
        """Stop the watch and close NVML."""
        with self._lock:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        self._drop()

    # What the watch thread asks of us.

    def slots(self) -> tuple[int, tuple[WatchedCard, ...]]:
        """Return how often NVML was opened, and the cards of the last :meth:`list`; none while NVML is
        closed.
        """
        with self._lock:
            return self._openings, self._slots

    def recovery_action(self, slot: WatchedCard) -> int | None:
        """Return NVML_GPU_RECOVERY_ACTION_*, 0 for none; None if the driver cannot tell (before R565)."""
        try:
            return self._patience.call(slot.card.index, partial(self._recovery_action, slot.handle))
        except DriverHangsError:
            return None

    def listen(self, slot: WatchedCard, types: int, events: Any) -> bool:
        """Register for those of these types of events that the card has; False while it hangs."""
        try:
            self._patience.call(
                card_asked(slot.card.index), partial(self._listen, slot.handle, types, events)
            )
        except DriverHangsError:
            self._blame(slot.card.uuid, TIMEOUT)
            return False
        return True

    def _listen(self, handle: Any, types: int, events: Any) -> None:
        if types := types & self._nvml.nvmlDeviceGetSupportedEventTypes(handle):
            self._nvml.nvmlDeviceRegisterEvents(handle, types, events)

    def _recovery_action(self, handle: Any) -> int | None:
        field = self._nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        values = maybe(self._nvml, self._nvml.nvmlDeviceGetFieldValues, handle, [field])
        if values is None or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    # The rest is ours.

    def _open(self) -> None:
        with self._lock:
            if self._opened:
                return
            try:
                if (library := self._library()) is not None:
                    # The loader then finds it by SONAME when the binding asks for libnvidia-ml.so.1.
                    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
                self._patiently(_DRIVER, self._nvml.nvmlInit)
            except OSError as error:
                raise NodeUnready(
                    f"could not load the NVML library: {error}: check the driver's root"
                ) from None
            except self._nvml.NVMLError as error:
                raise to_domain(error.value, "open NVML") from None
            self._opened = True
            self._openings, self._opened_at = self._openings + 1, self._monotonic()

    def _drop(self) -> None:
        """Close NVML; the next call opens it again and finds a reloaded driver and new cards."""
        with self._lock:
            if not self._opened:
                return
            self._opened, self._slots = False, ()
            if self._patience.hangs:
                return  # NVML would wait for that call to end
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as error:
                log.debug("nvml_shutdown_failed", why=sentence(error.value))

    def _current(self) -> tuple[WatchedCard, ...]:
        if not self.slots()[1]:
            self.list()
        return self.slots()[1]

    def _patiently(self, about: str, call: Callable[[], T]) -> T:
        """Return the driver's answer. Raises NodeUnready if it hangs as a whole."""
        try:
            return self._patience.call(about, call)
        except DriverHangsError:
            raise to_domain(TIMEOUT, "ask the driver") from None

    def _patient_look(self, index: int) -> WatchedCard | int:
        try:
            return self._patience.call(index, partial(self._look, index))
        except DriverHangsError:
            return TIMEOUT

    def _look(self, index: int) -> WatchedCard | int:
        """Return the card at an index, or the NVML error code if its UUID cannot be read."""
        card: Card | None = None
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = CardUuid(text_of(self._nvml.nvmlDeviceGetUUID(handle)))
            known = self._known.get(index)
            card = known if known and known.uuid == uuid else Card(index, uuid, UNREAD_MODEL, memory=0)
            card = self._read(handle, card)
        except self._nvml.NVMLError as error:
            if meaning(error.value).kind is NvmlErrorKind.NODE:
                self._drop()
                raise to_domain(error.value, f"ask for card {index}") from None
            if card is None:
                return int(error.value)
            self._blame(card.uuid, error.value, always=True)
            return WatchedCard(None, card)
        slot = WatchedCard(handle, card)
        self._examine(slot)
        return slot

    def _read_parts(self, slots: Sequence[WatchedCard]) -> tuple[WatchedCard, ...]:
        """Return the instances of all cards in MIG mode; those last known of a card that does not tell."""
        found: dict[CardUuid, tuple[WatchedCard, ...]] = {}
        for slot in (slot for slot in slots if slot.card.mig):
            uuid, known = slot.card.uuid, self._parts.get(slot.card.uuid, ())
            found[uuid] = tuple(replace(part, handle=None) for part in known)
            if slot.handle is None:
                continue
            try:
                read = partial(self._parts_of, slot, {part.card.uuid: part.card for part in known})
                found[uuid] = self._patience.call(slot.card.index, read)
            except DriverHangsError:
                self._blame(uuid, TIMEOUT)
            except self._nvml.NVMLError as error:
                self._blame(uuid, error.value, always=True)
        self._parts = found
        listed = [part for parts in found.values() for part in parts]
        if len(slots) + len(listed) > MAX_CARDS:  # as many as an inventory may have
            log.warning("mig_instances_left_out", instances=len(slots) + len(listed) - MAX_CARDS)
        return tuple(listed[: max(0, MAX_CARDS - len(slots))])

    def _parts_of(self, slot: WatchedCard, known: Mapping[CardUuid, Card]) -> tuple[WatchedCard, ...]:
        read = read_instances(self._nvml, slot.handle, slot.card, self._usage.memory)
        return tuple(
            replace(part, card=replace(part.card, reserved=_kept_back(part.card, known.get(part.card.uuid))))
            for part in read
        )

    def _silent(self, index: int, code: int, named: set[CardUuid]) -> WatchedCard:
        """Return the state of a card whose UUID cannot be read: the card last known at the index, if not
        elsewhere.
        """
        card = self._known.get(index)
        if card is None or card.uuid in named:
            card = _nameless(index)
        self._blame(card.uuid, code, always=True)
        return WatchedCard(None, card)

    def examine(self, slot: WatchedCard) -> None:
        """Check the health of a card and record the result."""
        try:
            self._patience.call(card_asked(slot.card.index), partial(self._examine, slot))
        except DriverHangsError:
            self._blame(slot.card.uuid, TIMEOUT)

    def _examine(self, slot: WatchedCard) -> None:
        try:
            action = self._recovery_action(slot.handle)
            reason = recovery_text(action) if action else self._memory_condition(slot)
        except self._nvml.NVMLError as error:
            self._blame(slot.card.uuid, error.value, always=True)
            return
        if reason:
            self._faults.bad(slot.card.uuid, reason)
        else:
            self._faults.good(slot.card.uuid)

    def _read(self, handle: Any, card: Card) -> Card:
        """Return the card's properties. A card that shares the host's memory has 0 bytes: it is only given
        whole.
        """
        nvml = self._nvml
        memory = self._usage.memory(handle)
        mig = maybe(nvml, nvml.nvmlDeviceGetMigMode, handle)
        bus = maybe(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        bus_id = bus_key(bus.busId) if bus is not None else card.pci_bus_id
        name = maybe(nvml, nvml.nvmlDeviceGetName, handle)
        read = replace(
            card,
            model="-".join(text_of(name).split()) if name else card.model,
            memory=memory.total if memory is not None else 0,
            minor=maybe(nvml, nvml.nvmlDeviceGetMinorNumber, handle),
            pci_bus_id=bus_id,
            numa=self._numa(handle, bus_id),
            mig=mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
            whole_only=self._whole_only(handle, card, memory),
            reserved=memory.reserved if memory is not None else 0,
        )
        return replace(read, reserved=_kept_back(read, card))

    def _whole_only(self, handle: Any, card: Card, memory: Memory | None) -> str:
        """Return why no part of the card can be given; empty if one can."""
        if memory is None:
            return "it has no memory of its own, of which a part could be limited"
        nvml = self._nvml
        mode = maybe(nvml, nvml.nvmlDeviceGetComputeMode, handle)
        if mode not in _COMPUTE_MODES:
            return ""
        name, lets_in = _COMPUTE_MODES[mode]
        return f"compute mode {name} lets {lets_in} use it (cure: nvidia-smi -i {card.index} -c DEFAULT)"

    def _numa(self, handle: Any, bus_id: str) -> int | None:
        """Return the NUMA node of the CPUs next to the card; None if there is none or it cannot be read.

        From sysfs, else from the card's memory affinity. nvmlDeviceGetNumaNodeId would be wrong: on Grace
        machines it is the node of the card's own memory, which has no CPUs.
        """
        try:
            node = int((self._sysfs / "bus/pci/devices" / bus_id / "numa_node").read_text("ascii"))
        except (OSError, ValueError):
            node = -1
        if node >= 0:
            return node
        nvml = self._nvml
        near = maybe(nvml, nvml.nvmlDeviceGetMemoryAffinity, handle, 4, nvml.NVML_AFFINITY_SCOPE_NODE)
        bits = [i * 64 + b for i, word in enumerate(near or ()) for b in range(64) if word >> b & 1]
        return bits[0] if len(bits) == 1 else None

    def _memory_condition(self, slot: WatchedCard) -> str:
        """Return why the card's memory makes it unhealthy; empty if it does not.

        NVML tells by row remapping on Ampere and newer, by page retirement on older cards.
        """
        nvml, handle = self._nvml, slot.handle
        rows = maybe(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            _, _, pending, failed = rows
            if failed:
                return "row remapping has failed: the card's memory can no longer be repaired, replace it"
            waits = "a memory row"
        else:
            pending, waits = maybe(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle), "a memory page"
        if pending and self._policy.pending_remap_closes:
            return f"{waits} waits for a reset to be repaired: drain the card and reset it"
        return ""

    def _blame(self, uuid: CardUuid, code: int, *, always: bool = False) -> None:
        """Mark a card unhealthy after a failed call, if the error code says that the card is broken.

        With ``always`` any error does, except one of the whole driver: :meth:`list` raises then.
        """
        kind = meaning(code).kind
        if kind is NvmlErrorKind.CARD or (always and kind is not NvmlErrorKind.NODE):
            self._faults.bad(uuid, sentence(code))

    def _state(self, slot: WatchedCard) -> CardState:
        card = slot.card
        reason = self._faults.reason(card.uuid)
        if card.instance is not None:
            reason = self._faults.reason(CardUuid(card.instance.parent)) or reason
            if not reason and divides_memory(profile_of(card.model)):
                reason = DIVIDED
        return CardState(card, healthy=not reason, reason=reason)

    def _changed(self, change: HealthChange) -> None:
        with self._lock:
            watch, slots = self._watch, self._slots
        parts = [s.card.uuid for s in slots if s.card.instance and s.card.instance.parent == change.uuid]
        if watch is not None:
            for uuid in (change.uuid, *parts):
                watch.tell(replace(change, uuid=uuid))


def _kept_back(now: Card, before: Card | None) -> int:
    """Return the memory that the driver reserves: the largest amount seen of this card so far.

    With a smaller amount the number of device ids would vary, and memory would be granted that the driver
    takes back later.
    """
    if before is None or now.memory != before.memory or not now.memory:
        return now.reserved
    return max(now.reserved, before.reserved)


def _nameless(index: int) -> Card:
    """Return a card for an index whose UUID was never read: with a made-up UUID and without memory."""
    made_up = uuids.uuid5(uuids.NAMESPACE_OID, f"card {index} that never answered")
    return Card(index=index, uuid=CardUuid(f"GPU-{made_up}"), model=UNREAD_MODEL, memory=0)
