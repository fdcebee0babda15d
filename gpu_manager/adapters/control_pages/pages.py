"""Control pages on disk: limits, which the agent writes, and usage, which tenants write.

``<root>/<name>/limits`` is mounted read-only in the container, ``usage``
writable, each as a file, so that the tenant never sees the directory. A tenant may truncate, grow or
overwrite ``usage`` or change its mode: that is repaired if possible, counted and reported. It cannot hang or
crash the agent: pages are read with bounds and never mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.adapters.control_pages.gates import FileGates
from gpu_manager.adapters.control_pages.page_images import USAGE_MODE, PageImage, ToldUsage
from gpu_manager.adapters.control_pages.values import corrected_card, limits_in, messages_in
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.errors import NodeUnready, Tampered
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Activity, Correction, Limit, TenantUse
from vcuda.page import limits as limits_page
from vcuda.page import usage as usage_page
from vcuda.page.layout import PageError, uuid_bytes, uuid_text

log = structlog.get_logger(__name__)

LIMITS: Final = "limits"
USAGE: Final = "usage"
# The owner may write, or an agent without CAP_DAC_OVERRIDE could not; the container's mount is read-only.
LIMITS_MODE: Final = 0o644
_NS: Final = 1e-9
_TELLS_IDLE: Final = 4  # minor version of a page whose library tells what it held back with nothing in flight
_KEPT_BYTES: Final = 64 << 10  # of a page that is remembered: room for 200 processes, not for a tenant's 1024

_Change = Callable[["limits_page.Limits | None"], limits_page.Limits]
"""From what a limits page says now (None: nothing readable) to what it shall say."""


@dataclass(frozen=True, slots=True)
class PagePolicy:
    """Settings of the control pages of all containers on a node.

    ``context_reserve`` (bytes) is charged for each CUDA context when it is created; what a context takes
    beyond that is charged once the driver shows it. With ``oversubscribe``, cuMemAlloc returns managed
    memory if the card is full but the share is not. With ``fail_open``, programs run unlimited if the usage
    page is broken.
    """

    context_reserve: int = 0
    oversubscribe: bool = False
    fail_open: bool = False


DEFAULT_POLICY: Final = PagePolicy()


class FileControlPages:
    """:class:`gpu_manager.ports.control_pages.ControlPages` in a directory, normally on a tmpfs.

    One lock guards the open descriptors and the writes to ``limits``. No call waits for a lock on a tenant's
    file: the tenant could hold it for ever.
    """

    def __init__(
        self, root: Path, policy: PagePolicy = DEFAULT_POLICY, *, label: bytes | None = None
    ) -> None:
        """``label`` is SELinux's, for files that containers share: :mod:`gpu_manager.adapters.selinux`."""
        self._root = root
        self._label = label
        self._policy = policy
        self._lock = threading.Lock()
        # Descriptors kept open, so that a sample of an idle container is a handful of system calls.
        self._usage: dict[str, int] = {}
        self._cards: dict[str, tuple[CardUuid, ...]] = {}
        self._tampered: dict[str, int] = {}
        self._attacks: dict[str, str] = {}
        self._readings: dict[str, PageImage] = {}
        self._told: dict[str, ToldUsage] = {}
        self._notes: dict[str, tuple[LibraryMessage, ...]] = {}
        self.gates = FileGates(root, label=label)

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        """Create the directory and both pages if absent, and write the limits. Idempotent.

        An unchanged limit is not written again. A change keeps the host's corrections. The cards of a
        best-effort container have their gates when this returns.
        """
        for limit in limits:
            if limit.priority is Priority.BEST_EFFORT:
                self.gates.ensure(limit.card)
        with (
            self._lock,
            _errors(f"{self._root}/{name}"),
            files.directory(self._root, name, create=True) as here,
        ):
            self._write_limits(here, name, lambda now: self._limits(now, name, limits))
            self._usage_page(here, name, create=True)
            self._cards[name] = tuple(limit.card for limit in limits)
            self._told.pop(name, None)

    def publish(self, name: str, heartbeat_ns: int, corrections: Mapping[CardUuid, Correction]) -> None:
        """Write the agent's heartbeat (CLOCK_MONOTONIC) and its corrections, in one write."""

        def corrected(now: limits_page.Limits | None) -> limits_page.Limits:
            if now is None:
                raise NodeUnready(
                    f"the limits page of {self._root}/{name} is unreadable: start its container again"
                )
            cards = tuple(corrected_card(card, corrections) for card in now.cards)
            return replace(now, cards=cards, heartbeat_ns=heartbeat_ns)

        with self._lock, _errors(f"{self._root}/{name}"), files.directory(self._root, name) as here:
            self._write_limits(here, name, corrected)

    def reset(self, name: str) -> None:
        """Reset the usage page for a restarted container.

        If a process of it still lives (its byte is locked), only the slots of dead processes are freed.
        """
        with (
            self._lock,
            _errors(f"{self._root}/{name}"),
            files.directory(self._root, name, create=True) as here,
        ):
            page = self._usage_page(here, name, create=True)
            with files.locked(page, 0, usage_page.MAX_SLOTS) as alone:
                if alone:
                    files.write(page, 0, usage_page.build_usage())
                    return
            try:
                slots = self._read(page, name, 0).slots
            except PageError:
                # The living process broke its own page; a page that nobody can read serves nobody.
                files.write(page, 0, usage_page.build_usage())
                return
            for slot in slots:
                with files.locked(page, slot.index, 1) as dead:
                    if dead:
                        offset = usage_page.USAGE_HEAD_SIZE + slot.index * usage_page.SLOT_SIZE
                        files.write(page, offset, bytes(usage_page.SLOT_SIZE))

    def usage(self, name: str) -> Sequence[TenantUse]:
        """Return what the usage page says; memory is that of living processes.

        Raises:
            Tampered: the container changed the page illegally; it is repaired if possible.
            NodeUnready: the page is missing, or cannot be read.
        """
        known = self.unchanged((name,)).get(name)
        if known is not None:
            return known
        cards, found, slots = self._observe(name)
        uses = tuple(
            TenantUse(
                card=card,
                memory=min(sum(slot.charged[i] for slot in slots), usage_page.MAX_BYTES),
                busy_seconds=line.busy_ns * _NS,
                throttled_seconds=line.throttle_ns * _NS,
                held_idle_seconds=(line.held_idle_ns if found.minor >= _TELLS_IDLE else line.throttle_ns)
                * _NS,
                refusals=line.refusals,
                refused_bytes=line.refused_bytes,
                processes=len(slots),
                movable=min(sum(slot.movable for slot in slots), usage_page.MAX_BYTES),
                untold=min(sum(slot.untold for slot in slots), usage_page.MAX_BYTES),
                longest_seconds=line.longest_ns * _NS,
            )
            for i, (card, line) in enumerate(zip(cards, found.cards, strict=True))
        )
        with self._lock:
            page, reading = self._usage.get(name), self._readings.get(name)
            self._told.pop(name, None)
            if page is not None and reading is not None and reading.usage is found:
                live, alive = (tuple(slot.index for slot in some) for some in (found.slots, slots))
                self._told[name] = ToldUsage(page, reading, live, alive, uses)
        notes = messages_in(found.notes, cards)
        if notes:
            self._notes[name] = notes
        else:
            self._notes.pop(name, None)
        return uses

    def unchanged(self, names: Iterable[str]) -> Mapping[str, Sequence[TenantUse]]:
        """Return the very object that :meth:`usage` returned last, for each page that is as it was then."""
        with self._lock:
            known = ((name, self._told.get(name)) for name in names)
            return {name: told.uses for name, told in known if told is not None and told.holds()}

    def activity(self, name: str) -> Sequence[Activity]:
        """Return which tenants have work in flight now, for time sharing. Raises as :meth:`usage`."""
        cards, found, slots = self._observe(name)
        return [
            Activity(
                card,
                sum(slot.inflight[i] for slot in slots),
                line.busy_ns,
                line.last_busy_ns,
                sum(slot.inflight[i] > 0 for slot in slots),
                len(slots),
            )
            for i, (card, line) in enumerate(zip(cards, found.cards, strict=True))
        ]

    def last_busy_ns(self, places: Sequence[tuple[str, CardUuid]]) -> Sequence[int]:
        """Return when the tenant last had work in flight on the card (CLOCK_MONOTONIC); 0 if its page is
        not open.
        """
        with self._lock:
            return [self._last_busy_ns(name, card) for name, card in places]

    def _last_busy_ns(self, name: str, card: CardUuid) -> int:
        cards, page = self._cards.get(name, ()), self._usage.get(name)
        if page is None or card not in cards:
            return 0
        word = os.pread(page, 8, usage_page.last_busy_offset(cards.index(card)))
        return min(int.from_bytes(word, "little"), usage_page.MAX_NS)

    def timeline(self, name: str, card: CardUuid, begin_ms: int, end_ms: int) -> Mapping[int, float]:
        """Return in which milliseconds the tenant had work in flight. Raises as :meth:`usage`."""
        with self._lock, _errors(f"{self._root}/{name}"):
            cards, page = self._cards_of(name), self._usage.get(name)
            if page is None or card not in cards:
                return {}
            offset = usage_page.TIMELINES_OFFSET + cards.index(card) * usage_page.TIMELINE_SIZE
            image = os.pread(page, usage_page.TIMELINE_SIZE, offset)
        return usage_page.read_timeline(image.ljust(usage_page.TIMELINE_SIZE, b"\0"), begin_ms, end_ms)

    def registered(self, name: str) -> frozenset[int]:
        """Return the pids, in their own PID namespace, of the processes with a slot. Raises as :meth:`usage`.

        A slot whose byte is not locked counts too: programs may close descriptors that they did not open.
        """
        _, found, _ = self._observe(name)
        return frozenset(slot.pid for slot in found.slots)

    def names(self) -> Sequence[str]:
        """Return the name of every directory of pages."""
        with _errors(str(self._root)):
            try:
                return sorted(entry.name for entry in self._root.iterdir() if files.is_name(entry.name))
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> None:
        """Delete the directory; absent is fine."""
        files.checked(name)
        with self._lock, _errors(f"{self._root}/{name}"):
            self._forget(name)
            files.remove(self._root, name)

    def tampering(self) -> Mapping[str, int]:
        """Return, by directory, how often its usage page was found changed illegally."""
        with self._lock:
            return dict(self._tampered)

    def attacks(self, name: str) -> tuple[int, str]:
        """Return how often this page was found changed illegally, and the last finding."""
        with self._lock:
            return self._tampered.get(name, 0), self._attacks.get(name, "")

    def noted(self) -> Collection[str]:
        """Directories with messages, as of the last :meth:`usage` of each."""
        return tuple(self._notes)

    def notes(self, name: str) -> Sequence[LibraryMessage]:
        """Return the library's messages, as of the last :meth:`usage`."""
        return self._notes.get(name, ())

    def close(self) -> None:
        """Close all pages."""
        with self._lock:
            for name in list(self._usage):
                self._forget(name)

    def _observe(self, name: str) -> tuple[tuple[CardUuid, ...], usage_page.Usage, list[usage_page.Slot]]:
        """Return the cards, the usage page, and the slots whose process lives (its byte is locked)."""
        with self._lock, _errors(f"{self._root}/{name}"):
            cards = self._cards_of(name)
            page = self._usage.get(name)
            status = os.fstat(page) if page is not None else None
            if page is None or status is None or not status.st_nlink:
                with files.directory(self._root, name) as here:
                    page = self._usage_page(here, name)
                status = os.fstat(page)
            changed = files.put_back(page, status, usage_page.USAGE_SIZE, USAGE_MODE)
            if changed:
                raise self._tampering(name, f"{changed}; that is put back")
            try:
                found = self._read(page, name, len(cards))
            except PageError as error:
                raise self._tampering(name, str(error)) from error
            alive = [slot for slot in found.slots if files.is_held(page, slot.index)]
        return cards, found, alive

    def _forget(self, name: str) -> None:
        page = self._usage.pop(name, None)
        if page is not None:
            os.close(page)
        self._cards.pop(name, None)
        self._tampered.pop(name, None)
        self._attacks.pop(name, None)
        self._readings.pop(name, None)
        self._told.pop(name, None)
        self._notes.pop(name, None)

    def _limits(
        self, now: limits_page.Limits | None, name: str, limits: Sequence[Limit]
    ) -> limits_page.Limits:
        known = {card.uuid: card for card in now.cards} if now else {}
        cards = []
        for limit in limits:
            uuid = uuid_bytes(limit.card)
            before = known.get(uuid) or limits_page.CardLimits(uuid, None, None)
            cards.append(
                replace(
                    before,
                    memory_limit=limit.memory,
                    # Of nothing even the smallest charge is refused: no context comes into being.
                    context_reserve=max(self._policy.context_reserve, not limit.memory),
                    core_limit=float(limit.cores),
                    core_ceiling=float(limit.ceiling),
                    protected=limit.priority is Priority.PROTECTED,
                    best_effort=limit.priority is Priority.BEST_EFFORT,
                )
            )
        return replace(
            now or limits_page.Limits(()),
            cards=tuple(cards),
            fail_open=self._policy.fail_open and any(limit.memory for limit in limits),
            oversubscribe=self._policy.oversubscribe,
            elastic=any(limit.ceiling > limit.cores for limit in limits),
            identity=hashlib.sha256(name.encode()).digest()[:16],
        )

    def _write_limits(self, here: int, name: str, change: _Change) -> None:
        page = files.open_page(here, LIMITS)
        if page is None:
            page = files.create_page(
                here,
                LIMITS,
                limits_page.build_limits(change(None)),
                limits_page.LIMITS_SIZE,
                LIMITS_MODE,
                self._label,
            )
            os.close(page)
            return
        try:
            changed = files.put_back(page, os.fstat(page), limits_page.LIMITS_SIZE, LIMITS_MODE)
            if changed:
                log.warning("limits_page_restored", directory=f"{self._root}/{name}", change=changed)
            image = files.read(page, limits_page.LIMITS_SIZE)
            now = limits_in(image)
            wanted = change(now)
            if now is None or replace(wanted, generation=now.generation) != now:
                write = limits_page.rewrite_limits(image, wanted)
                files.write(page, write.offset, write.data)
        finally:
            os.close(page)

    def _usage_page(self, here: int, name: str, *, create: bool = False) -> int:
        """Return the usage page's descriptor, which stays open; a replaced page is opened again."""
        page = files.open_page(here, USAGE)
        if page is None:
            if not create:
                raise NodeUnready(
                    f"the usage page of {self._root}/{name} is gone: its container must start again"
                )
            page = files.create_page(
                here,
                USAGE,
                usage_page.build_usage()[: usage_page.USAGE_HEAD_SIZE],
                usage_page.USAGE_SIZE,
                USAGE_MODE,
                self._label,
            )
        old = self._usage.pop(name, None)
        self._told.pop(name, None)
        if old is not None:
            os.close(old)
        self._usage[name] = page
        if create and (changed := files.put_back(page, os.fstat(page), usage_page.USAGE_SIZE, USAGE_MODE)):
            log.warning("usage_page_restored", reason=str(self._tampering(name, changed)))
        return page

    def _read(self, page: int, name: str, cards: int) -> usage_page.Usage:
        """Return the page's content; an unchanged page, as of an idle container, is not parsed again.

        Raises PageError for an incomplete page.
        """
        before = self._readings.get(name)
        if before is not None and cards == len(before.usage.cards) and before.is_of(page):
            return before.usage
        image = files.read(page, usage_page.USAGE_HEAD_SIZE)
        if len(image) < usage_page.USAGE_HEAD_SIZE:
            raise PageError(f"the usage page shrank to {len(image)} bytes while {name} was read")
        extent = usage_page.usage_extent(image)
        image = files.read(page, extent)
        usage = usage_page.read_usage(image, cards)
        self._readings.pop(name, None)
        if extent <= _KEPT_BYTES:
            head, slots = image[: usage_page.card_offset(cards)], image[usage_page.USAGE_HEAD_SIZE :]
            self._readings[name] = PageImage(head, slots, usage)
        return usage

    def _cards_of(self, name: str) -> tuple[CardUuid, ...]:
        """Return the cards of the limits page, in its order; the usage page does not name them."""
        cards = self._cards.get(name)
        if cards is None:
            with files.directory(self._root, name) as here:
                page = files.open_page(here, LIMITS)
                if page is None:
                    raise NodeUnready(
                        f"the limits page of {self._root}/{name} is gone: its container must start again"
                    )
                try:
                    found = limits_page.read_limits(files.read(page, limits_page.LIMITS_SIZE))
                finally:
                    os.close(page)
            cards = tuple(CardUuid(uuid_text(card.uuid)) for card in found.cards)
            self._cards[name] = cards
        return cards

    def _tampering(self, name: str, what: str) -> Tampered:
        self._tampered[name] = self._tampered.get(name, 0) + 1
        self._attacks[name] = what
        return Tampered(
            f"the usage page of {self._root}/{name} was tampered with: {what} "
            f"(found {self._tampered[name]} times); look at what runs in its container"
        )


@contextlib.contextmanager
def _errors(where: str) -> Iterator[None]:
    """Translate foreign errors into NodeUnready, with the pages' directory in the text."""
    try:
        yield
    except FileNotFoundError as error:
        raise NodeUnready(f"the control pages of {where} are gone: the container must start again") from error
    except PermissionError as error:
        raise NodeUnready(
            f"the control pages of {where} cannot be used: {error.strerror}; their owner or mode "
            "is not the agent's any more (a container may have changed it), or the agent may not write there"
        ) from error
    except OSError as error:
        raise NodeUnready(
            f"the control pages of {where} cannot be used: {error.strerror or error}; "
            "check that the file system is there, writable and not full"
        ) from error
    except PageError as error:
        raise NodeUnready(f"the control pages of {where} cannot hold what they should: {error}") from error
