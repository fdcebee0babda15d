"""What a claim consumes of one capacity of a card, as Kubernetes' allocator rounds it.

Source: k8s.io/dynamic-resource-allocation/structured, v0.36.3 and v0.37.2; ``bench/dra.py`` compares with
both.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import LARGEST_COUNT, format_number

FIRST_FRACTIONAL_MINOR: Final = 37
"""Kubernetes 1.37 rounds in thousandths (gate DRAFractionalCapacityRange)."""


@dataclass(frozen=True, slots=True)
class CapacityRange:
    """One capacity of a card in a ResourceSlice: whole numbers from ``minimum`` to ``value`` in steps.

    ``value`` is also the largest that one claim may take, and what a claim takes that does not name the
    capacity: the whole card. Cores are hundredths of a card, memory is bytes.
    """

    minimum: int
    step: int
    value: int

    def consumed(self, asked: Fraction | None, minor: int) -> int | None:
        """Return what a request consumes on Kubernetes 1.``minor``; None if no card of this size can give it.

        Kubernetes never refuses an odd value: it raises it to the minimum, or rounds it up to the next step.

        Raises:
            RequestInvalid: the value ends the whole scheduling attempt instead of skipping the card.
        """
        return self.value if asked is None else _rounded(self, asked, minor)


@lru_cache(maxsize=4096)  # the same few requests are asked of every card of a cluster
def _rounded(span: CapacityRange, asked: Fraction, minor: int) -> int | None:
    if asked < span.minimum:
        return span.minimum
    _check_countable(asked, span.step, minor)
    rounded = span.minimum + ceil((asked - span.minimum) / span.step) * span.step
    return rounded if rounded <= span.value else None


def _check_countable(asked: Fraction, step: int, minor: int) -> None:
    """1.36 counts in int64 and does not notice an overflow: 8Ei of memory consumes -8Ei of the card, and
    1e20 consumes nothing. 1.37 counts in thousandths and ends the attempt where it cannot.
    """
    if minor < FIRST_FRACTIONAL_MINOR:
        if asked > LARGEST_COUNT - step:
            raise RequestInvalid(
                f"{format_number(asked)} is more than Kubernetes 1.{minor} can count: "
                "its scheduler would allocate an amount that was not asked for"
            )
    elif (asked * 1000).denominator != 1 or asked * 1000 > LARGEST_COUNT:
        raise RequestInvalid(
            f"Kubernetes 1.{minor} cannot count {format_number(asked)} in thousandths: "
            "it gives up on the pod on every node"
        )
