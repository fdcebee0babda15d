"""What the control pages tell of processes, for those who ask nothing else of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpu_manager.domain.enforcement.library_messages import LibraryMessage


class Slots:
    """Who holds a slot in which page, by the number inside the container: here it is the host's."""

    def __init__(self) -> None:
        self.holders: set[int] = set()
        self.sees = True

    def registered(self, name: str) -> frozenset[int]:
        return frozenset(self.holders)

    def attacks(self, name: str) -> tuple[int, str]:
        raise NotImplementedError

    def tampering(self) -> Mapping[str, int]:
        raise NotImplementedError

    def noted(self) -> Collection[str]:
        raise NotImplementedError

    def notes(self, name: str) -> Sequence[LibraryMessage]:
        raise NotImplementedError

    def host_pid(self) -> bool:
        return self.sees

    def inner_pid(self, pid: int) -> int | None:
        return pid
