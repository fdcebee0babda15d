"""Control pages on disk: limits, which the agent writes, and usage, which tenants write.

``<root>/<name>/limits`` is mounted read-only in the container (``limits_file``), ``usage`` writable, each as
a file, so that the tenant never sees the directory. A tenant may truncate, grow or overwrite ``usage`` or
change its mode: that is repaired if possible, counted and reported. It cannot hang or crash the agent: pages
are read with bounds and never mapped.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.adapters.control_pages.gates import FileGates
from gpu_manager.adapters.control_pages.limits_file import (
    DEFAULT_POLICY,
    Change,
    PagePolicy,
    limited_cards,
    limits_as_set,
    write_limits,
)
from gpu_manager.adapters.control_pages.page_images import USAGE_MODE, PageImage, ToldUsage
from gpu_manager.adapters.control_pages.values import activities_in, corrected_card, messages_in, uses_in
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.errors import NodeUnready, Tampered
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Activity, Correction, Limit, TenantUse
from vcuda.page import limits as limits_page
from vcuda.page import usage as usage_page
from vcuda.page.layout import PageError

log = structlog.get_logger(__name__)

USAGE: Final = "usage"
_KEPT_BYTES: Final = 64 << 10  # of a page that is remembered: room for 200 processes, not for a tenant's 1024


@dataclass(slots=True)
class _Directory:
    """What is kept of one directory.

    ``usage`` is the descriptor of its usage page, which stays open so that a sample of an idle container is a
    handful of system calls; ``cards`` are those of its limits page. ``image`` is what was last read of the
    usage page, ``told`` what was last told of it. ``attacks`` counts the illegal changes that were found.
    """

    usage: int | None = None
    cards: tuple[CardUuid, ...] | None = None
    image: PageImage | None = None
    told: ToldUsage | None = None
    messages: tuple[LibraryMessage, ...] = ()
    attacks: int = 0
    last_attack: str = ""


_NOTHING: Final = _Directory()  # of a directory that is not known; it is never changed


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
        self._known: dict[str, _Directory] = {}
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
            self._write_limits(here, name, lambda now: limits_as_set(now, name, limits, self._policy))
            self._usage_page(here, name, create=True)
            self._directory(name).cards = tuple(limit.card for limit in limits)

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
        unchanged = self.unchanged((name,)).get(name)
        if unchanged is not None:
            return unchanged
        cards, found, slots = self._observe(name)
        uses = uses_in(found, cards, slots)
        with self._lock:
            known = self._known.get(name)
            if known is None:
                return uses  # it was removed meanwhile
            known.messages = messages_in(found.notes, cards)
            known.told = None
            if known.usage is not None and known.image is not None and known.image.usage is found:
                live, alive = (tuple(slot.index for slot in some) for some in (found.slots, slots))
                known.told = ToldUsage(known.usage, known.image, live, alive, uses)
        return uses

    def unchanged(self, names: Iterable[str]) -> Mapping[str, Sequence[TenantUse]]:
        """Return the very object that :meth:`usage` returned last, for each page that is as it was then."""
        with self._lock:
            known = ((name, self._known.get(name)) for name in names)
            told = ((name, one.told) for name, one in known if one is not None)
            return {name: one.uses for name, one in told if one is not None and one.holds()}

    def activity(self, name: str) -> Sequence[Activity]:
        """Return which tenants have work in flight now, for time sharing. Raises as :meth:`usage`."""
        cards, found, slots = self._observe(name)
        return activities_in(found, cards, slots)

    def last_busy_ns(self, places: Sequence[tuple[str, CardUuid]]) -> Sequence[int]:
        """Return when the tenant last had work in flight on the card (CLOCK_MONOTONIC); 0 if its page is
        not open.
        """
        with self._lock:
            return [self._last_busy_ns(name, card) for name, card in places]

    def _last_busy_ns(self, name: str, card: CardUuid) -> int:
        known = self._known.get(name)
        if known is None or known.usage is None or known.cards is None or card not in known.cards:
            return 0
        word = os.pread(known.usage, 8, usage_page.last_busy_offset(known.cards.index(card)))
        return min(int.from_bytes(word, "little"), usage_page.MAX_NS)

    def timeline(self, name: str, card: CardUuid, begin_ms: int, end_ms: int) -> Mapping[int, float]:
        """Return in which milliseconds the tenant had work in flight. Raises as :meth:`usage`."""
        with self._lock, _errors(f"{self._root}/{name}"):
            cards, page = self._cards_of(name), self._directory(name).usage
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
            return {name: known.attacks for name, known in self._known.items() if known.attacks}

    def attacks(self, name: str) -> tuple[int, str]:
        """Return how often this page was found changed illegally, and the last finding."""
        with self._lock:
            known = self._known.get(name, _NOTHING)
            return known.attacks, known.last_attack

    def noted(self) -> Collection[str]:
        """Directories with messages, as of the last :meth:`usage` of each."""
        with self._lock:
            return [name for name, known in self._known.items() if known.messages]

    def notes(self, name: str) -> Sequence[LibraryMessage]:
        """Return the library's messages, as of the last :meth:`usage`."""
        with self._lock:
            return self._known.get(name, _NOTHING).messages

    def close(self) -> None:
        """Close all pages."""
        with self._lock:
            for name in list(self._known):
                self._forget(name)

    def _observe(self, name: str) -> tuple[tuple[CardUuid, ...], usage_page.Usage, list[usage_page.Slot]]:
        """Return the cards, the usage page, and the slots whose process lives (its byte is locked)."""
        with self._lock, _errors(f"{self._root}/{name}"):
            cards = self._cards_of(name)
            page = self._directory(name).usage
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

    def _directory(self, name: str) -> _Directory:
        return self._known.setdefault(name, _Directory())

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, _NOTHING)
        if known.usage is not None:
            os.close(known.usage)

    def _write_limits(self, here: int, name: str, change: Change) -> None:
        write_limits(here, f"{self._root}/{name}", change, self._label)

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
        known = self._directory(name)
        old, known.usage, known.told = known.usage, page, None
        if old is not None:
            os.close(old)
        if create and (changed := files.put_back(page, os.fstat(page), usage_page.USAGE_SIZE, USAGE_MODE)):
            log.warning("usage_page_restored", reason=str(self._tampering(name, changed)))
        return page

    def _read(self, page: int, name: str, cards: int) -> usage_page.Usage:
        """Return the page's content; an unchanged page, as of an idle container, is not parsed again.

        Raises PageError for an incomplete page.
        """
        known = self._directory(name)
        before = known.image
        if before is not None and cards == len(before.usage.cards) and before.is_of(page):
            return before.usage
        image = files.read(page, usage_page.USAGE_HEAD_SIZE)
        if len(image) < usage_page.USAGE_HEAD_SIZE:
            raise PageError(f"the usage page shrank to {len(image)} bytes while {name} was read")
        extent = usage_page.usage_extent(image)
        image = files.read(page, extent)
        usage = usage_page.read_usage(image, cards)
        known.image = None
        if extent <= _KEPT_BYTES:
            head, slots = image[: usage_page.card_offset(cards)], image[usage_page.USAGE_HEAD_SIZE :]
            known.image = PageImage(head, slots, usage)
        return usage

    def _cards_of(self, name: str) -> tuple[CardUuid, ...]:
        """Return the cards of the limits page, which is read once."""
        cards = self._known.get(name, _NOTHING).cards
        if cards is None:
            with files.directory(self._root, name) as here:
                cards = limited_cards(here, f"{self._root}/{name}")
            self._directory(name).cards = cards
        return cards

    def _tampering(self, name: str, what: str) -> Tampered:
        known = self._directory(name)
        known.attacks += 1
        known.last_attack = what
        return Tampered(
            f"the usage page of {self._root}/{name} was tampered with: {what} "
            f"(found {known.attacks} times); look at what runs in its container"
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
