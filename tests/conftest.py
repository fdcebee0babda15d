"""What all tests share: one seed, a log that none keeps for the next, and no deadline for an example."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import structlog

from tests import seeds

# On a machine that does something else beside, any example may take a second, and so may making it: that says
# nothing of the code. No database: what one run has found must not decide what the next one draws.
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=not seeds.GIVEN,
    database=None,
)
hypothesis.settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Order and examples follow the one seed, before the plugins of both read their options."""
    os.environ.setdefault("PYTHONHASHSEED", str(seeds.SEED))  # of workers, and of programs that tests start
    if config.getoption("randomly_seed", None) == "default":
        config.option.randomly_seed = seeds.SEED
    if seeds.GIVEN and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = seeds.SEED


class StandardOutput:
    """Writes where structlog's own logger does, to the stdout of the moment.

    A thread may write its last line while its test ends. pytest has then closed the stdout that the thread
    has just looked up, which must not become the thread's failure.
    """

    def __getattr__(self, level: str) -> Callable[[str], None]:
        return self._write

    @staticmethod
    def _write(line: str) -> None:
        with contextlib.suppress(ValueError):  # I/O operation on closed file
            sys.stdout.write(f"{line}\n")


@pytest.fixture(autouse=True)
def log_as_shipped() -> Iterator[None]:
    """Commands that run in the test's own process configure the log of the whole process."""
    _configure()
    yield
    _configure()  # for threads that end after the test


def _configure() -> None:
    structlog.reset_defaults()
    *others, _renderer = structlog.get_config()["processors"]
    # Not rich's tracebacks: with the values of a whole node's books they take seconds.
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, plain], logger_factory=lambda *_: StandardOutput())
