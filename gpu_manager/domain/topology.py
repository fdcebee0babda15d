"""Links between the cards of a node: their matrix, the score of a set of cards, and the text form.

The text form is what ``nvidia-smi topo -m`` prints. :func:`parse_topology` accepts it with or without
terminal colours, network cards and affinities. It keeps the GPUs' links and affinities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations

from gpu_manager.domain.errors import RequestInvalid


class LinkKind(Enum):
    """The kind of connection between two cards, as ``nvidia-smi topo -m`` names it, best first."""

    SELF = "X"
    NVLINK = "NV"
    PIX = "PIX"  # at most one PCIe bridge
    PXB = "PXB"  # several PCIe bridges, no host bridge
    PHB = "PHB"  # a host bridge
    NODE = "NODE"  # several host bridges of one NUMA node
    SYS = "SYS"  # between NUMA nodes; drivers before 384 print SOC


class NumaPolicy(Enum):
    """The kubelet's ``topologyManagerPolicy``."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE = "single-numa-node"

    @property
    def strict(self) -> bool:
        """True if the kubelet fails a pod whose devices lie on more NUMA nodes than they need."""
        return self in (NumaPolicy.RESTRICTED, NumaPolicy.SINGLE)


# 10 to 50 by distance, 100 for each NVLink, as in NVIDIA's own allocator.
_WEIGHTS = {
    LinkKind.SELF: 0,
    LinkKind.NVLINK: 100,
    LinkKind.PIX: 50,
    LinkKind.PXB: 40,
    LinkKind.PHB: 30,
    LinkKind.NODE: 20,
    LinkKind.SYS: 10,
}
_RANK = 1 << 17  # more than the paths of all pairs of MAX_CARDS add up to
_OLD_NAMES = {"SOC": LinkKind.SYS}
_NVLINK = re.compile(r"NV([1-9][0-9]?)")


@dataclass(frozen=True, slots=True)
class Link:
    """The connection of two cards; ``lanes`` is the number of bonded NVLinks, 0 for any other kind.

    ``path`` is the PCIe path beside the NVLinks, None if unknown; any other link is its own path and has
    None. The text forms do not include it.
    """

    kind: LinkKind
    lanes: int = 0
    path: LinkKind | None = None

    def __post_init__(self) -> None:
        if (self.lanes > 0) is not (self.kind is LinkKind.NVLINK) or not 0 <= self.lanes <= 99:
            raise ValueError(f"a link of kind {self.kind.name} cannot have {self.lanes} lanes")
        if self.path is not None and (not self.lanes or self.path in (LinkKind.SELF, LinkKind.NVLINK)):
            raise ValueError(f"a link of kind {self.kind.name} has no {self.path.name} path beside it")

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
        """The pair's contribution to a set's score; NVn weighs n times 100, whatever path is beside it."""
        return _WEIGHTS[self.kind] * (self.lanes or 1)

    @property
    def nearness(self) -> int:
        """The weight of the pair's PCIe path, which orders pairs of equal weight; SYS if unknown."""
        if self.kind is LinkKind.NVLINK:
            return _WEIGHTS[self.path or LinkKind.SYS]
        return _WEIGHTS[self.kind]

    def __str__(self) -> str:
        return f"NV{self.lanes}" if self.kind is LinkKind.NVLINK else self.kind.value


SELF = Link(LinkKind.SELF)


@dataclass(frozen=True, slots=True)
class Topology:
    """The links of every pair of cards, by position in the node's list of cards.

    Square and symmetric, ``X`` on the diagonal and nowhere else; ValueError otherwise. ``numa_policy`` is the
    node's kubelet's and decides which sets of cards a container may have. ``ranks`` are the weights by which
    sets are compared: of sets with equal sums of ``weights`` the one with the shortest PCIe paths has the
    larger sum of ``ranks``, otherwise both sums have the same order. They equal the weights if no PCIe path
    beside NVLinks is known.
    """

    links: tuple[tuple[Link, ...], ...]
    numa_policy: NumaPolicy = NumaPolicy.NONE
    weights: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    ranks: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _texts: list[list[str]] | None = field(init=False, repr=False, compare=False, default=None)

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
        ranks = weights
        if any(link.path for row in self.links for link in row):
            ranks = tuple(tuple(_RANK * link.weight + link.nearness for link in row) for row in self.links)
        object.__setattr__(self, "ranks", ranks)

    @property
    def texts(self) -> list[list[str]]:
        """The links as texts, as in JSON; the caller does not change them."""
        if self._texts is None:
            object.__setattr__(self, "_texts", [[str(link) for link in row] for row in self.links])
        return self._texts or []

    @classmethod
    def uniform(cls, size: int, link: Link) -> Topology:
        """Return a topology of ``size`` cards with the same link between all of them."""
        return cls(tuple(tuple(SELF if i == j else link for j in range(size)) for i in range(size)))

    @property
    def size(self) -> int:
        """The number of cards."""
        return len(self.links)

    def link(self, i: int, j: int) -> Link:
        """Return the link between cards ``i`` and ``j``."""
        return self.links[i][j]

    def sum(self, indices: Iterable[int]) -> int:
        """Return the score of a set of cards: the sum of the weights of its pairs."""
        return sum(self.weights[i][j] for i, j in combinations(indices, 2))

    def rank(self, indices: Iterable[int]) -> int:
        """Return the value by which sets of equal size are compared: the sum of the ranks of the pairs."""
        return sum(self.ranks[i][j] for i, j in combinations(indices, 2))


@dataclass(frozen=True, slots=True)
class Affinity:
    """The CPU and NUMA affinity of one GPU as written; ``None`` for an empty or missing cell."""

    cpus: str | None = None
    numa: str | None = None
    gpu_numa: str | None = None

    @property
    def node(self) -> int | None:
        """The NUMA node of the GPU's CPUs; None if unknown or several.

        In a list such as ``0,3-9,11-17`` it is the first: the others are memory of GPUs, without CPUs, which
        such machines (GB200, GB300) count as nodes too. Neighbours with CPUs are written as a range.
        """
        found = re.match("([0-9]{1,5})(?:,|$)", self.numa or "")
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class ParsedTopology:
    """A parsed matrix: the links of the GPUs, and one :class:`Affinity` per GPU."""

    topology: Topology
    affinities: tuple[Affinity, ...]

    @property
    def nodes(self) -> tuple[int | None, ...]:
        """The NUMA node of each GPU. If no row has one, as with old drivers, the CPUs distinguish the GPUs of
        one socket from those of another; sockets are numbered in the order of the rows.
        """
        written = tuple(place.node for place in self.affinities)
        if any(place.numa for place in self.affinities):
            return written
        sockets = list(dict.fromkeys(place.cpus for place in self.affinities if _is_cpus(place.cpus)))
        if len(sockets) < 2:  # a single one proves nothing: it may list every CPU of the machine
            return written
        return tuple(
            sockets.index(place.cpus) if place.cpus in sockets else None for place in self.affinities
        )


MAX_CARDS = 64  # more than any node has; bounds the work that a hostile text can cause

_AFFINITY_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
# Colours: the escape byte, its replacement by editors and logs, or no byte at all before "[4m".
_COLOUR = re.compile(r"(?:\x1b|\ufffd|\^\[)(?:\[[0-9;?]*[A-Za-z]|\(B)|\[[0-9;]*m")
_GPU = re.compile(r"GPU(0|[1-9][0-9]{0,3})")
# Beside many network cards nvidia-smi leaves no blank between columns: NIC11NIC12, NIC11CPU Affinity, SYSSYS.
_GLUED = re.compile(r"(?<=\S)(?=NIC[0-9]+|CPU[ \t]+Affinity|NUMA[ \t]+Affinity)")
_LINKS = re.compile(r"(?:X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC)+", re.ASCII)
_CPUS = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*", re.ASCII)
_COLUMN = re.compile("|".join(name.replace(" ", r"[ \t]+") for name in _AFFINITY_COLUMNS) + r"|\S+")
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class _Header:
    """The columns of a matrix: names of the link columns, and (name, offset) of the affinity columns."""

    links: tuple[str, ...]
    affinities: tuple[tuple[str, int], ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.links if _GPU.fullmatch(name))


def parse_topology(text: str) -> ParsedTopology:
    """Read the first matrix in ``text``; ignore everything before and after it.

    Raises:
        RequestInvalid: there is no matrix, or it is malformed; the message names row, column and value.
    """
    plain = _COLOUR.sub("", text.replace("\ufeff", "").replace("\xa0", " "))
    lines = [line for line in plain.splitlines() if line.strip()]
    start, header = _find_header(lines)
    rows: dict[str, str] = {}
    for line in lines[start + 1 :]:
        name = _first_word(line)
        if name not in header.links or len(rows) == len(header.gpus):
            break
        if name in rows:
            raise RequestInvalid(f"the matrix has two rows {name}: give one whole matrix")
        if _GPU.fullmatch(name):
            rows[name] = line
    cells = {name: _read_row(name, line, header) for name, line in rows.items()}
    for name in header.gpus:
        if name not in cells:
            raise RequestInvalid(f"the matrix has a column {name} but no row {name}: give the whole matrix")
    order = [f"GPU{i}" for i in range(len(header.gpus))]
    links = tuple(tuple(cells[row][0][column] for column in order) for row in order)
    _check(links)
    return ParsedTopology(Topology(links), tuple(cells[row][1] for row in order))


def format_topology(parsed: ParsedTopology) -> str:
    """Format a matrix like ``nvidia-smi topo -m``, with tabs; :func:`parse_topology` is the inverse."""
    names = [f"GPU{i}" for i in range(parsed.topology.size)]
    lines = ["\t".join(("", *names, *_AFFINITY_COLUMNS))]
    for name, row, place in zip(names, parsed.topology.links, parsed.affinities, strict=True):
        links = (" X " if link == SELF else str(link) for link in row)
        lines.append("\t".join((name, *links, place.cpus or "", place.numa or "", place.gpu_numa or "")))
    return "\n".join(lines) + "\n"


def _first_word(line: str) -> str:
    match = _WORD.search(line)
    return match[0] if match else ""


def _find_header(lines: list[str]) -> tuple[int, _Header]:
    for number, line in enumerate(lines[:-1]):
        # A row begins with a GPU too, but its second word is a link.
        if _GPU.fullmatch(_first_word(line)) and _GPU.fullmatch(_first_word(lines[number + 1])):
            header = _read_header(line.expandtabs())
            if not (len(header.links) > 1 and _is_link(header.links[1])):
                return number, header
    raise RequestInvalid("no GPU matrix found: give the whole output of `nvidia-smi topo -m`")


def _read_header(line: str) -> _Header:
    links: list[str] = []
    affinities: list[tuple[str, int]] = []
    for match in _COLUMN.finditer(_GLUED.sub(" ", line)):
        name = " ".join(match[0].split())
        if name in _AFFINITY_COLUMNS or affinities:
            if name not in dict(affinities):
                affinities.append((name, match.start()))
        else:
            links.append(name)
    gpus = [name for name in links if _GPU.fullmatch(name)]
    if len(gpus) > MAX_CARDS:
        raise RequestInvalid(f"the matrix has {len(gpus)} GPUs: at most {MAX_CARDS} are supported")
    for i in range(len(gpus)):
        if gpus.count(f"GPU{i}") != 1:
            raise RequestInvalid(
                f"the matrix has {len(gpus)} GPU columns but not one GPU{i}: {' '.join(gpus)}"
            )
    return _Header(tuple(links), tuple(affinities))


def _is_cpus(cell: str | None) -> bool:
    return cell is not None and _CPUS.fullmatch(cell) is not None


def _is_link(cell: str) -> bool:
    try:
        Link.parse(cell)
    except ValueError:
        return False
    return True


def _read_row(name: str, line: str, header: _Header) -> tuple[dict[str, Link], Affinity]:
    words = list(_WORD.finditer(line))[1:]
    links: dict[str, Link] = {}
    for column, word in zip(header.links, words, strict=False):
        if not _GPU.fullmatch(column):
            continue
        try:
            links[column] = Link.parse(word[0])
        except ValueError:
            raise RequestInvalid(
                f"row {name}, column {column}: {word[0][:32]!r} is no link;"
                " expected X, NV1.., PIX, PXB, PHB, NODE, SYS or SOC"
            ) from None
    for column in header.gpus:
        if column not in links:
            raise RequestInvalid(f"row {name}, column {column}: nothing there, the row is too short")
    # Cells may be glued where columns are: an affinity, none of which is a link, follows the last link.
    end = max(word.end() for word in words if _LINKS.fullmatch(word[0]))
    return links, _read_affinity(line, end, header)


def _read_affinity(line: str, end: int, header: _Header) -> Affinity:
    """Read the cells after the last link. They may be empty, and nvidia-smi pads some with an extra tab."""
    names = [name for name, _ in header.affinities]
    cells = [cell.strip() for cell in line[end:].split("\t")[1:]]
    words = [
        (word[0], word.start()) for word in _WORD.finditer(line.expandtabs(), len(line[:end].expandtabs()))
    ]
    if len(cells) == len(names):
        found = dict(zip(names, cells, strict=True))
    elif len(words) >= len(names):
        found = dict(zip(names, (word for word, _ in words), strict=False))
    else:  # some are empty: a word belongs to the column that begins nearest
        found = {}
        for word, at in words:
            left = [column for column in header.affinities if column[0] not in found]
            found[min(left, key=lambda column: abs(column[1] - at))[0]] = word
    return Affinity(*(found.get(name) or None for name in _AFFINITY_COLUMNS))


def _check(links: tuple[tuple[Link, ...], ...]) -> None:
    for i, row in enumerate(links):
        for j, link in enumerate(row):
            if (link == SELF) is not (i == j):
                expected = "X" if i == j else "a link"
                raise RequestInvalid(f"row GPU{i}, column GPU{j}: {link} where {expected} should be")
            if link != links[j][i]:
                raise RequestInvalid(
                    f"row GPU{i}, column GPU{j}: {link}, but row GPU{j}, column GPU{i}: {links[j][i]};"
                    " the two must be equal"
                )
