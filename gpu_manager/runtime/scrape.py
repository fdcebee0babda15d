"""A scrape's answer, the same for all programs, and a counter that is kept elsewhere."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?", re.ASCII)


class SampledCounter(Collector):
    """A counter whose values are read at each scrape."""

    def __init__(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, int]]) -> None:
        """``name`` without ``_total``; ``read`` gives the count of each value of ``label``."""
        self._name = name
        self._text = text
        self._label = label
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The family as it is now."""
        yield counter_by_label(self._name, self._text, self._label, self._read())


def series_of(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], float | None]],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    """A family with a series for each row: values of the labels, and of the series; None leaves it out."""
    family = kind(name, text, labels=labels)
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
    return family


def counter_by_label(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    """A counter family with a series for each value of ``label``."""
    rows = (((value,), count) for value, count in sorted(counts.items()))
    return series_of(name, text, (label,), rows, CounterMetricFamily)


def scrape(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type, as ``Accept`` asks for; in the oldest format if that cannot be read."""
    formats = itertools.takewhile(lambda one: not _is_oldest(one), _by_weight(accept))
    try:
        encode, content_type = choose_encoder(",".join(formats))
    except (TypeError, ValueError):  # the library compares "version=abc" with numbers
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether ``Accept-Encoding`` allows gzip."""
    names = [one.split(";")[0].strip().lower() for one in _by_weight(accept_encoding)]
    return "gzip" in names


def _by_weight(header: str) -> list[str]:
    """The choices of an ``Accept`` header, the preferred first, without those of weight 0 (RFC 9110, 12.4.2).

    A weight that is no number counts as 1, as if there were none.
    """
    weighted = [(_weight(one), one) for one in header.split(",")]
    return [one for weight, one in sorted(weighted, key=lambda pair: -pair[0]) if weight > 0]


def _weight(choice: str) -> float:
    for parameter in choice.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            found = _WEIGHT.fullmatch(value.strip())
            return float(value) if found else 1.0
    return 1.0


def _is_oldest(choice: str) -> bool:
    """Whether the choice is met by the text format 0.0.4, which the library gives where nothing else fits."""
    media_type, *parameters = (part.strip() for part in choice.split(";"))
    if media_type == "text/plain":
        return not any(one.startswith("version=1.") for one in parameters)
    return media_type in ("*/*", "text/*")
