"""What containers used in the last minutes, as far as agents were asked. Not thread-safe.

Each node has a ring of the latest answers, and each container's share of a card three columns of numbers
in it: some 1.5 KiB, whatever it does. A moment in which nothing answered is blank in every column.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from gpu_manager.domain.cluster.usage_json import NodeUsage, UsedShare
from gpu_manager.domain.errors import RequestInvalid, quoted

SECONDS: Final = 600.0  # how far back it reaches
MINUTES: Final = "10m"  # the same as the name of a range
MOST_SHARES: Final = 12_000  # of all nodes; those that come later are counted as left out
MOST_SERIES: Final = 12  # of one answer, the most used first
_ANSWERS: Final = 120  # of one node
_LONGEST_NAME: Final = 512
_BLANK: Final = math.nan
_NOTHING: Final = array("f", [_BLANK] * _ANSWERS)
Column = Sequence[float | None]
ShareKey = tuple[str, str, str]
"""UID of the pod, container, UUID of the card."""


class HistorySubject(Enum):
    """What a history is about."""

    CLUSTER = "cluster"  # one series: all containers together
    NODE = "node"  # a series for each of its cards
    CARD = "card"  # a series for each container that held some of it
    POD = "pod"  # a series for each of its containers and their cards


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Whose history is wanted. ``name``: of the node, UUID of the card, ``namespace/name`` of the pod.

    ``namespace``: the only one whose containers count, empty for all.
    """

    subject: HistorySubject
    name: str = ""
    namespace: str = ""

    @classmethod
    def parse(cls, subject: str, name: str, namespace: str = "") -> HistoryQuery:
        """Check the parameters of a request. Raises RequestInvalid."""
        try:
            found = HistorySubject(subject)
        except ValueError as error:
            known = ", ".join(one.value for one in HistorySubject)
            raise RequestInvalid(f"there is no history of a {quoted(subject)}: ask for {known}") from error
        if len(name) > _LONGEST_NAME or (not name and found is not HistorySubject.CLUSTER):
            raise RequestInvalid(f"the history of a {subject} needs its name")
        if found is HistorySubject.POD and namespace not in ("", name.partition("/")[0]):
            raise RequestInvalid(f"pod {quoted(name)} is not of namespace {quoted(namespace)}")
        return cls(found, name, namespace)

    def covers(self, node: str, namespace: str, pod: str, card: str) -> bool:
        """Whether a container's share of a card belongs to it."""
        if self.namespace not in ("", namespace):
            return False
        mine = {
            HistorySubject.CLUSTER: self.name,
            HistorySubject.NODE: node,
            HistorySubject.CARD: card,
            HistorySubject.POD: f"{namespace}/{pod}",
        }
        return mine[self.subject] == self.name


@dataclass(frozen=True, slots=True)
class Series:
    """Figures over time of what ``labels`` name; None where they are not known.

    ``cores``: ratio of one card; ``memory``: bytes; ``waited``: seconds in a second that processes waited for
    their share.
    """

    labels: Mapping[str, str]
    cores: Column
    memory: Column
    waited: Column

    @property
    def weight(self) -> float:
        """What it used in all, to find the greatest."""
        return sum(value for value in self.cores if value is not None)


class ShareSum(NamedTuple):
    """Cores (100 a card) times seconds that a share used, and for how many seconds that is known."""

    core_seconds: float
    seconds: float


@dataclass(slots=True)
class _Share:
    namespace: str
    pod: str
    seen: int  # number of the node's answer that had it last
    before: tuple[float, float | None]  # when, and seconds waited until then
    cores: array[float] = field(default_factory=lambda: _NOTHING[:])
    memory: array[float] = field(default_factory=lambda: _NOTHING[:])
    waited: array[float] = field(default_factory=lambda: _NOTHING[:])


@dataclass(slots=True)
class _Node:
    answers: int = 0
    times: array[float] = field(default_factory=lambda: array("d", [-math.inf] * _ANSWERS))
    shares: dict[ShareKey, _Share] = field(default_factory=dict)


class UsageHistory:
    """The last :data:`SECONDS` of every node that was asked."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._shares = 0
        self.left_out = 0  # shares of the latest answers for which there was no room

    def record(self, node: str, at: float, usage: NodeUsage) -> None:
        """Take in one answer, ``at`` this monotonic second, later than the node's last."""
        kept = self._nodes.setdefault(node, _Node())
        slot = kept.answers % _ANSWERS
        kept.times[slot] = at
        for share in kept.shares.values():
            share.cores[slot] = share.memory[slot] = share.waited[slot] = _BLANK
        self.left_out = 0
        for key, used in usage.items():
            if key not in kept.shares:
                if self._shares >= MOST_SHARES:
                    self.left_out += 1
                    continue
                self._shares += 1
                kept.shares[key] = _Share(used.namespace, used.pod, 0, (at, None))
            _write(kept.shares[key], slot, at, used)
            kept.shares[key].seen = kept.answers
        kept.answers += 1
        for key in [k for k, share in kept.shares.items() if kept.answers - share.seen >= _ANSWERS]:
            del kept.shares[key]
            self._shares -= 1

    def forget(self, now: float) -> None:
        """Drop nodes that have not answered within :data:`SECONDS`."""
        for node, kept in [*self._nodes.items()]:
            if max(kept.times) < now - SECONDS:
                self._shares -= len(kept.shares)
                del self._nodes[node]

    def read(self, query: HistoryQuery, ends: float, step: float) -> list[Series]:
        """Figures at ``ends`` (a monotonic second) and every ``step`` seconds before, oldest first.

        A figure is the newest of one and a half steps. What is summed is blank where a node that answered
        before and after did not answer.
        """
        count = int(SECONDS / step)
        moments = [ends - reach(step) + at * step for at in range(count)]
        groups: dict[tuple[str, ...], _Sums] = {}
        names = _LABELS[query.subject]
        silent: set[int] = set()
        for node, kept in self._nodes.items():
            if query.subject is HistorySubject.NODE and node != query.name:
                continue
            slots = _slots(kept.times, moments, 1.5 * step)
            known = [(at, slot) for at, slot in enumerate(slots) if slot is not None]
            if query.subject is HistorySubject.CLUSTER:
                silent.update(at for (a, _), (b, _) in pairwise(known) for at in range(a + 1, b))
            for (_, container, card), share in kept.shares.items():
                if query.covers(node, share.namespace, share.pod, card):
                    labels = {
                        "namespace": share.namespace,
                        "pod": share.pod,
                        "container": container,
                        "uuid": card,
                    }
                    group = tuple(labels[name] for name in names)
                    if group not in groups:
                        groups[group] = _Sums(count)
                    groups[group].add(share, known)
        summed = [sums.series(dict(zip(names, group, strict=True)), silent) for group, sums in groups.items()]
        return [one for one in summed if any(v is not None for v in (*one.cores, *one.memory))]

    def sums(self, now: float, period: float) -> dict[ShareKey, ShareSum]:
        """What each share used within :data:`SECONDS`, where that is known.

        ``period``: seconds between two answers of a node, for which each figure counts.
        """
        found = {}
        for kept in self._nodes.values():
            slots = [slot for slot, at in enumerate(kept.times) if at > now - SECONDS]
            for key, share in kept.shares.items():
                cores = [share.cores[slot] for slot in slots if not math.isnan(share.cores[slot])]
                if cores:
                    found[key] = ShareSum(100 * sum(cores) * period, len(cores) * period)
        return found


def reach(step: float) -> float:
    """Seconds from the first figure of a reading to its last."""
    return (int(SECONDS / step) - 1) * step


def largest(series: Sequence[Series]) -> list[Series]:
    """At most :data:`MOST_SERIES` of them, the most used first."""
    return sorted(series, key=lambda one: (-one.weight, sorted(one.labels.items())))[:MOST_SERIES]


def history_json(series: Sequence[Series], start: float, step: float, source: str, left_out: int = 0) -> Any:
    """What ``/ui/history`` answers. ``start``: seconds since the epoch of the first figure."""
    shown = largest(series)
    return {
        "start": round(start, 3),
        "step": step,
        "source": source,
        "left_out": left_out + len(series) - len(shown),
        "series": [
            {
                **one.labels,
                "cores": [None if v is None else round(v, 4) for v in one.cores],
                "memory": [None if v is None else round(v) for v in one.memory],
                "waited": [None if v is None else round(v, 4) for v in one.waited],
            }
            for one in shown
        ],
    }


def _write(share: _Share, slot: int, at: float, used: UsedShare) -> None:
    if used.cores is not None:
        share.cores[slot] = used.cores / 100
    if used.memory is not None:
        share.memory[slot] = used.memory
    then, waited = share.before
    if used.waited is not None and waited is not None and used.waited >= waited and at > then:
        share.waited[slot] = (used.waited - waited) / (at - then)
    share.before = at, used.waited


def _slots(times: Sequence[float], moments: Iterable[float], age: float) -> list[int | None]:
    """For each moment the slot of the newest answer until then that is younger than ``age``."""
    order = sorted(range(len(times)), key=times.__getitem__)
    found: list[int | None] = []
    at = -1
    for moment in moments:
        while at + 1 < len(order) and times[order[at + 1]] <= moment:
            at += 1
        found.append(order[at] if at >= 0 and times[order[at]] > moment - age else None)
    return found


_LABELS: Final[Mapping[HistorySubject, Sequence[str]]] = {
    HistorySubject.CLUSTER: (),
    HistorySubject.NODE: ("uuid",),
    HistorySubject.CARD: ("namespace", "pod", "container"),
    HistorySubject.POD: ("container", "uuid"),
}


class _Sums:
    """The sums of some shares' figures over time."""

    def __init__(self, count: int) -> None:
        self.columns: list[list[float | None]] = [[None] * count for _ in range(3)]

    def add(self, share: _Share, known: Sequence[tuple[int, int]]) -> None:
        """Add a share; ``known``: the moments at which its node had answered, each with the answer's slot."""
        for sums, numbers in zip(self.columns, (share.cores, share.memory, share.waited), strict=True):
            for at, slot in known:
                value = numbers[slot]
                if value == value:  # noqa: PLR0124 - a figure that is not known is NaN
                    before = sums[at]
                    sums[at] = value if before is None else before + value

    def series(self, labels: Mapping[str, str], silent: set[int]) -> Series:
        """As they are told, blank at the ``silent`` moments."""
        for sums in self.columns:
            for at in silent:
                sums[at] = None
        return Series(labels, *self.columns)
