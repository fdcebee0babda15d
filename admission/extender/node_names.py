"""The node names of questions and answers; a scheduler asks next about those that filter has just offered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import compress
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import numpy.typing as npt


class NodeNames(tuple[str, ...]):  # noqa: SLOT001 - what is worked out lies in its __dict__
    """Names in the order of a question."""

    @cached_property
    def plain(self) -> bool:
        """True if no name needs an escape in JSON."""
        joined = "".join(self)
        return joined.isprintable() and "\\" not in joined and '"' not in joined

    @cached_property
    def json(self) -> bytes:
        """The names as a JSON array; where none needs an escape, at a third of the cost."""
        if self and self.plain:
            joined = '","'.join(self)
            return f'["{joined}"]'.encode()
        return f"[{','.join(map(encode_basestring, self))}]".encode("utf-8", "replace")

    def least(self, places: npt.NDArray[np.int64]) -> int:
        """Of these places (at least one), the first one with the least name."""
        return int(min(places.tolist(), key=self.__getitem__))

    def among(self, chosen: bytes) -> NodeNames:
        """The names whose byte is not 0."""
        if 0 not in chosen:
            return self
        found = NodeNames(compress(self, chosen))
        if self.plain:
            found.plain = True
        return found


class LastQuestion:
    """What need not be parsed again: a scheduler asks twice about each pod, the second time about the nodes
    that it was offered.

    ``head`` is the text before the names in the last question, and the object parsed from it; ``offered`` the
    last answer of filter.
    """

    head: tuple[bytes, Mapping[str, Any]] | None = None
    offered: NodeNames | None = None

    def find(self, text: bytes) -> NodeNames | None:
        """The names in this JSON array, if they are those that were offered."""
        return self.offered if self.offered is not None and self.offered.json == text else None
