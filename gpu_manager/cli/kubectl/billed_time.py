"""The increase of the agents' billing counters over a time range, from Prometheus.

Prometheus' own ``increase`` starts at the first sample of a series, so it misses what a short job used before
that sample, and it extrapolates to the whole range. Here the increase is the counter's last sample in the
range less its last sample before the range; a counter that began within the range began at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpu_manager.adapters import prometheus
from gpu_manager.domain.billing import FIGURES

_BEFORE: Final = "1h"  # how long before the range the previous sample is searched
_CREATED: Final = "core_seconds_created"


@dataclass(frozen=True, slots=True)
class Range:
    """A time range, in seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> int:
        """Length of the range as a PromQL duration."""
        return max(1, round(self.end - self.start))


Identity = tuple[str, ...]  # values of the labels that identify a counter
Increases = Mapping[Identity, Mapping[str, float]]  # identity → figure of domain.billing → increase


def increases(
    way: prometheus.Way, level: str, labels: tuple[str, ...], span: Range, namespace: str = ""
) -> Increases:
    """Increases of the counters ``vcuda_<level>_<figure>_total``. Raises NodeUnready.

    ``labels`` are those of the counter itself: a replaced agent is a target of another name.
    """
    prefix = f"vcuda_{level}_"
    names = "|".join([*(f"{figure}_total" for figure in FIGURES), _CREATED])
    only = f',namespace="{namespace}"' if namespace else ""
    selector = f'{{__name__=~"{prefix}({names})"{only}}}'

    def at(text: str, moment: float) -> dict[Identity, dict[str, float]]:
        return _by_identity(prometheus.query(way, text, moment), prefix, labels)

    last = at(f"last_over_time({selector}[{span.seconds}s])", span.end)
    before = at(f"last_over_time({selector}[{_BEFORE}])", span.start)
    # An older counter without a sample just before the range: only its increase within the range is
    # certain.
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
    """The increase from ``before``; a smaller counter was reset, as the node lost its disk."""
    return now - start if now >= start else now


def _by_identity(
    points: Iterable[prometheus.Point], prefix: str, labels: tuple[str, ...], name: str = ""
) -> dict[Identity, dict[str, float]]:
    """Identity → the largest value of the series that differ in other labels only."""
    found: dict[Identity, dict[str, float]] = {}
    for point in points:
        figure = name or point.labels.get("__name__", "").removeprefix(prefix)
        values = found.setdefault(tuple(point.labels.get(label, "") for label in labels), {})
        values[figure] = max(values.get(figure, 0.0), point.value)
    return found
