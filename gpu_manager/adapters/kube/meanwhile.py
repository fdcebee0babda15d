"""Watch objects in a thread while a list of them is read, so that changes do not wait for its end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final

from gpu_manager.adapters.kube.connection import Refused
from gpu_manager.adapters.kube.objects import Obj, Told, Unreadable
from gpu_manager.adapters.kube.streams import WatchStream
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads

_WAITING: Final = 4  # events not taken yet; those after them wait at the API server
_LOOK_SECONDS: Final = 0.2  # between two looks for the end of a list that takes no events


class Meanwhile:
    """One list's: :meth:`begin` from the list's version, :meth:`events` as often as wanted, :meth:`close`.

    ``open`` opens the watch from a version, and says who hears of what it cannot read. A watch that breaks
    shows no more. ``version`` is that of the last event taken, empty before the first.
    """

    def __init__(self, name: str, open_: Callable[[str, Told], WatchStream], told: Told) -> None:
        self._name = name
        self._open = open_
        self._told = told
        self._came: queue.Queue[bytes | Unreadable] = queue.Queue(_WAITING)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._watch: WatchStream | None = None
        self.version = ""

    def begin(self, version: str) -> None:
        """Hear what has changed since, in a thread."""
        threads.once(f"meanwhile-{self._name}", lambda: self._hear(version)).start()

    def events(self) -> Iterator[tuple[str, Obj]]:
        """Yield those that have come, decoded in the caller's thread; does not wait for more."""
        while not self._came.empty():
            came = self._came.get()
            if isinstance(came, Unreadable):
                self._told(came)
                continue
            try:
                event = self._watch.event(came) if self._watch else None
            except Refused:
                self.close()
                return
            if event is not None:
                yield event

    def close(self) -> None:
        """Hear no more."""
        self._ended.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def _hear(self, version: str) -> None:
        try:
            watch = self._open(version, self._put)
            with self._lock:
                self._watch = watch
                if self._ended.is_set():
                    watch.close()
            for line in watch.lines():
                self._put(line)
        except NodeUnready:
            return  # the watch after the list says why

    def _put(self, came: bytes | Unreadable) -> None:
        while not self._ended.is_set():
            try:
                self._came.put(came, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return
