"""Selectors of requests and DeviceClasses (CEL), judged for a card of ours: taken, left, or not to be said.

What is read is what selectors are made of: comparisons of ``device.driver`` and ``device.attributes``,
``in``, ``has``, text functions, ``&&``, ``||``, ``!``. Everything else, and each attribute that is not known
here, is neither true nor false: a judgement that needs it is left open, and a card that may be taken counts
as one that is. An attribute that a device of ours never has ends Kubernetes' evaluation with an error, so
such a selector takes none of our cards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from gpu_manager.domain.card import Card
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.device import Version
from gpu_manager.domain.dra.published import attributes_of
from gpu_manager.domain.dra.written_selectors import matches
from gpu_manager.domain.errors import RequestInvalid

_LONGEST: Final = 10 * 1024  # of an expression, by the API server
_DEEPEST: Final = 32
_UNREADABLE: Final = "the expression has something that is not read here"
_STANDARD: Final = "resource.kubernetes.io"


class _Open(Enum):
    UNKNOWN = "unknown"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class _Attributes:
    """``device.attributes`` (no domain), or those of one domain."""

    domain: str = ""


@dataclass(frozen=True, slots=True)
class _Device:
    pass


@dataclass(frozen=True, slots=True)
class SelectedDevice:
    """What selectors can see of a device of ours: published name → value, None where it is not known here."""

    attributes: Mapping[str, str | int | None]


_Value = str | int | bool | tuple[object, ...] | _Open | _Attributes | _Device
_Term = Callable[[SelectedDevice], _Value]

_UNNAMED: Final = ("uuid", "index", "numa", "resource.kubernetes.io/pciBusID")
SOME_CARD: Final = SelectedDevice(dict.fromkeys((*_UNNAMED, "productName")))
"""A card of which nothing is known but that it is ours."""


def card_of_model(model: str) -> SelectedDevice:
    """Return a card of which the model alone is known."""
    return SelectedDevice({**SOME_CARD.attributes, "productName": model})


def selected_card(card: Card) -> SelectedDevice:
    """Return the card as selectors see it."""
    told = attributes_of(card)
    known = {name: value for name, value in told.items() if not isinstance(value, Version)}
    return SelectedDevice({"resource.kubernetes.io/pciBusID": None, "numa": None, **known})


def takes(selectors: Sequence[str], device: SelectedDevice) -> bool | None:
    """Return whether all the expressions take the device; None if that cannot be said."""
    verdicts = [_verdict(_compiled(one)(device)) for one in selectors]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _verdict(value: _Value) -> bool | None:
    return None if value is _Open.UNKNOWN else value is True


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> _Term:
    try:
        return _Parser(expression).whole()
    except RequestInvalid:
        return lambda _device: _Open.UNKNOWN


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"[^"\\\n]*"|'[^'\\\n]*')|(?P<number>\d+)(?![\w.])|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<mark>&&|\|\||[=!<>]=|[!<>().,\[\]]))"""
)


class _Parser:
    """Recursive descent by CEL's precedence; raises RequestInvalid for what it does not read."""

    def __init__(self, expression: str) -> None:
        if len(expression) > _LONGEST:
            raise RequestInvalid(_UNREADABLE)
        self._tokens: list[tuple[str, str]] = []
        at, end = 0, len(expression.rstrip())
        while at < end:
            found = _TOKEN.match(expression, at)
            if found is None:
                raise RequestInvalid(_UNREADABLE)
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()
        self._at = 0
        self._depth = 0

    def whole(self) -> _Term:
        term = self._or()
        if self._at != len(self._tokens):
            raise RequestInvalid(_UNREADABLE)
        return term

    def _peek(self) -> str:
        if self._at == len(self._tokens):
            return ""
        kind, token = self._tokens[self._at]
        return token if kind != "text" else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if not token or token not in wanted:
            return ""
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise RequestInvalid(_UNREADABLE)

    def _or(self) -> _Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise RequestInvalid(_UNREADABLE)
        terms = [self._and()]
        while self._take("||"):
            terms.append(self._and())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else lambda device: _joined(terms, device, decides=True)

    def _and(self) -> _Term:
        terms = [self._relation()]
        while self._take("&&"):
            terms.append(self._relation())
        return terms[0] if len(terms) == 1 else lambda device: _joined(terms, device, decides=False)

    def _relation(self) -> _Term:
        left = self._unary()
        sign = self._take("==", "!=", "<", "<=", ">", ">=", "in")
        if not sign:
            return left
        right = self._unary()
        return lambda device: _compared(sign, left(device), right(device))

    def _unary(self) -> _Term:
        if self._take("!"):
            self._depth += 1
            if self._depth > _DEEPEST:
                raise RequestInvalid(_UNREADABLE)
            term = self._unary()
            self._depth -= 1
            return lambda device: _negated(term(device))
        return self._member()

    def _member(self) -> _Term:
        term = self._primary()
        while mark := self._take(".", "["):
            if mark == "[":
                key = self._or()
                self._expect("]")
                term = _indexed(term, key)
                continue
            name = self._name()
            term = _called(term, name, self._list(")")) if self._take("(") else _field(term, name)
        return term

    def _name(self) -> str:
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if kind != "name":
            raise RequestInvalid(_UNREADABLE)
        self._at += 1
        return token

    def _list(self, end: str) -> list[_Term]:
        found: list[_Term] = []
        while not self._take(end):
            if found:
                self._expect(",")
            found.append(self._or())
        return found

    def _primary(self) -> _Term:
        if self._take("("):
            term = self._or()
            self._expect(")")
            return term
        if self._take("["):
            items = self._list("]")
            return lambda device: tuple(item(device) for item in items)
        if self._at == len(self._tokens):
            raise RequestInvalid(_UNREADABLE)
        kind, word = self._tokens[self._at]
        self._at += 1
        value: _Value
        if kind == "text":
            value = word[1:-1]
        elif kind == "number":
            value = int(word)
        elif word in {"true", "false"}:
            value = word == "true"
        elif word == "device":
            value = _Device()
        elif word == "has":
            self._expect("(")
            term = self._or()
            self._expect(")")
            return lambda device: _there(term(device))
        else:
            raise RequestInvalid(_UNREADABLE)
        return lambda _device: value


def _joined(terms: Sequence[_Term], device: SelectedDevice, *, decides: bool) -> _Value:
    """``&&``, where one false decides, or ``||``, where one true does; CEL lets a decision hide an error."""
    return _decided([term(device) for term in terms], decides=decides)


def _any(values: Sequence[_Value]) -> _Value:
    return _decided(values, decides=True) if values else False


def _decided(values: Sequence[_Value], *, decides: bool) -> _Value:
    if decides in [value for value in values if isinstance(value, bool)]:
        return decides
    if decides and _Open.UNKNOWN in values:
        return _Open.UNKNOWN
    if any(not isinstance(value, bool) and value is not _Open.UNKNOWN for value in values):
        return _Open.ERROR
    return _Open.UNKNOWN if _Open.UNKNOWN in values else not decides


def _negated(value: _Value) -> _Value:
    if isinstance(value, bool):
        return not value
    return _Open.UNKNOWN if value is _Open.UNKNOWN else _Open.ERROR


def _compared(sign: str, left: _Value, right: _Value) -> _Value:
    if sign == "in" and isinstance(right, tuple):
        return _any([_equal(left, one) for one in right])
    if sign == "in" and isinstance(right, _Attributes) and not right.domain and isinstance(left, str):
        return left == DRA_DRIVER or (_Open.UNKNOWN if left == _STANDARD else False)
    if sign in {"==", "!="}:
        same = _equal(left, right)
        return same if sign == "==" else _negated(same)
    for one in (left, right):
        if isinstance(one, _Open):
            return one
    if type(left) is not type(right) or not isinstance(left, int | str) or not isinstance(right, int | str):
        return _Open.ERROR
    before, equal = left < right, left == right  # type: ignore[operator]  # of one type, as said above
    answers = {"<": before, "<=": before or equal, ">": not before and not equal, ">=": not before}
    return answers.get(sign, _Open.UNKNOWN)


def _equal(left: _Value, right: object) -> _Value:
    for one in (left, right):
        if isinstance(one, _Open):
            return one
    return type(left) is type(right) and left == right


def _indexed(term: _Term, key: _Term) -> _Term:
    def value(device: SelectedDevice) -> _Value:
        found, at = term(device), key(device)
        if isinstance(found, _Attributes) and not found.domain and isinstance(at, str) and at:
            return _Attributes(at)
        return _attribute(found, at, device) if isinstance(at, str) else _Open.UNKNOWN

    return value


def _field(term: _Term, name: str) -> _Term:
    def value(device: SelectedDevice) -> _Value:
        found = term(device)
        if isinstance(found, _Device):
            known: Mapping[str, _Value] = {
                "driver": DRA_DRIVER,
                "attributes": _Attributes(),
                "allowMultipleAllocations": True,
            }
            return known.get(name, _Open.UNKNOWN)
        return _attribute(found, name, device)

    return value


def _attribute(found: _Value, name: str, device: SelectedDevice) -> _Value:
    if not isinstance(found, _Attributes) or not found.domain:
        return found if isinstance(found, _Open) else _Open.UNKNOWN
    full = name if found.domain == DRA_DRIVER else f"{found.domain}/{name}"
    if full in device.attributes:
        value = device.attributes[full]
        return _Open.UNKNOWN if value is None else value
    # Versions of drivers, and what a later agent publishes: only foreign domains are known to be empty.
    return _Open.UNKNOWN if found.domain in {DRA_DRIVER, _STANDARD} else _Open.ERROR


def _there(value: _Value) -> _Value:
    if value is _Open.UNKNOWN:
        return value
    return value is not _Open.ERROR


_TEXT_FUNCTIONS: Final[Mapping[str, Callable[[str, str], bool | None]]] = {
    "matches": matches,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
}


def _called(term: _Term, name: str, arguments: Sequence[_Term]) -> _Term:
    def value(device: SelectedDevice) -> _Value:
        found = term(device)
        if isinstance(found, _Open):
            return found
        if name == "lowerAscii" and not arguments and isinstance(found, str):
            return found.lower()
        function = _TEXT_FUNCTIONS.get(name)
        told = [argument(device) for argument in arguments]
        if function is None or len(told) != 1 or not isinstance(found, str) or not isinstance(told[0], str):
            return _Open.UNKNOWN
        verdict = function(found, told[0])
        return _Open.UNKNOWN if verdict is None else verdict

    return value
