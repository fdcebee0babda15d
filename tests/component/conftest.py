"""What component tests share: short paths for unix sockets (107 characters at most), a log of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Like pytest's own, but short whatever the test is called and whichever worker runs it."""
    with tempfile.TemporaryDirectory(prefix="gm-") as directory:
        yield Path(directory)


@pytest.fixture
def own_log() -> Iterator[None]:
    """The program sets up the log of the whole process; other tests have theirs."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
