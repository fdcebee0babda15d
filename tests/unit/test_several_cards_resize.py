"""Parts of several cards change their size: all of them or none, at every step, whatever fails."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    CORE_LIMIT,
    EVENT_RESIZE_REFUSED,
    EVENT_RESIZE_WAITS,
    EVENT_RESIZED,
    MULTI_CARD,
    RESIZE,
    Assignment,
    decode_assignment,
    encode_assignment,
)
from gpu_manager.domain.contract import CARDS as ANNOTATION
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Ledger, Share
from gpu_manager.domain.resize.judgement import check_resize, held_size, judge_room, legal_sizes
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.ports.control_pages import Limit
from tests.fakes.extender import node, uuid
from tests.fakes.extender import pod as waiting_pod
from tests.fakes.node import container, pod
from tests.fakes.ports import cards
from tests.fakes.resize_answers import Cluster
from tests.fakes.resizing import ResizingRig
from tests.unit.test_ledger import CARDS, holding

UNIT = DEFAULT_UNIT
TWO = {ANNOTATION: "2"}
Obj = dict[str, Any]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ResizingRig]:
    with ResizingRig(tmp_path, states=cards()[:2]) as made:
        yield made


# What may be requested.


def asking(cards_: str = "2", core: int = 60, **size: Any) -> Pod:
    text = json.dumps({"v": 1, "containers": {"train": size}})
    ceiling = {CORE_LIMIT: "50"} if size.pop("ceiling", False) else {}
    annotations = {ANNOTATION: cards_, RESIZE: text, **ceiling}
    return parse_pod(pod("one", container("train", core, 40), annotations=annotations))


def test_a_size_is_the_total_of_the_parts_and_what_is_not_named_is_the_specs() -> None:
    assert legal_sizes(asking(cores=198), UNIT) == {"train": Amount(198, 40 * UNIT)}
    assert legal_sizes(asking(memory=2 * UNIT), UNIT) == {"train": Amount(60, 2 * UNIT)}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (asking(cores=101), 'cores of container "train" is 101, the total of 2 equal parts: use 100 or 102'),
        (asking(cores=200), "is 200, the total of 2 equal parts: use 198"),
        (asking(cores=1), "is 1, the total of 2 equal parts: use 2"),
        (asking("3", cores=100), "is 100, the total of 3 equal parts: use 99 or 102"),
        (asking(memory=3 * UNIT), "is 768 MiB, the total of 2 equal parts: use 1 GiB or 512 MiB"),
        (asking(memory=UNIT), "is 256 MiB, the total of 2 equal parts: use 512 MiB"),
    ],
)
def test_a_total_that_the_parts_cannot_have_is_refused_with_the_nearest_that_they_can(
    asked: Pod, says: str
) -> None:
    (fault,) = check_resize(asked, UNIT)
    assert says in fault.message


def test_the_elastic_ceiling_is_that_of_each_card() -> None:
    at = replace(asking(cores=100), annotations={**asking(cores=100).annotations, CORE_LIMIT: "50"})
    assert not check_resize(at, UNIT)
    above = replace(at, annotations={**asking(cores=120).annotations, CORE_LIMIT: "50"})
    (fault,) = check_resize(above, UNIT)
    assert 'container "train" on each of 2 cards are 60, above its elastic ceiling 50' in fault.message


def test_there_is_room_where_every_card_has_it_and_the_refusal_names_the_one_that_has_not() -> None:
    first, second = (Share(card.uuid, Amount(20, 4 * UNIT)) for card in CARDS[:2])
    mine = replace(holding(pod="mine"), shares=(first, second))
    ledger = Ledger(CARDS, UNIT, (mine, holding(pod="other", card=1, cores=50, units=4)))
    states = {card.uuid: CardState(card) for card in CARDS}
    assert judge_room(ledger, mine, Amount(100, 8 * UNIT), states) is None
    refusal = judge_room(ledger, mine, Amount(120, 8 * UNIT), states)
    assert str(refusal) == (
        'container "c": 120 cores, 2 GiB on cards 0, 1 does not fit: it holds 40 cores, 2 GiB and card 1 has '
        "30 cores, 14 GiB free, so at most 100 cores, 30 GiB"
    )
    closed = {**states, CARDS[0].uuid: CardState(CARDS[0], cordoned=True)}
    assert "on cards 0, 1: card 0 takes nothing new (cordoned); it keeps 40 cores, 2 GiB" in str(
        judge_room(ledger, mine, Amount(60, 8 * UNIT), closed)
    )
    assert judge_room(ledger, mine, Amount(20, 4 * UNIT), closed) is None


# The scheduler.


def on_two_cards() -> Cluster:
    world = Cluster(node=node("n1", cards=2))
    world.create(waiting_pod("one", 60, 8, annotations=TWO))
    assert world.schedule(world.there("one")) == "n1"
    follow(world, 60, 8)
    return world


def follow(world: Cluster, core: int, memory: int) -> None:
    """The agent has booked this much in equal parts."""
    there = world.there("one")
    half = Amount(core // 2, memory * UNIT // 2)
    held = {"main": tuple((uuid("n1", at), half) for at in range(2))}
    text = encode_assignment(Assignment("n1", there["metadata"]["uid"], held))
    world.annotate("one", {ALLOCATION: text, ASSIGNED: "true"})


def booked(world: Cluster) -> list[int]:
    view = world.cluster.snapshot().nodes["n1"]
    return [view.ledger.booked(uuid("n1", at)).cores for at in range(2)]


def test_a_growth_is_reserved_on_every_card_in_one_answer() -> None:
    world = on_two_cards()
    answer = world.ask("one", cores=120, memory=16 * UNIT)
    assert answer is not None
    assert answer.sizes == {"main": Amount(120, 16 * UNIT)}
    assert booked(world) == [60, 60]
    follow(world, 120, 16)
    answer = world.ask("one", cores=20, memory=16 * UNIT)
    assert answer is not None
    assert booked(world) == [60, 60], "until the agent has given it back"
    follow(world, 20, 16)
    assert booked(world) == [10, 10]
    assert held_size(parse_pod(world.there("one")), "main") == Amount(20, 16 * UNIT)


def test_where_one_card_lacks_room_nothing_is_reserved_and_the_pod_is_told() -> None:
    world = on_two_cards()
    world.run("other", 50, 4)
    before = booked(world)
    answer = world.ask("one", cores=160)
    assert answer is not None
    assert "on cards 0, 1 does not fit: it holds 60 cores, 2 GiB and card" in answer.refused
    assert "so at most 100 cores" in answer.refused
    assert booked(world) == before
    assert world.events[-1][0] == EVENT_RESIZE_REFUSED


def test_the_next_request_waits_until_both_parts_have_followed() -> None:
    world = on_two_cards()
    world.ask("one", cores=120)
    first = world.answered("one")
    world.ask("one", cores=80)
    assert world.answered("one") == first
    follow(world, 120, 8)
    world.clock.pass_(10)
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert answer.sizes == {"main": Amount(80, 8 * UNIT)}


def test_quota_counts_the_total() -> None:
    world = on_two_cards()
    world.limit({"default": {"quota": {"*": 1}}})
    answer = world.ask("one", cores=120)
    assert answer is not None
    assert "0.6 used" in answer.refused
    answer = world.ask("one", cores=100)
    assert answer is not None
    assert not answer.refused


@pytest.mark.parametrize("features", [(), (MULTI_CARD,)])
def test_an_agent_that_cannot_is_asked_for_no_size_of_several_cards(features: Sequence[str]) -> None:
    """It would book one card alone, or nothing."""
    world = on_two_cards()
    world.cluster.apply("nodes", "MODIFIED", node("n1", cards=2, features=features))
    answer = world.ask("one", cores=120)
    assert answer is not None
    assert "the agent of node n1 is of an earlier release and changes no sizes: upgrade it" in answer.refused


# The agent.


def shares(rig: ResizingRig, obj: Obj) -> list[tuple[int, int]]:
    held = rig.state.view.ledger.get(PodUid(obj["metadata"]["uid"]), "c")
    assert held is not None
    return [(share.amount.cores, share.amount.memory // UNIT) for share in held.shares]


def test_both_cards_are_booked_in_force_withdrawn_and_written_back(rig: ResizingRig) -> None:
    one = rig.run("one", 60, 16, annotations=TWO)
    all_cores, all_units = rig.allocatable()
    rig.answer(one, 120, 40)
    assert shares(rig, one) == [(60, 20), (60, 20)]
    assert rig.in_force(one) == (120, 40)
    assert rig.allocatable() == (all_cores - 60, all_units - 24)
    said = decode_assignment(rig.pods.annotations[PodUid(one["metadata"]["uid"])][ALLOCATION])
    assert said is not None
    assert [amount for _, amount in said.containers["c"]] == [Amount(60, 20 * UNIT)] * 2
    assert rig.pods.events[-1][1:] == (
        EVENT_RESIZED,
        'container "c" has 60 cores, 5 GiB of each of cards 0, 1 now',
    )


def test_where_one_card_lacks_room_neither_grows_until_it_has(rig: ResizingRig) -> None:
    one = rig.run("one", 60, 16, annotations=TWO)
    other = rig.run("other", 50, 8)
    rig.answer(one, 120, 16)
    assert shares(rig, one) == [(30, 8), (30, 8)]
    assert rig.in_force(one) == (60, 16)
    rig.second()
    assert [text for _, reason, text in rig.pods.events if reason == EVENT_RESIZE_WAITS]
    rig.delete(other)
    rig.objects.pop("other")
    rig.state.release([(PodUid(other["metadata"]["uid"]), "c")])
    rig.second()
    assert shares(rig, one) == [(60, 8), (60, 8)]
    assert rig.in_force(one) == (120, 16)


def test_memory_is_given_back_once_it_is_free_on_every_card(rig: ResizingRig) -> None:
    one = rig.run("one", 60, 40, annotations=TWO)
    rig.program(one, 4, part=0)
    rig.program(one, 15, part=1)
    rig.second()
    rig.answer(one, 60, 16)
    rig.second()
    assert rig.in_force(one) == rig.booked(one) == (60, 30), "what the fuller card holds"
    for _ in range(4):
        rig.second()
    waits = [text for _, reason, text in rig.pods.events if reason == EVENT_RESIZE_WAITS]
    (told,) = waits
    assert told == (
        'container "c" is not at 60 cores, 4 GiB yet: '
        "it waits until 1.75 GiB of its memory on one of its cards are freed"
    )
    rig.program(one, 8, part=1)
    rig.second()
    rig.second()
    assert rig.in_force(one) == rig.booked(one) == (60, 16)


def test_what_the_driver_counts_on_one_card_is_not_given_back_of_any(rig: ResizingRig) -> None:
    one = rig.run("one", 60, 40, annotations=TWO)
    rig.program(one, 4, part=0)
    rig.program(one, 4, beyond=5, part=1)
    rig.second()
    rig.answer(one, 60, 8)
    for _ in range(3):
        rig.second()
    assert rig.booked(one) == rig.in_force(one) == (60, 18)


def test_ids_beside_whole_cards_are_withdrawn_by_number(tmp_path: Path) -> None:
    """Two whole cards have ids of both; each counts for its own card."""
    with ResizingRig(tmp_path, states=cards()[:4]) as rig:
        both = pod("both", container("w", 200, 0), container("c", 30, 8))
        assert rig.admit(both).admitted
        rig.start(both)
        rig.answer(both, 50, 8)
        assert rig.allocatable()[0] == 400 - 20


def test_a_lost_ledger_comes_back_with_both_parts(rig: ResizingRig) -> None:
    one = rig.run("one", 60, 16, annotations=TWO)
    rig.answer(one, 120, 40)
    before = rig.allocatable()
    rig.store.state = None
    rig.restart_agent()
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (120, 40)
    assert shares(rig, one) == [(60, 20), (60, 20)]
    assert rig.allocatable() == before


def test_one_answer_for_a_container_of_each_kind(rig: ResizingRig) -> None:
    both = pod("both", container("c", 60, 16), container("d", 10, 4), annotations={ANNOTATION: "c=2"})
    assert rig.admit(both).admitted
    rig.start(both)
    rig.objects["both"] = both
    rig.answer(both, 20, 4, name="d")
    assert rig.booked(both, "d") == (20, 4)
    assert rig.booked(both) == (60, 16)


def test_on_a_node_without_an_extender_the_agent_judges_both_cards(tmp_path: Path) -> None:
    with ResizingRig(tmp_path, states=cards()[:2], alone=True) as rig:
        one = rig.run("one", 60, 16, annotations=TWO)
        rig.run("other", 50, 8)

        def ask(cores: int) -> None:
            wanted = json.dumps({"v": 1, "containers": {"c": {"cores": cores}}})
            one["metadata"]["annotations"] = {**TWO, RESIZE: wanted}
            rig.pods.bind(rig.parsed(one))
            rig.resizer.follow(rig.parsed(one))

        ask(160)
        assert rig.booked(one) == (60, 16)
        assert "so at most 100 cores" in rig.pods.events[-1][2]
        ask(100)
        assert rig.booked(one) == rig.in_force(one) == (100, 16)


# Faults at each step.


class Faults:
    """Counts writes of books and of pages, and lets the one of a number fail, or the agent end with it."""

    def __init__(self, rig: ResizingRig, at: int, *, kill: bool) -> None:
        self.rig, self.at, self.kill = rig, at, kill
        self.count, self.hit = 0, False
        self._save, self._open = rig.store.save, rig.tenants.open
        rig.store.save = self._saving  # type: ignore[method-assign]
        rig.tenants.open = self._opening  # type: ignore[method-assign]

    def _due(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.hit = True
            if self.kill:
                raise KilledError
            raise NodeUnready("it cannot be written")

    def _saving(self, state: bytes) -> None:
        self._due()
        self._save(state)

    def _opening(self, name: str, limits: Sequence[Limit]) -> None:
        self._due()
        self._open(name, limits)

    def end(self) -> None:
        self.at = 0


class KilledError(BaseException):
    """The agent's process ends here."""


SIZES = [(120, 40), (20, 4), (160, 8), (60, 16)]


def step(rig: ResizingRig, faults: Faults, act: Callable[[], object]) -> None:
    """One act of the agent; if it ends there, the next one starts."""
    try:
        act()
    except KilledError:
        faults.end()
        rig.restart_agent()
        rig.limit_pages.apply_settings()  # as every start of the agent


def watch(rig: ResizingRig, obj: Obj) -> None:
    """Both parts alike, in the books and in force; neither more in force than booked, nor less than is used."""
    cores, units = rig.booked(obj)
    in_force = rig.in_force(obj)
    assert in_force[0] <= cores
    assert in_force[1] <= units
    held = [rig.held.get((PodUid(obj["metadata"]["uid"]), "c", at), 0) for at in range(2)]
    assert max(held) <= in_force[1] // 2 * UNIT


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("at", range(1, 24))
def test_a_fault_at_any_write_leaves_both_parts_alike_and_the_size_comes(
    tmp_path: Path, at: int, kill: bool
) -> None:
    with ResizingRig(tmp_path, states=cards()[:2]) as rig:
        one = rig.run("one", 60, 16, annotations=TWO)
        faults = Faults(rig, at, kill=kill)
        for (cores, units), held in zip(SIZES, itertools.cycle((1.5, 2)), strict=False):
            rig.program(one, held, part=0)
            step(rig, faults, lambda: rig.answer(one, cores, units))  # noqa: B023  # called at once
            watch(rig, one)
            for _ in range(4):
                step(rig, faults, rig.second)
                watch(rig, one)
            assert rig.booked(one) == rig.in_force(one) == (cores, units)
        faults.end()
        rig.program(one, 0, part=0)
        full = rig.allocatable()
        assert full == (200, 128)
