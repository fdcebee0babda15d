"""The agent's decisions with all that they were made by, as lines of a record, and judged again.

:func:`decide` and :func:`book` are those of :mod:`gpu_manager.services.allocation.grant`; where decisions are
recorded, each hands over the books before it, which cost a copy of two small tables.

Entries are JSON objects, whose ``k`` says what they are; a line of a file is an array of them.
``ring`` begins a segment, ``pod`` gives a pod its number in it, ``row`` an allocation, ``state`` says which
rows the books have and what else of them has changed. ``prefer`` and ``allocate`` are decisions, by the state
before them. Labels, other parties' annotations and values of environment variables are left out.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import NVIDIA, OUR_PREFIX
from gpu_manager.domain.dra.sides import Side, Sides
from gpu_manager.domain.errors import RequestInvalid, VcudaError
from gpu_manager.domain.kube.pod import Container, Pod, PodUid
from gpu_manager.domain.names import alike
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.records import decode, encode, read_entries
from gpu_manager.domain.topology import Topology
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.records import RecordSink
from gpu_manager.runtime import threads
from gpu_manager.services.allocation import grant
from gpu_manager.services.allocation.books import Books, Grant, Key, NodeCards
from gpu_manager.services.allocation.grant import Booked, Decision
from gpu_manager.services.allocation.preferred_ids import IdChoice

Shares = Mapping[str, tuple[Share, ...]]


@dataclass(frozen=True, slots=True)
class BooksState:
    """Books at one moment. ``rows``: every allocation with its grant, None for one that is planned; ``lost``:
    cards that have left the node and are held still; ``planned``: pods as they were when they were planned.
    """

    node: NodeCards
    rows: tuple[tuple[Allocation, Grant | None], ...] = ()
    lost: tuple[Card, ...] = ()
    sides: Sides | None = None
    meant: Mapping[Key, Key] = field(default_factory=dict)
    lending: frozenset[PodUid] = frozenset()
    withdrawn: Mapping[str, frozenset[str]] = field(default_factory=dict)
    planned: tuple[Pod, ...] = ()

    @staticmethod
    def of(books: Books) -> BooksState:
        """The books as they are now."""
        there = {state.card.uuid for state in books.node.cards}
        return BooksState(
            books.node,
            tuple((one, books.grants.get(one.key)) for one in books.ledger),
            tuple(card for uuid, card in books.cards.items() if uuid not in there),
            books.sides,
            dict(books.meant),
            frozenset(books.lending),
            books.withdrawn,
            tuple(books.planned.values()),
        )

    def books(self) -> Books:
        """Books in this state."""
        found = Books(self.node, sides=self.sides)
        found.cards |= {card.uuid: card for card in self.lost}
        found.ledger = Ledger(found.cards.values(), self.node.unit)
        for _, each in self.rows:
            if each is not None:
                found.state(each)
        found.ledger = Ledger(found.cards.values(), self.node.unit, (one for one, _ in self.rows))
        found.meant, found.lending, found.withdrawn = dict(self.meant), set(self.lending), self.withdrawn
        found.planned = {pod.uid: pod for pod in self.planned}
        return found


@dataclass(frozen=True, slots=True)
class Preference:
    """An answer to GetPreferredAllocation: the ids, what is then planned for the pod, and why it will be
    refused, empty if it will not. ``listed``: the ids that the kubelet lists at the container already.
    """

    state: BooksState
    choice: IdChoice
    candidate: ContainerCandidate
    listed: Mapping[str, frozenset[str]]
    ids: tuple[str, ...]
    plan: Shares
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Booking:
    """What Allocate booked for an identified container, or why it refused the container."""

    state: BooksState
    resource: str
    ids: frozenset[str]
    candidate: ContainerCandidate
    shares: tuple[Share, ...] = ()
    refusal: str = ""


Recorded = Callable[[Preference | Booking], object]


def decide(
    recorded: Recorded | None,
    books: Books,
    choice: IdChoice,
    candidate: ContainerCandidate,
    listed: Mapping[str, frozenset[str]],
) -> tuple[tuple[str, ...], Decision]:
    """See :func:`gpu_manager.services.allocation.grant.decide`."""
    if recorded is None:
        return grant.decide(books, choice, candidate, listed)
    before = BooksState.of(books)
    ids, decision = grant.decide(books, choice, candidate, listed)
    plan = {name: one.shares for name, one in books.ledger.of_pod(candidate.pod.uid).items()}
    refusal = "" if decision.refusal is None else str(decision.refusal)
    recorded(Preference(before, choice, candidate, listed, ids, plan, refusal))
    return ids, decision


def book(
    recorded: Recorded | None, books: Books, resource: str, ids: frozenset[str], decision: Decision
) -> Booked:
    """See :func:`gpu_manager.services.allocation.grant.book`."""
    candidate = decision.candidate
    if recorded is None or candidate is None or not decision.certain or decision.refusal is not None:
        return grant.book(books, resource, ids, decision)
    before = BooksState.of(books)
    try:
        booked = grant.book(books, resource, ids, decision)
    except VcudaError as error:
        recorded(Booking(before, resource, ids, candidate, refusal=str(error)))
        raise
    recorded(Booking(before, resource, ids, candidate, booked.grant.allocation.shares))
    return booked


log = structlog.get_logger(__name__)

FORMAT: Final = 1
WRITE_SECONDS: Final = 0.5  # what a kill loses at most
_MOST_WAITING: Final = 4096  # decisions; beyond, the oldest are left out
_UNREAD: Final = frozenset({"labels", "owner", "refused", "containers", "annotations"})
_UNREAD_OF_CONTAINER: Final = frozenset({"visible_devices", "runtime_id", "stuck"})

Line = dict[str, Any]


class AgentRecorder:
    """Writes what :meth:`decided` is given, which any thread may call, to ``sink``."""

    def __init__(self, sink: RecordSink, clock: Clock, release: str) -> None:
        self._sink = sink
        self._clock = clock
        self._release = release
        self._waiting: deque[tuple[float, Preference | Booking]] = deque(maxlen=_MOST_WAITING)
        self._segment = _Segment()
        self._broken = False

    def decided(self, decision: Preference | Booking) -> None:
        """Something was decided; it is written later."""
        if not self._broken:
            self._waiting.append((round(self._clock.now(), 3), decision))

    def thread(self, ended: threading.Event) -> threading.Thread:
        """The thread, to be started, that writes until ``ended`` is set."""
        return threads.every(WRITE_SECONDS, "record", self.write, ended)

    def write(self) -> None:
        """Write what was handed over so far."""
        try:
            while self._waiting:
                if self._sink.full:
                    first = {"k": "ring", "format": FORMAT, "of": "agent", "release": self._release}
                    self._segment = _Segment()
                    self._sink.begin([_text([first])])
                self._sink.append([_text(self._segment.entries(*self._waiting.popleft()))])
        except VcudaError as error:
            self._broken = True
            self._waiting.clear()
            log.warning("record_stopped", reason=str(error))


class _Segment:
    """What the lines of one segment have said so far. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[Allocation, Grant | None, int]] = {}
        self._pods: dict[PodUid, tuple[Pod, int]] = {}
        self._count = 0
        self._state: Line = {}

    def entries(self, at: float, decided: Preference | Booking) -> list[Line]:
        """The entries of a decision, after those of what it was judged by."""
        found: list[Line] = []
        rows = [self._row(found, decided.state.node, *row) for row in decided.state.rows]
        planned = [self._pod(found, pod) for pod in decided.state.planned]
        state = {"rows": rows, "planned": planned, **_state(decided.state)}
        changed = {key: value for key, value in state.items() if self._state.get(key, self) != value}
        self._state = state
        if changed:
            found.append({"k": "state", **changed})
        pod = self._pod(found, decided.candidate.pod)
        line: Line = {"at": at, "pod": pod, "container": decided.candidate.container.name}
        if isinstance(decided, Booking):
            line |= {"k": "allocate", "resource": decided.resource}
            line["ids"] = _ids(decided.state.node, decided.resource, decided.ids)
            line["answer"] = _booked(decided.shares, decided.refusal)
        else:
            choice, node = decided.choice, decided.state.node
            line |= {"k": "prefer", "resource": choice.resource, "size": choice.size}
            line["free"] = _ids(node, choice.resource, choice.free)
            line["must"] = _ids(node, choice.resource, choice.must)
            line["listed"] = _of_resources(node, decided.listed)
            line["answer"] = _preferred(decided)
        return [*found, line]

    def _row(self, found: list[Line], node: NodeCards, allocation: Allocation, granted: Grant | None) -> int:
        known = self._rows.get(allocation.key)
        if known is not None and known[0] is allocation and known[1] is granted:
            return known[2]
        self._count += 1
        self._rows[allocation.key] = allocation, granted, self._count
        kind, one = ("planned", allocation) if granted is None else ("granted", granted)
        line = {"k": "row", "n": self._count, kind: encode(type(one), one, frozenset({"ids", "directory"}))}
        if granted is not None:
            line["ids"] = _of_resources(node, granted.ids)
        found.append(line)
        return self._count

    def _pod(self, found: list[Line], pod: Pod) -> int:
        known = self._pods.get(pod.uid)
        if known is not None and known[0] == pod:
            return known[1]
        self._count += 1
        self._pods[pod.uid] = pod, self._count
        written = encode(Pod, pod, _UNREAD)
        written["containers"] = [encode(Container, one, _UNREAD_OF_CONTAINER) for one in pod.containers]
        ours = {key: value for key, value in pod.annotations.items() if key.startswith(OUR_PREFIX)}
        found.append({"k": "pod", "n": self._count, "v": {**written, "annotations": ours}})
        return self._count


@dataclass(frozen=True, slots=True)
class JudgedOnNode:
    """A decision of the record and that of this release. ``line``: what was recorded."""

    line: Line
    pod: str
    recorded: Line
    now: Line


class AgentPlayer:
    """Judges decisions again. ``passed``: those that could not be, by the reason."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self._begin()

    def play(self, lines: Iterable[bytes]) -> Iterator[JudgedOnNode]:
        """Yield each decision. Raises RequestInvalid: a line is of no agent's record that is known here."""
        for number, raw in enumerate(lines):
            for line in read_entries(raw):
                if line["k"] == "ring":
                    self._begin()
                    self._pseudonyms = bool(line.get("pseudonyms"))
                    if (line.get("of"), line.get("format")) != ("agent", FORMAT):
                        raise RequestInvalid(f"this is no agent's record of format {FORMAT}")
                elif not number:
                    raise RequestInvalid("this is no agent's record")
                else:
                    yield from self._take(line)

    def _begin(self) -> None:
        self._pseudonyms = False
        self._rows: dict[int, Line] = {}
        self._pods: dict[int, Pod] = {}
        self._state: Line = {}

    def _take(self, line: Line) -> Iterator[JudgedOnNode]:
        if line["k"] == "row":
            self._rows[line["n"]] = line
        elif line["k"] == "pod":
            self._pods[line["n"]] = decode(Pod, line["v"])
        elif line["k"] == "state":
            self._state |= line
        elif line["k"] in ("prefer", "allocate"):
            pod = self._pods.get(line["pod"])
            container = None if pod is None else pod.container(line["container"])
            if pod is None or container is None or not self._state:
                self.passed["what it was judged by is not in the record"] += 1
            else:
                candidate = ContainerCandidate(pod, container)
                was, now = dict(line["answer"]), self._again(line, candidate)
                if self._pseudonyms and alike(was.get("refusal", ""), now.get("refusal", "")):
                    was |= {"refusal": now["refusal"]} if "refusal" in now else {}
                yield JudgedOnNode(line, pod.key, was, now)

    def _again(self, line: Line, candidate: ContainerCandidate) -> Line:
        state, resource = self._books(), line["resource"]
        books, node = state.books(), state.node
        if line["k"] == "allocate":
            try:
                booked = grant.book(
                    books, resource, _read_ids(node, resource, line["ids"]), Decision(candidate)
                )
            except VcudaError as error:
                return _booked((), str(error))
            return _booked(booked.grant.allocation.shares, "")
        free, must = (sorted(_read_ids(node, resource, line[key])) for key in ("free", "must"))
        choice = IdChoice(resource, free, must, line["size"])
        listed = {name: _read_ids(node, name, ids) for name, ids in line["listed"].items()}
        ids, decision = grant.decide(books, choice, candidate, listed)
        plan = {name: one.shares for name, one in books.ledger.of_pod(candidate.pod.uid).items()}
        refusal = "" if decision.refusal is None else str(decision.refusal)
        return _preferred(Preference(state, choice, candidate, listed, ids, plan, refusal))

    def _books(self) -> BooksState:
        known = self._state
        node, sides = known["node"], known["sides"]
        cards, topology = decode(tuple[CardState, ...], node["cards"]), decode(Topology, node["topology"])
        now = NodeCards.of(node["name"], node["unit"], cards, topology)
        return BooksState(
            now,
            tuple(_row_of(now, self._rows[number]) for number in known["rows"]),
            decode(tuple[Card, ...], known["lost"]),
            None if sides is None else decode(dict[CardUuid, Side], sides),
            {(PodUid(a), b): (PodUid(c), d) for a, b, c, d in known["meant"]},
            frozenset(map(PodUid, known["lending"])),
            {resource: _read_ids(now, resource, ids) for resource, ids in known["withdrawn"].items()},
            tuple(self._pods[number] for number in known["planned"]),
        )


def _of_resources(node: NodeCards, ids: Mapping[str, Iterable[str]]) -> Line:
    return {resource: _ids(node, resource, some) for resource, some in ids.items()}


def _ids(node: NodeCards, resource: str, ids: Iterable[str]) -> list[Any]:
    """Device ids as each card with runs of its ids' numbers, first and last; then any others as they are.
    An id is made from its card's UUID, which a report replaces.
    """
    known, numbers, others = node.ids.card_of[resource], dict[str, list[int]](), list[str]()
    for device in ids:
        if device not in known:
            others.append(device)
        elif resource == NVIDIA:
            numbers[device] = [0]
        else:
            numbers.setdefault(known[device], []).append(int(device.rpartition("-")[2][1:]))
    found: list[Any] = []
    for card, mine in sorted(numbers.items()):
        runs: list[int] = []
        for number in sorted(mine):
            if runs and runs[-1] == number - 1:
                runs[-1] = number
            else:
                runs += (number, number)
        found.append({"card": card, "runs": runs})
    return [*found, *sorted(others)]


def _read_ids(node: NodeCards, resource: str, written: Iterable[Any]) -> frozenset[str]:
    found = set[str]()
    for one in written:
        if isinstance(one, str):
            found.add(one)
            continue
        ids, runs = node.ids.of_card[resource].get(one["card"], ()), one["runs"]
        for first, last in zip(runs[::2], runs[1::2], strict=True):
            found.update(ids[first : last + 1])
    return frozenset(found)


def _state(state: BooksState) -> Line:
    """What a state entry says beside its rows."""
    node = state.node
    cards, topology = encode(tuple[CardState, ...], node.cards), encode(Topology, node.topology)
    return {
        "node": {"name": node.name, "unit": node.unit, "cards": cards, "topology": topology},
        "lost": encode(tuple[Card, ...], state.lost),
        "sides": None if state.sides is None else encode(Sides, state.sides),
        "meant": [[*one, *other] for one, other in state.meant.items()],
        "lending": sorted(state.lending),
        "withdrawn": _of_resources(node, state.withdrawn),
    }


def _row_of(node: NodeCards, line: Line) -> tuple[Allocation, Grant | None]:
    if "planned" in line:
        return decode(Allocation, line["planned"]), None
    found = decode(Grant, {**line["granted"], "directory": ""})
    granted = replace(found, ids={name: _read_ids(node, name, ids) for name, ids in line["ids"].items()})
    return granted.allocation, granted


def _booked(shares: tuple[Share, ...], refusal: str) -> Line:
    return {"refusal": refusal} if refusal else {"shares": encode(tuple[Share, ...], shares)}


def _preferred(decided: Preference) -> Line:
    plan = {name: encode(tuple[Share, ...], shares) for name, shares in decided.plan.items()}
    refusal = {"refusal": decided.refusal} if decided.refusal else {}
    ids = _ids(decided.state.node, decided.choice.resource, decided.ids)
    return {"ids": ids, "placement": plan, **refusal}


def _text(entries: list[Line]) -> bytes:
    return json.dumps(entries, separators=(",", ":")).encode()
