"""What the agent logs of its books tells where a container could have lain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import Link, LinkKind, NumaPolicy, Topology
from gpu_manager.runtime.program import configure_log
from tests.cluster import numa_reach
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, cards

STATES = tuple(replace(s, card=replace(s.card, numa=s.card.index // 2)) for s in cards(4))
CARDS = [state.card for state in STATES]


def row(name: str, card: int, cores: int, *, granted: bool = True, kind: str = "app") -> dict[str, Any]:
    shares = [[CARDS[card].uuid, cores, GIB]]
    return {"pod": name, "container": "c", "kind": kind, "order": 0, "granted": granted, "shares": shares}


def had(books: list[dict[str, Any]], own: dict[str, Any], policy: NumaPolicy) -> bool | None:
    earlier = numa_reach.Moment("1", CORE, "id-1", "another", [row("another", 0, 100), row("b", 1, 100)])
    later = numa_reach.Moment("3", CORE, "id-1", "own", [row("c", 0, 100), row("d", 1, 100)])
    known = [earlier, numa_reach.Moment("2", CORE, "id-2", "own", books), later]
    return numa_reach.reached(
        known, CARDS, [own], {CORE: frozenset({"id-1", "id-2"}), MEMORY: frozenset()}, {0}, policy
    )


@pytest.mark.parametrize(
    ("books", "reached"),
    [
        ([row("a", 0, 70), row("b", 1, 70)], False),
        ([row("a", 0, 70), row("b", 1, 50)], True),
        ([row("a", 0, 70), row("b", 1, 70, granted=False)], True),
        ([row("a", 0, 70), row("b", 1, 70, granted=False), row("c", 2, 80), row("d", 3, 80)], False),
        ([row("a", 0, 70), row("b", 1, 50), row("own", 1, 40)], True),
    ],
    ids=["no room", "room", "a plan moves aside", "a plan that fits nowhere else", "its own does not count"],
)
def test_a_card_could_be_had_where_there_is_room_or_plans_can_move(
    books: list[dict[str, Any]], reached: bool
) -> None:
    assert had(books, row("own", 2, 40), NumaPolicy.SINGLE) is reached


@pytest.mark.parametrize("policy", NumaPolicy)
def test_whole_cards_make_room_for_it_if_the_policy_admits_where_they_would_go(policy: NumaPolicy) -> None:
    both = {
        **row("both", 0, 100, granted=False),
        "shares": [[card.uuid, 100, 16 * GIB] for card in CARDS[:2]],
    }
    assert had([both, row("beside", 3, 10)], row("own", 2, 40), policy) is (not policy.strict)
    assert had([both], row("own", 2, 40), policy), "node 1 is left to them"


def test_where_the_agent_took_it_for_another_the_last_line_of_its_ids_counts() -> None:
    full, free = [row("a", 0, 100), row("b", 1, 100)], [row("a", 0, 100)]
    known = [numa_reach.Moment(str(n), CORE, "id-1", "", books) for n, books in enumerate((full, free))]
    ids = {CORE: frozenset({"id-1"})}
    assert numa_reach.reached(known, CARDS, [row("own", 2, 40)], ids, {0}, NumaPolicy.SINGLE)


def test_without_a_line_about_its_ids_nothing_is_known() -> None:
    known = [numa_reach.Moment("1", MEMORY, "id-1", "own", [])]
    assert (
        numa_reach.reached(
            known, CARDS, [row("own", 2, 40)], {CORE: frozenset({"id-1"})}, {0}, NumaPolicy.SINGLE
        )
        is None
    )


@pytest.fixture
def debug() -> Iterator[None]:
    configure_log("debug")
    yield
    configure_log("info")


@pytest.mark.usefixtures("debug")
@pytest.mark.parametrize("policy", [NumaPolicy.SINGLE, NumaPolicy.NONE])
def test_the_agent_s_own_lines_are_read_and_written_under_a_policy_alone(
    tmp_path: Path, policy: NumaPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    links = replace(Topology.uniform(4, Link(LinkKind.SYS)), numa_policy=policy)
    with DirectRig(tmp_path, STATES, topology=links, clock=FakeClock(), numa=policy) as rig:
        one, two = pod("one", container("c", 80, 4)), pod("two", container("c", 30, 4))
        for obj in (one, two):
            assert rig.admit(obj).admitted
    lines = [f"2026-11-21T00:00:00Z stderr F {line}" for line in capsys.readouterr().err.splitlines()]
    log = tmp_path / numa_reach.LOGS.replace("*.log", "0.log").replace("*", "x")
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(lines), "utf-8")
    known = numa_reach.moments(tmp_path)
    assert len(known) == (4 if policy is NumaPolicy.SINGLE else 0)
    for moment in known[2:]:
        held: Mapping[str, Any] = moment.books[0]
        assert (held["pod"], held["granted"]) == (one["metadata"]["uid"], True)
        assert json.dumps(held["shares"])
