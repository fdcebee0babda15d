"""What a node publishes to DRA, and what comes back as an allocated claim."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_CORDONED, DRA_DRIVER, DRA_HELD, DRA_UNHEALTHY
from gpu_manager.domain.dra.allocation import AllocatedClaim, ClaimedShare, allocate, parse_allocated_claim
from gpu_manager.domain.dra.claim import parse_claim_spec
from gpu_manager.domain.dra.device import CORES, MEMORY, device_names, published_devices
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.rules.request import PlacementPolicy

UNIT = 256 << 20
BINPACK, SPREAD = PlacementPolicy.BINPACK, PlacementPolicy.SPREAD
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def card(index: int, **fields: object) -> Card:
    uuid = CardUuid(f"GPU-{index:08x}-0000-0000-0000-000000000000")
    return replace(Card(index, uuid, "Tesla T4", 16 * GIB, numa=0, pci_bus_id="0000:3b:00.0"), **fields)


def published(*states: CardState, policy: PlacementPolicy = BINPACK, **used: Amount) -> list[str]:
    booked = {
        state.card.uuid: used[f"c{state.card.index}"] for state in states if f"c{state.card.index}" in used
    }
    return [one.name for one in published_devices(states, booked, policy, UNIT, 1)]


HALF, SOME = Amount(50, GIB), Amount(10, 8 * GIB)


def test_the_fullest_card_in_use_comes_first_and_idle_ones_last() -> None:
    states = [CardState(card(index)) for index in range(4)]
    assert published(*states, c2=SOME, c3=HALF) == [
        "gpu-00000003",
        "gpu-00000002",
        "gpu-00000000",
        "gpu-00000001",
    ]


def test_spread_shows_the_emptiest_first() -> None:
    states = [CardState(card(index)) for index in range(4)]
    assert published(*states, policy=SPREAD, c0=HALF, c2=SOME) == [
        *("gpu-00000001", "gpu-00000003"),
        *("gpu-00000002", "gpu-00000000"),
    ]


def test_a_claim_lands_on_the_first_published_card_with_room() -> None:
    states = [CardState(card(index)) for index in range(3)]
    used = {states[2].card.uuid: HALF}
    devices = published_devices(states, used, BINPACK, UNIT, 1)
    booked = {"gpu-00000002": {CORES: 50, MEMORY: GIB}}
    request = {"deviceClassName": "vcuda", "capacity": {"requests": {CORES: 50, MEMORY: "1Gi"}}}
    spec = parse_claim_spec({"devices": {"requests": [{"name": "gpu", "exactly": request}]}})
    assert allocate(devices, booked, [spec], 36)[0][0].device == "gpu-00000002"
    assert allocate(devices, booked, [spec, spec], 36)[1][0].device == "gpu-00000000"


def test_a_closed_card_comes_last_with_a_taint_that_says_why() -> None:
    states = [
        CardState(card(0), healthy=False, reason="XID 79"),
        CardState(card(1), cordoned=True, missing=True),
        CardState(card(2), held="team/pod"),
        CardState(card(3)),
        CardState(card(4, mig=True)),
    ]
    devices = published_devices(states, {}, BINPACK, UNIT, 1)
    assert [(one.name[-1], [taint.key for taint in one.taints]) for one in devices] == [
        ("3", []),
        ("0", [DRA_UNHEALTHY]),
        ("1", [DRA_UNHEALTHY, DRA_CORDONED]),
        ("2", [DRA_HELD]),
    ]
    assert devices[1].as_json()["taints"] == [{"key": DRA_UNHEALTHY, "effect": "NoSchedule"}]


def test_attributes_are_what_the_api_server_takes() -> None:
    states = [CardState(card(0, model="x" * 99, numa=None, pci_bus_id=""))]
    versions = {"driverVersion": "615.10.02", "cudaDriverVersion": "13.4", "firmware": "unknown"}
    [device] = published_devices(states, {}, BINPACK, UNIT, 1, versions)
    assert device.as_json()["attributes"] == {
        "uuid": {"string": states[0].card.uuid},
        "productName": {"string": "x" * 64},
        "index": {"int": 0},
        "driverVersion": {"version": "615.10.2"},
        "cudaDriverVersion": {"version": "13.4.0"},
    }


@given(st.lists(st.text(max_size=80), unique=True, min_size=1, max_size=8))
def test_a_device_name_is_a_dns_label(tails: list[str]) -> None:
    cards = [card(index, uuid=CardUuid(f"GPU-{index:08x}{tail}")) for index, tail in enumerate(tails)]
    names = device_names(cards)
    assert len(set(names.values())) == len(cards)
    assert all(DNS_LABEL.fullmatch(name) for name in names.values())


def result(**fields: object) -> dict[str, object]:
    consumed = {CORES: "30", MEMORY: "4Gi"}
    plain = {"request": "gpu", "driver": DRA_DRIVER, "pool": "node", "device": "gpu-0", "shareID": "s"}
    return {**plain, "consumedCapacity": consumed, **fields}


def stored(*results: object) -> dict[str, object]:
    return {
        "metadata": {"uid": "u", "namespace": "team", "name": "claim"},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [
                {"resource": "pods", "name": "p", "uid": "pod-1"},
                {"resource": "podgroups", "uid": "g"},
            ],
        },
    }


def test_an_allocated_claim_reads_back() -> None:
    foreign = result(driver="gpu.nvidia.com", consumedCapacity={CORES: "-1"})
    seen = parse_allocated_claim(
        stored(result(), foreign, result(request="many/big", adminAccess=True, consumedCapacity={})), UNIT
    )
    assert seen == AllocatedClaim(
        "u",
        "team",
        "claim",
        (
            ClaimedShare("gpu", "node", "gpu-0", "s", Amount(30, 4 * GIB), is_admin=False),
            ClaimedShare("many", "node", "gpu-0", "s", Amount(0, 0), is_admin=True),
        ),
        (("pod-1", "p"),),
    )


def test_a_card_without_memory_is_taken_whole() -> None:
    [share] = parse_allocated_claim(stored(result(consumedCapacity={CORES: "100"})), UNIT).shares
    assert share.amount == Amount(100, 0)


@pytest.mark.parametrize(
    "consumed",
    [
        {CORES: "30", MEMORY: "-8Ei"},  # what kube-scheduler 1.36 allocates for 8Ei
        {CORES: "30", MEMORY: "0"},
        {CORES: "30", MEMORY: "1500M"},
        {CORES: "0", MEMORY: "4Gi"},
        {CORES: "101", MEMORY: "4Gi"},
        {CORES: "500m", MEMORY: "4Gi"},
        {CORES: "30"},
        {CORES: "thirty", MEMORY: "4Gi"},
        {},
        None,
    ],
)
def test_an_amount_that_cannot_be_given_is_refused(consumed: object) -> None:
    with pytest.raises(RequestInvalid):
        parse_allocated_claim(stored(result(consumedCapacity=consumed)), UNIT)


@pytest.mark.parametrize(
    "claim", [None, {}, {"status": {"allocation": []}}, stored(), stored(*[result()] * 33)]
)
def test_a_claim_without_our_devices_is_refused(claim: object) -> None:
    with pytest.raises(RequestInvalid, match=r"expected 1 to 32"):
        parse_allocated_claim(claim, UNIT)
