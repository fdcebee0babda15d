"""A node as text, for whoever reads it in a terminal."""

from __future__ import annotations

import pytest

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import Link, Topology


def test_what_is_given_whole_alone_and_what_is_held_outside_is_said() -> None:
    card = Card(0, CardUuid("GPU-a"), "T4", 15 * GIB, whole_only="compute mode X", outside=13 * GIB)
    graph = node_json(
        "n1", [CardState(card)], Topology.uniform(1, Link.parse("SYS")), Ledger([card], GIB), lambda *_: {}
    )
    assert graph["numa_policy"] == "none"
    (_, line) = node_text(graph).splitlines()
    assert line.endswith(
        "100 of 100 cores free, 2 GiB of 2 GiB free, given whole alone: compute mode X, "
        "13 GiB held by processes of no pod"
    )


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
