"""Selectors of requests and DeviceClasses (CEL): how this project writes them, and which cards they accept.

Understood are the forms that the chart, :func:`uuid_selector` and :func:`model_selector` write: the driver or
an attribute of a device that is equal to a text or number, in a list of texts, or of a model, joined by
``&&`` and ``||``. Every other expression is undecided, and a card that may be accepted counts as accepted. An
attribute of another driver ends Kubernetes' evaluation with an error, so an expression that compares one
accepts none of this driver's cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.device import Version, attributes_of
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.mig import words

_OURS: Final = f"device.attributes['{DRA_DRIVER}']"
_STANDARD: Final = "resource.kubernetes.io"
_SEPARATORS: Final = "[ _/-]"  # between tokens of a model's name: NVML writes spaces, labels cannot
_START, _END = f"(^|{_SEPARATORS})", f"($|{_SEPARATORS})"
_BETWEEN: Final = f"{_SEPARATORS}+"
_TOKEN_OF_MODEL: Final = re.compile(r"[0-9a-z.+()@#%&:,=;!~<>*?$|{}]+")
_MARK: Final = re.compile(r"[^0-9a-z]")


def uuid_selector(uuids: Iterable[CardUuid]) -> str:
    """The expression that accepts only the cards with these (legal) UUIDs."""
    listed = ", ".join(f"'{uuid}'" for uuid in sorted(uuids))
    return f"{_OURS}.uuid in [{listed}]"


def model_selector(wanted: Sequence[str]) -> str:
    """The expression that accepts the cards which :func:`~gpu_manager.domain.rules.request.matches_model`
    matches.

    Raises:
        RequestInvalid: an entry has a character that these expressions cannot contain.
    """
    return " || ".join(f"{_OURS}.productName.lowerAscii().matches('{_pattern(one)}')" for one in wanted)


def _pattern(wanted: str) -> str:
    """A pattern of RE2 without a backslash, so that it needs no escape in a CEL text."""
    tokens = words(wanted)
    for token in tokens:
        if not _TOKEN_OF_MODEL.fullmatch(token):
            raise RequestInvalid(f"{quoted(wanted)} has a character that is not written here")
    return _START + _BETWEEN.join(_MARK.sub(r"[\g<0>]", token) for token in tokens) + _END


def _matches(text: str, pattern: str) -> bool | None:
    """True if the text matches; None for a pattern not written by this project, which may take very long."""
    if not (pattern.startswith(_START) and pattern.endswith(_END)):
        return None
    wanted = pattern[len(_START) : -len(_END)].split(_BETWEEN)
    plain = [re.sub(r"\[([^0-9a-z])\]", r"\1", token) for token in wanted]
    if not all(_TOKEN_OF_MODEL.fullmatch(token) for token in plain) or _pattern("-".join(plain)) != pattern:
        return None
    return re.search(pattern, text) is not None


@dataclass(frozen=True, slots=True)
class SelectedDevice:
    """A device of this driver as selectors see it: published name → value, None if the value is unknown."""

    attributes: Mapping[str, str | int | None]


_UNNAMED: Final = ("uuid", "index", "numa", "resource.kubernetes.io/pciBusID")
SOME_CARD: Final = SelectedDevice(dict.fromkeys((*_UNNAMED, "productName")))
"""A card of which nothing is known but that it is ours."""


def card_of_model(model: str) -> SelectedDevice:
    """A card of which only the model is known."""
    return SelectedDevice({**SOME_CARD.attributes, "productName": model})


def selected_card(card: Card) -> SelectedDevice:
    """Return the card as selectors see it."""
    told = attributes_of(card)
    known = {name: value for name, value in told.items() if not isinstance(value, Version)}
    return SelectedDevice({"resource.kubernetes.io/pciBusID": None, "numa": None, **known})


def takes(selectors: Sequence[str], device: SelectedDevice) -> bool | None:
    """True if all the expressions accept the device; None if that cannot be decided."""
    return _all(
        _any(_all(_holds(one, device) for one in parts) for parts in _read(text)) for text in selectors
    )


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = set(verdicts)
    return False if False in found else None if None in found else True


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    found = set(verdicts)
    return True if True in found else None if None in found else False


_TEXT: Final = r"""(?:'[^'\\\n]*'|"[^"\\\n]*")"""
_PIECE: Final = re.compile(rf"{_TEXT}|&&|\|\||//|.", re.DOTALL)
_PART: Final = re.compile(
    rf"""\s*device\.(?:driver|attributes\[(?P<domain>{_TEXT})\]\.(?P<name>\w+))"""
    rf"""(?:\s*==\s*(?P<equal>{_TEXT}|\d+)|\s+in\s+\[(?P<listed>(?:\s*{_TEXT}\s*,?)*)\]"""
    rf"""|\.lowerAscii\(\)\.matches\((?P<pattern>{_TEXT})\))\s*"""
)


@lru_cache(maxsize=1024)
def _read(expression: str) -> Sequence[Sequence[re.Match[str] | None]]:
    """The alternatives of the expression, each a list of terms that must all hold; None for an unreadable
    term.
    """
    alternatives, depth = [[""]], 0
    for piece in _PIECE.findall(expression):
        depth += (piece in "([{") - (piece in ")]}")
        if piece in {"?", "//", "'", '"', "\\"} or depth < 0 or (depth and piece in {"&&", "||"}):
            return ((None,),)  # && and || alone do not tell how the rest is grouped
        if piece == "||":
            alternatives.append([""])
        elif piece == "&&":
            alternatives[-1].append("")
        else:
            alternatives[-1][-1] += piece
    return [[_PART.fullmatch(one) for one in parts] for parts in alternatives]


def _holds(part: re.Match[str] | None, device: SelectedDevice) -> bool | None:
    if part is None:
        return None
    domain, name = (part["domain"] or "")[1:-1], part["name"]
    full = name if domain == DRA_DRIVER else f"{domain}/{name}"
    if part["domain"] is None:
        value: str | int | None = DRA_DRIVER
    elif full in device.attributes or domain in {DRA_DRIVER, _STANDARD, ""}:
        value = device.attributes.get(full)  # None for versions and unknown attributes
    else:
        return False
    if value is None:
        return None
    if part["pattern"]:
        return _matches(value.lower(), part["pattern"][1:-1]) if isinstance(value, str) else False
    if part["equal"] and part["equal"].isdecimal():
        return value == int(part["equal"])
    return value in [text[1:-1] for text in re.findall(_TEXT, part["equal"] or part["listed"])]
