"""The node names of questions and answers: thousands a question, twice about each pod.

Where the package has the routine for it, names are read and written by their places in an index of the nodes
that are known, and no text is made of any. Anything else is read and written as JSON, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from json.encoder import encode_basestring
from operator import add
from typing import Any, Final, Protocol, overload

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int32]
Which = npt.NDArray[np.uint8]
_QUOTE: Final = ('"',)


class NameTable(Protocol):
    """The names of a :data:`NamesRoutine`, by their places."""

    def read(self, text: bytes) -> Places | None:
        """The places of the names in this JSON array. None: it is none, is written in another way than
        kube-scheduler writes it, or holds an unknown name or one twice.
        """

    def write(self, places: Places, before: bytes, ends: Sequence[bytes], which: Which) -> bytes:
        """For each place ``before``, its name, and that of the ``ends`` whose number ``which`` gives."""


NamesRoutine = Callable[[Sequence[str]], NameTable]
"""Makes the table of these names, none of which needs an escape in JSON; an empty one leaves
its place free.
"""


class NameIndex:
    """The names of nodes by their places. Immutable."""

    def __init__(self, names: Sequence[str], routine: NamesRoutine) -> None:
        """``names``: as for :data:`NamesRoutine`."""
        self.names = names
        self.place = {name: at for at, name in enumerate(names) if name}
        self.table = routine(names)

    @cached_property
    def rank(self) -> Places:
        """For each place, where its name stands in their order."""
        found = np.empty(len(self.names), np.int32)
        found[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))
        return found

    def read(self, text: bytes) -> NodeNames | None:
        """The names in this JSON array; None if it must be read in another way."""
        places = self.table.read(text)
        return None if places is None else NodeNames(index=self, places=places)


class NodeNames(Sequence[str]):
    """Names in the order of a question. ``index`` and ``places``: of names that an index has read, each of
    them once.
    """

    def __init__(
        self, names: Iterable[str] = (), *, index: NameIndex | None = None, places: Places | None = None
    ) -> None:
        self._index, self._places = index, places
        if places is None:
            self._texts = tuple(names)

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        known = self._index.names if self._index is not None else ()
        return tuple(map(known.__getitem__, self._places.tolist() if self._places is not None else ()))

    def __len__(self) -> int:
        return len(self._texts if self._places is None else self._places)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if self._index is not None and self._places is not None and not isinstance(at, slice):
            return self._index.names[int(self._places[at])]
        return self._texts[at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __contains__(self, name: object) -> bool:
        if self._index is None or self._places is None:
            return name in self._texts
        place = self._index.place.get(str(name))
        return place is not None and bool((self._places == place).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NodeNames) and self._index is other._index:
            mine, theirs = self._places, other._places
            if mine is not None and theirs is not None:
                return np.array_equal(mine, theirs)
        return isinstance(other, Sequence) and self._texts == tuple(other)

    def __hash__(self) -> int:
        return hash(self._texts)

    @property
    def first(self) -> npt.NDArray[np.bool_]:
        """For each name, False if it came before: a scheduler names no node twice."""
        if self._places is not None or len(set(self._texts)) == len(self._texts):
            return np.ones(len(self), np.bool_)
        seen = dict(zip(reversed(self._texts), range(len(self) - 1, -1, -1), strict=True))
        return np.array([seen[name] == at for at, name in enumerate(self._texts)])

    def places_in(self, index: NameIndex | None) -> Places | None:
        """The places of the names in that index; None if another one has read them."""
        return self._places if index is not None and index is self._index else None

    @cached_property
    def plain(self) -> bool:
        """True if no name needs an escape in JSON."""
        return self._index is not None or is_plain(self._texts)

    @cached_property
    def json(self) -> bytes:
        """The names as a JSON array."""
        if self.plain and len(self):
            return b"[%b]" % self.objects('"', _QUOTE, np.zeros(len(self), np.uint8))
        return f"[{','.join(map(encode_basestring, self))}]".encode("utf-8", "replace")

    def objects(self, before: str, ends: Sequence[str], which: Which) -> bytes:
        """For each name a piece of JSON, with a comma between two: ``before``, the name, and that of the
        ``ends`` whose number ``which`` gives.
        """
        if self._index is not None and self._places is not None:
            closed = [f"{end},".encode("utf-8", "replace") for end in ends]
            return self._index.table.write(self._places, before.encode(), closed, which)[:-1]
        texts = self if self.plain else [encode_basestring(name)[1:-1] for name in self]
        joined = f",{before}".join(map(add, texts, map(ends.__getitem__, which.tolist())))
        return f"{before}{joined}".encode("utf-8", "replace") if len(self) else b""

    def least(self, places: npt.NDArray[np.int64]) -> int:
        """Of these places (at least one), the first one with the least name."""
        if self._index is not None and self._places is not None:
            return int(places[self._index.rank[self._places[places]].argmin()])
        return int(min(places.tolist(), key=self.__getitem__))

    def at(self, places: npt.NDArray[np.int64]) -> NodeNames:
        """The names at these places of the question."""
        if self._places is not None:
            return NodeNames(index=self._index, places=self._places[places])
        return NodeNames(map(self._texts.__getitem__, places.tolist()))

    def among(self, chosen: bytes) -> NodeNames:
        """The names whose byte is not 0."""
        if 0 not in chosen:
            return self
        if self._places is not None:
            return NodeNames(index=self._index, places=self._places[np.frombuffer(chosen, np.bool_)])
        found = NodeNames(compress(self, chosen))
        if self.plain:
            found.plain = True
        return found


class NodeReasons(Mapping[str, str]):
    """Why each of some nodes is left out, in the order in which they were added; few of the texts differ."""

    def __init__(self, names: NodeNames) -> None:
        """``names``: those of the question; a node is added once, by its place there."""
        self._all = names
        self._texts: dict[str, int] = {}
        self._places: list[npt.NDArray[np.int64]] = []
        self._which: list[int] = []

    def add(self, places: npt.NDArray[np.int64], text: str) -> None:
        """These nodes are left out for that reason."""
        self._places.append(places)
        self._which += [self._texts.setdefault(text, len(self._texts))] * len(places)

    def change(self, place: int, text: str) -> bool:
        """Give the node at that place another reason; False if it was not added."""
        found = np.flatnonzero(np.concatenate((np.zeros(0, np.int64), *self._places)) == place).tolist()
        for at in found:
            self._which[at] = self._texts.setdefault(text, len(self._texts))
        return bool(found)

    @cached_property
    def _names(self) -> NodeNames:
        return self._all.at(np.concatenate((np.zeros(0, np.int64), *self._places)))

    @cached_property
    def _by_name(self) -> Mapping[str, str]:
        texts = list(self._texts)
        return {name: texts[number] for name, number in zip(self._names, self._which, strict=True)}

    def __getitem__(self, name: str) -> str:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._which)

    @property
    def json(self) -> bytes:
        """The reasons by name as a JSON object."""
        ends = [f'":{encode_basestring(text)}' for text in self._texts]
        return b"{%b}" % self._names.objects('"', ends, np.array(self._which, np.uint8))


def is_plain(names: Iterable[str]) -> bool:
    """True if none of these names needs an escape in JSON."""
    joined = "".join(names)
    return joined.isprintable() and "\\" not in joined and '"' not in joined


class LastQuestion:
    """What need not be parsed again: a scheduler asks twice about each pod, the second time about the nodes
    that it was offered.

    ``head`` is the text before the names in the last question, and the object parsed from it; ``offered`` the
    last answer of filter; ``index`` has the names of the nodes that are known, if there is one.
    """

    head: tuple[bytes, Mapping[str, Any]] | None = None
    offered: NodeNames | None = None
    index: NameIndex | None = None

    def find(self, text: bytes) -> NodeNames | None:
        """The names in this JSON array, if they are those that were offered, or all in the index."""
        if self.offered is not None and self.offered.json == text:
            return self.offered
        return None if self.index is None else self.index.read(text)
