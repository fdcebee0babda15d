"""Programs in the shapes of frameworks: their own account is the modelled card's, and what their words mean.

How well core limits hold for them is measured in bench/limits_core.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.programs import compiled
from tests.native.shape_chance import drawn
from tests.native.shape_table import TABLE
from tests.native.shapes import SAME_POINTS, Shape, bare

SECONDS = 0.15
LETTERS = set("kodcmrsSqQEehbpgtfx?1wW")


@pytest.mark.parametrize("shape", TABLE, ids=[shape.name for shape in TABLE])
def test_the_card_serves_a_program_what_it_asked_for(shape: Shape) -> None:
    use = bare(shape, shape.processes[-1], SECONDS, "free")
    assert use.launches > 0
    assert use.work > 0
    assert abs(use.had - use.work) <= SAME_POINTS, use


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_card_serves_what_programs_drawn_by_chance_asked_for(seed: int) -> None:
    use = bare(drawn(seed), 1, SECONDS, "free")
    assert abs(use.had - use.work) <= SAME_POINTS, use


def test_kernels_that_fill_the_card_are_counted_one_after_the_other_and_small_ones_by_the_card() -> None:
    full, small = (
        bare(Shape("pair", f"{letter}:a:300:1 {letter}:b:300:2 S", ""), 1, SECONDS, "free") for letter in "ko"
    )
    assert full.work == pytest.approx(full.had, abs=SAME_POINTS)
    assert small.had * small.seconds / small.launches == pytest.approx(
        full.had * full.seconds / full.launches / 2, rel=0.05
    )


def test_a_program_says_its_longest_kernel_or_graph() -> None:
    kernel = bare(Shape("kernel", "k:a:700:1 k:a:20:1 s:1", ""), 1, SECONDS, "free")
    graph = bare(Shape("graph", "g:1{ k:a:700:1 k:b:500:1 } s:1", ""), 1, SECONDS, "free")
    assert (round(kernel.longest, 3), round(graph.longest, 3)) == (0.07, 0.12)


def test_the_table_has_every_word() -> None:
    """``x``: a number of times, as in ``4{``."""
    words = [word for shape in TABLE for word in shape.words.split() if word != "}"]
    used = {"x" if word[0].isdigit() else word[0] for word in words}
    assert used >= LETTERS - {"q", "1", "w", "W"}


@pytest.mark.parametrize("word", ["k:a:20", "z:1", "k:a:20:77", "4{", "}"])
def test_what_is_no_word_is_refused(word: str, tmp_path: Path) -> None:
    program = [str(compiled("core_shape.c")), "1", "1", word]
    done = subprocess.run(
        program, env=standin.environment(tmp_path), capture_output=True, check=False, input=b""
    )
    assert done.returncode == 64


def test_a_seed_draws_the_same_program_always() -> None:
    assert drawn(7) == drawn(7)
    assert len({drawn(seed).words for seed in range(1, 61)}) == 60
