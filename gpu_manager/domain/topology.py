"""How the cards of a node are joined: links, one square matrix of them, and the sum that scores a set."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations


class LinkKind(Enum):
    """How two cards reach each other; the names are those of ``nvidia-smi topo -m``, best first."""

    SELF = "X"
    NVLINK = "NV"
    PIX = "PIX"  # at most one PCIe bridge
    PXB = "PXB"  # several PCIe bridges, no host bridge
    PHB = "PHB"  # a host bridge
    NODE = "NODE"  # several host bridges of one NUMA node
    SYS = "SYS"  # between NUMA nodes; drivers before 384 print SOC


# 10 to 50 by distance, 100 for each NVLink: the scale that NVIDIA's own allocator made customary.
_WEIGHTS = {
    LinkKind.SELF: 0,
    LinkKind.NVLINK: 100,
    LinkKind.PIX: 50,
    LinkKind.PXB: 40,
    LinkKind.PHB: 30,
    LinkKind.NODE: 20,
    LinkKind.SYS: 10,
}
_OLD_NAMES = {"SOC": LinkKind.SYS}
_NVLINK = re.compile(r"NV([1-9][0-9]?)")


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two cards; ``lanes`` is the number of bonded NVLinks, 0 for any other kind."""

    kind: LinkKind
    lanes: int = 0

    def __post_init__(self) -> None:
        if (self.lanes > 0) is not (self.kind is LinkKind.NVLINK) or not 0 <= self.lanes <= 99:
            raise ValueError(f"a link of kind {self.kind.name} cannot have {self.lanes} lanes")

    @classmethod
    def parse(cls, cell: str) -> Link:
        """Read a cell of the matrix (``X``, ``NV12``, ``PIX``, ``SOC``, …).

        Raises:
            ValueError: no such link.
        """
        text = cell.strip()
        if match := _NVLINK.fullmatch(text):
            return cls(LinkKind.NVLINK, int(match[1]))
        kind = _OLD_NAMES.get(text)
        if kind is None and text != LinkKind.NVLINK.value:
            kind = LinkKind(text)  # raises ValueError
        if kind is None:
            raise ValueError(f"{text!r} does not say how many NVLinks")
        return cls(kind)

    @property
    def weight(self) -> int:
        """What the pair adds to a set's score.

        NVn weighs n × 100 and nothing else: the cell hides which PCIe path lies beside the NVLinks, and the
        published inventory carries cells, so that agent and extender weigh alike.
        """
        return _WEIGHTS[self.kind] * (self.lanes or 1)

    def __str__(self) -> str:
        return f"NV{self.lanes}" if self.kind is LinkKind.NVLINK else self.kind.value


SELF = Link(LinkKind.SELF)


@dataclass(frozen=True, slots=True)
class Topology:
    """The links of every pair of cards, by position in the node's list of cards.

    Square and symmetric, ``X`` on the diagonal and nowhere else; ValueError otherwise.
    """

    links: tuple[tuple[Link, ...], ...]
    weights: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = len(self.links)
        for i, row in enumerate(self.links):
            if len(row) != size:
                raise ValueError(f"row {i} has {len(row)} links for {size} cards")
            for j in range(i + 1):
                if (row[j].kind is LinkKind.SELF) is not (i == j):
                    raise ValueError(f"the link of cards {i} and {j} is {row[j]}")
                if row[j] != self.links[j][i]:
                    raise ValueError(f"cards {i} and {j}: {row[j]} one way, {self.links[j][i]} the other")
        weights = tuple(tuple(link.weight for link in row) for row in self.links)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def uniform(cls, size: int, link: Link) -> Topology:
        """``size`` cards, every pair joined by the same link."""
        return cls(tuple(tuple(SELF if i == j else link for j in range(size)) for i in range(size)))

    @property
    def size(self) -> int:
        """The number of cards."""
        return len(self.links)

    def link(self, i: int, j: int) -> Link:
        """What joins cards ``i`` and ``j``."""
        return self.links[i][j]

    def sum(self, indices: Iterable[int]) -> int:
        """The score of a set of cards: the sum of the weights of its pairs."""
        return sum(self.weights[i][j] for i, j in combinations(indices, 2))
