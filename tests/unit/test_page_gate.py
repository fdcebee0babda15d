"""The gate's file, from bytes to values."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcuda.page.layout import GATE_SIZE, Gate, PageError, build_gate, read_gate
from vcuda.page.limits import CardLimits, Limits, build_limits, read_limits


def test_a_new_gate_is_open_and_was_never_closed():
    assert read_gate(build_gate()) == Gate(0, 0, 0, 0, 0, 0)


def test_a_gate_says_until_when_it_is_closed():
    image = bytearray(build_gate())
    struct.pack_into("<QI4xQQQQ", image, 8, 100, 2, 40, 3, 17, 60)
    assert read_gate(bytes(image)) == Gate(100, 2, 40, 3, 17, 60)


@given(st.binary(max_size=2 * GATE_SIZE))
def test_anything_else_is_no_gate(image):
    with pytest.raises(PageError):
        read_gate(image)


def test_zeros_of_its_size_are_no_gate():
    with pytest.raises(PageError, match="no magic"):
        read_gate(bytes(GATE_SIZE))


@pytest.mark.parametrize("granted", [None, 1 / 256, 40.0, 100.0])
@pytest.mark.parametrize("beside", [0.0, 1 / 256, 60.0])
@pytest.mark.parametrize(("protected", "best_effort"), [(False, False), (True, False), (False, True)])
def test_the_class_and_the_granted_share_are_on_the_limits_page(protected, best_effort, granted, beside):
    card = CardLimits(
        bytes(16),
        1 << 30,
        30.0,
        30.0,
        protected=protected,
        best_effort=best_effort,
        granted=granted,
        beside=beside,
    )
    assert read_limits(build_limits(Limits((card,)))).cards == (card,)
