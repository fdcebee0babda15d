"""In random orders of what happens to a node, no pod fails that could have waited, and none starts without its card."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.component.driver_roots import Objects, machine_is_supported
from tests.fakes.node_states import ChangingNode

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)


@pytest.mark.parametrize("seed", range(6))
def test_pods_wait_for_the_node(tmp_path: Path, objects: Objects, seed: int) -> None:
    with ChangingNode(tmp_path, objects, seed) as node:
        assert node.run() == []
        assert node.done["started"] > 0


@pytest.mark.parametrize("broken", ["driver gone", "uvm missing"])
@pytest.mark.parametrize("seed", range(4))
def test_a_pod_that_is_bound_before_the_agent_sees_the_break_waits_and_then_has_its_card(
    tmp_path: Path, objects: Objects, seed: int, broken: str
) -> None:
    """Within the two seconds between two looks a scheduler binds to a node that can inject nothing."""
    with ChangingNode(tmp_path, objects, seed) as node:
        node.create()
        node.events()[broken]()
        node.bind()
        node.start()
        assert (node.failed, node.done["admitted"], node.done["started"]) == ([], 1, 0)
        assert node.done["start waited"] == 1, "it is refused with the reason, and the kubelet tries again"
        assert node._settled() == []
        assert (node.bare, node.done["started"]) == ([], 1)
