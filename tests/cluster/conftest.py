"""One cluster for the whole run, with the product on it; each test begins and ends with an empty node."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.cluster import auditor, product
from tests.cluster.cluster import Cluster
from tests.cluster.parts import MissingError
from tests.cluster.pods import Pods


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is told when it happens: the whole run takes many minutes."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        sys.stderr.write(
            f"\n{report.nodeid} ({report.when}): {crash.message if crash else report.longrepr}\n"
        )


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
