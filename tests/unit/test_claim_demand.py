"""What a claim counts before it is allocated: the most that Kubernetes could give it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import allocate
from gpu_manager.domain.dra.claim import parse_claim_spec
from gpu_manager.domain.dra.demand import ClaimDemand, OfferedCards, demands
from gpu_manager.domain.dra.device import published_devices
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, MIB, ZERO, Amount
from gpu_manager.domain.rules.request import PlacementPolicy

OURS = {"vcuda.tencent.com": ("device.driver == 'vcuda.tencent.com'",)}
OTHERS = {"gpu.nvidia.com": ("device.driver == 'gpu.nvidia.com'",)}
T4, V100 = "Tesla-T4", "Tesla-V100"


def state(
    node: str, index: int, model: str = T4, memory: int = 16 * GIB, held: str = DRA_DRIVER
) -> CardState:
    return CardState(Card(index, CardUuid(f"GPU-{node}-{index}"), model, memory), held=held)


OFFERED = OfferedCards(
    [
        ("n1", "blue", DEFAULT_UNIT, [state("n1", 0), state("n1", 1)]),
        ("n2", "red", DEFAULT_UNIT, [state("n2", n, V100, 32 * GIB) for n in range(3)]),
        ("n3", "", DEFAULT_UNIT, [state("n3", 0, "A100", 80 * GIB, held="")]),  # by its device plugin
    ]
)


def request(name: str = "gpu", cls: str = "vcuda.tencent.com", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": cls, **fields}}


def part(cores: object, memory: object) -> dict[str, Any]:
    return {"capacity": {"requests": {"cores": str(cores), "memory": memory}}}


def asked(
    *requests: dict[str, Any], classes: Any = None, cards: OfferedCards = OFFERED
) -> tuple[ClaimDemand, ...]:
    spec = parse_claim_spec({"devices": {"requests": list(requests)}})
    return demands(spec, {**OURS, **OTHERS} if classes is None else classes, cards, DEFAULT_UNIT)


def one(*requests: dict[str, Any], **more: Any) -> ClaimDemand:
    (found,) = asked(*requests, **more)
    return found


def test_a_part_counts_under_every_model_that_claims_can_be_given() -> None:
    assert one(request(**part(30, "4Gi"))) == ClaimDemand(
        frozenset({T4, V100}), Amount(30, 4 * GIB), frozenset({"blue", "red"})
    )


def test_a_selector_leaves_models_out() -> None:
    by_model = {
        "selectors": [
            {"cel": {"expression": "device.attributes['vcuda.tencent.com'].productName == 'Tesla-T4'"}}
        ]
    }
    assert one(request(**part(30, "4Gi"), **by_model)).models == {T4}
    by_uuid = {
        "selectors": [{"cel": {"expression": "device.attributes['vcuda.tencent.com'].uuid == 'GPU-n2-1'"}}]
    }
    assert one(request(**part(30, "4Gi"), **by_uuid)) == ClaimDemand(
        frozenset({V100}), Amount(30, 4 * GIB), frozenset({"red"})
    )


def test_what_is_left_out_counts_whole_at_the_largest_card() -> None:
    assert one(request()).amount == Amount(100, 32 * GIB)
    assert one(request(count=3)).amount == Amount(300, 96 * GIB)
    assert one(request(capacity={"requests": {"cores": "30"}})).amount == Amount(30, 32 * GIB)


def test_kubernetes_rounds_and_so_does_the_quota() -> None:
    assert one(request(**part("2500m", "1500Mi"))).amount == Amount(3, 1536 * MIB)
    assert one(request(**part(0, "1"))).amount == Amount(1, DEFAULT_UNIT)
    assert one(request(**part(400, "8Ei"))).amount == Amount(100, 32 * GIB)


def test_all_is_every_card_of_the_largest_node() -> None:
    assert one(request(allocationMode="All")).amount == Amount(300, 96 * GIB)
    assert one(request(allocationMode="All"), cards=OfferedCards([])).amount == Amount(3200, 0)


def test_of_alternatives_the_largest_counts_and_only_what_is_ours() -> None:
    alternatives = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "a", "deviceClassName": "vcuda.tencent.com", **part(50, "4Gi")},
            {"name": "b", "deviceClassName": "vcuda.tencent.com", **part(20, "8Gi")},
            {"name": "c", "deviceClassName": "gpu.nvidia.com"},
        ],
    }
    assert one(alternatives).amount == Amount(50, 8 * GIB)
    nowhere = {
        "selectors": [{"cel": {"expression": "device.attributes['vcuda.tencent.com'].productName == 'H100'"}}]
    }
    alternatives["firstAvailable"][1].update(nowhere)
    assert one(alternatives).models == frozenset()


def test_a_request_is_ours_by_what_its_class_selects_not_by_its_name() -> None:
    assert asked(request(cls="gpu.nvidia.com")) == ()
    misleading = {"gpu.nvidia.com": ("device.driver == 'vcuda.tencent.com'",)}
    assert one(request(cls="gpu.nvidia.com"), classes=misleading).amount == Amount(100, 32 * GIB)
    assert one(request(cls="unknown"), classes={}).amount == Amount(100, 32 * GIB)
    nvidia_s = {"selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'gpu'"}}]}
    assert asked(request(cls="any", **nvidia_s), classes={"any": ()}) == ()


def test_admin_access_takes_nothing() -> None:
    assert asked(request(adminAccess=True)) == ()


def test_where_no_card_is_known_it_counts_under_every_model() -> None:
    assert one(request(**part(30, "4Gi")), cards=OfferedCards([])) == ClaimDemand(
        frozenset(), Amount(30, 4 * GIB), frozenset()
    )
    assert one(request(**part(30, "8Ei")), cards=OfferedCards([])).amount.memory == 1 << 60


quantity = st.sampled_from(["1", "2500m", "30", "99", "100"])
size = st.sampled_from(["1", "256Mi", "1500Mi", "4Gi", "16Gi"])
capacity = st.fixed_dictionaries({}, optional={"cores": quantity, "memory": size})
exact = st.builds(
    lambda asks, count: {"deviceClassName": "vcuda.tencent.com", "capacity": {"requests": asks}, **count},
    capacity,
    st.sampled_from([{}, {"count": 2}, {"allocationMode": "All"}]),
)


@given(st.lists(exact, min_size=1, max_size=3))
@settings(max_examples=200)
def test_no_claim_is_ever_allocated_more_than_it_counted(requests: list[dict[str, Any]]) -> None:
    """The allocator's own arithmetic, which is compared with kube-scheduler's, never passes it."""
    told = [{"name": f"r{n}", "exactly": one} for n, one in enumerate(requests)]
    spec = parse_claim_spec({"devices": {"requests": told}})
    states = [state("n1", n) for n in range(3)]
    devices = published_devices(states, {}, PlacementPolicy.BINPACK, DEFAULT_UNIT, 1)
    found = allocate(devices, {}, [spec], 36)
    counted = ZERO
    for demand in demands(spec, OURS, OfferedCards([("n1", "", DEFAULT_UNIT, states)]), DEFAULT_UNIT):
        counted += demand.amount
    for share in found[0] if found else ():
        counted -= Amount(share.consumed["cores"], share.consumed["memory"])
    assert counted.cores >= 0
    assert counted.memory >= 0
