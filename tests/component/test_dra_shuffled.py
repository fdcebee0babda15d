"""The bench's shuffled node, in short: claims come and go while agent and kubelet are killed at any step."""

from __future__ import annotations

import pytest

from bench.dra_shuffle import ShuffledNode
from tests.fakes.sandbox import short_directory


@pytest.mark.parametrize("seed", [11, 12])
def test_no_kill_gives_a_container_what_is_not_its_own(seed: int) -> None:
    with short_directory() as directory, ShuffledNode(directory, seed) as node:
        node.run(60)
        assert (node.wrong, node.overcommit, node.mismatch) == (0, 0, 0), node.counts
        assert node.counts["judged"] > 60
        assert node.counts["agent killed"] + node.counts["kubelet killed"] > 0
