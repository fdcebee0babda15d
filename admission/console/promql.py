"""What the console asks of Prometheus, with the namespace that the caller may see in every selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu_manager.domain.cluster.usage_history import HistoryQuery, HistorySubject

_LEAST_RATE_SECONDS: Final = 300  # four scrapes of a slow Prometheus

Row = tuple[Mapping[str, str], Mapping[int, float]]
RangeQuery = Callable[[str, float, float, int], Sequence[Row]]
"""PromQL, start, end (seconds since the epoch), step → labels, and values by number of the step.

Raises NodeUnready.
"""


def promql(query: HistoryQuery, step: int, cards: Sequence[str] = ()) -> tuple[str, str, str]:
    """Cores, memory and seconds waited in a second, of what is asked for. ``cards``: UUIDs of the node's."""
    matchers = {"namespace": query.namespace} if query.namespace else {}
    pattern, by = "", ""
    if query.subject is HistorySubject.NODE:
        pattern, by = f"uuid=~{quoted('|'.join(map(_literal, cards)))}", "uuid"
    elif query.subject is HistorySubject.CARD:
        matchers["uuid"] = query.name
        by = "namespace, pod, container"
    elif query.subject is HistorySubject.POD:
        namespace, _, pod = query.name.partition("/")
        matchers |= {"namespace": namespace, "pod": pod}
        by = "container, uuid"
    inside = ", ".join(
        [*(f"{name}={quoted(value)}" for name, value in matchers.items()), *filter(None, [pattern])]
    )
    selector = f"{{{inside}}}" if inside else ""
    total = f"sum by ({by})" if by else "sum"
    rate = max(step, _LEAST_RATE_SECONDS)
    return (
        f"{total} (vcuda_container_core_usage_ratio{selector})",
        f"{total} (vcuda_container_memory_used_bytes{selector})",
        f"{total} (rate(vcuda_container_throttled_seconds_total{selector}[{rate}s]))",
    )


def quoted(text: str) -> str:
    """A string of PromQL, whatever is in the text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _literal(text: str) -> str:
    """A regular expression of RE2 that fits this text alone."""
    return "".join(
        one if one.isascii() and (one.isalnum() or one in "-_") else f"\\x{{{ord(one):x}}}" for one in text
    )
