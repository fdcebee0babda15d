"""The kubelet stand-in does what a real kubelet does: the cases of tests/agreement, on the sandbox's node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.api import ADMIN_TOKEN
from tests.agreement.books_cases import BOOKS
from tests.agreement.node import NodeWorld
from tests.agreement.plugin_cases import PLUGINS
from tests.agreement.world import Case, World
from tests.fakes.sandbox import NODE, BareNode, short_directory


@pytest.fixture(scope="module")
def node() -> Iterator[NodeWorld]:
    with short_directory() as directory, BareNode(directory) as bare:
        world = World(bare.api.url, {"": {"Authorization": f"Bearer {ADMIN_TOKEN}"}})
        world.begin()
        yield NodeWorld(world, NODE, directory / "kubelet", "image", bare.node.restart_kubelet)


@pytest.mark.parametrize("case", [*PLUGINS, *BOOKS], ids=lambda case: case.name)
def test_the_kubelet_stand_in(node: NodeWorld, case: Case) -> None:
    node.begin(case.name)
    try:
        assert case.run(node) == case.expected, case.proves
    finally:
        node.clear()
