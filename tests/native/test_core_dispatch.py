"""Programs that dispatch slower than the card runs get what they need and are accounted for what they had.

Few cells, short and with wide bounds, because the machine's own scheduling shows; all of them are replayed as traces in
test_replay.py, and measured in bench/limits_dispatch.py.
"""

from __future__ import annotations

import pytest

from tests.native.dispatch import Cell, Shape, bare, held

LIMITS = (99, 30)
SHAPES = (
    Shape(10, 30),
    Shape(10, 1000),
    Shape(50, 100, jittered=True, streams=4),
    Shape(200, 100, every=1),
)


HOSTS = ((8000, 0), (8000, 100), (2000, 100))
"""What a launch's call takes, ns, and after how many per cent of it the card is reached."""


@pytest.mark.parametrize("host", HOSTS, ids=str)
@pytest.mark.parametrize("shape", [Shape(10, 30), Shape(3, 30, every=1)], ids=str)
def test_a_launchs_way_to_the_card_is_no_work(shape: Shape, host: tuple[int, int]) -> None:
    """A pair of events on an idle stream measures that way too."""
    call, reach = host
    use = held(shape, 99, 1.5, launch_ns=call, reach_percent=reach, record_ns=1000, stamp_ns=1250,
               gap_ns=950, step_ns=32, host_ns=40_000)  # fmt: skip
    assert abs(use.accounted - use.kernels) <= 2, str(use)


def test_a_record_that_takes_the_host_longer_than_the_card_is_not_taken_off_kernels() -> None:
    """What an event's record takes of the card is told by a pair that is there before its stream goes on."""
    use = held(Shape(10, 30), 99, 1.5, launch_ns=3600, start_ns=4200, record_ns=3000, stamp_ns=1250,
               gap_ns=950, step_ns=32, host_ns=40_000)  # fmt: skip
    assert abs(use.accounted - use.kernels) <= 2, str(use)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_slow_dispatcher_has_what_it_needs_and_no_more_is_accounted(shape: Shape) -> None:
    before = bare(shape, 1.2)
    uses = [held(shape, limit, 1.2) for limit in LIMITS]
    need = min(before, bare(shape, 1.2))
    for limit, use in zip(LIMITS, uses, strict=True):
        cell = Cell(shape, limit, need, use)
        assert cell.accounted_error <= 4, str(cell)
        assert cell.delivered >= 0.9, str(cell)
        assert cell.over <= 3, str(cell)
