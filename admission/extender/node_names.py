"""The node names of a question, numbered, because a scheduler sends the same nodes again and again.

Results that depend on names alone are computed once: their JSON and their places.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MOST_BYTES: Final = 2 << 20  # of cached arrays of names; 5,000 names are some 80 KiB

_Ints = npt.NDArray[np.int64]


class NodeNames(tuple[str, ...]):  # noqa: SLOT001 - what is worked out lies in its __dict__
    """Names in the order of a question; results computed from them are cached in the object."""

    _json: bytes | None = None

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each name: the first one if it is repeated."""
        return dict(zip(reversed(self), range(len(self) - 1, -1, -1), strict=True))

    @property
    def repeated(self) -> bool:
        """True if a name has two places."""
        return len(self.places) < len(self)

    @cached_property
    def json(self) -> bytes:
        """The names as a JSON array."""
        return json_names(self) if self._json is None else self._json

    def least(self, places: _Ints) -> int:
        """Of these places (at least one), the first one with the least name."""
        return int(min(places.tolist(), key=self.__getitem__))

    @cached_property
    def scored(self) -> tuple[npt.NDArray[np.uint8], _Ints]:
        """A HostPriorityList with all scores 0, and the positions of those digits in it."""
        names = self if _plain(self) else [encode_basestring(name)[1:-1] for name in self]
        parts = [f'{{"Host":"{name}","Score":0}}'.encode("utf-8", "replace") for name in names]
        ends = np.fromiter(map(len, parts), np.int64, len(parts)) + 1  # a comma, or the bracket, after each
        text = b"[%b]" % b",".join(parts)
        return np.frombuffer(text, np.uint8), ends.cumsum() - 2

    def among(self, chosen: bytes) -> NodeNames:
        """The names whose byte is not 0."""
        return NodeNames(compress(self, chosen)) if 0 in chosen else self


class RecentNames:
    """The last arrays of names by their JSON text, so that no array is parsed twice. Thread-safe.

    ``last_head`` is the text before the names in the last question, and the object parsed from it: a
    scheduler asks twice about each pod.
    """

    def __init__(self) -> None:
        self.last_head: tuple[bytes, Mapping[str, Any]] | None = None
        self._lock = threading.Lock()
        self._known: dict[bytes, NodeNames] = {}  # the most recently used last
        self._bytes = 0

    def find(self, text: bytes) -> NodeNames | None:
        """The names in this JSON array, if it was seen recently."""
        with self._lock:
            known = self._known.pop(text, None)
            if known is not None:
                self._known[text] = known
            return known

    def read(self, text: bytes, names: Iterable[str]) -> NodeNames:
        """Store the names that this JSON array contains."""
        found = NodeNames(names)
        found._json = text  # noqa: SLF001 - same file
        self.keep(found)
        return found

    def keep(self, names: NodeNames) -> None:
        """Keep these names: the next question has them in this order."""
        text = names.json
        with self._lock:
            if len(text) > _MOST_BYTES // 4 or text in self._known:
                return
            self._known[text] = names
            self._bytes += len(text)
            while self._bytes > _MOST_BYTES:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._bytes -= len(oldest)


def json_names(names: Sequence[str]) -> bytes:
    """Texts as a JSON array; where none needs an escape, as for names, at a third of the cost."""
    if names and _plain(names):
        joined = '","'.join(names)
        return f'["{joined}"]'.encode()
    return f"[{','.join(map(encode_basestring, names))}]".encode("utf-8", "replace")


def _plain(texts: Sequence[str]) -> bool:
    """True if no text needs an escape in JSON."""
    joined = "".join(texts)
    return joined.isprintable() and "\\" not in joined and '"' not in joined
