"""The console's history: the last minutes from the agents, hours and days from Prometheus.

PromQL is written here, with the namespace that the caller may see in every selector. Consoles that look at
the same get the same answer for a while, so that ten of them cost what one does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from admission.console.agents_usage import AgentsUsage
from gpu_manager.domain.cluster.usage_history import (
    MINUTES,
    HistoryQuery,
    HistorySubject,
    Series,
    history_json,
)
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.ports.clock import Clock

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "1h": (3600, 60),
    "6h": (6 * 3600, 300),
    "1d": (86400, 1200),
    "7d": (7 * 86400, 7200),
}
"""Name → seconds and seconds between two figures, of what Prometheus is asked for."""
_LEAST_RATE_SECONDS: Final = 300  # four scrapes of a slow Prometheus
_MOST_KEPT: Final = 64
_AT_ONCE: Final = 2  # questions to Prometheus; consoles come again

Row = tuple[Mapping[str, str], Mapping[int, float]]
RangeQuery = Callable[[str, float, float, int], Sequence[Row]]
"""PromQL, start, end (seconds since the epoch), step → labels, and values by number of the step.

Raises NodeUnready.
"""


@dataclass(frozen=True, slots=True)
class _Kept:
    until: float
    answer: Any


class ConsoleHistory:
    """Thread-safe. ``cards``: UUIDs of a node's cards. Without ``prometheus`` there are minutes alone."""

    def __init__(
        self,
        usage: AgentsUsage,
        cards: Callable[[str], Sequence[str]],
        clock: Clock,
        prometheus: RangeQuery | None = None,
    ) -> None:
        self._usage = usage
        self._cards = cards
        self._clock = clock
        self._prometheus = prometheus
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[HistoryQuery, str], _Kept] = OrderedDict()
        self._asking = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def ranges(self) -> list[str]:
        """Names of what can be asked for."""
        return [MINUTES, *(RANGES if self._prometheus else ())]

    def answer(self, query: HistoryQuery, span: str) -> Any:
        """JSON of ``/ui/history``.

        Raises:
            RequestInvalid: there is no such range.
            NodeUnready: Prometheus, or the list of nodes, cannot be had now.
        """
        if span not in self.ranges:
            raise RequestInvalid(f"there is no range {quoted(span)}: ask for {', '.join(self.ranges)}")
        key, now = (query, span), self._clock.monotonic()
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and now < kept.until:
            return kept.answer
        answer = self._usage.history(query) if span == MINUTES else self._asked(query, *RANGES[span])
        with self._lock:
            self._kept[key] = _Kept(now + min(answer["step"], 60) / 2, answer)
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return answer

    def _asked(self, query: HistoryQuery, seconds: int, step: int) -> Any:
        if self._prometheus is None or not self._asking.acquire(blocking=False):
            raise NodeUnready("Prometheus is being asked by others: try again")
        try:
            end = self._clock.now() // 1
            start, count = end - seconds, seconds // step + 1
            cards = self._cards(query.name) if query.subject is HistorySubject.NODE else ()
            asked = () if query.subject is HistorySubject.NODE and not cards else promql(query, step, cards)
            rows = [self._prometheus(text, start, end, step) for text in asked]
        finally:
            self._asking.release()
        return history_json(_joined(rows, count), start, step, "prometheus")


def promql(query: HistoryQuery, step: int, cards: Sequence[str] = ()) -> tuple[str, str, str]:
    """Cores, memory and seconds waited in a second, of what is asked for. ``cards``: UUIDs of the node's."""
    matchers = {"namespace": query.namespace} if query.namespace else {}
    pattern, by = "", ""
    if query.subject is HistorySubject.NODE:
        pattern, by = f"uuid=~{_quoted('|'.join(map(_literal, cards)))}", "uuid"
    elif query.subject is HistorySubject.CARD:
        matchers["uuid"] = query.name
        by = "namespace, pod, container"
    elif query.subject is HistorySubject.POD:
        namespace, _, pod = query.name.partition("/")
        matchers |= {"namespace": namespace, "pod": pod}
        by = "container, uuid"
    inside = ", ".join(
        [*(f"{name}={_quoted(value)}" for name, value in matchers.items()), *filter(None, [pattern])]
    )
    selector = f"{{{inside}}}" if inside else ""
    total = f"sum by ({by})" if by else "sum"
    rate = max(step, _LEAST_RATE_SECONDS)
    return (
        f"{total} (vcuda_container_core_usage_ratio{selector})",
        f"{total} (vcuda_container_memory_used_bytes{selector})",
        f"{total} (rate(vcuda_container_throttled_seconds_total{selector}[{rate}s]))",
    )


def _quoted(text: str) -> str:
    """A string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _literal(text: str) -> str:
    """A regular expression of RE2 that fits this text alone."""
    return "".join(
        one if one.isascii() and (one.isalnum() or one in "-_") else f"\\x{{{ord(one):x}}}" for one in text
    )


def _joined(rows: Sequence[Sequence[Row]], count: int) -> list[Series]:
    """The answers to the three questions as one series for each set of labels."""
    tables = [{tuple(sorted(labels.items())): values for labels, values in answer} for answer in rows]
    names = sorted(set().union(*tables))
    columns = [[[table.get(name, {}).get(at) for at in range(count)] for table in tables] for name in names]
    return [Series(dict(name), *found) for name, found in zip(names, columns, strict=True)]
