"""Component tests listen on unix sockets, whose paths have at most 107 characters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Like pytest's own, but short whatever the test is called and whichever worker runs it."""
    with tempfile.TemporaryDirectory(prefix="gm-") as directory:
        yield Path(directory)
