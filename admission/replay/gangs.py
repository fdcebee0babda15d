"""Places of gangs as lines of a record, and sought again over recorded states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.feasibility import FeasibilityJudge
from admission.gangs.seats import GangDecision, Missing, Seated, Seats
from admission.replay.states import Line, RecordedStates
from gpu_manager.domain.cluster.quota import NamespaceQuota
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.records import decode, encode
from gpu_manager.domain.resources import Amount


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
        self,
        asked: PodView,
        node: str,
        placement: Mapping[str, tuple[Share, ...]],
        now: float,
        most: float = 0.0,
        *,
        chosen: bool = True,
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
