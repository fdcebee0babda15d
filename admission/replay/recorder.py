"""Records decisions: what the extender hands over is kept as it is, and turned into lines beside it.

The extender's threads pay for a list's append; :meth:`DecisionRecorder.write` does the rest twice a second.
Everything handed over is frozen or never changed afterwards. A node's state is written when it was built
anew, a pod's when it differs from what its number says, and a decision after the states behind it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import structlog

from admission.cluster.node_view import KeptFor, NodeFacts
from admission.cluster.nodes import OnNode
from admission.cluster.pod_view import PodView
from admission.extender.decisions import BindDecision, Decision, FilterDecision, RankDecision
from admission.extender.feasibility import FeasibilityCheck
from admission.extender.many_nodes import FITS, chosen
from admission.extender.node_names import NodeNames
from admission.replay.states import (
    FORMAT,
    Line,
    containers_of,
    differences,
    order,
    packed,
    text,
    trimmed_facts,
    whole,
)
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.cluster.quota import NamespaceQuota
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.errors import VcudaError
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.records import encode
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.score.request_mix import Mix, Stock
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

WRITE_SECONDS: Final = 0.5  # what a kill loses at most
_MOST_WAITING: Final = 1 << 16  # handed over and not written; beyond, a gap is better than a full memory
_STATES: Final = 4  # of one pod, that are known: as asked about, as placed, as bound
_SAME: Final[Line] = {"pod": {}}
_AT_ONCE: Final = 128  # handed over, between two looks at the size of the segment


class RecordSink(Protocol):
    """Where lines go: a ring of segments. Every method that writes raises NodeUnready."""

    @property
    def full(self) -> bool:
        """True if a segment is to begin before the next line."""

    def begin(self, lines: Iterable[bytes]) -> None:
        """Begin a segment with these lines."""

    def append(self, lines: Iterable[bytes]) -> None:
        """Add lines to the segment."""


class _Built(NamedTuple):
    turn: int
    name: str
    facts: NodeFacts | None
    on_node: OnNode


class DecisionRecorder:
    """``terms``: what the first line of a segment says of this process. :meth:`built` and :meth:`decided` may
    be called from any thread. Beyond ``most`` things that wait to be written decisions are left out.
    """

    def __init__(
        self, sink: RecordSink, clock: Clock, terms: Mapping[str, Any], most: int = _MOST_WAITING
    ) -> None:
        self._sink = sink
        self._most = most
        self._clock = clock
        self._terms = terms
        self.waiting: deque[tuple[float, _Built | Decision]] = deque()
        self._nodes: dict[str, _Built] = {}
        self._segment = _Segment()
        self._turn = 0
        self._broken = False

    def built(self, turn: int, name: str, facts: NodeFacts | None, on_node: OnNode) -> None:
        """A node was built; see :data:`admission.cluster.nodes.Built`."""
        self._take(_Built(turn, name, facts, on_node))

    def decided(self, decision: Decision) -> None:
        """Something was decided; see :mod:`admission.extender.decisions`."""
        self._take(decision)

    def _take(self, item: _Built | Decision) -> None:
        if not self._broken:
            self.waiting.append((self._clock.now(), item))

    def thread(self, ended: threading.Event) -> threading.Thread:
        """The thread, to be started, that writes until ``ended`` is set; what comes then is not written."""
        return threads.every(WRITE_SECONDS, "record", self.write, ended)

    def write(self) -> None:
        """Write what was handed over so far."""
        try:
            if len(self.waiting) > self._most:
                self._skip()
            while waits := len(self.waiting):
                if self._sink.full:
                    self._begin()
                entries: list[Line] = []
                for _ in range(min(waits, _AT_ONCE)):
                    entries += self._entries(*self.waiting.popleft())
                self._sink.append((text(entries),))
        except VcudaError as error:
            self._broken = True
            self.waiting.clear()
            log.warning("record_stopped", reason=str(error))

    def _entries(self, at: float, item: _Built | Decision) -> Iterator[Line]:
        if isinstance(item, _Built):
            self._nodes[item.name], self._turn = item, item.turn
            if item.facts is None and not item.on_node.pods:
                del self._nodes[item.name]
            return self._segment.node(item)
        return self._segment.decision(at, item)

    def _begin(self) -> None:
        """A new segment begins with the state of all nodes."""
        self._segment = segment = _Segment()
        now = {"at": self._clock.now(), "turn": self._turn}
        first: Line = {"k": "ring", "format": FORMAT, **now, **self._terms}
        states = (list(segment.node(one)) for one in list(self._nodes.values()))
        self._sink.begin(map(text, ([first], *states)))

    def _skip(self) -> None:
        """Leave out decisions that came faster than they can be written; states of nodes are kept."""
        log.warning("record_behind", decisions=len(self.waiting))
        for _ in range(len(self.waiting)):
            at, item = self.waiting.popleft()
            if isinstance(item, _Built):
                self.waiting.append((at, item))


class _Known(NamedTuple):
    """A recorded state of a pod: its number in the record, and its containers as they were recorded."""

    pod: PodView
    number: int
    containers: list[Line]


class _Segment:
    """What the lines of one segment have said so far. Not thread-safe."""

    def __init__(self) -> None:
        self._pods: dict[PodUid, list[_Known]] = {}  # its last states
        self._number: dict[int, int] = {}  # of those states, by the object's identity
        self._count = 0  # of pods
        self._facts: dict[str, NodeFacts] = {}
        self._names: dict[str, int] = {}
        self._listed: tuple[NodeNames | None, str] = None, ""  # the last names, and their order
        self._offered: NodeNames | None = None  # the last answer of filter
        self._epoch: object = None
        self._epochs = 0

    def node(self, built: _Built) -> Iterator[Line]:
        """The lines for a node that was built."""
        turn, name, facts, (pods, cpu, deleted, claims, kept, away) = built
        numbers = []
        for pod in pods:
            if number := self._number.get(id(pod)):
                numbers.append(number)
                continue
            number, new = self._pod(pod)
            numbers.append(number)
            if new:
                yield new
        line: Line = {"k": "node", "turn": turn, "name": name, "pods": numbers}
        if facts is None:
            self._facts.pop(name, None)
            line["gone"] = True
        elif self._facts.get(name) is not facts:
            self._facts[name] = facts
            line["facts"] = encode(NodeFacts, trimmed_facts(facts))
        more = {
            "cpu": cpu,
            "deleted": [encode(TerminatingShare, one) for one in deleted],
            "claims": [encode(KnownClaim, one) for one in claims],
            "kept": None if kept is None else encode(KeptFor, kept),
            "away": away,
        }
        yield {**line, **{key: value for key, value in more.items() if value}}

    def decision(self, at: float, decided: Decision) -> Iterator[Line]:
        """The lines for a decision."""
        asked = decided.question
        number, new = self._pod(asked.occupant)
        if new:
            yield new
        line = self._asked(at, asked, number)
        if isinstance(decided, BindDecision):
            placement = {
                name: [encode(Share, share) for share in shares] for name, shares in decided.placement.items()
            }
            answer = {"refusal": decided.refusal} if decided.refusal else {"placement": placement}
            yield {"k": "bind", **line, "node": decided.node, "answer": answer}
        elif isinstance(decided, FilterDecision):
            yield from self._name(decided.names)
            yield {"k": "filter", **line, **self._filtered(decided)}
        else:
            offered = self._are_offered(decided.names)
            if not offered:
                yield from self._name(decided.names)
            yield from self._basis(decided)
            yield {"k": "rank", **line, **self._ranked(decided, offered=offered)}

    def _asked(self, at: float, asked: FeasibilityCheck, pod: int) -> Line:
        """What every decision is judged by: state, pod and quota."""
        line: Line = {"at": at, "turn": asked.turn, "pod": pod}
        if asked.quota is not None:
            line["quota"] = encode(NamespaceQuota, asked.quota)
            claimed = [used.get(asked.pod.namespace, {}) for used in asked.claimed]
            if any(claimed):
                line["claimed"] = [encode(dict[str, Amount], one) for one in claimed]
        return line

    def _filtered(self, decided: FilterDecision) -> Line:
        codes = decided.verdicts.codes
        self._offered = decided.offered
        line: Line = {"names": self._listed[1]}
        if decided.gang:
            line["gang"] = decided.gang
        answer: Line = {"codes": packed(codes)}
        if decided.few:
            line["few"] = True
        if decided.gang and decided.fits != chosen(codes, FITS):
            answer["fits"] = packed(decided.fits)
        for key, reasons in (("failed", decided.failed), ("lasting", decided.lasting)):
            if reasons:
                answer[key] = Counter(reasons.values())
        return {**line, "answer": answer}

    def _ranked(self, decided: RankDecision, *, offered: bool) -> Line:
        terms = decided.terms
        line: Line = {} if offered else {"names": self._listed[1]}
        if terms.basis is not None:
            line |= {"epoch": self._epochs, "prices": list(terms.prices), "priced_at": terms.turn}
            line |= {"cpu": terms.cpu, "drained": _drained(decided)}
        if priced := _priced(decided):
            line["priced"] = packed(priced)
        if decided.totals is not None:
            line["by_total"] = True
        return {**line, "answer": packed(decided.scores.tobytes())}

    def _pod(self, pod: PodView) -> tuple[int, Line | None]:
        """The pod's number in this state, and the line that says what that is, if none has said it."""
        if number := self._number.get(id(pod)):
            return number, None
        known = self._pods.setdefault(pod.pod.uid, [])
        line: Line = {"k": "pod", "n": self._count + 1}
        if known:
            before = next((one for one in reversed(known) if one.pod.pod.node == pod.pod.node), known[-1])
            same = before.pod.pod.containers is pod.pod.containers
            containers = before.containers if same else containers_of(pod.pod)
            apart = differences(before.pod, pod)
            if containers != before.containers:
                apart["pod"]["containers"] = containers
            if apart == _SAME:
                return self._keep(known, _Known(pod, before.number, before.containers)), None
            line |= {"of": before.number, "v": apart}
        else:
            line["v"] = whole(pod, containers := containers_of(pod.pod))
        self._count += 1
        return self._keep(known, _Known(pod, self._count, containers)), line

    def _keep(self, known: list[_Known], one: _Known) -> int:
        known.append(one)
        self._number[id(one.pod)] = one.number
        if len(known) > _STATES:
            del self._number[id(known.pop(0).pod)]
        return one.number

    def _name(self, names: NodeNames) -> Iterator[Line]:
        """Give these names their numbers; the line for those that had none."""
        if self._listed[0] is names:
            return
        number = self._names.__getitem__
        try:
            numbers = np.fromiter(map(number, names), np.int64, len(names))
        except KeyError:
            new = [name for name in dict.fromkeys(names) if name not in self._names]
            self._names |= zip(new, range(len(self._names), len(self._names) + len(new)), strict=True)
            yield {"k": "names", "add": new}
            numbers = np.fromiter(map(number, names), np.int64, len(names))
        self._listed = names, order(numbers)

    def _are_offered(self, names: NodeNames) -> bool:
        """True for the names that filter has offered last."""
        return names is self._offered or names == self._offered

    def _basis(self, decided: RankDecision) -> Iterator[Line]:
        """The line for the scorer in force, where it is another one."""
        epoch = decided.terms.basis
        if epoch is not None and epoch is not self._epoch:
            self._epoch, self._epochs = epoch, self._epochs + 1
            mix, stock = epoch.scorer.mix, epoch.scorer.stock
            yield {
                "k": "epoch", "n": self._epochs, "mix": encode(Mix, mix),
                "stock": encode(dict[str, Stock], stock),
            }  # fmt: skip


def _priced(decided: RankDecision) -> bytes:
    """For each name, 1 if the cost of its node had been worked out, or if the pod does not fit there; empty
    if there is no other.
    """
    verdicts, known = decided.verdicts, np.zeros(len(decided.verdicts.views), np.bool_)
    if decided.totals is None:
        known[list(decided.costs)] = True
    else:
        known[: len(decided.totals)] = ~np.isnan(decided.totals)
    if known.all():
        return b""
    priced = bytes(known[verdicts.numbers] | (np.frombuffer(verdicts.codes, np.uint8) != FITS))
    return priced if 0 in priced else b""


def _drained(decided: RankDecision) -> Mapping[str, int]:
    """The drained nodes among these: the first name of each kind, with the number of cards."""
    kept, found = decided.terms.kept, dict[str, int]()
    for number, view in enumerate(decided.verdicts.views if kept else ()):
        cards = 0 if view is None else kept.get((view.state, view.cpu), 0)
        here = decided.verdicts.numbers == number
        if cards and here.any():
            found[decided.names[int(here.argmax())]] = cards
    return found
