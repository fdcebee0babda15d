"""Amounts of a card, Kubernetes quantities, and their formatting.

Cores are hundredths of a card (100 = one card), memory is bytes. ``tencent.com/vcuda-memory`` counts
units of :data:`DEFAULT_UNIT` bytes unless the cluster's configuration says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from unicodedata import normalize

from gpu_manager.domain.errors import RequestInvalid, quoted

CORES_PER_CARD = 100
MIB = 1 << 20
GIB = 1 << 30
DEFAULT_UNIT = 256 * MIB


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of cores (hundredths of a card) and memory (bytes)."""

    cores: int
    memory: int

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cores + other.cores, self.memory + other.memory)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.cores - other.cores, self.memory - other.memory)

    def part(self, number: int) -> Amount:
        """Return what each of ``number`` equal parts has."""
        return Amount(self.cores // number, self.memory // number)

    def fits_in(self, room: Amount) -> bool:
        """True if both dimensions fit."""
        return self.cores <= room.cores and self.memory <= room.memory

    def peak(self, other: Amount) -> Amount:
        """Return the larger value of each dimension."""
        return Amount(max(self.cores, other.cores), max(self.memory, other.memory))

    def __str__(self) -> str:
        return f"{self.cores} cores, {format_bytes(self.memory)}"


ZERO = Amount(0, 0)

# The suffixes of Kubernetes' resource.Quantity (apimachinery pkg/api/resource/suffix.go).
_DECIMAL = {s: Fraction(10) ** e for s, e in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)}
_BINARY = {s + "i": 1 << e for s, e in zip("KMGTPE", (10, 20, 30, 40, 50, 60), strict=True)}
# ASCII digits only: Kubernetes refuses the full-width digits of an input method, which \d would take.
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_LONGEST_TEXT = 256
_PLAIN_DIGITS = 18
_LARGEST_EXPONENT = 300
_LARGEST_BITS = 1024
_NANO = 10**9
LARGEST_COUNT = (1 << 63) - 1  # Kubernetes counts in int64


def lenient_count(value: object) -> int | None:
    """Return the whole part of a quantity; None if there is none, or it cannot be read."""
    try:
        return None if value is None else int(parse_quantity(value))
    except RequestInvalid:
        return None


def parse_quantity(value: object) -> Fraction:
    """Read a quantity as Kubernetes does (``"30"``, ``"500m"``, ``"3e1"``, ``"1E"``, ``"1Ki"``, ``30``).

    Exact, except for Kubernetes' own rounding: anything finer than a billionth is rounded away from zero,
    and an amount with a binary suffix is capped at 2^63 - 1.

    Raises:
        RequestInvalid: the value is not a quantity, or too large for Kubernetes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() <= _LARGEST_BITS:
            return Fraction(value)
        raise _too_large(value)
    text = repr(value) if isinstance(value, float) else value
    if isinstance(text, str) and len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return Fraction(int(text))  # the common case, at a tenth of the cost
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise RequestInvalid(f"{quoted(value)} is not a Kubernetes quantity: write {_ascii_form(text)}")
    number, suffix, exponent = Fraction(match["number"]), match["suffix"] or "", match["exponent"]
    if exponent is not None:
        if number and int(exponent) > _LARGEST_EXPONENT:
            raise _too_large(value)
        # Further down, every number that fits the text is a billionth, rounded.
        number *= Fraction(10) ** max(int(exponent), -_LONGEST_TEXT - 10) if number else 1
    elif suffix in _BINARY:
        number = max(Fraction(-LARGEST_COUNT), min(number * _BINARY[suffix], Fraction(LARGEST_COUNT)))
    else:
        number *= _DECIMAL.get(suffix, 1)
    return _rounded_to_nano(number)


def _ascii_form(text: object) -> str:
    """Suggest the ASCII form of full-width digits, which Kubernetes does not accept as a number."""
    plain = normalize("NFKC", text).strip() if isinstance(text, str) and len(text) <= 32 else ""
    is_hidden_number = plain != text and _QUANTITY.fullmatch(plain)
    return f"{plain} in ASCII digits, without blanks" if is_hidden_number else "a whole number such as 30"


def _too_large(value: object) -> RequestInvalid:
    return RequestInvalid(
        f"{quoted(value)} is more than Kubernetes can count: write a whole number such as 30"
    )


def _rounded_to_nano(number: Fraction) -> Fraction:
    scaled = number * _NANO
    return Fraction(ceil(scaled) if number > 0 else floor(scaled), _NANO)


def format_number(number: Fraction) -> str:
    """Format a quantity as a plain decimal (``1.5``, ``-30``), shortened from 19 digits on (``1.23e25``)."""
    whole, rest = divmod(floor(abs(number) * _NANO), _NANO)
    digits = str(whole)
    if len(digits) > 18:
        digits = f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"
    elif rest:
        digits += f".{rest:09d}".rstrip("0")
    return f"-{digits}" if number < 0 else digits


def format_bytes(count: int) -> str:
    """Format bytes (``5 GiB``, ``1.25 GiB``, ``-256 MiB``) in the largest unit up to GiB, two decimals."""
    sign, count = ("-" if count < 0 else ""), abs(count)
    for size, name in ((GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        hundredths = (count * 100 + size // 2) // size
        if hundredths >= 100:
            whole, rest = divmod(hundredths, 100)
            return f"{sign}{whole}" + (f".{rest:02d}".rstrip("0") if rest else "") + f" {name}"
    return f"{sign}{count} B"


def memory_quantity(size: int) -> str:
    """Write bytes as manifests do: ``8Gi``, ``1536Mi``; as plain bytes where neither is exact."""
    for unit, suffix in ((GIB, "Gi"), (MIB, "Mi")):
        if size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)
