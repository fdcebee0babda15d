"""Writes frozen dataclasses as JSON and reads them back: records of decisions consist of them.

A field with its default is left out. A reader of another release passes over fields that it does not know and
fills in defaults for those that it misses, so only a field without a default makes a value unreadable.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Mapping
from enum import Enum
from fractions import Fraction
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gpu_manager.domain.errors import RequestInvalid, quoted

T = TypeVar("T")
_Way = Callable[[Any], Any]


class _Codec(NamedTuple):
    encode: _Way
    decode: _Way


def encode(kind: Any, value: Any, without: frozenset[str] = frozenset()) -> Any:
    """Return the value as what JSON can hold. ``kind`` is its declared type, ``without`` names fields of a
    dataclass that are left out.
    """
    return (_of_fields(kind, without) if without else _codec(kind)).encode(value)


def changes(kind: Any, before: Any, value: Any, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the fields in which a dataclass's value differs from an earlier one, but for some."""
    ways, fields = _ways(kind, without)
    earlier, now = fields(before), fields(value)
    if earlier == now:
        return {}
    return {
        name: way.encode(each)
        for (name, way), was, each in zip(ways.items(), earlier, now, strict=True)
        if was is not each and was != each
    }


def decode(kind: type[T], data: Any) -> T:
    """Return the value that :func:`encode` wrote.

    Raises:
        RequestInvalid: it is none of that type, as far as this release knows the type.
    """
    try:
        found: T = _codec(cast("Any", kind)).decode(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RequestInvalid(f"a record is no {kind.__name__} of this release: {quoted(error)}") from error
    return found


@cache
def _codec(kind: Any) -> _Codec:
    """How values of one type are written and read; made once, since a large cluster has 100,000 of them."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, NewType):
        return _codec(kind.__supertype__)
    if origin in (Union, types.UnionType):
        inner = _codec(next(one for one in arguments if one is not type(None)))
        return _Codec(
            lambda value: None if value is None else inner.encode(value),
            lambda data: None if data is None else inner.decode(data),
        )
    if origin is tuple:
        return _of_tuple(arguments)
    if origin is frozenset:
        inner = _codec(arguments[0])
        return _Codec(
            lambda value: sorted(map(inner.encode, value), key=json.dumps),
            lambda data: frozenset(map(inner.decode, data)),
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner = _codec(arguments[1])
        return _Codec(
            lambda value: {key: inner.encode(each) for key, each in value.items()},
            lambda data: {key: inner.decode(each) for key, each in data.items()},
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Codec(lambda value: value.value, kind)
    if kind is Fraction:
        return _Codec(_written, Fraction)
    if hasattr(kind, "_fields"):
        return _of_named_tuple(kind)
    if dataclasses.is_dataclass(kind):
        return _of_fields(cast("Any", kind))
    return _Codec(_itself, _itself)


def _itself(value: Any) -> Any:
    return value


@lru_cache(256)
def _written(value: Fraction) -> str:
    return str(value)


def _of_tuple(arguments: tuple[Any, ...]) -> _Codec:
    if arguments[1:] == (Ellipsis,):
        inner = _codec(arguments[0])
        return _Codec(
            lambda value: list(map(inner.encode, value)), lambda data: tuple(map(inner.decode, data))
        )
    parts = tuple(map(_codec, arguments))
    return _Codec(
        lambda value: [part.encode(each) for part, each in zip(parts, value, strict=True)],
        lambda data: tuple(part.decode(each) for part, each in zip(parts, data, strict=True)),
    )


def _of_named_tuple(kind: Any) -> _Codec:
    hints = get_type_hints(kind)
    plain = _of_tuple(tuple(hints[name] for name in kind._fields))
    return _Codec(plain.encode, lambda data: kind(*plain.decode(data)))


@cache
def _of_fields(kind: Any, without: frozenset[str] = frozenset()) -> _Codec:
    ways, fields = _ways(kind, without)
    defaults = {field.name: _default(field) for field in dataclasses.fields(kind)}
    usual = [(name, way.encode, defaults[name]) for name, way in ways.items()]

    def write(value: Any) -> dict[str, Any]:
        return {
            name: way(each)
            for (name, way, was), each in zip(usual, fields(value), strict=True)
            if each is not was and (was is None or each != was)
        }

    def read(data: Any) -> Any:
        return kind(**{name: ways[name].decode(each) for name, each in data.items() if name in ways})

    return _Codec(write, read)


@cache
def _ways(kind: Any, without: frozenset[str]) -> tuple[dict[str, _Codec], Callable[[Any], tuple[Any, ...]]]:
    """How each field is written, and what gives all of their values at once."""
    hints = get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind) if field.init and field.name not in without]
    ways = {name: _codec(hints[name]) for name in fields}
    names = tuple(ways)
    return ways, attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def _default(field: Any) -> Any:
    """The field's default; something that equals no value where it has none."""
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def read_entries(line: bytes) -> list[dict[str, Any]]:
    """The entries of a line of a record of decisions; none of a line that a kill has cut off.

    Raises RequestInvalid: it is a line of something else.
    """
    try:
        found = json.loads(line)
    except ValueError:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) and "k" in one for one in found):
        raise RequestInvalid("this is no record of decisions: a line of it says not what it is")
    return found
