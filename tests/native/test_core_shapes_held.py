"""A few frameworks' shapes at a few limits, with an H100's call costs: charged as they should be, and held.

Those for which that is so on every run; bench/limits_core.py measures all of them.
"""

from __future__ import annotations

import pytest

from bench.core_cells import Cell
from tests.native.shape_chance import drawn
from tests.native.shape_table import TABLE
from tests.native.shapes import Shape, bare, beside, held, together

SECONDS = 2.2
SHAPES = {shape.name: shape for shape in TABLE}


@pytest.mark.parametrize(
    ("name", "limit"), [("diffusion", 20), ("prefill", 50), ("compiled", 99), ("numba", 99)]
)
def test_a_shape_has_its_limit_or_its_need_and_is_charged_that(name: str, limit: int) -> None:
    alone = bare(SHAPES[name], 1, SECONDS, "h100")
    cell = Cell(name, limit, alone.work, alone.had, held(SHAPES[name], limit, 1, SECONDS, "h100"))
    assert cell.over <= 2, str(cell)
    assert abs(cell.error) <= 3, str(cell)
    assert cell.delivered >= 0.95, str(cell)


@pytest.mark.parametrize(
    ("shape", "limit"),
    [(SHAPES["vllm"], 99), (drawn(3), 99), (SHAPES["eager"], 50)],
    ids=["vllm", "seed 3", "eager"],
)
def test_two_processes_are_not_charged_what_they_wait_for_each_other(shape: Shape, limit: int) -> None:
    use = held(shape, limit, 2, SECONDS, "h100")
    assert abs(use.charged - use.had) <= 4, use


def test_two_processes_that_hide_long_kernels_behind_short_ones_of_their_name_are_held() -> None:
    """A wait for the other process that its work does not explain was the kernel's own."""
    words = "12{ k:gemm:9:1 k:att:6:1 } ?10{ k:gemm:2500:2 } r:1"
    use = held(Shape("prefill", words, "one name, two lengths"), 20, 2, SECONDS, "h100")
    assert abs(use.charged - use.had) <= 6, use


@pytest.mark.parametrize(("name", "limit"), [("kinds", 20), ("requests", 20), ("nccl", 50)])
def test_a_shape_beside_a_container_that_fills_the_card_is_charged_what_it_has(name: str, limit: int) -> None:
    use = beside(SHAPES[name], limit, 100 - limit, SECONDS, "h100")
    assert abs(use.charged - use.had) <= 3, use
    assert use.fullest <= limit + 2.5, use


@pytest.mark.parametrize(("name", "containers"), [("kinds", 2), ("compiled", 3)])
def test_a_shape_beside_several_containers_is_charged_what_it_has(name: str, containers: int) -> None:
    use = beside(SHAPES[name], 20, 80, SECONDS, "h100", containers=containers)
    assert abs(use.charged - use.had) <= 3, use
    assert use.fullest <= 22.5, use


def test_kernels_with_a_heavy_tail_beside_a_container_that_fills_the_card_are_not_taken_for_waits() -> None:
    use = beside(SHAPES["persistent"], 20, 80, SECONDS, "h100")
    assert abs(use.charged - use.had) <= 4, use
    assert use.fullest <= 24.5, use


def test_long_kernels_behind_many_short_ones_of_their_name_are_charged() -> None:
    """They are charged up to ten points too much: the meter adds what it missed, and never gives back an excess."""
    words = "2000{ k:mm:6:1 } 3{ k:mm:9000:1 }"
    use = held(Shape("tail", words, "one name, two lengths"), 50, 1, 2 * SECONDS, "h100")
    assert -3 <= use.charged - use.had <= 10, use


def test_work_that_streams_hand_on_by_events_is_charged_what_it_has() -> None:
    """The card turns to the other container while a stream waits for an event."""
    layer = "k:route:14:1 e:1:2 k:a2a:60~700:2 e:2:1 k:expert:50/120/900:1 e:1:2 k:comb:60~300:2 e:2:1"
    use = beside(
        Shape("handed", f"16{{ {layer} }} s:1", "experts between two streams"), 50, 50, SECONDS, "h100"
    )
    assert abs(use.charged - use.had) <= 5, use


def test_kernels_of_many_time_slices_beside_three_containers_are_charged_what_they_have() -> None:
    """Each is in flight for longer than the host's period."""
    use = beside(
        Shape("paths", "k:paths:38000:1 s:1", "rounds of four"), 25, 75, 2 * SECONDS, "h100", containers=3
    )
    assert abs(use.charged - use.had) <= 5, use
    assert use.fullest <= 27, use


def test_what_is_waited_for_each_time_and_varies_is_charged_where_others_leave_room() -> None:
    """None of its launches follows own work: those that begin with a time slice of their own tell of the others."""
    use = beside(
        Shape("answers", "k:answer:~300:1 s:1 b:5", "answers of any length"), 20, 40, SECONDS, "h100"
    )
    assert abs(use.charged - use.had) <= 4, use
    assert use.fullest <= 23, use


def test_long_kernels_beside_short_ones_that_are_waited_for_are_not_divided_by_two() -> None:
    """The short ones' turns are over at once, however often they are met."""
    long = Shape("long", "k:layer:5000:1 s:1", "kernels of two time slices")
    short = Shape("lookups", "k:lookup:70:1 s:1 p:5000", "one short kernel at a time")
    use, _ = together([long, short], [50, 40], SECONDS, "h100")
    assert abs(use.charged - use.had) <= 4, use
    assert use.fullest <= 54, use


def test_kernels_of_any_length_beside_three_containers_are_charged_what_they_have() -> None:
    """Each ends within a time slice: the account rests on those that had one of their own, not on others' charges."""
    experts = Shape("experts", "8{ k:expert:8~900:1 } e:1:2 k:a2a:150:2 e:2:1", "experts of any load")
    use = beside(experts, 50, 50, SECONDS, "h100", containers=3)
    assert abs(use.charged - use.had) <= 4, use
