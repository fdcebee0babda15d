"""Which format a scrape is answered in, by the weights that Prometheus sends."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

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
