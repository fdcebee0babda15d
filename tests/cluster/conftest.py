"""One cluster for the whole run, with the product on it; each test begins and ends with an empty node."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import auditor, product, record
from tests.cluster.cluster import Cluster
from tests.cluster.parts import MissingError, find
from tests.cluster.pods import Pods


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is told when it happens: the whole run takes many minutes."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        sys.stderr.write(
            f"\n{report.nodeid} ({report.when}): {crash.message if crash else report.longrepr}\n"
        )


class Recorder:
    """Keeps the outcome of each test of a run of the whole directory; a part of it is no result."""

    def __init__(self) -> None:
        self.began = time.time()
        self.outcomes: dict[str, str] = {}
        self.left_out = False

    def pytest_deselected(self) -> None:
        """Some of the directory's tests are not run."""
        self.left_out = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of a test's three phases counts."""
        worst = ("passed", "skipped", "failed")
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(before, report.outcome, key=worst.index)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write it down."""
        whole = [Path(arg).resolve() for arg in session.config.args] == [HERE]
        if self.left_out or not whole or session.testscollected != len(self.outcomes):
            return
        counts = {kind: list(self.outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        tests = {name.removeprefix("tests/cluster/"): how for name, how in sorted(self.outcomes.items())}
        seconds = round(time.time() - self.began, 1)
        record.keep("e2e", {"seconds": seconds, **counts, "tests": tests}, find())


HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Count the run from its first moment, the making of the cluster included."""
    config.pluginmanager.register(Recorder(), "cluster-recorder")


@pytest.fixture(scope="session")
def bare() -> Cluster:
    """The cluster, made if there is none. It stays for the next run: ``make cluster-down`` ends it."""
    cluster = Cluster()
    try:
        cluster.up()
    except MissingError as error:
        pytest.exit(str(error), returncode=2)
    return cluster


@pytest.fixture(scope="session")
def cluster(bare: Cluster) -> Iterator[Cluster]:
    """The cluster with the product. In the end nothing may be held, and no directory be left."""
    product.order_cards(bare, {})
    product.install(bare, admission=True)
    yield bare
    auditor.settled(bare, 90, leaks=True)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """Pods of one test, all taken away after it."""
    made = Pods(cluster)
    yield made
    made.clear()
