"""What all tests share: a log that none keeps for the next, and no deadline for an example."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import structlog

# On a machine that does something else beside, any example may take a second: that says nothing of the code.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")


@pytest.fixture(autouse=True)
def log_as_shipped() -> Iterator[None]:
    """Commands that run in the test's own process configure the log of the whole process."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
