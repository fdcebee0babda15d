"""``record_allocate_ms``: what recording adds to the two calls of an admission, on a node of eight cards.

With and without recording in turns; the thread that writes is timed by itself.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row
from gpu_manager.adapters.record_ring import RecordRing
from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.contract import CORE
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.services.allocation.books import Books, Key
from gpu_manager.services.allocation.preferred_ids import IdChoice
from gpu_manager.services.allocation.record import AgentPlayer, AgentRecorder, Recorded, book, decide
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, cards
from tests.fakes.state import node_of


class _Kubelet:
    """Admits one container after the other to the same books."""

    def __init__(self) -> None:
        self.books = Books(node_of(cards(8)))
        self._number = 0

    def admit(self, recorded: Recorded | None) -> tuple[Key, float]:
        """The container, and the seconds that both judgements took, their hand-over included."""
        self._number += 1
        found = parse_pod(pod(f"p{self._number}", container("main", 10, 2)))
        candidate = ContainerCandidate(found, found.containers[0])
        known = self.books.node.ids.card_of[CORE]
        free = [device for device in known if not self.books.taken((device,))]
        began = time.perf_counter()
        ids, decision = decide(recorded, self.books, IdChoice(CORE, free, (), 10), candidate, {})
        book(recorded, self.books, CORE, frozenset(ids), decision)
        return (found.uid, "main"), time.perf_counter() - began


def agent(*, full: bool) -> Iterator[Row]:
    """The row, and whether what was recorded is decided the same again."""
    turns, kubelet = (400 if full else 80), _Kubelet()
    with tempfile.TemporaryDirectory(prefix="vcuda-record-") as text:
        ring = RecordRing(Path(text), 64 << 20)
        recorder = AgentRecorder(ring, FakeClock(), "")
        for _ in range(70):
            kubelet.admit(None)
        plain, noted, written = list[float](), list[float](), list[float]()
        for _ in range(turns):
            for recorded, took in ((None, plain), (recorder.decided, noted)):
                key, seconds = kubelet.admit(recorded)
                took.append(seconds)
                kubelet.books.release(*key)
            began = time.thread_time()
            recorder.write()
            written.append(time.thread_time() - began)
        lines = [line for name in ring.names() for line in (ring.read(name) or b"").splitlines()]
    player = AgentPlayer()
    judged = list(player.play(lines))
    differ = sum(one.recorded != one.now for one in judged) + player.passed.total()
    added = (statistics.median(noted) - statistics.median(plain)) * 1e3
    size = sum(map(len, lines)) / len(judged)
    took, beside = statistics.median(plain) * 1e3, statistics.median(written) * 1e3
    note = f"70 containers on 8 cards; both calls took {took:.2f} ms without it, and the thread beside"
    note += f" {beside:.2f} ms of processor time; {size:.0f} B a decision"
    yield Row("record_allocate_ms", round(added, 3), "ms", "≤ 0.3", None, full, note)
    yield Row("record_agent_differences", differ, "count", "= 0", None, full, f"of {len(judged)} decisions")
