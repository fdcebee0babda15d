"""Forwards the messages that libvcuda writes into the containers' pages to the log, a metric and an Event.

:mod:`gpu_manager.services.enforcement.usage` has read the pages just before. A tenant can write any message
into its own page, so the number forwarded per container and minute is bounded, and no message has any other
effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from gpu_manager.domain.contract import EVENT_LIBRARY_MESSAGE
from gpu_manager.domain.enforcement.library_messages import (
    FOR_THE_POD,
    TROUBLE,
    LibraryMessage,
    LibraryMessageKind,
    sentence,
)
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import PageEvidence
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.usage_sample import described, pods_by_uid, users_of
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

WINDOW_SECONDS = 60.0
MOST_LINES = 6
"""Lines in the log about one container in a window; of the rest the number."""
OLD_SECONDS = 60.0
"""What was noted longer than this before the first look was told by the agent that ran then."""
EVENT_SECONDS = 60.0
"""Between two Events on a container for the same kind of note."""


@dataclass(slots=True)
class _Heard:
    """One container's page: its last forwarded message, and recent ones."""

    number: int
    at: float
    since: float
    lines: int = 0
    left_out: int = 0
    events: dict[LibraryMessageKind, float] = field(default_factory=dict)


class LibraryMessages:
    """Forwards the messages. One thread calls ``look``."""

    def __init__(
        self, state: NodeState, pods: Pods, witness: PageEvidence, clock: Clock, metrics: ServiceMetrics
    ) -> None:
        self._state = state
        self._pods = pods
        self._witness = witness
        self._clock = clock
        self._metrics = metrics
        self._heard: dict[str, _Heard] = {}

    def look(self) -> None:
        """Forward the new messages of every container's page."""
        noted = frozenset(self._witness.noted())
        if not noted and not self._heard:
            return
        now = self._clock.monotonic()
        grants = [g for g in self._state.view.grants.values() if g.directory in noted | self._heard.keys()]
        self._heard = {g.directory: self._heard[g.directory] for g in grants if g.directory in self._heard}
        for grant in grants:
            notes = self._witness.notes(grant.directory)
            heard = self._heard.get(grant.directory)
            if heard is None:
                heard = self._heard[grant.directory] = _Heard(0, 0.0, now)
                for note in notes:
                    if note.at < now - OLD_SECONDS:
                        heard.number, heard.at = note.number, note.at
            if now - heard.since >= WINDOW_SECONDS:
                self._next_window(grant, heard, now)
            self._tell_new(grant, heard, notes, now)

    def _next_window(self, grant: Grant, heard: _Heard, now: float) -> None:
        if heard.left_out:
            log.info("library_messages_dropped", **_fields(grant), count=heard.left_out)
        heard.since, heard.lines, heard.left_out = now, 0, 0

    def _tell_new(self, grant: Grant, heard: _Heard, notes: Sequence[LibraryMessage], now: float) -> None:
        if notes and notes[-1].number <= heard.number and notes[-1].at != heard.at:
            heard.number = 0  # the page was reset
        for note in notes:
            if note.number > heard.number:
                heard.number, heard.at = note.number, note.at
                self._tell(grant, heard, note, now)

    def _tell(self, grant: Grant, heard: _Heard, note: LibraryMessage, now: float) -> None:
        self._metrics.library_messages.labels(note.kind.value).inc()
        text = self._sentence(note, grant)
        if heard.lines < MOST_LINES:
            heard.lines += 1
            tell = log.warning if note.kind in TROUBLE else log.info
            tell("library_message", **_fields(grant), kind=note.kind.value, note=text)
        else:
            heard.left_out += 1
        if note.kind not in FOR_THE_POD or now - heard.events.get(note.kind, -EVENT_SECONDS) < EVENT_SECONDS:
            return
        for pod in users_of(grant.key, grant, pods_by_uid(self._pods.local())):
            heard.events[note.kind] = now
            told = f"{described(grant.key[1], grant)}: {text}"
            self._pods.event(pod, EVENT_LIBRARY_MESSAGE, told, warning=True)

    def _sentence(self, note: LibraryMessage, grant: Grant) -> str:
        parts = 1 if grant.allocation.claim else len(grant.allocation.shares)
        node = self._state.node
        state = node.card(note.card) if note.card else None
        name = f"card {node.index(note.card)}" if note.card else "a card"
        capacity = state.card.capacity(node.unit).memory if state else 0
        return sentence(note, name, capacity, node.unit, parts)


def _fields(grant: Grant) -> dict[str, str]:
    allocation = grant.allocation
    return {"pod": f"{allocation.namespace}/{allocation.pod_name}", "container": allocation.container}
