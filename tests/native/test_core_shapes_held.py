"""A few frameworks' shapes at a few limits, with an H100's call costs: charged as they should be, and held.

Those for which that is so on every run; bench/limits_core.py measures all of them.
"""

from __future__ import annotations

import pytest

from bench.core_cells import Cell
from tests.native.shape_table import TABLE
from tests.native.shapes import bare, held

SECONDS = 2.2
SHAPES = {shape.name: shape for shape in TABLE}


@pytest.mark.parametrize(("name", "limit"), [("diffusion", 20), ("prefill", 50), ("compiled", 99)])
def test_a_shape_has_its_limit_or_its_need_and_is_charged_that(name: str, limit: int) -> None:
    alone = bare(SHAPES[name], 1, SECONDS, "h100")
    cell = Cell(name, limit, alone.work, alone.had, held(SHAPES[name], limit, 1, SECONDS, "h100"))
    assert cell.over <= 2, str(cell)
    assert abs(cell.error) <= 3, str(cell)
    assert cell.delivered >= 0.95, str(cell)
