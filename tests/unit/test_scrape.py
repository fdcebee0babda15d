"""Which format a scrape is answered in, by the weights that Prometheus sends, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpu_manager.runtime.inbound import accepts_gzip, scrape

# What Prometheus 3 sends by default, and with scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0].
BY_DEFAULT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
TEXT_FIRST = (
    "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "*/*;q=0.4"
)


@pytest.mark.parametrize(
    ("accept", "media_type", "version"),
    [
        (BY_DEFAULT, "application/openmetrics-text", "1.0.0"),
        (TEXT_FIRST, "text/plain", "0.0.4"),
        ("application/openmetrics-text;version=1.0.0;q=0, text/plain", "text/plain", "0.0.4"),
        (
            "text/plain;q=0.1, application/openmetrics-text;version=1.0.0",
            "application/openmetrics-text",
            "1.0.0",
        ),
        ("text/plain;version=1.0.0", "text/plain", "1.0.0"),
        ("*/*, application/openmetrics-text;version=1.0.0;q=0.9", "text/plain", "0.0.4"),
        ("application/openmetrics-text;version=1.0.0;q=much", "application/openmetrics-text", "1.0.0"),
        ("application/openmetrics-text;version=abc", "text/plain", "0.0.4"),
        ("", "text/plain", "0.0.4"),
    ],
)
def test_the_format_is_the_one_with_the_greatest_weight(accept: str, media_type: str, version: str) -> None:
    _, content_type = scrape(CollectorRegistry(), accept)
    assert content_type.split(";")[0] == media_type
    assert f"version={version}" in content_type


@pytest.mark.parametrize(
    ("accept_encoding", "accepted"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.001", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, identity", False),
        ("x-gzip", False),
        ("", False),
    ],
)
def test_gzip_only_where_it_is_accepted(accept_encoding: str, accepted: bool) -> None:
    assert accepts_gzip(accept_encoding) == accepted


class Given(Collector):
    """Families that a test has made."""

    def __init__(self, *families: Metric) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self.families)


@st.composite
def families(draw: st.DrawFn) -> tuple[Metric, ...]:
    """One of each kind that a program here exports, with hostile texts; two have the same labels."""
    kinds = (GaugeMetricFamily, CounterMetricFamily, UnknownMetricFamily)
    found = [kind(f"x_{kind.__name__.lower()}", draw(st.text()), labels=("b", "a")) for kind in kinds]
    for values in draw(st.lists(st.tuples(st.text(), st.text()), max_size=3)):
        for family in found:
            family.add_metric(values, draw(st.floats()))
        found[1].samples.append(found[1].samples[-1]._replace(name="x_countermetricfamily_created"))
    info = InfoMetricFamily("x_build", draw(st.text()))
    info.add_metric((), {"version": draw(st.text())})
    return (*found, info)


FORMATS = (
    "",
    TEXT_FIRST,
    BY_DEFAULT,
    "application/openmetrics-text;version=1.0.0",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0;escaping=dots",
    "text/plain;version=1.0.0;escaping=values",
)


@given(made=families(), seconds=st.floats(min_value=0, max_value=9), accept=st.sampled_from(FORMATS))
def test_a_scrape_has_the_bytes_that_the_library_writes(
    made: tuple[Metric, ...], seconds: float, accept: str
) -> None:
    registry = CollectorRegistry()
    registry.register(Given(*made))
    Histogram("x_seconds", "how long", ("resource",), buckets=(0.5, 2), registry=registry).labels(
        "cores"
    ).observe(seconds)
    page, content_type = scrape(registry, accept)
    same, _ = choose_encoder(content_type)
    assert page == same(registry)
