"""An explanation with what is written on nodes laid over it: whoever is kept off is not promised room."""

from __future__ import annotations

from typing import Any

from gpu_manager.cli.kubectl.node_bars import with_node_bars
from gpu_manager.domain.whatif.scheduling_constraints import NodeConstraints

SPEC: dict[str, Any] = {"containers": []}


def answer(*fitting: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    nodes = [
        {"node": n, "outcome": "fits", "line": "fits: 30 cores of card 0", "cards": [1]} for n in fitting
    ]
    nodes += [{"node": n, "outcome": "room", "line": "no card has room", "cards": [1]} for n in without]
    counts = {"fits": len(fitting), "room": len(without)}
    return {"pod": "a/b", "line": "there is room", "counts": counts, "total": len(nodes), "nodes": nodes}


def cordoned(*names: str) -> dict[str, NodeConstraints]:
    return {name: NodeConstraints(name, cordoned=True) for name in names}


def test_the_first_node_that_may_be_used_is_named_and_the_others_are_not_counted() -> None:
    found = with_node_bars(answer("n1", "n2", "n3"), SPEC, cordoned("n1", "n3"), None)
    assert found["counts"] == {"fits": 1, "room": 0, "barred": 2}
    assert [node["node"] for node in found["nodes"]] == ["n2", "n1", "n3"]
    assert found["line"].startswith(
        "there is room now on 1 of 3 nodes: on n2 it would get 30 cores of card 0"
    )
    assert found["line"].endswith("Not counted: n1 is cordoned; n3 is cordoned")


def test_where_all_with_room_keep_it_off_it_waits_and_three_are_named() -> None:
    names = tuple(f"n{i}" for i in range(5))
    found = with_node_bars(answer(*names), SPEC, cordoned(*names), "s")
    assert found["counts"]["fits"] == 0
    assert found["line"] == (
        "waits: each of the 5 nodes with room for it keeps it off: "
        "n0 is cordoned; n1 is cordoned; n2 is cordoned; and 2 more"
    )


def test_a_node_without_room_is_said_to_keep_it_off_too() -> None:
    found = with_node_bars(answer("n1", without=("n2",)), SPEC, cordoned("n2"), None)
    assert found["line"] == "there is room"
    assert found["nodes"][1]["barred"] == "is cordoned"
    assert found["nodes"][1]["outcome"] == "room"


def test_an_answer_of_any_shape_is_survived() -> None:
    for strange in ({}, {"nodes": [3, "x", {}]}, {"nodes": None, "counts": None, "total": None}):
        assert with_node_bars(strange, None, cordoned("n1"), None)["nodes"] in ([], [{}])
