"""Who allows advice to be followed, within which bounds, and how often."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.advice.opt_in import (
    EXAMPLE,
    PAUSE,
    AdviceTerms,
    SizeBounds,
    advised_size,
    check_advice_terms,
    next_change,
    note_change,
    read_advice_terms,
)
from gpu_manager.domain.advice.size import Advice, Figure
from gpu_manager.domain.contract import ADVICE
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount

UNIT = DEFAULT_UNIT
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
GIVEN = Amount(50, 8 * GIB)
NEED = Need(2 * DAY, 3, 4 * HOUR, 30, (2 * GIB,) * 25, (2 * GIB,) * 3)


def written(**fields: Any) -> str:
    return json.dumps({"v": 1, "apply": "in-place", **fields})


def bounded(**bounds: Any) -> str:
    return written(containers={"c": bounds})


def faults(text: str, minimum: int = 1) -> list[str]:
    return [fault.message for fault in check_advice_terms({ADVICE: text}, UNIT, minimum)]


def test_nothing_is_followed_unless_the_owner_says_so() -> None:
    assert read_advice_terms(None) == AdviceTerms()
    assert not read_advice_terms('{"v":1}').applies
    assert not read_advice_terms('{"v":1,"apply":"off"}').applies
    terms = read_advice_terms(EXAMPLE)
    assert terms.applies
    assert terms.bounds == {"train": SizeBounds((10, 60), (GIB, 8 * GIB))}
    assert faults(EXAMPLE) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yes", "it is not JSON of version 1"),
        (written(apply="now"), 'apply is "now", not "in-place" or "off"'),
        (written(containers=[]), "containers is no map of containers"),
        (bounded(gpu=[1, 2]), 'container "c" has other bounds than cores and memory'),
        (bounded(cores=5), 'cores of container "c" is not [least, most]'),
        (bounded(cores=[1.5, 3]), 'cores of container "c" is not whole'),
        (bounded(memory=["lots", "1Gi"]), 'memory of container "c": "lots" is not a Kubernetes quantity'),
        (bounded(cores=[0, 120]), 'cores of container "c" is bounded by 0 to 120: use 1 to 99'),
        (bounded(cores=[60, 10]), 'cores of container "c" is bounded by 60 to 10: use 10 to 60'),
        (bounded(memory=["300Mi", "1Gi"]), "is bounded by 300 MiB to 1 GiB: use 256 MiB to 1 GiB"),
        (bounded(memory=[0, 10**30]), "is bounded by 0 B to 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_what_can(text: str, says: str) -> None:
    (message,) = faults(text)
    assert says in message
    assert message.startswith(f"annotation {ADVICE}")


def test_the_clusters_smallest_part_bounds_too() -> None:
    assert "use 10 to 60" in faults(bounded(cores=[5, 60]), minimum=10)[0]


@given(st.recursive(st.none() | st.integers() | st.text(max_size=8) | st.floats(), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["v", "apply", "containers", "c", "cores", "memory"]), inner)
)))  # fmt: skip
def test_whatever_is_written_is_judged_and_never_raises(value: Any) -> None:
    for text in (json.dumps(value), json.dumps({"v": 1, "containers": {"c": value}})):
        legal = not faults(text)
        try:
            terms = read_advice_terms(text)
        except RequestInvalid:
            assert not legal
            continue
        if legal:
            for bounds in terms.bounds.values():
                assert bounds.cores is None or 1 <= bounds.cores[0] <= bounds.cores[1] <= 99
                assert bounds.memory is None or UNIT <= bounds.memory[0] <= bounds.memory[1]


def advice(cores: int | None, memory: int | None) -> Advice:
    return Advice(Figure(cores, ""), Figure(memory, ""))


def test_the_advised_size_stays_within_the_bounds_and_leaves_what_is_not_advised() -> None:
    bounds = SizeBounds((10, 60), (GIB, 4 * GIB))
    assert advised_size(advice(5, 6 * GIB), GIVEN, bounds) == Amount(10, 4 * GIB)
    assert advised_size(advice(80, None), GIVEN, bounds) == Amount(60, GIVEN.memory)
    assert advised_size(advice(None, 3 * GIB), GIVEN, SizeBounds()) == Amount(50, 3 * GIB)
    assert advised_size(advice(180, None), GIVEN, SizeBounds()).cores == 99, "it stays a fraction"


def test_a_container_is_changed_once_a_day_unless_its_memory_is_too_small() -> None:
    said = note_change(None, "c", NOW)
    assert next_change(None, "c", NEED, GIVEN, NOW) <= NOW
    assert next_change(said, "other", NEED, GIVEN, NOW) <= NOW
    later = NOW + timedelta(hours=23)
    assert next_change(said, "c", NEED, GIVEN, later) == NOW + PAUSE > later
    short = Need(2 * DAY, 3, 4 * HOUR, 30, NEED.hours, NEED.days, refused=9 * GIB)
    assert next_change(said, "c", short, GIVEN, later) <= later
    assert next_change(said, "c", short, Amount(50, 9 * GIB), later) > later, "it has been given that since"
    both = note_change(said, "other", later)
    assert json.loads(both)["containers"].keys() == {"c", "other"}
    assert next_change(both, "c", NEED, GIVEN, later) == NOW + PAUSE


@pytest.mark.parametrize("text", ["", "[]", '{"v":1,"containers":{"c":"soon"}}', '{"v":1,"containers":7}'])
def test_a_note_that_cannot_be_read_holds_nothing_up(text: str) -> None:
    assert next_change(text, "c", NEED, GIVEN, NOW) <= NOW
    assert json.loads(note_change(text, "c", NOW))["containers"]["c"] == "2026-05-04T12:00:00+00:00"
