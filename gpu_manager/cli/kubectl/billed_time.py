"""What the agents' counters of bills went up by between two moments, as Prometheus has recorded them.

Prometheus' own ``increase`` takes the first sample of a series for its start, and so misses what a short job
did before it, and stretches what it saw to the whole range. Here each counter is taken at its last sample,
less its last before the range; one that began within the range began at 0, and says when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpu_manager.adapters import prometheus
from gpu_manager.domain.billing import FIGURES

_BEFORE: Final = "1h"  # how far before the range the last sample is looked for
_CREATED: Final = "core_seconds_created"


@dataclass(frozen=True, slots=True)
class Range:
    """From and to, in seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> int:
        """Its length, for PromQL."""
        return max(1, round(self.end - self.start))


Identity = tuple[str, ...]  # the values of the labels that tell one counter from another
Increases = Mapping[Identity, Mapping[str, float]]  # whose → figure of domain.billing → by how much


def increases(
    way: prometheus.Way, level: str, labels: tuple[str, ...], span: Range, namespace: str = ""
) -> Increases:
    """By how much the counters ``vcuda_<level>_<figure>_total`` went up. Raises NodeUnready.

    An agent that is replaced has another name as a target; ``labels`` are those of the counter itself.
    """
    prefix = f"vcuda_{level}_"
    names = "|".join([*(f"{figure}_total" for figure in FIGURES), _CREATED])
    only = f',namespace="{namespace}"' if namespace else ""
    selector = f'{{__name__=~"{prefix}({names})"{only}}}'

    def at(text: str, moment: float) -> dict[Identity, dict[str, float]]:
        return _by_identity(prometheus.query(way, text, moment), prefix, labels)

    last = at(f"last_over_time({selector}[{span.seconds}s])", span.end)
    before = at(f"last_over_time({selector}[{_BEFORE}])", span.start)
    # Of a counter that is older, and of which nothing was recorded just before the range, only what it went
    # up by within the range is sure.
    older = {who for who, now in last.items() if who not in before and not _began_within(now, span)}
    first: dict[Identity, dict[str, float]] = {}
    for figure in FIGURES if older else ():
        text = f"min_over_time({prefix}{figure}_total{{{only.lstrip(',')}}}[{span.seconds}s])"
        points = prometheus.query(way, text, span.end)
        for who, least in _by_identity(points, prefix, labels, f"{figure}_total").items():
            first.setdefault(who, {}).update(least)
    found: dict[Identity, Mapping[str, float]] = {}
    for who, now in last.items():
        start = before.get(who) or (first.get(who, {}) if who in older else {})
        found[who] = {
            figure: _increase(now[f"{figure}_total"], start.get(f"{figure}_total", 0.0))
            for figure in FIGURES
            if f"{figure}_total" in now
        }
    return found


def _began_within(counters: Mapping[str, float], span: Range) -> bool:
    return _CREATED in counters and counters[_CREATED] >= span.start


def _increase(now: float, start: float) -> float:
    """A counter that is smaller than it was has begun anew: the node's sums were lost with its disk."""
    return now - start if now >= start else now


def _by_identity(
    points: Iterable[prometheus.Point], prefix: str, labels: tuple[str, ...], name: str = ""
) -> dict[Identity, dict[str, float]]:
    """The largest value of those that differ in other labels alone."""
    found: dict[Identity, dict[str, float]] = {}
    for point in points:
        figure = name or point.labels.get("__name__", "").removeprefix(prefix)
        values = found.setdefault(tuple(point.labels.get(label, "") for label in labels), {})
        values[figure] = max(values.get(figure, 0.0), point.value)
    return found
