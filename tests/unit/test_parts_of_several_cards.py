"""Parts of several cards for one request: what is asked is what each card's limit is, in all books and views."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.claims import charge_claims, read_claim
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import allocate
from gpu_manager.domain.dra.claim import parse_claim_spec
from gpu_manager.domain.dra.demand import OfferedCards, demands
from gpu_manager.domain.dra.device import published_devices
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, ZERO, Amount
from gpu_manager.domain.rules.request import PlacementPolicy
from tests.fakes.claims import claim_object, result
from tests.unit.test_claim_preparer import Node

MINOR = 36
CLASSES = {DRA_DRIVER: ("device.driver == 'vcuda.tencent.com'",)}
parts = st.tuples(st.integers(1, 99), st.integers(1, 40))
"""Cores and units of memory."""
shapes = st.one_of(st.builds(lambda n: {"count": n}, st.integers(1, 5)), st.just({"allocationMode": "All"}))
machines = st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=5)


def machine(memory: list[int]) -> tuple[CardState, ...]:
    uuids = [CardUuid(f"GPU-{n:08x}-0000-0000-0000-000000000000") for n in range(len(memory))]
    return tuple(
        CardState(Card(n, uuid, "T4", size * GIB, minor=n))
        for n, (uuid, size) in enumerate(zip(uuids, memory, strict=True))
    )


def asked(part: tuple[int, int], shape: dict[str, Any]) -> dict[str, Any]:
    capacity = {"requests": {"cores": str(part[0]), "memory": str(part[1] * DEFAULT_UNIT)}}
    exactly = {"deviceClassName": DRA_DRIVER, "capacity": capacity, **shape}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def schedule(node: Node, name: str, spec: dict[str, Any]) -> dict[str, Any] | None:
    """The claim as kube-scheduler allocates it on the node; None if it does not fit."""
    ledger = node.state.view.ledger
    booked = {state.card.uuid: ledger.booked(state.card.uuid) for state in node.states}
    devices = published_devices(node.states, booked, PlacementPolicy.BINPACK, DEFAULT_UNIT, 1)
    by_uuid = {device.attributes["uuid"]: device.name for device in devices}
    used = {by_uuid[uuid]: {"cores": held.cores, "memory": held.memory} for uuid, held in booked.items()}
    found = allocate(devices, used, [parse_claim_spec(spec)], MINOR)
    if found is None:
        return None
    results = [
        result(share.device, share.consumed["cores"], share.consumed["memory"], shareID=f"s-{n}")
        for n, share in enumerate(found[0])
    ]
    return {**claim_object(name, *results), "spec": spec}


@settings(max_examples=150)
@given(machines, st.lists(parts, max_size=3), parts, shapes)
def test_each_card_is_limited_to_what_was_asked_in_every_book(
    memory: list[int], before: list[tuple[int, int]], part: tuple[int, int], shape: dict[str, Any]
) -> None:
    node = Node()
    node.states = machine(memory)
    node.restart()
    for n, other in enumerate(before):
        if (obj := schedule(node, f"other-{n}", asked(other, {"count": 1}))) is not None:
            node.claims.add(obj)
            node.prepare(f"other-{n}")
    uuids = [state.card.uuid for state in node.states]
    ledger, wanted = node.state.view.ledger, Amount(part[0], part[1] * DEFAULT_UNIT)
    was = {uuid: ledger.booked(uuid) for uuid in uuids}
    room = [uuid for uuid in uuids if wanted.fits_in(ledger.free(uuid))]
    obj = schedule(node, "many", asked(part, shape))
    number = shape.get("count", len(room))
    assert (obj is not None) == (0 < number <= len(room)), "as many cards as have room for it"
    if obj is None:
        return
    node.claims.add(obj)
    made = node.prepare("many")

    [grant] = [one for one in node.state.view.grants.values() if one.allocation.pod == "claim-many"]
    limits = node.pages.limits[grant.directory]
    assert {(one.cores, one.memory, one.ceiling) for one in limits} == {
        (wanted.cores, wanted.memory, part[0])
    }
    cards = [one.card for one in limits]
    assert len(set(cards)) == len(cards) == number, "a limit on each card"
    assert set(cards) <= set(room)
    results = obj["status"]["allocation"]["devices"]["results"]
    assert [(d.device, d.share_id) for d in made] == [(r["device"], r["shareID"]) for r in results]
    assert {d.request for d in made} == {"gpu"}
    assert len({d.cdi for d in made}) == number, "a device of CDI for each"
    assert [share.card for share in node.injector.claimed[grant.directory]] == cards

    ledger = node.state.view.ledger
    booked = {uuid: ledger.booked(uuid) for uuid in uuids}
    assert booked == {uuid: was[uuid] + (wanted if uuid in cards else ZERO) for uuid in uuids}
    known = read_claim(obj)
    assert known is not None
    report = NodeReport("n1", DEFAULT_UNIT, node.states, node.state.view.node.topology)
    [charge] = charge_claims(report, [known]).values()
    assert [one.shares for one in charge.allocations] == [grant.allocation.shares], (
        "schedulers count the same"
    )
    offered = OfferedCards([("n1", "", DEFAULT_UNIT, [_given(state) for state in node.states])])
    [demand] = demands(parse_claim_spec(obj["spec"]), CLASSES, offered, DEFAULT_UNIT)
    sums = Amount(wanted.cores * number, wanted.memory * number)
    assert sums.fits_in(demand.amount), "the quota counted at least that"
    if "count" in shape:
        assert demand.amount == sums

    node.restart()
    node.preparer.restore()
    assert node.prepare("many") == made
    node.unprepare("many")
    assert {uuid: node.state.view.ledger.booked(uuid) for uuid in uuids} == was


def _given(state: CardState) -> CardState:
    return CardState(state.card, held=DRA_DRIVER)
