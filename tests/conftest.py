"""What all tests share: a log that none keeps for the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def log_as_shipped() -> Iterator[None]:
    """Commands that run in the test's own process configure the log of the whole process."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
