"""The smallest change that would let a waiting pod run. Pure, over a snapshot.

Every change of the pod itself is judged before it is proposed. If none helps, the pods to evict, or what to
wait for, are named instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, NamedTuple

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge, Fit, Unfit
from admission.extender.preemption import choose, names
from admission.extender.refusal_lines import refusal, why
from admission.extender.wire import Victims
from admission.quota.quota_book import least_charge
from gpu_manager.domain.cluster.quota import ANY_SIZE, EXCEEDED, ContainerMax, NamespaceQuota
from gpu_manager.domain.cluster.quota import refusal as refused_by_quota
from gpu_manager.domain.contract import GPU_MODEL, GPU_UUID, PRIORITY
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.kube.constraints import THOUSANDTHS
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.card_sets import most_together
from gpu_manager.domain.placement.explain import LINE_LIMIT, explain_placement
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import NumaPolicy

_ALLOW_MORE: Final = Fraction(
    1, 4
)  # giving up a wish for a model or a card weighs as a quarter of the amount
_UNPROTECTED: Final = Fraction(1, 2)  # giving up protection
_LET_IN: Final = Fraction(1, 2)  # so does a word of whoever runs the nodes
_OTHERS: Final = Fraction(1)  # others' loss: said only where nothing of the pod's own helps
_LEFT_TO_WAIT_FOR: Final = {Unfit.ROOM: "taken", Unfit.KEPT: "kept for a larger pod"}
QUOTA_GROWS: Final = "let the quota grow"
WAIT: Final = "wait for pods to end"
_MOST_STEPS: Final = 4  # containers that are made smaller, one after the other
_MOST_KINDS: Final = 500  # unlike nodes for which a change is sought


class JudgedNode(NamedTuple):
    """One node: where the pod would be placed, or why it cannot; what else keeps it off, empty if nothing;
    and the label for both.
    """

    view: NodeView
    fit: Fit | Unfit
    bars: str
    outcome: str


Found = Sequence[tuple[NodeView, Fit | Unfit]]


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A waiting pod: its request, the cluster, and its namespace's quota (None: no limit).

    ``reader``: the namespace whose pods may be named, None for all. ``largest``: bounds for one container.
    """

    occupant: PodView
    request: PodRequest
    snapshot: Snapshot
    quota: NamespaceQuota | None
    judge: FeasibilityJudge
    reader: str | None
    largest: ContainerMax = ANY_SIZE

    def capped(self, request: PodRequest) -> PodRequest:
        """The request with each container reduced to the bounds for one."""
        return replace(request, containers=tuple(map(self._cut, request.containers)))

    def _cut(self, one: ContainerRequest) -> ContainerRequest:
        most, asked, unit = self.largest, one.request, self.snapshot.unit
        if not any(most.passed(one.name, asked.total)):
            return one
        cores = asked.cores if most.cores is None else max(asked.parts, min(asked.cores, most.cores))
        memory = asked.memory if most.memory is None else min(asked.memory or most.memory, most.memory)
        if asked.cards and cores >= CORES_PER_CARD:
            cores, memory = cores // CORES_PER_CARD * CORES_PER_CARD, 0
        return replace(one, request=asked.reduced(cores, memory, unit))

    def ask(self, request: PodRequest) -> FeasibilityCheck:
        """The judgement of the pod with that request."""
        return self.judge.ask(self.occupant, request, self.snapshot, self.quota)

    def leaving(self, question: FeasibilityCheck, view: NodeView) -> tuple[PodUid, ...]:
        """The pods whose eviction would make room for it on that node; empty if none helps."""
        chosen = choose(question, self.occupant.pod, view, Victims((), 0), self.snapshot.budgets)
        return chosen.pods if chosen else ()

    def names(self, view: NodeView, pods: Sequence[PodUid]) -> tuple[str, ...]:
        """Pods of that node for the reader."""
        return names(view, pods, self.reader)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to let the pod run. ``cost``: the part of its request that it would give up.

    ``nearest`` is the changed pod, if the change is one of its own amounts.
    """

    cost: Fraction
    text: str
    nearest: PodRequest | None = None


def cheapest_remedy(
    case: WaitingPod, question: FeasibilityCheck, judged: Sequence[JudgedNode]
) -> Remedy | None:
    """The cheapest change of the pod that lets it run now, verified by judging it; else the pods to evict."""
    found = _unlike([(one.view, one.fit) for one in judged if not one.bars])
    own = [
        *_allow_more(case, found),
        *_ask_less(case, question, found),
        *_unprotected(case, found),
        *_let_in(case, judged),
    ]
    if own:
        return min(own, key=lambda cure: (cure.cost, cure.text))
    return (
        _by_others(case, question, found, judged)
        or _fewer_cards(case, found)
        or _once_granted(case, judged, "")
    )


def _unlike(found: Found) -> Found:
    """One of each kind of node, bounded: what helps on one helps on all alike."""
    kinds = {(view.node.pool, view.problem, view.state, no): (view, no) for view, no in reversed(found)}
    return list(reversed(kinds.values()))[:_MOST_KINDS]


def _let_in(case: WaitingPod, judged: Sequence[JudgedNode]) -> Iterator[Remedy]:
    """Of the nodes whose cards have room: the first that something written on it keeps the pod off, and the
    one with the most host CPU of those that have too little of it.
    """
    barred = [one for one in judged if one.bars and isinstance(one.fit, Fit)]
    closed = [one for one in barred if one.view.constraints.bars(case.occupant.constraints)]
    for view, _, bars, _ in closed[:1]:
        text = f"open node {printable(view.name)} to it: it has room, but {bars}"
        yield Remedy(_LET_IN, text[:LINE_LIMIT])
    short = [one.view for one in barred if one not in closed]
    if not short:
        return
    most, asked = max(short, key=lambda view: view.host.cpu), case.occupant.cpu
    if (left := most.host.cpu) > 0:
        cpu = f"ask {left / THOUSANDTHS:g} of host CPU instead of {asked / THOUSANDTHS:g}"
        yield Remedy(1 - Fraction(left, asked), f"{cpu} (then node {printable(most.name)} takes it)")
    else:
        yield Remedy(_OTHERS, f"{WAIT}: no node whose cards have room for it has host CPU left")


def _by_others(
    case: WaitingPod, question: FeasibilityCheck, found: Found, judged: Sequence[JudgedNode]
) -> Remedy | None:
    for view, no in found:
        gone = case.leaving(question, view) if no is Unfit.ROOM else ()
        if gone:
            who = case.names(view, gone)
            shown = ", ".join(who if len(who) <= 5 else (*who[:4], who[-1]))
            left = "has left" if len(gone) == 1 else "have left"
            return Remedy(_OTHERS, f"node {printable(view.name)} takes it once {shown} {left}")
    for view, no in found:
        if no is Unfit.QUOTA:
            return _once_granted(case, judged, why(question, view))
    could = [view for view, no in found if no in _LEFT_TO_WAIT_FOR]
    if not could:
        return None
    if not any(isinstance(question.when_empty(view), Fit) for view in could):
        return _once_granted(case, judged, _beyond_quota(case, case.request, could))
    whys = [text for unfit, text in _LEFT_TO_WAIT_FOR.items() if any(no is unfit for _, no in found)]
    return Remedy(_OTHERS, f"{WAIT}: every node that could hold it is {' or '.join(whys)}")


def _once_granted(case: WaitingPod, judged: Sequence[JudgedNode], reasons: str) -> Remedy | None:
    """The remedy for a pod that its quota refuses: a grant, and what the pod waits for once it has that.

    None if no node could hold the pod even with the grant.
    """
    if case.quota is None:
        return None
    if case.quota.protected == {}:
        grant, then = "have the right granted", replace(case, quota=replace(case.quota, protected=None))
    else:
        grant, then = QUOTA_GROWS, replace(case, quota=None)
    question = then.ask(case.request)
    after = [JudgedNode(one.view, question.on(one.view), one.bars, "") for one in judged]
    because = f": {reasons}" if reasons else ""
    room = [one.view for one in after if isinstance(one.fit, Fit) and not one.bars]
    if room:
        ends = any(case.ask(case.request).when_ended(view) is not None for view in room)
        others = f"{grant}, or pods of the namespace end" if ends else grant
        return Remedy(_OTHERS, f"{others}{because}"[:LINE_LIMIT])
    cure = cheapest_remedy(then, question, after)
    if cure is None:
        return None
    return Remedy(_OTHERS, f"{grant}, and {plain_change(cure.text)}{because}"[:LINE_LIMIT], cure.nearest)


def plain_change(text: str) -> str:
    """The change without the sums of the quota and the nodes that make it needed."""
    return text.partition(f": {EXCEEDED}")[0].partition(": every node")[0]


def _fewer_cards(case: WaitingPod, found: Found) -> Remedy | None:
    """For a pod of more cards than any node has: the most that one could hold if it were empty."""
    least: Remedy | None = None
    beyond = ""
    for fewer in _with_fewer(case.request):
        free, limited = replace(case, quota=None).ask(fewer), case.ask(fewer)
        could = [view for view, _ in found if isinstance(free.when_empty(view), Fit)]
        if not could:
            continue
        why_less = _no_more(case, found) if least is None else "the quota of its namespace grants no more"
        text = f"ask {_differences(case.request, fewer)}, as {why_less}, and wait for them"[:LINE_LIMIT]
        cure = Remedy(_given_up(case.request, fewer), text, fewer)
        if fewer == case.capped(fewer) and any(isinstance(limited.when_empty(view), Fit) for view in could):
            return cure
        if least is None:
            least, beyond = cure, _beyond_quota(case, fewer, could)
    if least is None or not beyond:
        return None
    return Remedy(_OTHERS, f"{QUOTA_GROWS}, and {least.text}: {beyond}"[:LINE_LIMIT], least.nearest)


def _with_fewer(request: PodRequest) -> Iterator[PodRequest]:
    """The request with one card less, and so on, each time of the container that asks for most."""
    while widest := max(request.containers, key=lambda one: one.request.cards, default=None):
        if widest.request.cards < 2:
            return
        request = request.asking(widest.name, Request((widest.request.cards - 1) * CORES_PER_CARD, 0))
        yield request


def _no_more(case: WaitingPod, found: Found) -> str:
    """Why the pod gets no more cards."""
    most = max((most_together(view.node.topology, view.node.cards) for view, _ in found), default=0)
    apart = any(sum(state.open for state in view.node.cards) > most for view, _ in found)
    if apart and any(one.request.cards > most for one in case.request.containers):
        policy = NumaPolicy.SINGLE.value
        return f"no node that it may go to gives one container more (the kubelet's policy {policy})"
    return "no node that it may go to has more"


def _beyond_quota(case: WaitingPod, request: PodRequest, views: Sequence[NodeView]) -> str:
    """The quota's sums, if it grants less than that of every model, were nothing of it used; else empty."""
    unit, reasons = case.snapshot.unit, dict[str, str]()
    cards = {s.card.model: s.card for view in views for s in view.node.cards if request.allows(s.card)}
    for model, card in sorted(cards.items()) if case.quota is not None else ():
        asked = least_charge(request, card.capacity(unit).memory)
        passed = case.quota.passed({}, {model: asked}, {}) if case.quota is not None else {}
        if not passed:
            return ""
        reasons |= passed
    return refused_by_quota(case.occupant.pod.namespace, reasons.values()) if reasons else ""


def _allow_more(case: WaitingPod, found: Found) -> Iterator[Remedy]:
    request = case.request
    wishes = (
        (bool(request.models), replace(request, models=()), GPU_MODEL),
        (bool(request.uuids), replace(request, uuids=frozenset()), GPU_UUID),
    )
    for wished, wider, key in wishes:
        if not wished or wider != case.capped(wider):
            continue
        question = case.ask(wider)
        for view, _ in found:
            if isinstance(fit := question.on(view), Fit):
                where = explain_placement(question.placement(view, fit), view.node.cards)
                model = view.node.cards[fit.taken[0][0]].card.model
                named = f", for example by {quoted(model)}" if key == GPU_MODEL else ""
                text = f"widen annotation {key}{named} (then node {printable(view.name)} takes it: {where})"
                yield Remedy(_ALLOW_MORE, text[:LINE_LIMIT], wider)
                break


def _unprotected(case: WaitingPod, found: Found) -> Iterator[Remedy]:
    """Without protection, where its namespace has no right to protected shares, or none left."""
    if case.request.priority is not Priority.PROTECTED or case.quota is None:
        return
    plain = replace(case.request, priority=Priority.NORMAL)
    if plain != case.capped(plain):
        return
    question = replace(case, quota=replace(case.quota, protected=None)).ask(plain)
    for view, no in found:
        if no is Unfit.QUOTA and isinstance(fit := question.on(view), Fit):
            where = explain_placement(question.placement(view, fit), view.node.cards)
            text = f"leave out annotation {PRIORITY} (then node {printable(view.name)} takes it: {where})"
            yield Remedy(_UNPROTECTED, text[:LINE_LIMIT], plain)
            return


def _ask_less(case: WaitingPod, question: FeasibilityCheck, found: Found) -> Iterator[Remedy]:
    for view, no in found:
        smaller: list[PodRequest] = []
        refused = refusal(question, view) if no in (Unfit.ROOM, Unfit.NEVER, Unfit.QUOTA) else None
        if refused is not None and refused.nearest is not None:
            smaller.append(refused.nearest)
        for cut in [case.request, *smaller] if no in (Unfit.NEVER, Unfit.QUOTA) else ():
            smaller += _within_quota(replace(case, request=cut), view)
        for first in map(case.capped, smaller):
            if _is_less_than_a_card(case.request, first):
                continue
            if (less := _fitted(case, view, first)) is not None:
                asks = _differences(case.request, less)
                text = f"ask {asks} (then node {printable(view.name)} takes it)"
                yield Remedy(_given_up(case.request, less), text[:LINE_LIMIT], less)


def _fitted(case: WaitingPod, view: NodeView, less: PodRequest) -> PodRequest | None:
    """The request, made smaller container by container until the node takes it; None if none is taken."""
    for _ in range(_MOST_STEPS):
        question = case.ask(less)
        fit = question.on(view)
        if isinstance(fit, Fit):
            return less
        refused = refusal(question, view) if fit in (Unfit.ROOM, Unfit.NEVER) else None
        if refused is None or refused.nearest is None:
            return None
        less = case.capped(refused.nearest)
        if _is_less_than_a_card(case.request, less):
            return None
    return None


def _is_less_than_a_card(request: PodRequest, less: PodRequest) -> bool:
    """Whoever asks for several cards is not helped by a part of one."""
    both = zip(request.containers, less.containers, strict=True)
    return any(old.request.cards > 1 and not new.request.cards for old, new in both)


def _within_quota(case: WaitingPod, view: NodeView) -> Iterator[PodRequest]:
    """A pod of one part of a card, cut to what its namespace has left of each model here."""
    request, quota = case.request, case.quota
    if quota is None or len(request.containers) != 1 or request.containers[0].request.cards:
        return
    asked, unit = request.containers[0], view.node.unit
    namespace = case.occupant.pod.namespace
    used, protected = (u.get(namespace, {}) for u in (case.snapshot.used, case.snapshot.protected))
    for model in sorted({state.card.model for state in view.node.cards}):
        rooms = [line.room for line in quota.lines(used, only=model)]
        right = [line.protected_room for line in quota.protected_lines(protected, model)]
        cores = min([asked.request.cores, *(room.cores for room in rooms), *right])
        memory = min([asked.request.memory, *(room.memory for room in rooms)]) // unit * unit
        if cores >= asked.request.parts and memory >= unit * asked.request.parts:
            yield request.asking(asked.name, asked.request.reduced(cores, memory, unit))


def _given_up(request: PodRequest, nearest: PodRequest) -> Fraction:
    """The largest part of any one amount that the smaller pod does without."""
    parts = [Fraction(0)]
    for old, new in zip(request.containers, nearest.containers, strict=True):
        parts.append(1 - Fraction(new.request.cores, old.request.cores))
        if old.request.memory:
            parts.append(1 - Fraction(min(new.request.memory, old.request.memory), old.request.memory))
    return max(parts)


def _differences(request: PodRequest, nearest: PodRequest) -> str:
    parts = [
        f"{new.request} instead of {old.request} for {quoted(old.name)}"
        for old, new in zip(request.containers, nearest.containers, strict=True)
        if old.request != new.request
    ]
    return "; ".join(parts)
