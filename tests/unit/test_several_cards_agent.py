"""Parts of several cards on the node: one Allocate, a limit for each card, all of it through every restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    CARDS,
    CORE,
    EVENT_REFUSED,
    INVENTORY,
    MEMORY,
    MULTI_CARD,
    MULTI_CARD_RESIZE,
    PREDICATE_INDEX,
    PRIORITY,
    decode_assignment,
    decode_inventory,
)
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.services.allocation.books_format import decode
from gpu_manager.services.recovery.rebuild import rebuild
from tests.fakes.direct import DirectRig
from tests.fakes.metrics import counts
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, cards
from tests.unit.test_inventory import Board

Obj = dict[str, Any]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DirectRig]:
    with DirectRig(tmp_path, clock=FakeClock()) as node:
        yield node


def halves(name: str, cores: int = 100, units: int = 40, count: int = 2, **more: Any) -> Obj:
    annotations = {CARDS: str(count), **more.pop("annotations", {})}
    return pod(name, container("c", cores, units), annotations=annotations, **more)


def uid(obj: Obj) -> PodUid:
    return PodUid(obj["metadata"]["uid"])


def ids_by_card(rig: DirectRig, obj: Obj) -> Mapping[str, Mapping[int, int]]:
    """Resource → card → how many ids of it the container holds."""
    view, found = rig.state.view, dict[str, dict[int, int]]()
    for resource, ids in view.grants[uid(obj), "c"].ids.items():
        for device in ids:
            index = view.node.index(view.node.ids.card_of[resource][device])
            found.setdefault(resource, {}).setdefault(int(index), 0)
            found[resource][int(index)] += 1
    return found


def booked(rig: DirectRig) -> list[int]:
    ledger = rig.state.view.ledger
    return [ledger.booked(state.card.uuid).cores for state in rig.states]


@pytest.mark.parametrize("order", [(CORE, MEMORY), (MEMORY, CORE)])
def test_one_container_gets_half_of_each_card_that_the_scheduler_chose(
    rig: DirectRig, order: tuple[str, str]
) -> None:
    rig.kubelet.hooks.order = lambda names: [r for r in order if r in names]
    one = halves("one", on={"c": [(rig.states[5], 50, 5 * GIB), (rig.states[2], 50, 5 * GIB)]})
    result = rig.admit(one)
    assert result.admitted, result.message
    assert rig.cards_of(one, "c") == (5, 2)
    assert [(limit.card, limit.cores, limit.memory) for limit in rig.limits(result, "c")] == [
        (rig.states[at].card.uuid, 50, 5 * GIB) for at in (5, 2)
    ]
    assert ids_by_card(rig, one) == {CORE: {2: 50, 5: 50}, MEMORY: {2: 20, 5: 20}}
    rig.start(one)
    assert [text for _, _, text in rig.pods.events] == [
        'container "c": 50 cores, 5 GiB of each of cards 5, 2'
    ]


def test_a_hundred_cores_beside_it_stay_one_whole_card(rig: DirectRig) -> None:
    whole, both = pod("whole", container("c", 100, 0)), halves("both")
    assert rig.admit(whole).admitted
    assert rig.admit(both).admitted
    assert rig.cards_of(whole, "c") == (0,)
    assert rig.cards_of(both, "c") == (1, 2)
    assert booked(rig)[:3] == [100, 50, 50]


def test_without_a_choice_the_agent_takes_the_cards_that_are_used_already(rig: DirectRig) -> None:
    small = pod("small", container("c", 30, 10), on={"c": [(rig.states[6], 30, 10 << 28)]})
    assert rig.admit(small).admitted
    both = halves("both")
    assert rig.admit(both).admitted
    assert rig.cards_of(both, "c") == (0, 6)
    more = [halves(f"more{at}", 80, 8) for at in range(2)]
    assert all(rig.admit(one).admitted for one in more)
    assert max(booked(rig)) <= 100
    assert counts(rig.metrics.annotation_overridden) == {}


def test_what_has_room_on_one_card_alone_is_refused_and_the_event_says_so(tmp_path: Path) -> None:
    with DirectRig(tmp_path, cards(2), clock=FakeClock()) as rig:
        assert rig.admit(pod("big", container("c", 60, 10))).admitted
        result = rig.admit(halves("both"))
        assert not result.admitted
        told = [text for _, reason, text in rig.pods.events if reason == EVENT_REFUSED]
        assert "50 cores, 5 GiB of each of 2 cards asked, 1 of 2 have room for that" in str(
            told or rig.pods.events
        )
        assert Amount(100, 10 * GIB) in rig.allocator.refused(), "what the scheduler compares: the total"


def test_what_an_older_service_took_for_a_whole_card_is_granted_in_parts_or_refused(rig: DirectRig) -> None:
    one = halves("one", on={"c": [(rig.states[3], 100, 16 * GIB)]})
    assert rig.admit(one).admitted
    assert rig.cards_of(one, "c") == (0, 1)
    assert booked(rig)[:4] == [50, 50, 0, 0]
    without_memory = halves("two", 100, 0, on={"c": [(rig.states[3], 100, 16 * GIB)]})
    assert not rig.admit(without_memory).admitted
    (told,) = [text for _, reason, text in rig.pods.events if reason == EVENT_REFUSED]
    assert "tencent.com/vcuda-memory is 0 on 2 cards" in told


def test_all_parts_are_booked_or_none(tmp_path: Path) -> None:
    with DirectRig(tmp_path, cards(2), clock=FakeClock()) as rig:
        named = [(rig.states[0], 50, 5 * GIB), (rig.states[1], 50, 5 * GIB)]
        assert rig.admit(
            pod("big", container("c", 60, 10), on={"c": [(rig.states[1], 60, 10 << 28)]})
        ).admitted
        assert not rig.admit(halves("both", on={"c": named})).admitted
        assert booked(rig) == [0, 60]


def test_what_it_leaves_is_free_on_both_cards(tmp_path: Path) -> None:
    with DirectRig(tmp_path, cards(2), clock=FakeClock()) as rig:
        one, two = halves("one"), halves("two", 198)
        for each in (one, two):
            result = rig.admit(each)
            assert result.admitted, result.message
            rig.start(each)
            rig.delete(each)
            rig.processes.ended.add(uid(each))
        assert booked(rig) == [99, 99]
        assert [key[0] for key in rig.state.view.grants] == [uid(two)]


@pytest.mark.parametrize("lost", ["nothing", "store", "annotation", "pods"])
def test_an_agent_that_starts_again_finds_both_parts(rig: DirectRig, lost: str) -> None:
    one = halves("one")
    assert rig.admit(one).admitted
    rig.start(one)
    before = rig.state.view
    entries = rig.client.checkpoint()
    assert entries is not None
    stored = rig.store.load() if lost in ("nothing", "pods") else None
    if lost == "annotation":  # the ids name their cards, as many of each as its part
        entries = [replace(entry, annotation=None) for entry in entries]
    local = {} if lost == "pods" else rig.pods.local()
    books = rebuild(stored, entries, None, local, rig.state.node, rig.metrics)
    found = books.ledger.get(uid(one), "c")
    assert found is not None
    assert sorted((s.card, s.amount) for s in found.shares) == sorted(
        (s.card, s.amount) for s in before.ledger.of_pod(uid(one))["c"].shares
    )


def test_books_with_several_cards_for_a_container_have_the_format_of_the_first_release(
    rig: DirectRig,
) -> None:
    """So an older agent reads them after a rollback, and keeps what runs."""
    one = halves("one")
    assert rig.admit(one).admitted
    stored = rig.store.load()
    assert stored is not None
    assert stored.startswith(b'{"v":1,')
    (grant,), _ = decode(stored)
    assert [s.amount for s in grant.allocation.shares] == [Amount(50, 5 * GIB)] * 2


def test_start_proves_it_by_the_checkpoint_when_the_books_had_another_container(rig: DirectRig) -> None:
    one = halves("one")
    assert rig.admit(one).admitted
    rig.state.release([(uid(one), "c")])
    rig.start(one)
    held = rig.state.view.ledger.get(uid(one), "c")
    assert held is not None
    assert [s.amount for s in held.shares] == [Amount(50, 5 * GIB)] * 2


def test_the_annotation_names_both_cards(rig: DirectRig) -> None:
    one = halves("one")
    assert rig.admit(one).admitted
    rig.start(one)
    written = rig.pods.annotations[uid(one)]
    assert written[ASSIGNED] == "true"
    said = decode_assignment(written[ALLOCATION])
    assert said is not None
    assert [amount for _, amount in said.containers["c"]] == [Amount(50, 5 * GIB)] * 2
    assert written[f"{PREDICATE_INDEX}0"] == "0,1"


def test_each_part_has_the_pods_priority_and_its_gate(rig: DirectRig) -> None:
    one = halves("one", annotations={PRIORITY: "best-effort"})
    result = rig.admit(one)
    assert [limit.priority for limit in rig.limits(result, "c")] == [Priority.BEST_EFFORT] * 2


def test_an_elastic_ceiling_is_that_of_each_card(rig: DirectRig) -> None:
    one = halves("one", annotations={"tencent.com/vcuda-core-limit": "80"})
    assert [limit.ceiling for limit in rig.limits(rig.admit(one), "c")] == [80, 80]


def test_under_a_numa_policy_ids_of_one_node_are_tokens_for_the_chosen_cards(tmp_path: Path) -> None:
    states = tuple(replace(s, card=replace(s.card, numa=at // 2)) for at, s in enumerate(cards(4)))
    with DirectRig(tmp_path, states, clock=FakeClock(), numa=NumaPolicy.SINGLE) as rig:
        for at in (0, 1, 2):
            full = pod(f"f{at}", container("c", 60, 4), on={"c": [(rig.states[at], 60, 1 * GIB)]})
            assert rig.admit(full).admitted
        one = halves("one", 40, 8)
        result = rig.admit(one)
        assert result.admitted, result.message
        assert len(set(rig.cards_of(one, "c"))) == 2
        assert max(booked(rig)) <= 100


def test_without_a_preference_call_the_likely_container_is_booked_on_as_many_cards(tmp_path: Path) -> None:
    """Under a NUMA policy the kubelet skips the call if exactly the aligned ids are left."""
    states = tuple(replace(s, card=replace(s.card, numa=at)) for at, s in enumerate(cards(2)))
    with DirectRig(tmp_path, states, clock=FakeClock()) as rig:
        one = halves("one", 100, 40)
        rig.pods.bind(rig.parsed(one))
        rig.state.introduce(rig.parsed(one))
        ids = rig.state.node.ids.of_card[CORE]
        both = [ids[CardUuid(s.card.uuid)][:50] for s in rig.states]
        rig.allocator.allocate(CORE, [device for some in both for device in some], f"{uid(one)}/c")
        assert rig.cards_of(one, "c") == (0, 1)


def test_the_node_says_that_it_can(rig: DirectRig) -> None:
    board = Board(rig)
    board.inventory.publish()
    told = decode_inventory(board.node.published[-1][0][INVENTORY])
    assert told is not None
    assert told.features == {MULTI_CARD, MULTI_CARD_RESIZE}
