"""One cluster for the whole run, with the product on it; each test begins and ends with an empty node."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import auditor, product, record
from tests.cluster.cases import CASES, UNTRIED
from tests.cluster.cluster import Cluster
from tests.cluster.parts import MissingError, find
from tests.cluster.periods import chosen
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
        self.tried: dict[int, list[str]] = {}  # case → tests
        self.left_out = False

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Which cases it tries."""
        for mark in item.iter_markers("case"):
            for number in mark.args:
                self.tried.setdefault(number, []).append(item.nodeid)

    def pytest_deselected(self) -> None:
        """Some of the directory's tests are not run."""
        self.left_out = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of a test's three phases counts."""
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(before, report.outcome, key=WORST.index)

    def cases(self) -> dict[str, str | None]:
        """Case → the worst outcome of its tests, None where no test can try it."""
        found: dict[str, str | None] = {}
        for number in CASES:
            outcomes = [self.outcomes[name] for name in self.tried.get(number, ())]
            found[str(number)] = (
                None if number in UNTRIED else max(outcomes, key=WORST.index, default="absent")
            )
        return found

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write it down."""
        whole = [Path(arg).resolve() for arg in session.config.args] == [HERE]
        if self.left_out or not whole or session.testscollected != len(self.outcomes):
            return
        counts = {kind: list(self.outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        tests = {name.removeprefix("tests/cluster/"): how for name, how in sorted(self.outcomes.items())}
        seconds = round(time.time() - self.began, 1)
        cases = {"cases": self.cases(), "untried": {str(n): why for n, why in UNTRIED.items()}}
        record.keep("e2e", {"seconds": seconds, **counts, **cases, "tests": tests}, find())


HERE = Path(__file__).resolve().parent
WORST = ("passed", "skipped", "failed")


def pytest_configure(config: pytest.Config) -> None:
    """Count the run from its first moment, the making of the cluster included."""
    config.addinivalue_line("markers", "case(*numbers): of the conformance list, tests/cluster/cases.py")
    config.pluginmanager.register(Recorder(), "cluster-recorder")


@pytest.fixture(scope="session")
def bare() -> Cluster:
    """The cluster, made if there is none. It stays for the next run: ``make cluster CMD=down`` ends it."""
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
    # A pod that the kubelet alone has shown, its whole life between two watches, is remembered for two minutes.
    auditor.settled(bare, 120 + 4 * chosen().reclaim_seconds, leaks=True)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """Pods of one test, all taken away after it."""
    made = Pods(cluster)
    yield made
    made.clear()
