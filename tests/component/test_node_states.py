"""In random orders of what happens to a node, no pod fails that could have waited, and none starts without its card."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.component.driver_roots import Objects, machine_is_supported
from tests.fakes.node_states import ChangingNode

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return Objects(tmp_path_factory.mktemp("objects"))


@pytest.mark.parametrize("seed", range(6))
def test_pods_wait_for_the_node(tmp_path: Path, objects: Objects, seed: int) -> None:
    with ChangingNode(tmp_path, objects, seed) as node:
        assert node.run() == []
        assert node.done["started"] > 0
