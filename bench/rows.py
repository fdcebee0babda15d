"""A row of the table: a figure beside its bar and the bare loop it was measured against."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_HOLDS = {"≤": operator.le, "≥": operator.ge, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Row:
    """``bar`` is written like ``≤ 3``. ``figure`` is None where it cannot be measured here; ``note`` says why."""

    name: str
    figure: float | None
    unit: str
    bar: str
    baseline: float | None = None
    full: bool = False
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """True if the figure keeps the bar; None without a figure."""
        if self.figure is None:
            return None
        relation, _, value = self.bar.partition(" ")
        return bool(_HOLDS[relation](self.figure, float(value)))

    def as_json(self) -> dict[str, object]:
        """What build/bench.json holds of it."""
        return {**asdict(self), "holds": self.holds}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(len(ordered), max(1, rank)) - 1]
