"""A card's energy, shared by the time that each used of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.cards import CardSensors, CardUse
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.billing import NOBODY, TOLD_SECONDS, EnergyMeter
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse

CARD = CardUuid("GPU-1")
SHARE = Share(CARD, Amount(30, GIB))


def sample(
    at: float, joules: float | None, ended: frozenset[Key] = frozenset(), **used: float | None
) -> Sample:
    """Pods of one container each on one card, by the share of its time that each used."""
    grants: dict[Key, Grant] = {}
    for name in used:
        held = Allocation(PodUid(f"uid-{name}"), "c", ContainerKind.APP, 0, (SHARE,), "team", name.strip("_"))
        grants[held.key] = Grant(held, f"dir-{name}")
    shares = tuple(
        ShareUse(key, SHARE, "active", core=core) for key, core in zip(grants, used.values(), strict=True)
    )
    return Sample(at, grants, {CARD: CardUse(CARD, sensors=CardSensors(energy=joules))}, shares, {}, ended)


def told(meter: EnergyMeter) -> Mapping[str, float]:
    """Joules by the pod's name, empty for nobody."""
    return {holder[1]: pytest.approx(joules) for (_, holder), joules in meter.told.items()}


def test_a_card_that_one_uses_for_half_of_the_time_spends_half_of_its_energy_on_nobody() -> None:
    meter = EnergyMeter()
    for second, joules in enumerate((1000.0, *[1000.0] * 9, 2000.0)):
        meter.add(sample(float(second), joules, a=0.3, b=0.2, idle=0.0, dark=None))
    assert told(meter) == {"a": 300, "b": 200, "": 500}


def test_the_first_reading_is_where_it_begins_and_a_counter_that_goes_back_begins_anew() -> None:
    meter = EnergyMeter()
    meter.add(sample(0, 5000.0, a=1.0))
    assert meter.told == {}
    meter.add(sample(10, 10.0, a=1.0))
    assert meter.told == {}, "the driver was loaded anew"
    meter.add(sample(20, 30.0, a=1.0))
    assert told(meter) == {"a": 20, "": 0}


def test_figures_that_add_up_to_more_than_the_time_share_all_of_the_energy() -> None:
    meter = EnergyMeter()
    meter.add(sample(0, 0.0, a=0.0, b=0.0))
    meter.add(sample(10, 300.0, a=1.0, b=0.5))
    assert told(meter) == {"a": 200, "b": 100, "": 0}


def test_a_card_without_the_counter_has_no_rows() -> None:
    meter = EnergyMeter()
    for second in range(20):
        meter.add(sample(float(second), None, a=1.0))
    assert meter.told == {}


def test_whom_nobody_can_name_is_nobody() -> None:
    meter = EnergyMeter()
    meter.add(sample(0, 0.0, _=0.5))
    meter.add(sample(10, 100.0, _=0.5))
    assert told(meter) == {"": 100}


def test_the_row_of_a_container_stays_until_its_last_joules_have_been_scraped() -> None:
    meter = EnergyMeter()
    meter.add(sample(0, 0.0, a=1.0))
    meter.add(sample(10, 100.0, a=1.0))
    meter.add(sample(20, 200.0))
    assert told(meter) == {"a": 100, "": 100}
    meter.add(sample(11 + TOLD_SECONDS, 300.0))
    assert told(meter) == {"": 200}


@given(
    st.lists(
        st.tuples(
            st.floats(0.5, 3),
            st.floats(0, 500),
            st.booleans(),
            st.floats(0, 1),
            st.one_of(st.none(), st.floats(0, 1)),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_all_rows_grow_by_what_the_card_grows_by(
    steps: list[tuple[float, float, bool, float, float | None]],
) -> None:
    meter, at, joules, shown = EnergyMeter(), 0.0, 100.0, 100.0
    meter.add(sample(at, joules, a=0.0, b=0.0))
    for seconds, spent, read, a, b in steps:
        at, joules = at + seconds, joules + spent
        shown = joules if read else shown  # the counter is read every few seconds only
        meter.add(sample(at, shown, a=a, b=b))
        assert sum(meter.told.values()) == pytest.approx(shown - 100.0)
        assert all(value >= 0 for value in meter.told.values())
    assert NOBODY in {holder for _, holder in meter.told} or shown == 100.0
