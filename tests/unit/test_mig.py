"""MIG instances: their names, ids and places, and to whom they are given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from admission.extender.free_cards import FreeCards
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.cluster.quota_map import parse_quota
from gpu_manager.domain.contract import Inventory, decode_inventory, encode_inventory, model_labels
from gpu_manager.domain.dra.sides import Front, sides_of
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.ids import DeviceIds, prefixes
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.mig import (
    MigInstance,
    divides_memory,
    draws,
    is_instance,
    names_instances,
    number_of,
    profile_name,
    profile_of,
    still_held,
)
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.legal_values import check_pod
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request, matches_model
from gpu_manager.domain.rules.rulebook import Rule
from gpu_manager.domain.score.request_mix import RequestShape
from gpu_manager.domain.topology import SELF, Link, LinkKind, Topology
from tests.fakes.written import container, pod_of

PARENT: Final = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
SLICE: Final = "MIG-41b35c2e-86f3-5a43-b711-4771313afc50"
MODEL: Final = "NVIDIA-H200-MIG-1g.18gb"


def instance(place: int, uuid: str = "", **changes: Any) -> Card:
    named = CardUuid(uuid or f"MIG-{place:08x}-86f3-5a43-b711-4771313afc50")
    where = MigInstance(PARENT, 7 + place, 0)
    return Card(number_of(0, place), named, MODEL, 18 * GIB, minor=0, instance=where, **changes)


CARD: Final = Card(1, CardUuid("GPU-6fd4f087-86f3-7a43-b711-4771313afc50"), "NVIDIA-H200", 140 * GIB, minor=1)
DIVIDED: Final = Card(0, CardUuid(PARENT), "NVIDIA-H200", 140 * GIB, mig=True, minor=0)
NODE: Final = (DIVIDED, CARD, instance(0, SLICE), instance(1))


def links(size: int) -> Topology:
    cells = ((SELF if a == b else Link(LinkKind.SYS) for b in range(size)) for a in range(size))
    return Topology(tuple(map(tuple, cells)))


def asks(cores: int = 30, units: int = 8, *more: Request, **terms: Any) -> PodRequest:
    wanted = (Request(cores, 0 if cores >= 100 else units * DEFAULT_UNIT), *more)
    containers = (ContainerRequest(f"c{n}", ContainerKind.APP, n, one) for n, one in enumerate(wanted))
    return PodRequest(PodUid("p"), tuple(containers), **terms)


def given(request: PodRequest, cards: tuple[Card, ...] = NODE) -> list[CardUuid]:
    states = [CardState(card) for card in cards]
    placed = place(request, states, links(len(cards)), Ledger(cards, DEFAULT_UNIT))
    return [share.card for shares in placed.values() for share in shares]


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        (MODEL, "1g.18gb"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb+me", "1g.5gb+me"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb"),
        ("NVIDIA-B200-MIG-1g.23gb-me", "1g.23gb"),
        ("NVIDIA-H200", ""),
        ("MIG", ""),
        ("NVIDIA-1g.5gb", ""),
    ],
)
def test_the_profile_is_what_follows_mig_in_the_model(model: str, profile: str) -> None:
    assert profile_of(model) == profile


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        *(("1g.18gb", True), ("H200-MIG-1g.18gb", True), (MODEL, True), ("MIG 1G.18GB", True)),
        *(("H200", False), ("NVIDIA", False), ("H200-MIG", False), ("1g.10gb", False), ("2g.18gb", False)),
    ],
)
def test_a_model_means_instances_only_with_their_profile(wanted: str, *, matches: bool) -> None:
    assert matches_model(wanted, MODEL) is matches
    assert names_instances(wanted) is (matches or "gb" in wanted)


@pytest.mark.parametrize(
    ("slices", "memory", "card", "name"),
    [
        ((1, 1), 4864 << 20, 40960 << 20, "1g.5gb"),
        ((3, 3), 19968 << 20, 40960 << 20, "3g.20gb"),
        ((1, 3), 19968 << 20, 40960 << 20, "1c.3g.20gb"),
        ((7, 7), 144384 << 20, 144384 << 20, "7g.141gb"),
        ((1, 1), 1 << 30, 0, "1g.0gb"),
    ],
)
def test_an_old_drivers_instance_is_named_as_nvidia_computes_it(
    slices: tuple[int, int], memory: int, card: int, name: str
) -> None:
    assert profile_name(slices, memory, card) == name
    assert divides_memory(name) is ("c." in name)


def test_who_names_no_instance_gets_cards() -> None:
    assert given(asks()) == given(asks(100)) == given(asks(models=("H200",))) == [CARD.uuid]
    with pytest.raises(DoesNotFit, match="card 100: a MIG instance, given to pods that name its profile"):
        given(asks(), NODE[:1] + NODE[2:3])


@pytest.mark.parametrize("cores", [30, 100])
def test_who_names_profile_or_instance_gets_one_whole_or_in_part(cores: int) -> None:
    assert given(asks(cores, models=("1g.18gb",))) == [CardUuid(SLICE)]
    other = NODE[3]
    assert given(asks(cores, uuids=frozenset({other.uuid}))) == [other.uuid]
    by_place = frozenset({CardUuid(f"MIG-{PARENT}/8/0")})
    assert given(asks(cores, uuids=by_place)) == [other.uuid]
    with pytest.raises(DoesNotFit, match=r"model NVIDIA-H200-MIG-1g\.18gb, the pod allows H200"):
        given(asks(cores, uuids=by_place, models=("H200",)))


def test_two_containers_have_an_instance_each_and_one_container_never_two() -> None:
    whole = Request(100, 0)
    assert given(asks(100, 0, whole, models=("1g.18gb",))) == [NODE[2].uuid, NODE[3].uuid]
    with pytest.raises(DoesNotFit, match="of which a container gets one, and one of this pod asks for sev"):
        given(asks(200, models=("1g.18gb",)))
    with pytest.raises(DoesNotFit, match="of which a container gets one"):
        given(asks(200, uuids=frozenset(card.uuid for card in NODE[2:])))
    second = replace(CARD, index=2, uuid=CardUuid("GPU-7fd4f087-86f3-7a43-b711-4771313afc50"))
    cards = (*NODE, second)
    assert given(asks(200, models=("1g.18gb", "H200")), cards) == [CARD.uuid, second.uuid]


class _View:
    """What the arrays of free cards read of a node."""

    def __init__(self, cards: tuple[Card, ...]) -> None:
        self.state = id(self)
        self.node = self
        self.cards = tuple(map(CardState, cards))
        self.ledger = Ledger(cards, DEFAULT_UNIT)


@pytest.mark.parametrize(
    ("request_", "fits"),
    [
        (asks(), (True, False)),
        (asks(models=("1g.18gb",)), (True, True)),
        (asks(100, models=("1g.18gb",)), (True, True)),
        (asks(200, models=("1g.18gb",)), (False, False)),
        (asks(models=("H200",)), (True, False)),
    ],
)
def test_the_arrays_of_free_cards_judge_as_placement_does(
    request_: PodRequest, fits: tuple[bool, bool]
) -> None:
    views: Any = [_View(NODE), _View(NODE[2:])]
    assert tuple(FreeCards().with_room(request_, views)) == fits
    for cards, fit in zip((NODE, NODE[2:]), fits, strict=True):
        if fit:
            assert given(request_, cards)
        else:
            with pytest.raises(DoesNotFit):
                given(request_, cards)


def test_the_score_counts_instances_for_who_names_them() -> None:
    assert not RequestShape(30, 4).allows(MODEL)
    assert RequestShape(30, 4, models=("1g.18gb",)).allows(MODEL)
    assert not RequestShape(200, models=("1g.18gb",)).allows(MODEL)
    assert RequestShape(30, 4).allows("NVIDIA-H200")


def test_ids_tell_instances_apart_by_uuid_or_by_place() -> None:
    assert prefixes([CardUuid(PARENT), CardUuid(SLICE)]) == {PARENT: "5fd4f087", SLICE: "41b35c2e"}
    old = [CardUuid(f"MIG-{PARENT}/{gi}/0") for gi in (7, 8)]
    assert list(prefixes([CardUuid(PARENT), *old]).values()) == ["5fd4f087", "5fd4f087-7-0", "5fd4f087-8-0"]
    ids = DeviceIds(NODE, DEFAULT_UNIT)
    assert [len(ids.of_card["tencent.com/vcuda-core"][card.uuid]) for card in NODE] == [0, 100, 100, 100]
    assert [len(ids.of_card["tencent.com/vcuda-memory"][card.uuid]) for card in NODE] == [0, 560, 72, 72]
    assert [ids.of_card["nvidia.com/gpu"][card.uuid] for card in NODE] == [(), (CARD.uuid,), (), ()]
    every = [one for cards in ids.of_card.values() for held in cards.values() for one in held]
    assert len(every) == len(set(every))


def test_claims_and_labels_know_whole_cards_alone() -> None:
    states = tuple(map(CardState, NODE))
    assert set(sides_of(Front.SPLIT, states)) == {CARD.uuid}
    assert set(model_labels(states[:3]).values()) == {"NVIDIA-H200"}


def test_an_inventory_keeps_older_readers_away_from_instances() -> None:
    states = tuple(map(CardState, NODE))
    text = encode_inventory(Inventory(DEFAULT_UNIT, states, links(4)))
    assert [card["mig"] for card in json.loads(text)["cards"]] == [True, False, True, True]
    read = decode_inventory(text)
    assert read is not None
    assert [state.card.instance for state in read.cards] == [card.instance for card in NODE]
    assert [state.card.mig for state in read.cards] == [True, False, False, False]
    assert [state.open for state in read.cards] == [False, True, True, True]
    torn = json.loads(text)
    torn["cards"][2]["instance"] = {"parent": PARENT, "gi": -1, "ci": 0}
    assert decode_inventory(json.dumps(torn)) is None


def rules(*containers: dict[str, Any], **annotations: str) -> list[Rule]:
    return [fault.rule for fault in check_pod(pod_of(*containers, **annotations))]


def test_several_instances_in_a_container_are_refused_when_the_pod_is_judged() -> None:
    assert rules(container("c", 200, 0), gpu_model="1g.18gb") == [Rule.MIG_SEVERAL]
    assert rules(container("c", 60, 40), gpu_model="1g.18gb", vcuda_cards="2") == [Rule.MIG_PARTS]
    assert rules(container("c", 300, 0), gpu_uuid=f"{SLICE},MIG-{PARENT}/8/0") == [Rule.MIG_SEVERAL]
    assert rules(container("c", 200, 0), gpu_model="1g.18gb,H200") == []
    assert rules(container("c", 100, 0), container("d", 30, 4), gpu_model="1g.18gb") == []
    (fault,) = check_pod(pod_of(container("c", 200, 0), gpu_model="1g.18gb"))
    assert "a container gets one instance: use 100 or less" in fault.message


@pytest.mark.parametrize(
    ("uuid", "legal"),
    [
        *((PARENT, True), (SLICE, True), (f"MIG-{PARENT}/7/0", True), (f"{PARENT},{SLICE}", True)),
        *((f"MIG-{PARENT}", False), (f"MIG-{PARENT}/7", False), (f"{PARENT}/7/0", False)),
        *((SLICE.upper(), False), (f"MIG-{PARENT}/7/0/1", False), (f"MIG-{PARENT}/-7/0", False)),
    ],
)
def test_both_forms_of_an_instances_uuid_are_legal(uuid: str, *, legal: bool) -> None:
    found = rules(container("c", 30, 4), gpu_uuid=uuid)
    assert found == ([] if legal else [Rule.UUIDS_MALFORMED])
    assert [is_instance(one) for one in (PARENT, SLICE, f"MIG-{PARENT}/7/0")] == [False, True, True]


def quota_of(model: str) -> Quota:
    return parse_quota(json.dumps({"ns": {"quota": {model: 1}}}))


@pytest.mark.parametrize(
    ("key", "why"),
    [("H200", "is not among its models"), ("1g.18gb", "1 card of 1g.18gb"), ("*", "1 card of all models")],
)
def test_a_quota_counts_instances_under_their_own_name(key: str, why: str) -> None:
    mine = quota_of(key).of("ns")
    assert mine is not None
    held, more = {MODEL: Amount(100, 18 * GIB)}, {MODEL: Amount(1, GIB)}
    assert why in mine.passed(held, more)[MODEL]
    cards = {"NVIDIA-H200": Amount(100, 140 * GIB)}
    assert bool(mine.passed(held, cards)) is (key != "H200")


def test_what_vanished_under_a_pod_closes_its_place_and_its_parent() -> None:
    place_ = MigInstance(PARENT, 7, 0)
    vanished = [(SLICE, place_)]
    assert SLICE in still_held("MIG-new", MigInstance(PARENT, 7, 0), vanished)
    assert SLICE in still_held(PARENT, None, vanished)
    assert still_held("MIG-new", MigInstance(PARENT, 8, 0), vanished) == ""
    assert still_held(SLICE, place_, vanished) == ""
    assert still_held("GPU-other", None, vanished) == ""


@pytest.mark.parametrize(
    ("model", "graphics"),
    [
        ("NVIDIA H100 MIG 1g.24gb+gfx", True),
        ("NVIDIA H100 MIG 1g.24gb+me", False),
        ("NVIDIA H100 MIG 1g.24gb", False),
        ("NVIDIA A100-SXM4-40GB", False),
    ],
)
def test_an_instance_draws_if_its_profile_says_graphics(model: str, graphics: bool) -> None:
    assert draws(model) == graphics
