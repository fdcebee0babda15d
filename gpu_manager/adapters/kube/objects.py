"""Objects as the API server sends them, each decoded separately: of a list as it arrives, of a watch by
lines.

The API server stores some parts of an object as its author wrote them: ``managedFields``, parameters of
claims. They may nest 10,000 deep, hold bytes that are not UTF-8 and numbers of any length, all of which
Python's decoder refuses. Here bytes and halves of surrogate pairs are replaced, such a number becomes
infinite, and if an object nests too deep for the decoder, everything below its 64th level is omitted
undecoded: the fields that are read are far above that. ``managedFields`` are decoded, which is cheaper than
finding their end, and dropped (docs/adr/0015-managed-fields.md).
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Obj = Mapping[str, Any]

LARGEST: Final = 16 << 20  # bytes or characters of one object; etcd keeps objects of at most 1.5 MiB
AHEAD: Final = 256 << 10  # characters read before an object that is not all there is tried again
COUNTS_AS_HELD: Final = "so it counts for no more than what its node's agent holds for it"
_ENVELOPE: Final = 64  # bytes of a watch event around its object
_DEEPEST: Final = 64
_DIGITS: Final = 400  # of a number; a float has at most 309
_HEAD: Final = 2048  # bytes in which the name of an unreadable object is looked for
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_TO_BRACKET: Final = re.compile(r'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{}])', re.DOTALL)
_HALF: Final = re.compile("[\ud800-\udfff]")
_NAMES: Final = ("namespace", "name", "uid", "resourceVersion")
_DELETED: Final = re.compile(rb'\s*{\s*"type"\s*:\s*"DELETED"')
_FIELD: Final = re.compile(r'"(namespace|name|uid|resourceVersion)"\s*:\s*"([^"\\]{1,253})"')


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that cannot be read: the known parts, empty if unknown, and the reason.

    ``deleted``: the watch reported its end.
    """

    namespace: str
    name: str
    uid: str
    version: str
    reason: str
    deleted: bool = False

    @property
    def key(self) -> str:
        """``namespace/name``, or the known part of it."""
        return "/".join(filter(None, (self.namespace, self.name))) or "an object without a name"

    @property
    def left(self) -> Obj:
        """The object of which no more than its name is left."""
        return {"metadata": {"namespace": self.namespace, "name": self.name, "uid": self.uid}}

    @property
    def event(self) -> str:
        """The text of an Event about it."""
        return f"it cannot be read and is passed over, {COUNTS_AS_HELD}: {self.reason}"


Told = Callable[[Unreadable], None]


def unheard(_: Unreadable) -> None:
    """Ignore objects that cannot be read."""


def unreadable(text: bytes, reason: str) -> Unreadable:
    """The known parts of an object, from the beginning of its text: the API server writes its name first."""
    found: dict[str, str] = {}
    for key, value in _FIELD.findall(text[:_HEAD].decode("utf-8", "replace")):
        found.setdefault(key, value)
    return named(found, reason, deleted=_DELETED.match(text) is not None)


def named(metadata: Mapping[str, Any], reason: str, *, deleted: bool = False) -> Unreadable:
    """An object with this metadata that cannot be read."""
    namespace, name, uid, version = (str(metadata.get(key) or "") for key in _NAMES)
    return Unreadable(namespace, name, uid, version, reason, deleted)


def trimmed(obj: dict[str, Any]) -> Obj:
    """The object without its ``managedFields``, which are never used."""
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return obj


def decode(data: bytes) -> Any:
    """Decode the one value in ``data``. Raises ValueError: it is not JSON."""
    text = data.decode("utf-8", "replace")
    value, end = _decoded(text, _after_space(text, 0))
    if _after_space(text, end) != len(text):
        raise json.JSONDecodeError("more than one value", text, end)
    return value


def lines(pieces: Iterable[bytes], told: Told) -> Iterator[bytes]:
    """Yield the complete, non-empty lines; ``told`` is called for each omitted line that is too long."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            waiting.append(end)
            line, size = b"".join(waiting), size + len(end)
            waiting.clear()
            if size > LARGEST + _ENVELOPE:
                told(unreadable(line, f"it has {size} bytes, more than {LARGEST}"))
            elif line.strip():
                yield line
            size = 0
        size += len(rest)
        waiting.append(rest)
        if size > LARGEST + _ENVELOPE:
            waiting[1:] = []  # the first piece has its name


class ListReader:
    """Reads one list from the pieces of its text; iterate once.

    ``told`` is called for each omitted item that cannot be read. ``head`` is the part of the list read so far
    apart from its items.
    """

    def __init__(self, pieces: Iterator[bytes], told: Told) -> None:
        self._pieces = pieces
        self._told = told
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._at = 0
        self.count = 0
        self.head: Mapping[str, Any] = {}

    def __iter__(self) -> Iterator[Obj]:
        """Yield the items.

        Raises:
            ValueError: this is no list, or it was cut short. Items before that have been yielded.
        """
        self.head = head = dict[str, Any]()
        self._take("{")
        while self._next() != "}":
            name = self._value() if self._next() == '"' else ""
            self._take(":")
            if name == "items" and self._next() == "[":
                head[name] = None
                yield from self._items()
            else:
                head[name] = self._value()
            if self._next() == ",":
                self._at += 1
        if head.pop("items", self) is not None or any(isinstance(v, _PassedOver) for v in head.values()):
            raise ValueError("the answer is no list")
        for _ in self._pieces:  # to the end: then the connection serves again
            pass

    def _items(self) -> Iterator[Obj]:
        self._take("[")
        while self._next() != "]":
            self.count += 1
            item = self._value()
            if isinstance(item, dict):
                yield trimmed(item)
            elif isinstance(item, _PassedOver):
                self._told(unreadable(item.head.encode(), item.reason))
            else:
                self._told(unreadable(b"", "an item that is no object"))
            if self._next() == ",":
                self._at += 1
        self._take("]")

    def _value(self) -> Any:
        """The next value, or that it has been passed over, since it cannot be read."""
        self._next()
        while True:
            try:
                value, end = _decoded(self._text, self._at)
            except json.JSONDecodeError as error:
                size = len(self._text) - self._at
                if size <= LARGEST and self._fill(max(2 * size, AHEAD)):
                    continue
                reason = str(error) if size <= LARGEST else f"it has more than {LARGEST} characters"
                return self._pass_over(reason)
            size = end - self._at
            if end < len(self._text) or not self._fill(size + 1):  # else a number may go on
                if size > LARGEST:
                    return self._pass_over(f"it has more than {LARGEST} characters")
                self._at += size
                return value

    def _pass_over(self, reason: str) -> _PassedOver:
        """Go to the end of the value without decoding it. Raises ValueError: it has none."""
        passed, depth = _PassedOver(self._text[self._at : self._at + _HEAD], reason), 0
        while True:
            while found := _TO_BRACKET.match(self._text, self._at):
                self._at = found.end()
                depth += 1 if found[1] in "[{" else -1
                if depth <= 0:
                    return passed
            size = len(self._text) - self._at
            if size > LARGEST or not self._fill(2 * size + 1):
                raise ValueError(f"the list was cut short: {reason}")

    def _take(self, character: str) -> None:
        if self._next() != character:
            raise ValueError(f"the list was cut short or is none: no {character!r} where one is due")
        self._at += 1

    def _next(self) -> str:
        """The next character that is no space, not yet taken; empty at the end."""
        while True:
            self._at = _after_space(self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill(1):
                raise ValueError("the list was cut short")

    def _fill(self, least: int) -> bool:
        """Read on until ``least`` characters wait to be decoded, or to the end; False if there were none."""
        kept = [self._text[self._at :]]
        size = before = len(kept[0])
        while size < least:
            piece = next(self._pieces, None)
            more = self._bytes.decode(piece or b"", final=piece is None)
            kept.append(more)
            size += len(more)
            if piece is None:
                break
        self._text, self._at = "".join(kept), 0
        return size > before


@dataclass(frozen=True, slots=True)
class _PassedOver:
    """A value that is no JSON, or too large: how it begins, and why it was not read."""

    head: str
    reason: str


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _decoded(text: str, at: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends. Raises JSONDecodeError: it is none, or cut short."""
    try:
        try:
            return _without_halves(*_STRICT.raw_decode(text, at), text, at)
        except json.JSONDecodeError:
            raise
        except ValueError:  # a whole number of more digits than Python takes
            return _without_halves(*_OF_ANY_NUMBER.raw_decode(text, at), text, at)
    except RecursionError:
        kept, end = shallow(text, at)
        return _without_halves(_OF_ANY_NUMBER.decode(kept), end, text, at)


def _without_halves(value: Any, end: int, text: str, at: int) -> tuple[Any, int]:
    """The value without escaped halves of surrogate pairs, which nothing can write out."""
    if text.find("\\ud", at, end) < 0 and text.find("\\uD", at, end) < 0:
        return value, end
    whole = [value]
    left: list[Any] = [whole]
    while left:
        within = left.pop()
        if isinstance(within, dict):
            for key in [key for key in within if not _is_whole(key)]:
                within[_mended(key)] = within.pop(key)
        for key, one in within.items() if isinstance(within, dict) else enumerate(within):
            if isinstance(one, dict | list):
                left.append(one)
            elif isinstance(one, str) and not _is_whole(one):
                within[key] = _mended(one)
    return whole[0], end


def _is_whole(text: str) -> bool:
    return text.isascii() or not _HALF.search(text)


def _mended(text: str) -> str:
    return _HALF.sub("\ufffd", text)


def shallow(text: str, at: int) -> tuple[str, int]:
    """The text of the value that begins there without parts that nest too deep, and where the value ends."""
    kept: list[str] = []
    since = last = at
    depth = 0
    while found := _TO_BRACKET.match(text, last):  # a search would look in a string without an end, too
        last = found.end()
        if found[1] in "[{":
            depth += 1
            if depth == _DEEPEST + 1:
                kept += (text[since : last - 1], "null")
        else:
            depth -= 1
            if depth == _DEEPEST:
                since = last
            elif depth == 0:
                return "".join((*kept, text[since:last])), last
    raise json.JSONDecodeError("cut short", text, at)


def _number(digits: str) -> float:
    return int(digits) if len(digits) <= _DIGITS else math.copysign(math.inf, -1 if digits[0] == "-" else 1)


_STRICT: Final = json.JSONDecoder()
_OF_ANY_NUMBER: Final = json.JSONDecoder(parse_int=_number)
