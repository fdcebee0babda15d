"""The real parts do what the table of tests/agreement says, which the sandbox's stand-ins are held to as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agreement.api_reads import READS
from tests.agreement.api_writes import WRITES
from tests.agreement.books_cases import BOOKS
from tests.agreement.extender import Extender, Scheduling
from tests.agreement.node import NodeWorld
from tests.agreement.plugin_cases import PLUGINS
from tests.agreement.scheduler_cases import SCHEDULER
from tests.agreement.world import Case, World
from tests.cluster import agreement
from tests.cluster.cluster import Cluster
from tests.cluster.parts import kubernetes_version, minor


@pytest.fixture(autouse=True)
def _new_enough(request: pytest.FixtureRequest) -> None:
    case, version = request.node.callspec.params["case"], kubernetes_version()
    if minor() < case.since:
        pytest.skip(f"{version} does otherwise: {case.proves}, since v1.{case.since}")


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> World:
    return agreement.world(cluster)


@pytest.mark.parametrize("case", [*WRITES, *READS], ids=lambda case: case.name)
def test_the_api_server(world: World, case: Case) -> None:
    try:
        assert case.run(world) == case.expected, case.proves
    finally:
        world.clear()


@pytest.fixture(scope="module")
def scheduling(
    world: World, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scheduling]:
    extender = Extender()
    extender.start()
    with agreement.scheduler(cluster, extender.port, tmp_path_factory.mktemp("scheduler")):
        yield Scheduling(world, extender, agreement.SCHEDULER)
    extender.stop()


@pytest.mark.parametrize("case", SCHEDULER, ids=lambda case: case.name)
def test_the_scheduler(scheduling: Scheduling, case: Case) -> None:
    scheduling.begin(case.name)
    try:
        assert case.run(scheduling) == case.expected, case.proves
    finally:
        scheduling.world.clear()


@pytest.fixture(scope="module")
def node(world: World, cluster: Cluster) -> NodeWorld:
    return agreement.node(cluster, world)


@pytest.mark.parametrize("case", [*PLUGINS, *BOOKS], ids=lambda case: case.name)
def test_the_kubelet(node: NodeWorld, case: Case) -> None:
    node.begin(case.name)
    try:
        assert case.run(node) == case.expected, case.proves
    finally:
        node.clear()
