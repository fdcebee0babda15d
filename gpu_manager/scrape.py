"""A scrape's answer, the same for both programs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def scrape(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type, as ``Accept`` asks for; in the oldest format if that cannot be read."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library compares "version=abc" with numbers
        encode, content_type = choose_encoder("")
    return encode(registry), content_type
