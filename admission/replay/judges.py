"""Recorded decisions, judged again by this release over recorded states, by the functions of the extender;
places of gangs also as lines of a record.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge, Fit, Unfit
from admission.extender.fragmentation_score import costs_under, spread_costs
from admission.extender.many_nodes import CODES, FITS, Verdicts, beside_its_gang, chosen, judge_nodes
from admission.extender.preemption import evictions
from admission.extender.ranking import (
    MOST_PRICED,
    BestFit,
    Cost,
    PriceColumn,
    PriceTerms,
    RankedNode,
    near_least,
    scores,
)
from admission.extender.refusal_lines import FULL_LINES, reasons, why
from admission.extender.resizing import ResizeTerms
from admission.extender.wire import NodeNames, Victims
from admission.gangs.seats import GangDecision, Missing, Seated, Seats
from admission.replay.reviews import is_quota, review_again
from admission.replay.states import (
    FORMAT,
    Line,
    RecordedBudget,
    RecordedStates,
    resize_answer,
    unpacked,
    victims_of,
)
from gpu_manager.domain.cluster.quota import ContainerMax, NamespaceQuota
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.names import alike
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.placement.place import Placement
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.records import decode, encode, read_entries
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest
from gpu_manager.domain.score.fragmentation import RollOutRoutine
from gpu_manager.domain.untrusted import mapping, text


def gang_line(
    decided: GangDecision, number: Callable[[PodView], int], order: Callable[[Sequence[str]], str]
) -> Line:
    """The entry of a decision, without its time. ``number`` gives that of a pod in the segment, ``order`` the
    text of names of nodes.
    """
    members = decided.seated.members
    lists = {id(names): names for names in map(_allowed, members)}  # most members share one
    places = list(lists)
    first = members[0].pod
    line: Line = {
        "k": "gang",
        "turn": decided.turn,
        "gang": decided.gang,
        "pod": number(first),
        "names": [order(names) for names in lists.values()],
        "members": [
            [number(one.pod), places.index(id(_allowed(one))), int(one.nodes is not None)] for one in members
        ],
        "answer": _answer(decided.seated),
    }
    if decided.without is not None:
        line["trial"] = {"uids": list(decided.without)}
    quotas = {priority.value: one for priority, one in decided.seated.quotas.items() if one is not None}
    if quotas:
        line["quotas"] = encode(Mapping[str, NamespaceQuota], quotas)
        namespace = first.pod.namespace
        if any(mine := [used.get(namespace, {}) for used in decided.claimed]):
            line["claimed"] = [encode(dict[str, Amount], one) for one in mine]
    return line


def gang_again(states: RecordedStates, line: Line) -> tuple[Line, Line]:
    """The recorded answer, and that of this release."""
    quotas = {
        Priority(value): one
        for value, one in decode(dict[str, NamespaceQuota], line.get("quotas", {})).items()
    }
    lists: list[Sequence[str]] = [states.names({"names": one}) for one in line["names"]]
    members = [
        Missing(states.pod({"pod": number}), lists[at] if chosen else None, lists[at])
        for number, at, chosen in line["members"]
    ]
    books = RecordedBooks(states.copy(), line)
    books.withdraw(map(PodUid, line.get("trial", {}).get("uids", ())))
    seats = Seats(
        books, FeasibilityJudge(), lambda _, priority: quotas.get(priority), states.minimum_cores, 0
    )
    return dict(line["answer"]), _answer(seats.take(members, 0.0))


class RecordedBooks:
    """A recorded state in which places can be kept; ``states`` changes with it. ``line``: what is judged."""

    def __init__(self, states: RecordedStates, line: Line) -> None:
        self._states = states
        self._line = line
        self.unit = states.unit

    def snapshot(self) -> Snapshot:
        """See :class:`~admission.gangs.seats.SeatBooks`."""
        return self._states.snapshot(self._line)

    def expect(
        self, asked: PodView, node: str, placement: Placement, *_most: object, **_chosen: object
    ) -> None:
        """See :class:`~admission.gangs.seats.SeatBooks`. For how long does not matter here."""
        self.withdraw([asked.uid])
        self._states.put(node, asked.on(node, placement))

    def withdraw(self, uids: Iterable[PodUid]) -> None:
        """See :class:`~admission.gangs.seats.SeatBooks`."""
        self._states.remove(frozenset(uids))


def _allowed(member: Missing) -> Sequence[str]:
    return (member.open or ()) if member.nodes is None else member.nodes


def _answer(seated: Seated) -> Line:
    if seated.failed is not None:
        return {"refusal": seated.refusal}
    places = [
        {
            "name": name,
            "node": node,
            "placement": {one: [encode(Share, share) for share in shares] for one, shares in there.items()},
        }
        for name, (node, there) in seated.places.items()
    ]
    return {"places": places}


_LATE: Final = next(code for code, no in CODES.items() if no is Unfit.LATE)
Change = Callable[[PodRequest], PodRequest]


def unchanged(request: PodRequest) -> PodRequest:
    """The request as it was."""
    return request


class Judges:
    """``change`` alters each request before it is judged, for what-if questions."""

    def __init__(self, change: Change = unchanged, routine: RollOutRoutine | None = None) -> None:
        self._change = change
        self._routine = routine
        self._states: RecordedStates | None = None  # caches below are of its numbers
        self._judge = FeasibilityJudge()
        self._plain = BestFit()

    def judge(self, states: RecordedStates, line: Line) -> tuple[Line, Line]:
        """See :data:`admission.replay.judges.Judge`."""
        if line["k"] == "review":
            if states.pseudonyms and is_quota(line):
                raise RequestInvalid("the text of a quota is another one under pseudonyms")
            recorded, now = dict(line["answer"]), review_again(states.terms, line)
            return (now if states.pseudonyms and _alike(recorded, now) else recorded), now
        if line["k"] == "gang":
            if self._change is not unchanged:
                raise RequestInvalid("places of gangs are not sought under another policy")
            recorded, now = gang_again(states, line)
            return (_reworded(recorded, now) if states.pseudonyms else recorded), now
        if states is not self._states:
            self._states, self._judge, self._plain = states, FeasibilityJudge(), BestFit()
        if line["k"] == "resize":
            recorded, now = self._resize(states, line)
            return (_reworded(recorded, now) if states.pseudonyms else recorded), now
        kinds = {"filter": self._filter, "rank": self._rank, "bind": self._bind, "preempt": self._preempt}
        recorded, now = kinds[line["k"]](states, line, self._ask(states, line))
        return (_reworded(recorded, now) if states.pseudonyms else recorded), now

    def _ask(self, states: RecordedStates, line: Line) -> FeasibilityCheck:
        pod = states.pod(line)
        request = self._change(judged_request(pod.pod, states.unit, states.minimum_cores))
        quota = decode(NamespaceQuota, line["quota"]) if "quota" in line else None
        return self._judge.ask(pod, request, states.snapshot(line), quota, chosen=line["k"] == "bind")

    def _filter(self, states: RecordedStates, line: Line, check: FeasibilityCheck) -> tuple[Line, Line]:
        names, nodes, was = states.names(line), states.cluster.snapshot().nodes, line["answer"]
        verdicts = judge_nodes(check, [nodes.get(name) for name in names])
        codes = np.frombuffer(verdicts.codes, np.uint8).copy()
        then = np.frombuffer(unpacked(was["codes"]), np.uint8)
        late = then == _LATE
        codes[late] = _LATE  # how long it took to judge is no part of the judgement
        fits = beside_its_gang(names, chosen(codes.tobytes(), FITS), line.get("gang", ""))
        recorded, now = recorded_answer(states, line), {**_by_verdict(names, codes), "offered": fits.count(1)}
        if not late.any() and "few" not in line:
            view_at = [nodes.get(name) for name in names].__getitem__
            said = reasons(check, names, view_at, verdicts, full=1 if 1 in fits else FULL_LINES)
            now |= {"failed": Counter(said[0].values()), "lasting": Counter(said[1].values())}
            recorded |= {key: was.get(key, {}) for key in ("failed", "lasting")}
        return recorded, now

    def _bind(self, states: RecordedStates, line: Line, check: FeasibilityCheck) -> tuple[Line, Line]:
        view = states.cluster.snapshot().nodes.get(line["node"])
        if view is None:
            raise RequestInvalid("the node that it was bound to is not in the record")
        fit = check.on(view)
        if isinstance(fit, Unfit):
            return recorded_answer(states, line), {"refusal": why(check, view)}
        shares = check.placement(view, fit)
        found = {name: [encode(Share, share) for share in given] for name, given in shares.items()}
        return recorded_answer(states, line), {"placement": found}

    def _preempt(self, states: RecordedStates, line: Line, check: FeasibilityCheck) -> tuple[Line, Line]:
        asked = {
            one["node"]: Victims(tuple(map(PodUid, one["uids"])), one["violations"]) for one in line["asked"]
        }
        budgets = [
            RecordedBudget(
                one["namespace"], one["name"], one["allowed"], frozenset(), None, frozenset(one["uids"])
            )
            for one in line["budgets"]
        ]
        found = evictions(check, states.cluster.snapshot().nodes, asked, budgets)
        return recorded_answer(states, line), _by_node(victims_of(found))

    @staticmethod
    def _resize(states: RecordedStates, line: Line) -> tuple[Line, Line]:
        quota = decode(NamespaceQuota, line["quota"]) if "quota" in line else None
        largest = decode(ContainerMax, line.get("largest", {}))
        terms = ResizeTerms(quota, largest, minimum_cores=states.minimum_cores)
        answer = terms.judge(states.pod(line), states.snapshot(line))
        return recorded_answer(states, line), {} if answer is None else resize_answer(answer)

    def _rank(self, states: RecordedStates, line: Line, check: FeasibilityCheck) -> tuple[Line, Line]:
        names, nodes = states.names(line), states.cluster.snapshot().nodes
        verdicts = judge_nodes(check, [nodes.get(name) for name in names])
        fits = verdicts.open()
        if "priced" in line:
            known = np.frombuffer(unpacked(line["priced"]), np.uint8) != 0
            fits = fits[np.isin(fits, np.unique(verdicts.numbers[known]))]
        places = {
            number: (view, fit)
            for number in fits.tolist()
            if (view := verdicts.views[number]) is not None and isinstance(fit := check.on(view), Fit)
        }
        spread = check.request.placement is PlacementPolicy.SPREAD
        if "epoch" in line and not spread:
            given = self._priced(states, line, check, verdicts, places, names)
        else:
            candidates = list(places.values())
            costs: Sequence[Cost | None] = self._plain.costs(check.request, candidates)
            if spread:
                costs = spread_costs(check.request, candidates, self._plain)
            given = scores(names, verdicts.numbers, _there(places, costs))
        return recorded_answer(states, line), _by_score(names, given)

    def _priced(
        self,
        states: RecordedStates,
        line: Line,
        check: FeasibilityCheck,
        verdicts: Verdicts,
        places: dict[int, RankedNode],
        names: NodeNames,
    ) -> Any:
        """The scores by the prices of a recorded mix."""
        epoch, cpu, nodes = (
            states.epoch(line, self._routine),
            line.get("cpu", 0),
            states.cluster.snapshot().nodes,
        )
        keys = {number: (fit, view.cpu, cpu) for number, (view, fit) in places.items()}
        new = {key: number for number, key in keys.items() if key not in epoch.known}
        epoch.add(
            {key: states.rooms.change(check.request.uid, *places[number], cpu) for key, number in new.items()}
        )
        prices = line.get("prices", [])
        if line.get("priced_at") == states.turn:  # else something changed between the question and the prices
            prices = epoch.tally.prices(states.cluster)
        kept = {
            (nodes[name].state, nodes[name].cpu): cards for name, cards in line.get("drained", {}).items()
        }
        terms, totals = PriceTerms(epoch, prices, kept, states.turn, cpu), None
        near = list(places)
        if line.get("by_total"):
            column = PriceColumn()
            column.follow(verdicts.views)
            for number, key in keys.items():
                column.put(number, key, epoch.known[key][0][0], epoch.known[key][2])
            totals = column.totals(prices, kept, max(c.request.cards for c in check.request.containers))
            near = near_least(totals, np.array(near, np.intp), MOST_PRICED).tolist()
        found = [epoch.known[keys[number]] for number in near]
        costs = costs_under(terms, check.request, [places[number] for number in near], found)
        return scores(names, verdicts.numbers, _there(near, costs), totals)


def recorded_answer(states: RecordedStates, line: Line) -> Line:
    """The answer of a decision as recorded, in the form in which answers are compared."""
    answer = line["answer"]
    if line["k"] in ("bind", "resize", "review", "gang"):
        return dict(answer)
    if line["k"] == "preempt":
        return _by_node(answer)
    names = states.names(line)
    if line["k"] == "rank":
        return _by_score(names, np.frombuffer(unpacked(answer), np.uint8))
    codes = np.frombuffer(unpacked(answer["codes"]), np.uint8)
    offered = unpacked(answer["fits"]).count(1) if "fits" in answer else int((codes == FITS).sum())
    return {**_by_verdict(names, codes), "offered": offered}


def _reworded(recorded: Line, now: Line) -> Line:
    """The recorded answer with each text as it is now, if they are equal but for names."""
    found = dict(recorded)
    if "refusal" in recorded and alike(recorded["refusal"], now.get("refusal", "")):
        found["refusal"] = now["refusal"]
    for key in ("failed", "lasting"):
        texts, others = recorded.get(key), now.get(key)
        if texts and others and len(texts) == len(others) and all(map(alike, texts, others)):
            found[key] = dict(zip(others, texts.values(), strict=True))
    return found


def _alike(recorded: Any, now: Any) -> bool:
    """True if all texts in both are equal but for names."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        return _alike(list(recorded.items()), list(now.items()))
    if isinstance(recorded, list | tuple) and isinstance(now, list | tuple):
        return len(recorded) == len(now) and all(map(_alike, recorded, now))
    texts = isinstance(recorded, str) and isinstance(now, str)
    return alike(recorded, now) if texts else bool(recorded == now)


def _there(numbers: Any, costs: Sequence[Cost | None]) -> dict[int, Cost]:
    return {number: cost for number, cost in zip(numbers, costs, strict=True) if cost is not None}


def _by_verdict(names: NodeNames, codes: Any) -> Line:
    """The nodes by what was said of them."""
    found: Line = {}
    for code in np.unique(codes).tolist():
        what = "fits" if code == FITS else CODES[code].value
        found[what] = sorted(names[at] for at in np.flatnonzero(codes == code).tolist())
    return found


def _by_node(victims: Sequence[Line]) -> Line:
    return {"evicts": {one["node"]: [one["uids"], one["violations"]] for one in victims}}


def _by_score(names: NodeNames, given: Any) -> Line:
    """The node with the highest score, 10, and the score of every node."""
    best = int(given.argmax()) if len(given) and given.max() else None
    return {
        "best": "" if best is None else names[best],
        "scores": dict(zip(names, given.tolist(), strict=True)),
    }


# Judges recorded decisions again, by this release: states are built from what was recorded, and the same
# functions answer as in the extender.
# Nothing is carried from one decision to the next but the states and the prices that were recorded: a
# decision that differs makes no other differ.


_AHEAD: Final = 4096  # lines: so far a decision may lie behind the states that came while it was made
_DECISIONS: Final = ("filter", "rank", "bind", "preempt", "resize", "gang")
Judge = Callable[[RecordedStates, Line], tuple[Line, Line]]
"""Returns the recorded answer and that of this release, in one form. Raises RequestInvalid: it has none."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One decision: its line, the pod's namespace and name, and both answers."""

    line: Line
    pod: str
    recorded: Line
    now: Line

    @property
    def same(self) -> bool:
        """True if this release answers as recorded."""
        return self.recorded == self.now


class Player:
    """Plays the lines of one ring. ``passed``: decisions that could not be judged again, by the reason."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.passed: Counter[str] = Counter()
        self._states = RecordedStates({})
        self._waiting: list[tuple[int, bool, int, Line]] = []

    def play(self, lines: Iterable[bytes]) -> Iterator[Judged]:
        """Yield each decision. Raises RequestInvalid: a line is no record, or one of another format.

        A line that a kill has cut off ends its segment.
        """
        offered: Line = {}
        for number, line in enumerate(entry for raw in lines for entry in read_entries(raw)):
            kind = line.get("k")
            if kind == "ring":
                yield from self._play(0)
                if line.get("format") != FORMAT:
                    raise RequestInvalid(
                        f"the record is of format {line.get('format')}, this release reads format {FORMAT}:"
                        " replay it with the release that wrote it"
                    )
                self._states = RecordedStates(line)
            elif kind == "review":
                yield from self._judged(line)
            elif kind in _DECISIONS or kind == "node":
                if kind == "filter":
                    offered = line
                elif kind == "rank" and "names" not in line:
                    line["offered"] = offered
                # A state comes before the decisions of its generation, whenever they were written.
                heapq.heappush(self._waiting, (int(line["turn"]), kind != "node", number, line))
                yield from self._play(_AHEAD)
            else:
                self._states.take(line)
        yield from self._play(0)

    def _play(self, most: int) -> Iterator[Judged]:
        while len(self._waiting) > most:
            turn, decides, _, line = heapq.heappop(self._waiting)
            states = self._states
            if not decides:
                states.take(line)
            elif turn != states.turn:
                self.passed["the state that it was judged by is not in the record"] += 1
            else:
                yield from self._judged(line)

    def _judged(self, line: Line) -> Iterator[Judged]:
        asked = line.get("review")
        try:
            pod = self._states.pod(line).pod.key if asked is None else _subject(asked)
            yield Judged(line, pod, *self._judge(self._states, line))
        except RequestInvalid as error:
            self.passed[str(error)] += 1


def _subject(review: Line) -> str:
    meta = mapping(mapping(review["obj"]).get("metadata"))
    name = review.get("name") or text(meta.get("name")) or text(meta.get("generateName"))
    return f"{review.get('namespace', '')}/{name}"
