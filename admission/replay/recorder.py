"""Records decisions: what the extender hands over is kept as it is, and turned into lines beside it.

The extender's threads pay for a list's append; :meth:`DecisionRecorder.write` does the rest twice a second.
Everything handed over is frozen or never changed afterwards. A node's state is written when it was built
anew, a pod's when it differs from what its number says, and a decision after the states behind it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import structlog

from admission.cluster.node_view import KeptFor, NodeFacts
from admission.cluster.nodes import OnNode
from admission.cluster.pod_view import PodView
from admission.extender.decisions import (
    BindDecision,
    Decision,
    FilterDecision,
    PreemptDecision,
    RankDecision,
    ResizeDecision,
)
from admission.extender.feasibility import FeasibilityCheck
from admission.extender.many_nodes import FITS, Verdicts, chosen
from admission.extender.wire import NodeNames
from admission.gangs.seats import GangDecision
from admission.replay.judges import gang_line
from admission.replay.reviews import ReviewDecision, review_line
from admission.replay.states import (
    FORMAT,
    PLAIN,
    Line,
    Numbers,
    containers_of,
    differences,
    order,
    packed,
    resize_answer,
    text,
    trimmed_facts,
    victims_of,
    whole,
    width,
)
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.cluster.node_books import Used
from gpu_manager.domain.cluster.quota import ANY_SIZE, ContainerMax, NamespaceQuota
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.errors import VcudaError
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.records import encode
from gpu_manager.domain.resize.judgement import NamespaceLimits
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.score.request_mix import Mix, Stock
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.records import RecordSink
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

WRITE_SECONDS: Final = 0.5  # what a kill loses at most
_MOST_WAITING: Final = 1 << 16  # handed over and not written; beyond, a gap is better than a full memory
_STATES: Final = 4  # of one pod, that are known: as asked about, as placed, as bound
_SAME: Final[Line] = {"pod": {}}
_AT_ONCE: Final = 128  # handed over, between two looks at the size of the segment


Recordable = Decision | GangDecision | ReviewDecision


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
        self.waiting: deque[tuple[float, _Built | Recordable]] = deque()
        self._nodes: dict[str, _Built] = {}
        self._segment = _Segment()
        self._turn = 0
        self._broken = False

    def built(self, turn: int, name: str, facts: NodeFacts | None, on_node: OnNode) -> None:
        """A node was built; see :data:`admission.cluster.nodes.Built`."""
        self._take(_Built(turn, name, facts, on_node))

    def decided(self, decision: Recordable) -> None:
        """Something was decided; see :mod:`admission.extender.decisions`, :mod:`admission.gangs.seats` and
        :mod:`admission.replay.reviews`.
        """
        self._take(decision)

    def _take(self, item: _Built | Recordable) -> None:
        if not self._broken:
            self.waiting.append((round(self._clock.now(), 3), item))

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
                for _ in range(min(waits, _AT_ONCE)):
                    self._take_in(*self.waiting.popleft())
                self._sink.append((self._segment.line(),))
        except VcudaError as error:
            self._broken = True
            self.waiting.clear()
            log.warning("record_stopped", reason=str(error))

    def _take_in(self, at: float, item: _Built | Recordable) -> None:
        if isinstance(item, _Built):
            self._nodes[item.name], self._turn = item, item.turn
            if item.facts is None and not item.on_node.pods:
                del self._nodes[item.name]
            self._segment.node(item)
        else:
            self._segment.decision(at, item)

    def _begin(self) -> None:
        """A new segment begins with the state of all nodes."""
        self._segment = segment = _Segment()
        now = {"at": self._clock.now(), "turn": self._turn}
        first: Line = {"k": "ring", "format": FORMAT, **now, **self._terms}

        def states() -> Iterator[bytes]:
            yield text([first])
            for one in list(self._nodes.values()):
                segment.node(one)
                yield segment.line()

        self._sink.begin(states())

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
    """What the lines of one segment have said so far, and the entries of its next line. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: list[Line] = []
        self._plain: list[str] = []  # see :func:`text`
        self._pods: dict[PodUid, list[_Known]] = {}  # its last states
        self._number: dict[int, int] = {}  # of those states, by the object's identity
        self._count = 0  # of pods
        self._facts: dict[str, NodeFacts] = {}
        self._names: dict[str, int] = {}
        self._places: tuple[Sequence[str], Numbers] = (), self._numbers(())  # a list of names, their numbers
        self._listed: tuple[NodeNames | None, str] = None, ""  # the last names, and their order
        self._offered: NodeNames | None = None  # the last answer of filter
        self._epoch: object = None
        self._epochs = 0

    def line(self) -> bytes:
        """The line of what came since the last call."""
        entries, plain = self._entries, self._plain
        self._entries, self._plain = [], []
        return text(entries, plain)

    def node(self, built: _Built) -> None:
        """A node was built."""
        turn, name, facts, (pods, cpu, deleted, claims, kept, away) = built
        number = self._number.get
        numbers = [number(id(pod)) or self._pod(pod) for pod in pods]  # most are known
        line: Line = {"k": "node", "turn": turn, "name": name, "pods": numbers}
        if facts is None:
            self._facts.pop(name, None)
            line["gone"] = True
        elif self._facts.get(name) is not facts:
            self._facts[name] = facts
            line["facts"] = encode(NodeFacts, trimmed_facts(facts))
        if cpu:
            line["cpu"] = cpu
        if deleted:
            line["deleted"] = [encode(TerminatingShare, one) for one in deleted]
        if claims:
            line["claims"] = [encode(KnownClaim, one) for one in claims]
        if kept is not None:
            line["kept"] = encode(KeptFor, kept)
        if away:
            line["away"] = True
        self._entries.append(line)

    def decision(self, at: float, decided: Recordable) -> None:
        """Something was decided."""
        if isinstance(decided, ReviewDecision):
            self._entries.append({**review_line(decided), "at": at})
            return
        if isinstance(decided, ResizeDecision):
            self._resized(at, decided)
            return
        if isinstance(decided, GangDecision):
            if decided.seated.members:
                self._entries.append({**gang_line(decided, self._number_of, self._named), "at": at})
            return
        line = self._asked(at, decided.question)
        if isinstance(decided, BindDecision):
            placement = {
                name: [encode(Share, share) for share in shares] for name, shares in decided.placement.items()
            }
            answer = {"refusal": decided.refusal} if decided.refusal else {"placement": placement}
            line |= {"k": "bind", "node": decided.node, "answer": answer}
        elif isinstance(decided, PreemptDecision):
            line |= {"k": "preempt", "asked": victims_of(decided.asked), "budgets": _budgets(decided)}
            line["answer"] = victims_of(decided.answer)
        elif isinstance(decided, FilterDecision):
            self._filtered(line, decided)
        else:
            self._ranked(line, decided)
        self._entries.append(line)

    def _asked(self, at: float, asked: FeasibilityCheck) -> Line:
        """What every decision is judged by: state, pod and quota."""
        line: Line = {"k": "", "at": at, "turn": asked.turn, "pod": self._number_of(asked.occupant)}
        return line if asked.quota is None else line | _quota(asked.quota, asked.pod.namespace, asked.claimed)

    def _resized(self, at: float, decided: ResizeDecision) -> None:
        terms, answer, now = decided.terms, decided.answer, decided.snapshot
        if terms.limits != NamespaceLimits():
            return  # Kubernetes' own limits are not recorded
        line: Line = {"k": "resize", "at": at, "turn": now.turn, "pod": self._number_of(decided.occupant)}
        if terms.quota is not None:
            line |= _quota(terms.quota, decided.occupant.pod.namespace, now.claimed)
        if terms.largest != ANY_SIZE:
            line["largest"] = encode(ContainerMax, terms.largest)
        self._entries.append(line | {"answer": resize_answer(answer)})

    def _filtered(self, line: Line, decided: FilterDecision) -> None:
        codes = decided.verdicts.codes
        self._offered = decided.offered
        line["k"], line["names"] = "filter", PLAIN
        self._plain.append(self._order(decided.names, decided.verdicts))
        if decided.gang:
            line["gang"] = decided.gang
        answer: Line = {"codes": packed(codes)}
        if decided.few:
            line["few"] = True
        if decided.gang and decided.fits != chosen(codes, FITS):
            answer["fits"] = packed(decided.fits)
        if decided.failed:
            answer["failed"] = Counter(decided.failed.values())
        if decided.lasting:
            answer["lasting"] = Counter(decided.lasting.values())
        line["answer"] = answer

    def _ranked(self, line: Line, decided: RankDecision) -> None:
        line["k"], terms = "rank", decided.terms
        if decided.names is not self._offered and decided.names != self._offered:
            line["names"] = PLAIN
            self._plain.append(self._order(decided.names, decided.verdicts))
        if terms.basis is not None:
            line["epoch"], line["cpu"] = self._basis(terms.basis), terms.cpu
            line["prices"], line["priced_at"] = terms.prices, terms.turn
            if drained := _drained(decided):
                line["drained"] = drained
        if priced := _priced(decided):
            line["priced"] = packed(priced)
        if decided.totals is not None:
            line["by_total"] = True
        line["answer"] = packed(decided.scores.tobytes())

    def _number_of(self, pod: PodView) -> int:
        """The pod's number in this state; an entry says what that is, if none has said it."""
        return self._number.get(id(pod)) or self._pod(pod)

    def _pod(self, pod: PodView) -> int:
        """Number a state that is not known by its object."""
        known = self._pods.setdefault(pod.pod.uid, [])
        line: Line = {"k": "pod", "n": self._count + 1}
        if known:
            node = pod.pod.node
            before = next((one for one in reversed(known) if one.pod.pod.node == node), known[-1])
            was = before.pod.pod.containers
            same = was is pod.pod.containers or was == pod.pod.containers
            containers = before.containers if same else containers_of(pod.pod)
            apart = differences(before.pod, pod)
            if containers != before.containers:
                apart["pod"]["containers"] = containers
            if apart == _SAME:
                return self._keep(known, _Known(pod, before.number, before.containers))
            line |= {"of": before.number, "v": apart}
        else:
            line["v"] = whole(pod, containers := containers_of(pod.pod))
        self._count += 1
        self._entries.append(line)
        return self._keep(known, _Known(pod, self._count, containers))

    def _keep(self, known: list[_Known], one: _Known) -> int:
        known.append(one)
        self._number[id(one.pod)] = one.number
        if len(known) > _STATES:
            del self._number[id(known.pop(0).pod)]
        return one.number

    def _order(self, names: NodeNames, verdicts: Verdicts) -> str:
        """The order of these names, after an entry for those that have no number yet."""
        if self._listed[0] is not names:
            if verdicts.places is None:
                numbers = self._numbers(names)
            else:  # then not every name has to be looked up again
                listed, places = verdicts.places
                known = self._places[1] if self._places[0] is listed else self._numbers(())
                if new := listed[len(known) :]:
                    known = np.concatenate((known, self._numbers(new)))
                self._places = listed, known
                numbers = known.take(places)
            self._listed = names, order(numbers)
        return self._listed[1]

    def _named(self, names: Sequence[str]) -> str:
        return order(self._numbers(names))

    def _numbers(self, names: Sequence[str]) -> Numbers:
        if new := [name for name in dict.fromkeys(names) if name not in self._names]:
            self._names |= zip(new, range(len(self._names), len(self._names) + len(new)), strict=True)
            self._entries.append({"k": "names", "add": new})
        return np.fromiter(map(self._names.__getitem__, names), width(len(self._names)), len(names))

    def _basis(self, basis: Any) -> int:
        """The number of the scorer in force, after an entry for it where it is another one."""
        if basis is not self._epoch:
            self._epoch, self._epochs = basis, self._epochs + 1
            mix, stock = encode(Mix, basis.scorer.mix), encode(dict[str, Stock], basis.scorer.stock)
            self._entries.append({"k": "epoch", "n": self._epochs, "mix": mix, "stock": stock})
        return self._epochs


def _priced(decided: RankDecision) -> bytes:
    """For each name, 1 if the cost of its node had been worked out, or if the pod does not fit there; empty
    if there is no other.
    """
    verdicts, totals = decided.verdicts, decided.totals
    if totals is None:
        unknown = np.ones(len(verdicts.views), np.bool_)
        unknown[list(decided.costs)] = False
    else:
        unknown = np.isnan(totals)
    if not unknown.any() or not (there := unknown.take(verdicts.numbers)).any():
        return b""
    priced = bytes(~there | (np.frombuffer(verdicts.codes, np.uint8) != FITS))
    return priced if 0 in priced else b""


def _quota(quota: NamespaceQuota, namespace: str, claimed: tuple[Used, Used]) -> Line:
    """The quota of a namespace, and what its claims without a device may come to hold."""
    line: Line = {"quota": encode(NamespaceQuota, quota)}
    if any(mine := [used.get(namespace, {}) for used in claimed]):
        line["claimed"] = [encode(dict[str, Amount], one) for one in mine]
    return line


def _budgets(decided: PreemptDecision) -> list[Line]:
    """The budgets that cover pods on these nodes. Each lists its pods in place of its selector, since labels
    are not recorded.
    """
    nodes = map(decided.nodes.get, decided.asked)
    pods = [charge.pod for view in nodes if view is not None for charge in view.charges.values()]
    found = []
    for one in decided.budgets:
        covered = [pod.uid for pod in pods if pod.name not in one.disrupted and one.selects(pod)]
        if covered:
            names = {"namespace": one.namespace, "name": one.name, "uids": covered}
            found.append({**names, "allowed": one.allowed})
    return found


def _drained(decided: RankDecision) -> Mapping[str, int]:
    """The drained nodes among these: the first name of each kind, with the number of cards."""
    kept, found = decided.terms.kept, dict[str, int]()
    for number, view in enumerate(decided.verdicts.views if kept else ()):
        cards = 0 if view is None else kept.get((view.state, view.cpu), 0)
        here = decided.verdicts.numbers == number
        if cards and here.any():
            found[decided.names[int(here.argmax())]] = cards
    return found
