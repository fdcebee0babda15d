"""The books compared every second while pods come and go.

What :func:`tests.cluster.auditor.audit` asks of a quiet node is asked here of each container that ran before and
after a look, since nothing that is under way touches those; and of every process on the node, whether the API
still knows its pod or not: what is in force together on a card must fit it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tests.cluster import auditor
from tests.cluster.api import ApiError
from tests.cluster.beside import Beside
from tests.cluster.cluster import Cluster

INTERVAL_SECONDS: Final = 1.0
WRITE_BACK_SECONDS: Final = 5.0  # the agent corrects an annotation after the start, not before


@dataclass(slots=True)
class Looks:
    """What was looked at, and what was wrong."""

    count: int = 0
    containers: int = 0
    processes: int = 0
    blind: int = 0  # looks without an answer of the API server: it is away
    longest_gap: float = 0.0
    found: list[str] = field(default_factory=list)


class Watcher(Beside):
    """Looks each second."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("watcher")
        self.looks = Looks()
        self._cluster = cluster
        self._unwritten: dict[str, float] = {}  # container id → since when its annotation differs

    def _run(self) -> None:
        last = due = time.monotonic()
        while not self._stop.is_set():
            try:
                self._look()
            except (ApiError, OSError):
                self.looks.blind += 1
            now = time.monotonic()
            self.looks.longest_gap = max(self.looks.longest_gap, now - last)
            last, due = now, max(due + INTERVAL_SECONDS, now)
            self._stop.wait(due - now)

    def _look(self) -> None:
        """One look. Raises ApiError: the API server is away."""
        looks, cluster = self.looks, self._cluster
        before = {one.container_id: one for one in auditor.containers(cluster)}
        books = auditor.Books.of(cluster)
        wrong: dict[str, list[str]] = {}
        for number, one in before.items():
            try:
                wrong[number] = list(auditor.compare(one, books))
            except (ProcessLookupError, FileNotFoundError):
                continue  # it has ended, and the API has yet to learn of it
        unwritten = {n: text for n, one in before.items() if (text := auditor.unwritten(one, books))}
        found = [*auditor.overcommitted(cluster, books), *self._together()]
        after = {one.container_id for one in auditor.containers(cluster)}
        found += [text for number, texts in wrong.items() if number in after for text in texts]
        found += self._late({number: text for number, text in unwritten.items() if number in after})
        looks.count += 1
        looks.containers += len(wrong.keys() & after)
        looks.found += [f"{time.strftime('%H:%M:%S')} {text}" for text in found]

    def _late(self, unwritten: dict[str, str]) -> list[str]:
        now = time.monotonic()
        self._unwritten = {number: self._unwritten.get(number, now) for number in unwritten}
        return [
            unwritten[number] for number, since in self._unwritten.items() if now - since > WRITE_BACK_SECONDS
        ]

    def _together(self) -> list[str]:
        """Cards of which more is in force than they have. All of it was in force at one moment: whoever was
        counted lived on when the last had been.
        """
        running = list(auditor.running(self._cluster))
        self.looks.processes += len(running)
        sums: defaultdict[str, list[auditor.Running]] = defaultdict(list)
        for one in running:
            if one.alive():
                for uuid, _, _ in one.shares:
                    sums[uuid].append(one)
        found = []
        for card in self._cluster.cards:
            shares = [s for one in sums[card.uuid] for s in one.shares if s[0] == card.uuid]
            cores, size = sum(s[1] for s in shares), sum(s[2] for s in shares)
            if cores > 100 or size > card.memory - card.reserved:
                who = ", ".join(f"{one.pod}/{one.container_id[:8]}" for one in sums[card.uuid])
                found.append(f"card {card.index}: {cores} cores and {size} bytes are in force: {who}")
        return found
