"""A scrape's answer, the same for all programs, and a counter that is kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


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


def counter_by_label(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    """A counter family with a series for each value of ``label``."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family


def scrape(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type, as ``Accept`` asks for; in the oldest format if that cannot be read."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library compares "version=abc" with numbers
        encode, content_type = choose_encoder("")
    return encode(registry), content_type
