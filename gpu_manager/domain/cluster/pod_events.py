"""The Kubernetes Events of one pod, for display beside it. Untrusted: anyone who may create Events wrote
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from gpu_manager.domain.errors import printable
from gpu_manager.domain.untrusted import mapping, text, timestamp

SHOWN: Final = 30  # the newest
_LONGEST_TEXT: Final = 1024  # as Kubernetes bounds a message
_MOST_TIMES: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class PodEvent:
    """``kind`` is Normal or Warning; ``first`` and ``last`` are seconds since 1970, None if absent."""

    kind: str
    reason: str
    message: str
    source: str
    first: float | None
    last: float | None
    count: int


def read_pod_event(obj: Mapping[str, Any]) -> PodEvent:
    """Read a core/v1 Event in the old form (count, lastTimestamp) or the new (series, eventTime)."""
    series = mapping(obj.get("series"))
    times = [
        timestamp(value)
        for value in (
            obj.get("firstTimestamp"),
            obj.get("eventTime"),
            obj.get("lastTimestamp"),
            series.get("lastObservedTime"),
        )
    ]
    known = [at for at in times if at is not None]
    count = next((n for n in (series.get("count"), obj.get("count")) if type(n) is int and n > 0), 1)
    source = text(obj.get("reportingComponent")) or text(mapping(obj.get("source")).get("component"))
    return PodEvent(
        kind=_bounded(obj.get("type")),
        reason=_bounded(obj.get("reason")),
        message=_bounded(obj.get("message")),
        source=_bounded(source),
        first=min(known, default=None),
        last=max(known, default=None),
        count=min(count, _MOST_TIMES),
    )


def pod_events_json(events: Iterable[PodEvent], *, more: bool = False) -> dict[str, Any]:
    """The answer of ``/ui/events``, the newest first. ``more``: there are others that were not read."""
    newest = _newest_first(events)
    return {
        "events": [asdict(one) for one in newest[:SHOWN]],
        "left_out": max(0, len(newest) - SHOWN),
        "more": more,
    }


def _newest_first(events: Iterable[PodEvent]) -> Sequence[PodEvent]:
    return sorted(events, key=lambda one: (-(one.last or 0.0), one.reason, one.message))


def _bounded(value: object) -> str:
    return printable(" ".join(text(value)[:_LONGEST_TEXT].split()))
