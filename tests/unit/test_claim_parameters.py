"""What a claim or its class says in opaque parameters: ceiling, priority, preload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.parameters import (
    API_VERSION,
    KIND,
    PLAIN,
    ShareTerms,
    read_config,
    terms_of,
    written_parameters,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.priority import Priority

CORES = {"gpu": 30, "other": 50}
PROTECTED, BEST_EFFORT, NORMAL = Priority.PROTECTED, Priority.BEST_EFFORT, Priority.NORMAL


def entry(limit: object = None, *requests: str, source: str = "FromClaim", **more: Any) -> dict[str, Any]:
    told = {"apiVersion": API_VERSION, "kind": KIND, **more}
    parameters = told if limit is None else {**told, "coreLimit": limit}
    opaque = {"driver": DRA_DRIVER, "parameters": parameters}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def terms(config: object, cores: Mapping[str, int] = CORES) -> dict[str, ShareTerms]:
    told = read_config(config)
    return {request: terms_of(told, request, most) for request, most in cores.items()}


def ceilings(config: object) -> dict[str, int]:
    return {request: one.ceiling for request, one in terms(config).items() if one.ceiling}


def priorities(config: object, cores: Mapping[str, int] = CORES) -> list[Priority]:
    return [one.priority for one in terms(config, cores).values()]


def test_the_ceiling_is_that_of_the_named_requests_or_of_all() -> None:
    assert ceilings(None) == {}
    assert ceilings([entry()]) == {}
    assert ceilings([entry(80)]) == {"gpu": 80, "other": 80}
    assert ceilings([entry(40, "gpu")]) == {"gpu": 40}
    another = {"opaque": {"driver": "net.example", "parameters": {"coreLimit": 7}}}
    assert ceilings([another, {}]) == {}


def test_what_is_said_of_an_alternative_is_of_that_one_alone() -> None:
    told = [entry(40, "gpu/first", "other", priority="best-effort")]
    chosen = {"gpu/second": 30, "other": 40}
    assert terms(told, chosen) == {"gpu/second": PLAIN, "other": ShareTerms(40, BEST_EFFORT)}
    assert priorities(told, {"gpu/first": 30}) == [BEST_EFFORT]
    assert priorities([entry(None, "gpu", priority="protected")], {"gpu/first": 30}) == [PROTECTED]


def test_the_claims_word_counts_over_its_classs_field_by_field() -> None:
    both = [entry(90, source="FromClass"), entry(60, "gpu")]
    assert ceilings(both) == {"gpu": 60, "other": 90}
    assert ceilings([entry(40, source="FromClass")]) == {"gpu": 40}, "50 cores have no ceiling"
    of_class = entry(90, source="FromClass", priority="protected", preload=False)
    assert terms([of_class, entry(60, "gpu", priority="normal")]) == {
        "gpu": ShareTerms(60, NORMAL, preload=False),
        "other": ShareTerms(90, PROTECTED, preload=False),
    }
    assert terms([of_class, entry(preload=True)])["gpu"] == ShareTerms(90, PROTECTED, preload=True)


def test_a_classs_priority_is_not_of_whole_cards_and_a_claims_is_refused_there() -> None:
    cores = {"gpu": 100, "other": 50}
    assert priorities([entry(source="FromClass", priority="protected")], cores) == [NORMAL, PROTECTED]
    assert priorities([entry(priority="normal")], cores) == [NORMAL, NORMAL]
    assert priorities([entry(None, "other", priority="best-effort")], cores) == [NORMAL, BEST_EFFORT]
    with pytest.raises(
        RequestInvalid, match='request "gpu" is given whole cards, which have no other tenant'
    ):
        priorities([entry(priority="best-effort")], cores)


@given(st.integers(0, 100), st.sampled_from(Priority), st.booleans())
def test_what_is_written_reads_back(ceiling: int, priority: Priority, preload: bool) -> None:
    said = ShareTerms(ceiling, priority, preload)
    written = written_parameters(said)
    assert (written == {}) is (said == PLAIN)
    config = [{"opaque": {"driver": DRA_DRIVER, "parameters": written}}] if written else []
    assert terms(config, {"gpu": 1}) == {"gpu": said}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (entry(20, "gpu"), 'coreLimit is 20, below the 30 cores of request "gpu": use 30 to 100'),
        (entry(0), "coreLimit is 0: use 1 to 100"),
        (entry(101), "coreLimit is 101: use 1 to 100"),
        (entry("80"), 'coreLimit is "80": use 1 to 100'),
        (entry(True), "coreLimit is true: use 1 to 100"),
        (entry(priority="Best_Effort"), 'priority is "Best_Effort": use best-effort$'),
        (entry(priority=" PROTECTED"), "use protected$"),
        (entry(priority="high"), 'priority is "high": use protected, normal or best-effort'),
        (entry(priority=7), "priority is 7: use protected, normal or best-effort"),
        (entry(preload="false"), 'preload is "false": use true or false, without quotes'),
        (entry(preload=0), "preload is 0: use true or false, without quotes"),
        (
            entry(80, ceiling=80),
            "are no ShareParameters of vcuda.tencent.com/v1, which has coreLimit, priority and",
        ),
        (entry(80, kind="GpuConfig"), "are no ShareParameters of vcuda.tencent.com/v1"),
        ({"opaque": {"driver": DRA_DRIVER, "parameters": "80"}}, "are no ShareParameters"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestInvalid, match=says):
        terms([wrong])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["opaque", "driver", "parameters", "requests", "coreLimit", "kind", "priority", "preload"]
            ),
            inner,
        )
    ),
)


@given(JSON)
def test_whatever_is_stored_is_read_or_refused(config: object) -> None:
    for told in (config, [config], [{"opaque": {"driver": DRA_DRIVER, "parameters": config}}]):
        try:
            assert all(30 <= one <= 100 for one in ceilings(told).values())
        except RequestInvalid:
            continue
