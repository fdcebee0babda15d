"""The console's history: an hour from the agents, days from Prometheus; who wasted cores.

Consoles that show the same page get the same answer for a while, so that ten of them cost what one does. Each
PromQL query has the namespace that the caller may see in every selector.

Waste is what was booked in the last hour and not used: from Prometheus by the sums of the bills
(``vcuda_pod_core_*_seconds_total``, as on ``/metric``); without Prometheus by what the agents remember, each
share of a card compared with what the books hold.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from admission.cluster.snapshot import Snapshot
from admission.console.agents_usage import AgentsUsage
from gpu_manager.domain.cluster.node_past import SHOWN, HeldShare, PodWaste, waste_json, waste_of_shares
from gpu_manager.domain.cluster.usage_history import (
    HOUR,
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
WASTE_RANGE: Final = 3600  # seconds that the list of wasters is about
WASTE_SECONDS: Final = 15.0  # for which it is not made anew
_NOT_YET: Final = 1.0  # seconds for which nothing is kept: what the agents remember is being asked for
_MOST_KEPT: Final = 64
_AT_ONCE: Final = 2  # questions to Prometheus; consoles come again


@dataclass(frozen=True, slots=True)
class _Kept:
    until: float
    answer: Any


@dataclass(eq=False, repr=False)
class ConsoleHistory:
    """Thread-safe. ``cards``: UUIDs of a node's cards. Without ``prometheus`` there are the agents' alone."""

    usage: AgentsUsage
    cards: Callable[[str], Sequence[str]]
    clock: Clock
    prometheus: RangeQuery | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._asking = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def ranges(self) -> list[str]:
        """Names of what can be asked for."""
        return [MINUTES, *(RANGES if self.prometheus else (HOUR,))]

    def answer(self, query: HistoryQuery, span: str) -> Any:
        """JSON of ``/ui/history``.

        Raises:
            RequestInvalid: there is no such range.
            NodeUnready: Prometheus, or the list of nodes, cannot be had now.
        """
        if span not in self.ranges:
            raise RequestInvalid(f"there is no range {quoted(span)}: ask for {', '.join(self.ranges)}")

        def make() -> tuple[float, Any]:
            if span == MINUTES or self.prometheus is None:
                answer = self.usage.history(query, hour=span == HOUR)
                return (min(answer["step"], 60) / 2 if answer["series"] else _NOT_YET), answer
            answer = self._asked(query, *RANGES[span])
            return min(answer["step"], 60) / 2, answer

        return self._once((query, span), make)

    def waste(self, namespace: str, held: Callable[[], Iterable[HeldShare]]) -> Any:
        """JSON of ``/ui/waste``: of the last hour, by Prometheus, without one by the agents.

        ``namespace``: the only one whose pods are told, empty for all. ``held``: what containers hold now.

        Raises:
            NodeUnready: Prometheus, or the list of nodes, cannot be had now.
        """

        def make() -> tuple[float, Any]:
            if self.prometheus is None:
                mine = (share for share in held() if namespace in ("", share.namespace))
                found = waste_of_shares(mine, self.usage.sums())
                return WASTE_SECONDS, waste_json(found, WASTE_RANGE, "agents")
            end = self.clock.now() // 1
            rows = self._ask((text, end, end, 1) for text in waste_promql(namespace, WASTE_RANGE))
            return WASTE_SECONDS, waste_json(waste_of_rows(rows), WASTE_RANGE, "prometheus")

        return self._once(("waste", namespace), make)

    def trends(self, namespace: str) -> Any:
        """JSON of ``/ui/trends``."""
        answer = self._once(("trends", namespace), lambda: (WASTE_SECONDS, self.usage.trends(namespace)))
        return answer if answer["cards"] else self.usage.trends(namespace)

    def _once(self, key: Hashable, make: Callable[[], tuple[float, Any]]) -> Any:
        """The answer that is kept under the key, or a new one; ``make`` says for how many seconds it
        holds.
        """
        now = self.clock.monotonic()
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and now < kept.until:
            return kept.answer
        seconds, answer = make()
        with self._lock:
            self._kept[key] = _Kept(now + seconds, answer)
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return answer

    def _asked(self, query: HistoryQuery, seconds: int, step: int) -> Any:
        end = self.clock.now() // 1
        start, count = end - seconds, seconds // step + 1
        cards = self.cards(query.name) if query.subject is HistorySubject.NODE else ()
        texts = () if query.subject is HistorySubject.NODE and not cards else promql(query, step, cards)
        rows = self._ask((text, start, end, step) for text in texts)
        return history_json(_joined(rows, count), start, step, "prometheus")

    def _ask(self, questions: Iterable[tuple[str, float, float, int]]) -> list[Sequence[Row]]:
        """What Prometheus answers to each. Raises NodeUnready."""
        if self.prometheus is None or not self._asking.acquire(blocking=False):
            raise NodeUnready("Prometheus is being asked by others: try again")
        try:
            return [self.prometheus(*one) for one in questions]
        finally:
            self._asking.release()


def _joined(rows: Sequence[Sequence[Row]], count: int) -> list[Series]:
    """The answers to the three questions as one series for each set of labels."""
    tables = [{tuple(sorted(labels.items())): values for labels, values in answer} for answer in rows]
    names = sorted(set().union(*tables))
    columns = [[[table.get(name, {}).get(at) for at in range(count)] for table in tables] for name in names]
    return [Series(dict(name), *found) for name, found in zip(names, columns, strict=True)]


_LEAST_RATE_SECONDS: Final = 300  # four scrapes of a slow Prometheus

Row = tuple[Mapping[str, str], Mapping[int, float]]
RangeQuery = Callable[[str, float, float, int], Sequence[Row]]
"""Answers a range query. Arguments: the PromQL expression, start and end (seconds since the epoch), and the
step in seconds. Each row holds the labels of one series, and its values by the number of the step.

Raises:
    NodeUnready: Prometheus does not answer.
"""


def promql(query: HistoryQuery, step: int, cards: Sequence[str] = ()) -> tuple[str, str, str]:
    """Cores, memory and seconds waited in a second, of what is asked for. ``cards``: UUIDs of the node's."""
    matchers = {"namespace": query.namespace} if query.namespace else {}
    pattern, by = "", ""
    if query.subject is HistorySubject.NODE:
        pattern, by = f"uuid=~{promql_string('|'.join(map(_literal, cards)))}", "uuid"
    elif query.subject is HistorySubject.CARD:
        matchers["uuid"] = query.name
        by = "namespace, pod, container"
    elif query.subject is HistorySubject.POD:
        namespace, _, pod = query.name.partition("/")
        matchers |= {"namespace": namespace, "pod": pod}
        by = "container, uuid"
    inside = ", ".join(
        [*(f"{name}={promql_string(value)}" for name, value in matchers.items()), *filter(None, [pattern])]
    )
    selector = f"{{{inside}}}" if inside else ""
    total = f"sum by ({by})" if by else "sum"
    rate = max(step, _LEAST_RATE_SECONDS)
    return (
        f"{total} (vcuda_container_core_usage_ratio{selector})",
        f"{total} (vcuda_container_memory_used_bytes{selector})",
        f"{total} (rate(vcuda_container_throttled_seconds_total{selector}[{rate}s]))",
    )


def promql_string(text: str) -> str:
    """A string of PromQL, whatever is in the text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _literal(text: str) -> str:
    """A regular expression of RE2 that fits this text alone."""
    return "".join(
        one if one.isascii() and (one.isalnum() or one in "-_") else f"\\x{{{ord(one):x}}}" for one in text
    )


_FIGURES: Final = ("core_wasted_seconds", "core_used_seconds", "core_seconds")


def held_shares(snapshot: Snapshot) -> Iterator[HeldShare]:
    """Everything that containers hold now, by the books; an init container that has ended uses nothing
    more.
    """
    for view in snapshot.nodes.values():
        for one in view.ledger:
            bound = view.bound.get(one.pod)
            if bound is None or one.container in bound.pod.ended_inits:
                continue
            for share in one.shares:
                key = (one.pod, one.container, share.card)
                yield HeldShare(one.namespace, one.pod_name, key, share.amount.cores)


def waste_promql(namespace: str, seconds: int) -> tuple[str, ...]:
    """Wasted, used and booked by pod, of the pods that wasted most. ``namespace``: the only one, empty for
    all.
    """
    selector = f"{{namespace={promql_string(namespace)}}}" if namespace else ""
    sums = [
        f"sum by (namespace, pod) (increase(vcuda_pod_{figure}_total{selector}[{seconds}s]))"
        for figure in _FIGURES
    ]
    most = f"topk({SHOWN}, {sums[0]})"
    return (most, *(f"{one} and on (namespace, pod) {most}" for one in sums[1:]))


def waste_of_rows(answers: Sequence[Sequence[Row]]) -> list[PodWaste]:
    """The answers to :func:`waste_promql`, asked for one moment."""
    wasted, used, booked = (
        {
            (labels.get("namespace", ""), labels.get("pod", "")): value
            for labels, values in answer
            for value in values.values()
        }
        for answer in answers
    )
    return [PodWaste(*name, value, used.get(name), booked.get(name)) for name, value in wasted.items()]
