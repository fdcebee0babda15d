"""How much: amounts of a card, and Kubernetes quantities read once.

Cores are hundredths of a card (100 = one card), memory is bytes. ``tencent.com/vcuda-memory`` counts
units of :data:`DEFAULT_UNIT` bytes unless the cluster's configuration says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gpu_manager.domain.errors import RequestInvalid

CORES_PER_CARD = 100
MIB = 1 << 20
GIB = 1 << 30
DEFAULT_UNIT = 256 * MIB


@dataclass(frozen=True, slots=True)
class Amount:
    """Cores (hundredths of a card) and memory (bytes) taken together."""

    cores: int
    memory: int

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cores + other.cores, self.memory + other.memory)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.cores - other.cores, self.memory - other.memory)

    def fits_in(self, room: Amount) -> bool:
        """True if both dimensions fit."""
        return self.cores <= room.cores and self.memory <= room.memory

    def peak(self, other: Amount) -> Amount:
        """The larger of each dimension."""
        return Amount(max(self.cores, other.cores), max(self.memory, other.memory))

    def __str__(self) -> str:
        return f"{self.cores} cores, {format_bytes(self.memory)}"


ZERO = Amount(0, 0)

# The suffixes of Kubernetes' resource.Quantity (apimachinery pkg/api/resource/suffix.go).
_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1),
    **{s: Fraction(10) ** e for s, e in zip(("n", "u", "m", "k", "M", "G", "T", "P", "E"),
                                            (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)},
    **{s: Fraction(2) ** e for s, e in zip(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"),
                                           (10, 20, 30, 40, 50, 60), strict=True)},
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?\d{1,3}))?"
)


def parse_quantity(value: str | float) -> Fraction:
    """Read a Kubernetes quantity exactly (``"30"``, ``"0.5"``, ``"500m"``, ``"3e1"``, ``"1Ki"``, ``30``).

    Raises:
        RequestInvalid: the text is no quantity.
    """
    text = repr(value) if isinstance(value, float) else str(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= 64 and not isinstance(value, bool) else None
    if match is None:
        raise RequestInvalid(f"{text[:64]!r} is not a Kubernetes quantity: write a number such as 30")
    if match["exponent"] is not None:
        return Fraction(match["number"]) * Fraction(10) ** int(match["exponent"])
    return Fraction(match["number"]) * _SUFFIXES[match["suffix"] or ""]


def format_bytes(count: int) -> str:
    """Bytes for people: the largest binary unit that loses nothing but a rounded second decimal."""
    for size, name in ((GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= size:
            return f"{count / size:.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{count} B"
