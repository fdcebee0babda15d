"""Control pages on disk: limits, which the agent writes, and usage, which tenants write.

``<root>/<name>/limits`` is mounted read-only in the container (``limits_file``), ``usage`` writable, each as
a file, so that the tenant never sees the directory. A tenant may truncate, grow or overwrite ``usage`` or
change its mode: that is repaired if possible, counted and reported. It cannot hang or crash the agent: pages
are read with bounds and never mapped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.adapters.control_pages.gates import FileGates, LeaseBreaker
from gpu_manager.adapters.control_pages.limits_file import (
    DEFAULT_POLICY,
    PagePolicy,
    activities_in,
    corrected_card,
    limits_as_set,
    messages_in,
    uses_in,
)
from gpu_manager.adapters.control_pages.page_directory import USAGE, PageDirectory, PageMounts, ToldUsage
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Activity, Correction, GateWatch, Limit, TenantUse
from vcuda.page import limits as limits_page
from vcuda.page import usage as usage_page
from vcuda.page.layout import PageError

log = structlog.get_logger(__name__)


# Starts and instructs the native watcher, `vcuda-gates`, which ships beside the library.
# It ends, with all gates open, when its standard input does: an agent that is killed leaves no gate closed.


_END_SECONDS: Final = 2.0
_STEPS: Final = 256  # of a core limit's percent


class NativeGateWatcher:
    """:class:`gpu_manager.ports.control_pages.GateWatcher` as a child process. Used by one thread."""

    def __init__(self, program: Path | None, pages: Path, gate: Callable[[CardUuid], Path]) -> None:
        """``program`` is None where the package came without it; ``gate`` says where a card's gate lies."""
        self._program = program
        self._pages = pages
        self._gate = gate
        self._process: subprocess.Popen[bytes] | None = None
        self._told = b""

    def watch(self, cards: Sequence[GateWatch]) -> None:
        """Watch exactly these cards; without any the watcher ends. A dead one is restarted.

        Raises:
            NodeUnready: it cannot be started, or does not respond.
        """
        if not cards:
            self.close()
            return
        wanted = self._instructions(cards)
        alive = self._process is not None and self._process.poll() is None
        if alive and wanted == self._told:
            return
        if not alive:
            self._start()
        process = self._process
        try:
            if process is not None and process.stdin is not None:
                process.stdin.write(wanted)
                process.stdin.flush()
        except OSError as error:
            self.close()
            raise NodeUnready(
                f"{self._program} does not listen: {error.strerror}; it is started again"
            ) from error
        self._told = wanted

    def close(self) -> None:
        """End it; its last act is to open all gates."""
        process, self._process, self._told = self._process, None, b""
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._process is not None:
            log.warning("gate_watcher_ended", code=self._process.returncode)
            self.close()
        if self._program is None:
            raise NodeUnready(
                "this package has no vcuda-gates, so that protected containers are not protected: install "
                "the wheel of this machine's architecture"
            )
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, by its whole path
                [str(self._program)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise NodeUnready(
                f"{self._program} cannot be started: {error.strerror}; protected containers are not "
                "protected until it can"
            ) from error
        log.info("gate_watcher_started", pid=self._process.pid)

    def _instructions(self, cards: Sequence[GateWatch]) -> bytes:
        lines = []
        for watched in cards:
            lines.append(f"card {self._gate(watched.card)}")
            lines += [
                f"tenant {t.index} {t.cores * _STEPS} {self._pages / t.name / USAGE}" for t in watched.tenants
            ]
            lines += [f"beside {t.index} {self._pages / t.name / USAGE}" for t in watched.beside]
        return "".join(f"{line}\n" for line in [*lines, "go"]).encode()


_NO_MOUNTS: Final = PageMounts()


@dataclass(eq=False, repr=False)
class FileControlPages:
    """:class:`gpu_manager.ports.control_pages.ControlPages` in a directory, normally on a tmpfs.

    Each container's files have a lock of their own, so that no container's page keeps another's waiting. No
    call waits for a lock on a tenant's file: the tenant could hold it for ever.

    ``label`` is SELinux's, for files that containers share: :mod:`gpu_manager.adapters.machine`.
    ``mounts``: the file system that each container's pages get.
    """

    root: Path
    policy: PagePolicy = DEFAULT_POLICY
    _: KW_ONLY
    label: bytes | None = None
    proc: InitVar[Path] = Path("/proc")
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    mounts: PageMounts = _NO_MOUNTS

    def __post_init__(self, proc: Path) -> None:
        self._breaker = LeaseBreaker()
        self._lock = threading.Lock()  # of this dictionary; taken last, and held for no call into the kernel
        self._known: dict[str, PageDirectory] = {}
        self.gates = FileGates(self.root, self._breaker, label=self.label, locks=proc / "locks")

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        """Create the directory and both pages if absent, and write the limits. Idempotent.

        An unchanged limit is not written again. A change keeps the host's corrections. The cards of a
        best-effort container have their gates when this returns.
        """
        for limit in limits:
            if limit.priority is Priority.BEST_EFFORT:
                self.gates.ensure(limit.card)
        with self._of(name) as pages:
            pages.write_limits(lambda now: limits_as_set(now, name, limits, self.policy), create=True)
            pages.open_usage(create=True)
            pages.cards = tuple(limit.card for limit in limits)

    def publish(self, name: str, heartbeat_ns: int, corrections: Mapping[CardUuid, Correction]) -> None:
        """Write the agent's heartbeat (CLOCK_MONOTONIC) and its corrections, in one write."""

        def corrected(now: limits_page.Limits | None) -> limits_page.Limits:
            if now is None:
                raise NodeUnready(
                    f"the limits page of {self.root}/{name} is unreadable: start its container again"
                )
            cards = tuple(corrected_card(card, corrections) for card in now.cards)
            return replace(now, cards=cards, heartbeat_ns=heartbeat_ns)

        with self._of(name) as pages:
            pages.write_limits(corrected)

    def reset(self, name: str) -> None:
        """Reset the usage page for a restarted container.

        If a process of it still lives (its byte is locked), only the slots of dead processes are freed.
        """
        with self._of(name) as pages:
            pages.reset()

    def usage(self, name: str) -> Sequence[TenantUse]:
        """The content of the usage page; memory is that of living processes.

        Raises:
            Tampered: the container changed the page illegally; it is repaired if possible.
            NodeUnready: the page is missing, or cannot be read.
        """
        unchanged = self.unchanged((name,)).get(name)
        if unchanged is not None:
            return unchanged
        with self._of(name) as pages:
            cards, found, slots = pages.observe()
            uses = uses_in(found, cards, slots)
            pages.messages = messages_in(found.notes, cards)
            pages.told = None
            if pages.usage is not None and pages.image is not None and pages.image.usage is found:
                pages.told = ToldUsage(
                    pages.usage,
                    pages.image,
                    slots=tuple(slot.index for slot in found.slots),
                    alive=[slot.index for slot in slots],
                    uses=uses,
                    attributes=files.lasting_attributes(pages.usage),
                    owner=os.geteuid(),
                )
        return uses

    def unchanged(self, names: Iterable[str]) -> Mapping[str, Sequence[TenantUse]]:
        """Return the very object that :meth:`usage` returned last, for each page that is as it was then."""
        with self._lock:
            known = [(name, self._known[name]) for name in names if name in self._known]
        found = {}
        for name, pages in known:
            with pages.lock:
                if pages.told is not None and pages.told.holds():
                    found[name] = pages.told.uses
        return found

    def activity(self, name: str) -> Sequence[Activity]:
        """Return which tenants have work in flight now, for time sharing. Raises as :meth:`usage`."""
        with self._of(name) as pages:
            cards, found, slots = pages.observe()
        return activities_in(found, cards, slots)

    def last_busy_ns(self, places: Sequence[tuple[str, CardUuid]]) -> Sequence[int]:
        """Return when the tenant last had work in flight on the card (CLOCK_MONOTONIC); 0 if its page is
        not open.
        """
        with self._lock:
            known = [(self._known.get(name), card) for name, card in places]
        return [_last_busy_ns(pages, card) if pages is not None else 0 for pages, card in known]

    def timeline(self, name: str, card: CardUuid, begin_ms: int, end_ms: int) -> Mapping[int, float]:
        """The milliseconds in which the tenant had work in flight. Raises as :meth:`usage`."""
        with self._of(name) as pages:
            cards, page = pages.limited_cards(), pages.usage
            if page is None or card not in cards:
                return {}
            offset = usage_page.TIMELINES_OFFSET + cards.index(card) * usage_page.TIMELINE_SIZE
            image = os.pread(page, usage_page.TIMELINE_SIZE, offset)
        return usage_page.read_timeline(image.ljust(usage_page.TIMELINE_SIZE, b"\0"), begin_ms, end_ms)

    def registered(self, name: str) -> frozenset[int]:
        """Return the pids, in their own PID namespace, of the processes with a slot. Raises as :meth:`usage`.

        A slot whose byte is not locked counts too: programs may close descriptors that they did not open.
        """
        with self._of(name) as pages:
            _, found, _ = pages.observe()
        return frozenset(slot.pid for slot in found.slots)

    def names(self) -> Sequence[str]:
        """Return the name of every directory of pages."""
        with _errors(str(self.root)):
            try:
                return sorted(entry.name for entry in self.root.iterdir() if files.is_name(entry.name))
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> None:
        """Delete the directory; absent is fine."""
        with self._of(name) as pages:
            pages.remove()

    def shared(self, device: int) -> int:
        """The number of containers whose pages are on this file system (``st_dev``)."""
        with self._lock:
            return sum(pages.device == device for pages in self._known.values())

    def tampering(self) -> Mapping[str, int]:
        """Return, by directory, how often its usage page was found changed illegally."""
        with self._lock:
            return {name: known.attacks for name, known in self._known.items() if known.attacks}

    def attacks(self, name: str) -> tuple[int, str]:
        """Return how often this page was found changed illegally, and the last finding."""
        with self._lock:
            known = self._known.get(name)
        return (known.attacks, known.last_attack) if known is not None else (0, "")

    def noted(self) -> Collection[str]:
        """Directories with messages, as of the last :meth:`usage` of each."""
        with self._lock:
            return [name for name, known in self._known.items() if known.messages]

    def notes(self, name: str) -> Sequence[LibraryMessage]:
        """Return the library's messages, as of the last :meth:`usage`."""
        with self._lock:
            known = self._known.get(name)
        return known.messages if known is not None else ()

    def close(self) -> None:
        """Close all pages and gates."""
        with self._lock:
            known, self._known = self._known, {}
        for pages in known.values():
            with pages.lock:
                pages.close()
        self.gates.close()
        self._breaker.close()

    @contextlib.contextmanager
    def _of(self, name: str) -> Iterator[PageDirectory]:
        """The container's pages, locked. Foreign errors become NodeUnready; absent pages are forgotten."""
        files.checked(name)
        while True:
            with self._lock:
                pages = self._known.get(name)
                if pages is None:
                    pages = self._known[name] = self._new(name)
            with pages.lock:
                if pages.closed:
                    continue  # it was removed meanwhile: another one has its name, or none
                try:
                    with _errors(f"{self.root}/{name}"):
                        yield pages
                finally:
                    self._drop_if_empty(name, pages)
                return

    def _new(self, name: str) -> PageDirectory:
        return PageDirectory(self.root, name, self.label, self._breaker, self.monotonic_ns, self.mounts)

    def _drop_if_empty(self, name: str, pages: PageDirectory) -> None:
        if pages.is_empty:
            pages.closed = True
        if pages.closed:
            with self._lock:
                if self._known.get(name) is pages:
                    del self._known[name]


def _last_busy_ns(pages: PageDirectory, card: CardUuid) -> int:
    with pages.lock:
        if pages.usage is None or pages.cards is None or card not in pages.cards:
            return 0
        word = os.pread(pages.usage, 8, usage_page.last_busy_offset(pages.cards.index(card)))
    return min(int.from_bytes(word, "little"), usage_page.MAX_NS)


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
