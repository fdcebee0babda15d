"""The elastic ceiling that a claim or its class asks for in opaque parameters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.parameters import API_VERSION, KIND, claimed_ceilings
from gpu_manager.domain.errors import RequestInvalid

CORES = {"gpu": [30, 30], "other": [50]}


def entry(limit: object = None, *requests: str, source: str = "FromClaim", **more: Any) -> dict[str, Any]:
    told = {"apiVersion": API_VERSION, "kind": KIND, **more}
    parameters = told if limit is None else {**told, "coreLimit": limit}
    opaque = {"driver": DRA_DRIVER, "parameters": parameters}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def test_the_ceiling_is_that_of_the_named_requests_or_of_all() -> None:
    assert claimed_ceilings(None, CORES) == {}
    assert claimed_ceilings([entry()], CORES) == {}
    assert claimed_ceilings([entry(80)], CORES) == {"gpu": 80, "other": 80}
    assert claimed_ceilings([entry(40, "gpu")], CORES) == {"gpu": 40}
    assert claimed_ceilings([entry(40, "gpu/first", "unknown")], CORES) == {"gpu": 40}
    another = {"opaque": {"driver": "net.example", "parameters": {"coreLimit": 7}}}
    assert claimed_ceilings([another, {}], CORES) == {}


def test_the_claims_word_counts_over_its_classs() -> None:
    both = [entry(90, source="FromClass"), entry(60, "gpu")]
    assert claimed_ceilings(both, CORES) == {"gpu": 60, "other": 90}
    assert claimed_ceilings([entry(40, source="FromClass")], CORES) == {"gpu": 40}, "50 cores have no ceiling"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (entry(20, "gpu"), 'coreLimit is 20, below the 30 cores of request "gpu": use 30 to 100'),
        (entry(0), "coreLimit is 0: use 1 to 100"),
        (entry(101), "coreLimit is 101: use 1 to 100"),
        (entry("80"), 'coreLimit is "80": use 1 to 100'),
        (entry(True), "coreLimit is true: use 1 to 100"),
        (entry(80, ceiling=80), "are no ShareParameters of vcuda.tencent.com/v1"),
        (entry(80, kind="GpuConfig"), "are no ShareParameters of vcuda.tencent.com/v1"),
        ({"opaque": {"driver": DRA_DRIVER, "parameters": "80"}}, "are no ShareParameters"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestInvalid, match=says):
        claimed_ceilings([wrong], CORES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["opaque", "driver", "parameters", "requests", "coreLimit", "kind"]), inner
        )
    ),
)


@given(JSON)
def test_whatever_is_stored_is_read_or_refused(config: object) -> None:
    for told in (config, [config], [{"opaque": {"driver": DRA_DRIVER, "parameters": config}}]):
        try:
            assert all(30 <= one <= 100 for one in claimed_ceilings(told, CORES).values())
        except RequestInvalid:
            continue
