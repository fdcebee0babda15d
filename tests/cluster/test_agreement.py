"""The real parts do what the table of tests/agreement says, which the sandbox's stand-ins are held to as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agreement.api_reads import READS
from tests.agreement.api_writes import WRITES
from tests.agreement.world import Case, World
from tests.cluster import agreement
from tests.cluster.cluster import Cluster


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> World:
    return agreement.world(cluster)


@pytest.fixture
def _cleared(world: World) -> Iterator[None]:
    yield
    world.clear()


@pytest.mark.usefixtures("_cleared")
@pytest.mark.parametrize("case", [*WRITES, *READS], ids=lambda case: case.name)
def test_the_api_server(world: World, case: Case) -> None:
    assert case.run(world) == case.expected, case.proves
