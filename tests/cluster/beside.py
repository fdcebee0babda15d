"""A thread that does something on the cluster beside a test, from ``with`` until its end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Beside(ABC):
    """``_run`` is the thread: it ends soon after ``_stop`` is set, and ``_ended_well`` says that it got there."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._ended_well = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        assert self._ended_well or error is not None, (
            f"the {self._thread.name} has died, its words are on stderr"
        )

    def _live(self) -> None:
        self._run()
        self._ended_well = True

    @abstractmethod
    def _run(self) -> None:
        """What it does, in its thread."""
