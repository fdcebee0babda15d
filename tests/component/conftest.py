"""What component tests share: short paths (unix sockets take 107 characters), and a log that none keeps for the next."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Commands that run in the test's own process configure the log of the whole process."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Like pytest's own, but short whatever the test is called and whichever worker runs it."""
    with tempfile.TemporaryDirectory(prefix="gm-") as directory:
        yield Path(directory)
