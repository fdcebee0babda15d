"""Every case of a node that was reported in public is answered rightly. The cases lie beside the checkout."""

from __future__ import annotations

import pytest

from tests.fakes.node_cases import CASES, FOLDER, given

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the cases (../shared/cases/node) are not on this machine"
)


@pytest.mark.parametrize("name", CASES)
def test_a_node_that_was_reported(name: str) -> None:
    if not (FOLDER / name).exists():
        pytest.skip(f"{FOLDER / name} is not there")
    assert CASES[name](FOLDER / name) == ""


def test_no_case_is_left_out() -> None:
    assert set(given()) <= set(CASES)
