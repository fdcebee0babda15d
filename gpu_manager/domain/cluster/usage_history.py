"""What containers used in the last minutes, as far as that was seen. Not thread-safe.

Each node has a ring of the latest answers, and each container's share of a card three columns of numbers
in it, of 4 bytes an answer, whatever it does. A moment in which nothing answered is blank in every column.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from gpu_manager.domain.cluster.usage_json import NodeUsage, UsedShare
from gpu_manager.domain.errors import RequestInvalid, quoted

SECONDS: Final = 600.0  # covered by the history
MINUTES: Final = "10m"  # SECONDS as the name of a range
HOUR_SECONDS: Final = 3600.0
HOUR: Final = "1h"
MINUTE: Final = 60.0  # between two figures of an hour
TRENDS: Final = 20  # figures of a card's trend over the last minutes
MOST_TRENDS: Final = 1_000  # cards
MOST_WAITERS: Final = 5
LONG_WAIT: Final = 0.5  # seconds waited in a second, from which on a share is named
MOST_SHARES: Final = 12_000  # of all nodes; later shares are counted as left out
MOST_SERIES: Final = 12  # of one answer, the most used first
_ANSWERS: Final = 120  # of one node
_LONGEST_NAME: Final = 512
_BLANK: Final = math.nan
_COLUMNS: Final = ("cores", "memory", "waited")
Column = Sequence[float | None]
ShareKey = tuple[str, str, str]
"""UID of the pod, container, UUID of the card."""


class HistorySubject(Enum):
    """The kind of object that a history is about."""

    CLUSTER = "cluster"  # one series: all containers together
    NODE = "node"  # a series for each of its cards
    CARD = "card"  # a series for each container that held some of it
    POD = "pod"  # a series for each of its containers and their cards


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The object of a history. ``name``: of the node, UUID of the card, ``namespace/name`` of the pod.

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
        """True if a container's share of a card belongs to the history."""
        if self.namespace not in ("", namespace):
            return False
        if self.subject is HistorySubject.CLUSTER:
            return True
        if self.subject is HistorySubject.POD:
            return f"{namespace}/{pod}" == self.name
        return (node if self.subject is HistorySubject.NODE else card) == self.name


@dataclass(frozen=True, slots=True)
class Series:
    """Figures over time for the object in ``labels``; None where unknown.

    ``cores``: ratio of one card; ``memory``: bytes; ``waited``: seconds per second for which processes waited
    because of their limit.
    """

    labels: Mapping[str, str]
    cores: Column
    memory: Column
    waited: Column

    @property
    def weight(self) -> float:
        """Its total use, for finding the greatest."""
        return sum(value for value in self.cores if value is not None)


class ShareSum(NamedTuple):
    """Cores (100 a card) times seconds that a share used, and the seconds for which that is known."""

    core_seconds: float
    seconds: float


class ShareFrames(NamedTuple):
    """What one share used: cores (ratio of a card), memory (bytes), waiting (seconds a second)."""

    key: ShareKey
    namespace: str
    pod: str
    columns: Sequence[Column]


@dataclass(slots=True)
class _Share:
    namespace: str
    pod: str
    seen: int  # number of the node's last answer that contained it
    before: tuple[float, float | None]  # time, and seconds waited until then
    cores: array[float]
    memory: array[float]
    waited: array[float]


@dataclass(slots=True)
class _Node:
    times: array[float]
    answers: int = 0
    shares: dict[ShareKey, _Share] = field(default_factory=dict)


class UsageHistory:
    """The last ``span`` seconds of every node: ``answers`` of each, and ``most`` shares in all."""

    def __init__(self, answers: int = _ANSWERS, span: float = SECONDS, most: int = MOST_SHARES) -> None:
        self._answers = answers
        self._span = span
        self._most = most
        self._nodes: dict[str, _Node] = {}
        self._shares = 0
        self.left_out = 0  # shares of the latest answers without room in the ring

    def record(self, node: str, at: float, usage: NodeUsage) -> None:
        """Add one answer, received ``at`` this monotonic second, later than the node's last."""
        kept = self._node(node)
        slot = kept.answers % self._answers
        kept.times[slot] = at
        for key, share in kept.shares.items():
            if key not in usage:
                share.cores[slot] = share.memory[slot] = share.waited[slot] = _BLANK
        self.left_out = 0
        for key, used in usage.items():
            mine = kept.shares.get(key) or self._begun(kept, key, used.namespace, used.pod, at)
            if mine is not None:
                _write(mine, slot, at, used)
                mine.seen = kept.answers
        kept.answers += 1
        for key in [k for k, share in kept.shares.items() if kept.answers - share.seen >= self._answers]:
            del kept.shares[key]
            self._shares -= 1

    def fill(self, node: str, ends: float, step: float, told: Sequence[ShareFrames]) -> None:
        """Put what the node's agent remembers, until ``ends``, in place of what is known of it."""
        before = self._nodes.pop(node, None)
        self._shares -= len(before.shares) if before else 0
        kept = self._node(node)
        count = min(self._answers, max((len(one.columns[0]) for one in told), default=0))
        for slot in range(count):
            kept.times[slot] = ends - (count - 1 - slot) * step
        kept.answers = count
        for one in told:
            begun = self._begun(kept, one.key, one.namespace, one.pod, ends)
            if begun is None:
                continue
            begun.seen = max(count - 1, 0)
            for name, column in zip(_COLUMNS, one.columns, strict=True):
                ring = getattr(begun, name)
                for slot, value in enumerate(column[-count:], count - min(count, len(column))):
                    ring[slot] = _BLANK if value is None else value

    def frames(self, node: str, ends: float, step: float) -> list[ShareFrames]:
        """What is known of a node's shares every ``step`` seconds, from its first answer on."""
        kept = self._nodes.get(node)
        if kept is None:
            return []
        count = int(self._span / step)
        slots = _slots(kept.times, [ends - (count - 1 - at) * step for at in range(count)], 1.5 * step)
        while slots and slots[0] is None:
            slots.pop(0)
        found = []
        for key, share in kept.shares.items():
            rings = (share.cores, share.memory, share.waited)
            columns = [[None if slot is None else _known(ring[slot]) for slot in slots] for ring in rings]
            found.append(ShareFrames(key, share.namespace, share.pod, columns))
        return found

    def means(self, node: str, since: float) -> NodeUsage:
        """What each share used on average since a monotonic second; of waiting, the latest sum."""
        kept = self._nodes.get(node)
        if kept is None:
            return {}
        slots = [slot for slot, at in enumerate(kept.times) if at > since]
        found = {}
        for key, share in kept.shares.items():
            cores, memory = (_mean([ring[slot] for slot in slots]) for ring in (share.cores, share.memory))
            if cores is not None or memory is not None:
                percent = None if cores is None else 100 * cores
                held = None if memory is None else int(memory)
                found[key] = UsedShare(percent, held, share.before[1], share.namespace, share.pod)
        return found

    def trends(self, ends: float, namespace: str = "") -> dict[str, list[int | None]]:
        """Each card's use in percent at :data:`TRENDS` moments. ``namespace``: whose, empty for all."""
        step = self._span / TRENDS
        moments = [ends - (TRENDS - 1 - at) * step for at in range(TRENDS)]
        found: dict[str, list[float | None]] = {}
        for kept in self._nodes.values():
            slots = _slots(kept.times, moments, 1.5 * step)
            for (_, _, card), share in kept.shares.items():
                if namespace not in ("", share.namespace) or (
                    card not in found and len(found) >= MOST_TRENDS
                ):
                    continue
                sums = found.setdefault(card, [None] * TRENDS)
                for at, slot in enumerate(slots):
                    if slot is not None and not math.isnan(value := share.cores[slot]):
                        sums[at] = value + (sums[at] or 0.0)
        return {card: [None if v is None else round(100 * v) for v in sums] for card, sums in found.items()}

    def waiters(self, since: float, namespace: str = "") -> list[tuple[float, str, str, str]]:
        """The shares that waited for most of the time since a monotonic second, the longest first: seconds
        waited in a second, namespace, pod, container. ``namespace``: whose, empty for all.
        """
        found = set()
        for kept in self._nodes.values():
            slots = [slot for slot, at in enumerate(kept.times) if at > since]
            for (_, container, _), share in kept.shares.items():
                waited = _mean(share.waited[slot] for slot in slots)
                if share.pod and namespace in ("", share.namespace) and (waited or 0.0) >= LONG_WAIT:
                    found.add((round(waited or 0.0, 2), share.namespace, share.pod, container))
        return sorted(found, reverse=True)[:MOST_WAITERS]

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            self._nodes[name] = _Node(array("d", [-math.inf]) * self._answers)
        return self._nodes[name]

    def _begun(self, kept: _Node, key: ShareKey, namespace: str, pod: str, at: float) -> _Share | None:
        """A share that is new; None where there is no room, which is counted."""
        if self._shares >= self._most:
            self.left_out += 1
            return None
        self._shares += 1
        blank = array("f", [_BLANK]) * self._answers
        kept.shares[key] = _Share(namespace, pod, 0, (at, None), blank, blank[:], blank[:])
        return kept.shares[key]

    def forget(self, now: float) -> None:
        """Drop nodes that have not answered within the span."""
        for node, kept in [*self._nodes.items()]:
            if max(kept.times) < now - self._span:
                self._shares -= len(kept.shares)
                del self._nodes[node]

    def read(self, query: HistoryQuery, ends: float, step: float) -> list[Series]:
        """Figures at ``ends`` (a monotonic second) and every ``step`` seconds before, oldest first.

        Each figure is the newest of one and a half steps. A sum is blank if a node that answered before and
        after did not answer.
        """
        count = int(self._span / step)
        moments = [ends - (count - 1 - at) * step for at in range(count)]
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
        """What each share used within the span, where that is known.

        ``period``: seconds between two answers of a node, for which each figure counts.
        """
        found = {}
        for kept in self._nodes.values():
            slots = [slot for slot, at in enumerate(kept.times) if at > now - self._span]
            for key, share in kept.shares.items():
                cores = [share.cores[slot] for slot in slots if not math.isnan(share.cores[slot])]
                if cores:
                    found[key] = ShareSum(100 * sum(cores) * period, len(cores) * period)
        return found


def reach(step: float, span: float = SECONDS) -> float:
    """Seconds from the first figure of a reading to its last."""
    return (int(span / step) - 1) * step


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None


def largest(series: Sequence[Series]) -> list[Series]:
    """At most :data:`MOST_SERIES` series, the most used first."""
    return sorted(series, key=lambda one: (-one.weight, sorted(one.labels.items())))[:MOST_SERIES]


def history_json(series: Sequence[Series], start: float, step: float, source: str, left_out: int = 0) -> Any:
    """The answer of ``/ui/history``. ``start``: time of the first figure, seconds since the epoch."""
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
    share.cores[slot] = _BLANK if used.cores is None else used.cores / 100
    share.memory[slot] = _BLANK if used.memory is None else used.memory
    then, waited = share.before
    share.waited[slot] = _BLANK
    if used.waited is not None and waited is not None and used.waited >= waited and at > then:
        share.waited[slot] = (used.waited - waited) / (at - then)
    share.before = at, used.waited


def _slots(times: Sequence[float], moments: Iterable[float], age: float) -> list[int | None]:
    """For each moment the slot of the newest answer before it that is younger than ``age``."""
    order = sorted(range(len(times)), key=times.__getitem__)
    in_order = [times[slot] for slot in order]
    found: list[int | None] = []
    for moment in moments:
        at = bisect_right(in_order, moment) - 1
        found.append(order[at] if at >= 0 and in_order[at] > moment - age else None)
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
        """The sums as series, blank at the ``silent`` moments."""
        for sums in self.columns:
            for at in silent:
                sums[at] = None
        return Series(labels, *self.columns)
