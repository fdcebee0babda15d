"""A node as text, for whoever reads it in a terminal."""

from __future__ import annotations

import pytest

from gpu_manager.domain.cluster.node_json import node_text


@pytest.mark.parametrize(
    ("pod", "whom"), [("team/training-0", "team/training-0"), ("", "a pod of another namespace")]
)
def test_a_node_that_is_kept_says_for_whom_and_for_how_long(pod: str, whom: str) -> None:
    text = node_text({"node": "n1", "cards": [], "kept": {"cards": 4, "pod": pod, "left": 7}})
    told = (
        "|---closed to pods that ask for fewer than 4 cards and have no higher priority: "
        f"kept for {whom} until it is here, or 7 more pods with cards have left their nodes"
    )
    assert text.splitlines() == ["n1: 0 cards", told]
    text = node_text({"node": "n1", "cards": [], "kept": {"cards": 4, "pod": pod, "left": 7, "seconds": 350}})
    assert text.endswith(f"kept for {whom} until it is here, or its cards have been free for 6 min\n")
