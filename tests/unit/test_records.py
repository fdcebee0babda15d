"""Frozen dataclasses are written as JSON and read back, also from the JSON of another release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple, NewType

import pytest

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.records import decode, encode

Name = NewType("Name", str)


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    one: int
    two: tuple[str, ...] = ()


NOTHING = Pair(0)


@dataclass(frozen=True, slots=True)
class Inner:
    amount: Fraction
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Outer:
    name: Name
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    two: tuple[str, int] = ("", 0)
    names: frozenset[Name] = frozenset()
    by_name: Mapping[Name, Inner] = field(default_factory=dict)
    pair: Pair = NOTHING
    derived: int = field(init=False, default=0)


VALUES = [
    Outer(Name("a")),
    Outer(
        Name("a"),
        Inner(Fraction(1, 3)),
        (Inner(Fraction(2)),),
        ("x", 1),
        frozenset({Name("b"), Name("a")}),
        {Name("k"): Inner(Fraction(0))},
        Pair(7, ("y", "z")),
    ),
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_comes_back_as_it_was(value: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(Outer, value)))) == value


def test_defaults_take_no_room_and_sets_have_one_order() -> None:
    assert encode(Outer, VALUES[0]) == {"name": "a"}
    assert encode(Outer, VALUES[1])["names"] == ["a", "b"]


def test_fields_of_another_release_are_passed_over() -> None:
    assert decode(Outer, {"name": "a", "new": 1, "inner": {"amount": "1/2", "newer": []}}) == Outer(
        Name("a"), Inner(Fraction(1, 2))
    )


@pytest.mark.parametrize(
    "data",
    [
        {},
        None,
        [],
        {"name": "a", "inner": {"amount": "x"}},
        {"name": "a", "inner": {"amount": "1", "colour": "?"}},
    ],
)
def test_what_is_none_of_the_type_is_refused(data: Any) -> None:
    with pytest.raises(RequestInvalid, match="no Outer of this release"):
        decode(Outer, data)
