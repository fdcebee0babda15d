"""Amounts, and Kubernetes quantities against an oracle that shares nothing with the parser."""

from __future__ import annotations

from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.resources import (
    GIB,
    MIB,
    Amount,
    format_bytes,
    format_number,
    memory_quantity,
    parse_quantity,
)

BEYOND = 1000
"""Powers of ten from here on are all more than any amount that is judged."""
EXACT = Context(prec=2000, Emax=10**6, Emin=-(10**6))
POWERS = dict(zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)) | {"": 0}
BINARY = {f"{letter}i": 1024 ** (n + 1) for n, letter in enumerate("KMGTPE")}


def oracle(text: str) -> Fraction | None:
    """The documented grammar of resource.Quantity, one character at a time, in decimal arithmetic."""
    rest = text[1:] if text[:1] in ("+", "-") else text
    end = next((i for i, c in enumerate(rest) if c not in "0123456789."), len(rest))
    number, suffix = rest[:end], rest[end:]
    if number.count(".") > 1 or number in ("", "."):
        return None
    value = Decimal(number)
    if suffix in POWERS:
        value = value.scaleb(POWERS[suffix], EXACT)
    elif suffix in BINARY:
        value = min(EXACT.multiply(value, Decimal(BINARY[suffix])), Decimal(2**63 - 1))
    elif (
        suffix[0] in "eE"
        and suffix[1:].lstrip("+-").isdecimal()
        and suffix[1:].isascii()
        and suffix[2:3] not in ("+", "-")
    ):
        exponent = min(int(suffix[1:]), BEYOND) if value else 0
        value = value.scaleb(exponent, EXACT)
    else:
        return None
    value = value.quantize(Decimal("1e-9"), rounding=ROUND_UP, context=EXACT)
    return -Fraction(value) if text.startswith("-") else Fraction(value)


def parsed(value: object) -> Fraction | None:
    try:
        return parse_quantity(value)
    except RequestInvalid as error:
        text = str(error)
    assert len(text) < 300
    assert text.isprintable()
    return None


numbers = st.from_regex(r"[+-]?([0-9]{1,22}\.?[0-9]{0,14}|\.[0-9]{1,14})", fullmatch=True)
suffixes = st.sampled_from([*POWERS, *BINARY]) | st.from_regex(r"[eE][+-]?[0-9]{1,2}", fullmatch=True)


@given(st.builds(str.__add__, numbers, suffixes))
@example("1E")
@example("1E3")
@example("16Ei")
@example("-0.9n")
@example("-10000000000000000000000000001n")
@example("100000m")
def test_every_quantity_form_equals_the_oracle(text: str) -> None:
    assert parsed(text) == oracle(text)
    assert parsed(text) is not None


@given(st.text("0123456789.+-eEnumkKMGTPi ", max_size=9))
@example("")
@example("1e")
@example("1e+")
@example("1K")
@example("1.1.M")
@example("+-1")
@example("1 ")
@example("9e9999999")
@example("0e9999999")
@example("1e-999999")
def test_what_is_no_quantity_for_the_oracle_is_none(text: str) -> None:
    if (expected := oracle(text)) is None or abs(expected) < 10**200:
        assert parsed(text) == expected


@given(st.integers(-(10**40), 10**40))
def test_a_json_number_is_itself(number: int) -> None:
    assert parse_quantity(number) == number


@given(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15).filter(
        lambda f: f == 0 or abs(f) > 1e-3
    )
)
def test_a_float_is_the_digits_it_prints(number: float) -> None:
    assert parse_quantity(number) == parse_quantity(repr(number))


@pytest.mark.parametrize(
    "value",
    [None, True, False, [], {}, b"30", object(), float("inf"), float("nan"), 10**400, -(10**400), "1e999999",
     "9" * 300, "٣٠", "\uff13\uff10", "\ud800", "30\x00", "1\n", "0x1e", "1_000", "inf", "NaN", "1e" + "9" * 200],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_hostile_values_are_refused_by_name_and_never_break_the_reader(value: object) -> None:
    assert parsed(value) is None


def test_exponents_beyond_reason_cost_nothing() -> None:
    assert parse_quantity("0e999999999999") == 0
    assert parse_quantity("5e-999999999999") == Fraction(1, 10**9)


def test_full_width_digits_are_refused_with_what_they_were_meant_to_be() -> None:
    with pytest.raises(RequestInvalid, match="write 30 in ASCII digits"):
        parse_quantity("\uff13\uff10")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (512, "512 B"),
        (1024, "1 KiB"),
        (256 * MIB, "256 MiB"),
        (GIB - 1, "1 GiB"),  # never "1024 MiB"
        (5 * GIB, "5 GiB"),
        (5 * GIB + 256 * MIB, "5.25 GiB"),
        (-256 * MIB, "-256 MiB"),
        (100 * GIB, "100 GiB"),
        (10**400, None),
    ],
)
def test_bytes_are_written_for_people(count: int, text: str | None) -> None:
    assert format_bytes(count) == text if text is not None else format_bytes(count).endswith(" GiB")


@given(st.integers(0, 1 << 50))
def test_bytes_are_off_by_no_more_than_half_a_hundredth(count: int) -> None:
    number, name = format_bytes(count).split()
    size = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": GIB}[name]
    assert abs(Fraction(number) * size - count) * 200 <= size
    assert Fraction(number) < 1024 or name == "GiB"


@given(st.fractions(max_denominator=1000, min_value=-(10**6), max_value=10**6))
def test_a_number_reads_back_from_its_text(number: Fraction) -> None:
    exact = Fraction(int(number * 10**9), 10**9)
    assert parse_quantity(format_number(exact)) == exact


def test_a_number_of_many_digits_is_shortened() -> None:
    assert format_number(Fraction(10**30)) == "1.00e30"
    assert format_number(Fraction(-(10**30))) == "-1.00e30"


amounts = st.builds(Amount, st.integers(0, 1600), st.integers(0, 1 << 40))


@given(amounts, amounts)
def test_a_sum_less_a_part_is_the_other_part_and_a_peak_holds_both(a: Amount, b: Amount) -> None:
    assert (a + b) - b == a
    assert a.fits_in(a.peak(b))
    assert b.fits_in(a.peak(b))
    assert a.fits_in(a + b)


def test_an_amount_reads_as_a_person_says_it() -> None:
    assert str(Amount(30, 5 * GIB)) == "30 cores, 5 GiB"


@given(st.text())
def test_printable_text_never_moves_the_cursor(text: str) -> None:
    assert printable(text).isprintable()
    assert len(quoted(text)) < 1000


def test_two_texts_that_differ_are_shown_as_two() -> None:
    """Letters without a shape: by them a second name would be shown as the first one."""
    for code in (0x34F, 0x115F, 0x1160, 0x17B4, 0x180B, 0x2800, 0x3164, 0xFE0F, 0xFFA0, 0xE0100, 0xE01EF):
        assert printable(f"a{chr(code)}b") == f"a{ascii(chr(code))[1:-1]}b"
    assert printable("模型 é ½ 🚀") == "模型 é ½ 🚀"


def test_quoted_says_what_kind_of_thing_stands_there() -> None:
    assert [quoted(v) for v in (None, True, 1.0, 30, 10**5000, [1], {}, b"x", "a\nb")] == [
        "null", "true", "1.0", "30", "a number of more than 38 digits", "a list", "a map",
        "a piece of binary data", '"a\\nb"',
    ]  # fmt: skip


@given(st.integers(0, 1 << 50))
def test_bytes_are_written_as_manifests_do_and_read_back_exactly(size):
    assert parse_quantity(memory_quantity(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(8 << 30, "8Gi"), (1536 << 20, "1536Mi"), ((8 << 30) + 1, "8589934593")]
)
def test_memory_is_written_in_the_largest_binary_unit_that_is_exact(size, text):
    assert memory_quantity(size) == text
