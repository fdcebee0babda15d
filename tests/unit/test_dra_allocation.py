"""What Kubernetes allocates to claims, against recorded answers of its own allocator."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.dra.allocation import allocate
from gpu_manager.domain.dra.claim import ClaimSpec, parse_claim_spec
from gpu_manager.domain.dra.device import CORES, MEMORY, CapacityRange, SharedDevice, capacities_of
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from tests.oracle import dra_cases

GIB = 1 << 30
UNIT = 256 << 20


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    return json.loads(dra_cases.ANSWERS.read_text("utf-8"))


@pytest.fixture(scope="module")
def cases() -> list[dra_cases.Case]:
    return dra_cases.recorded_cases()


def test_the_answers_are_to_these_cases(recorded, cases) -> None:
    """Where this fails the generator has changed: record the answers anew."""
    assert recorded["cases"] == dra_cases.digest(cases)


@pytest.mark.parametrize("minor", dra_cases.MINORS)
def test_the_model_answers_as_kube_scheduler_does(recorded, cases, minor: int) -> None:
    told = recorded[str(minor)]
    assert len(told) == len(cases)
    assert sum(isinstance(one, list) for one in told) > 200, "too few cases fit to say anything"
    wrong = [n for n, case in enumerate(cases) if dra_cases.answer(case, minor) != told[n]]
    assert wrong == []


def test_the_two_versions_differ(recorded) -> None:
    """A model of one version alone would pass for the other if no case told them apart."""
    assert sum(a != b for a, b in zip(recorded["36"], recorded["37"], strict=True)) > 50


MEMORY_OF_16_GIB = CapacityRange(UNIT, UNIT, 16 * GIB)


@pytest.mark.parametrize("minor", dra_cases.MINORS)
@pytest.mark.parametrize(
    ("asked", "consumed"),
    [
        (None, 16 * GIB),  # left out: the whole card's
        (Fraction(0), UNIT),
        (Fraction(1), UNIT),
        (Fraction(1500 << 20), 1536 << 20),
        (Fraction(16 * GIB), 16 * GIB),
        (Fraction(16 * GIB + 1), None),
    ],
)
def test_an_odd_amount_is_rounded_up_and_never_refused(minor, asked, consumed) -> None:
    assert MEMORY_OF_16_GIB.consumed(asked, minor) == consumed


@pytest.mark.parametrize(
    ("minor", "asked"),
    [
        (36, Fraction(2**63 - 1)),
        (36, Fraction(10**20)),
        (37, Fraction(10**20)),
        (37, UNIT + Fraction(1, 10**4)),
    ],
)
def test_an_amount_that_kubernetes_cannot_count_is_refused(minor, asked) -> None:
    """1.36 allocates -8Ei of memory for 8Ei, and nothing for 1e20."""
    with pytest.raises(RequestInvalid, match=rf"Kubernetes 1\.{minor}"):
        MEMORY_OF_16_GIB.consumed(asked, minor)


def claim(*requests: object, constraints: object = ()) -> ClaimSpec:
    return parse_claim_spec({"devices": {"requests": list(requests), "constraints": list(constraints)}})


def exactly(name: str, **fields: object) -> dict[str, object]:
    return {"name": name, "exactly": {"deviceClassName": "vcuda", **fields}}


def cores(amount: object) -> dict[str, object]:
    return {"capacity": {"requests": {CORES: amount, MEMORY: "256Mi"}}}


@pytest.mark.parametrize(
    "requests",
    [
        [{"name": "neither"}],
        [exactly("mode", allocationMode="Some")],
        [exactly("count", count=0)],
        [exactly("count", count=True)],
        [exactly("count", count="2")],
        [exactly("quantity", **cores("thirty"))],
        [exactly(str(number)) for number in range(33)],
    ],
)
def test_a_claim_that_no_api_server_stores_is_refused(requests) -> None:
    with pytest.raises(RequestInvalid):
        claim(*requests)


def test_a_constraint_without_an_attribute_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="matchAttribute"):
        claim(exactly("gpu"), constraints=[{"requests": ["gpu"]}])


@pytest.mark.parametrize("garbage", [None, [], "spec", {"devices": 3}, {"devices": {"requests": [7, None]}}])
def test_garbage_asks_for_nothing(garbage: object) -> None:
    assert parse_claim_spec(garbage) == ClaimSpec((), ())


@pytest.fixture
def impossible() -> tuple[list[SharedDevice], dict[str, dict[str, int]], ClaimSpec]:
    """Six cards with 90 cores left, five requests that fit many ways, and a last one that fits nowhere."""
    devices = [
        SharedDevice(f"gpu-{n}", {CORES: CapacityRange(1, 1, 100), MEMORY: MEMORY_OF_16_GIB})
        for n in range(6)
    ]
    asked = claim(*(exactly(f"r{n}", **cores(30)) for n in range(5)), exactly("last", **cores(95)))
    return devices, {device.name: {CORES: 10} for device in devices}, asked


def test_a_dead_end_is_entered_once(impossible) -> None:
    """Kubernetes' own search takes every one of 6^5 ways."""
    devices, used, asked = impossible
    assert allocate(devices, used, [asked], 36, most_steps=6**5) is None


def test_the_search_is_bounded(impossible) -> None:
    devices, used, asked = impossible
    with pytest.raises(DoesNotFit, match="100 steps"):
        allocate(devices, used, [asked], 36, most_steps=100)


def card(memory: int) -> Card:
    return Card(0, CardUuid("GPU-0"), "T4", memory)


def test_a_card_is_published_in_whole_units_of_memory() -> None:
    published = capacities_of(card(16 * GIB - 5), UNIT, minimum_cores=5)
    assert published == {
        CORES: CapacityRange(5, 1, 100),
        MEMORY: CapacityRange(UNIT, UNIT, 16 * GIB - UNIT),
    }


def test_a_card_without_memory_of_its_own_is_published_whole() -> None:
    assert capacities_of(card(0), UNIT, minimum_cores=5) == {CORES: CapacityRange(100, 1, 100)}


def test_a_device_is_shown_as_kubernetes_stores_it() -> None:
    [shown] = dra_cases.recorded_cases(1)[0]["slices"][0]["spec"]["devices"][:1]
    assert shown["allowMultipleAllocations"] is True
    policy = shown["capacity"][CORES]["requestPolicy"]
    assert policy == {
        "default": "100",
        "validRange": {"min": policy["validRange"]["min"], "max": "100", "step": "1"},
    }
