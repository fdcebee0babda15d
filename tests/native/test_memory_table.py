"""The table from pointers to charges, alone: threads, forks and sweeps, under sanitizers too."""

from __future__ import annotations

import os

import pytest

from tests.native.tools import build_tests, run

# ``VCUDA_SANITIZE`` in the environment of the tests asks for one (make native-tsan).
ASKED = os.environ.get("VCUDA_SANITIZE", "")


@pytest.mark.parametrize("sanitize", [ASKED] if ASKED else ["", "address,undefined"])
def test_nothing_is_lost_or_found_twice_whatever_threads_and_forks_do(sanitize: str) -> None:
    assert run(build_tests("unit_allocation_table", sanitize=sanitize) / "unit_allocation_table") == "whole\n"
