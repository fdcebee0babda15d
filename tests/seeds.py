"""One number decides all that tests draw: their order, the examples of properties, random numbers, hashes.

Without ``STEADY_SEED`` every run draws the same. With it, a run draws otherwise, and the same number again
draws the same again.
"""

from __future__ import annotations

import os
import random
from typing import Final

VARIABLE: Final = "STEADY_SEED"
GIVEN: Final = os.environ.get(VARIABLE, "")
SEED: Final = int(GIVEN or 0)
_MOST: Final = 1_000  # seeds that one test may take before those of the next STEADY_SEED begin


def seeds(count: int) -> range:
    """As many seeds, one an example: from 0 by default, others with ``STEADY_SEED``."""
    assert count <= _MOST, "the last ones would be the first ones of another STEADY_SEED"
    return range(SEED * _MOST, SEED * _MOST + count)


def generator(name: int | str) -> random.Random:
    """The generator of this name; ``STEADY_SEED`` makes another of it."""
    return random.Random(f"{GIVEN}/{name}" if SEED else name)
