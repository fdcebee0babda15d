"""Why a pod waits, or where it would go. Pure, over a snapshot.

An explanation uses the extender's own judge, node by node and card by card, so that it cannot contradict it;
its counts add up to the number of nodes. Every text is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from admission.cluster.node_view import BY_CLAIMS, NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.explain.remedies import JudgedNode, Remedy, WaitingPod, cheapest_remedy, plain_change
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge, Fit, Unfit
from admission.extender.refusal_lines import describe, kept_for, refusal, until_open, why
from admission.gangs.members import GangState
from admission.quota.quota_book import least_charge
from gpu_manager.domain.cluster.pod_holder import (
    HeldBy,
    Hold,
    HoldFacts,
    explain_on_node,
    explain_without_cards,
    find_holder,
    is_older,
    not_counted,
)
from gpu_manager.domain.cluster.quota import ANY_SIZE, Quota
from gpu_manager.domain.cluster.quota import refusal as refused_by_quota
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube.constraints import shown_bars
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.placement.explain import (
    LINE_LIMIT,
    explain_placement,
    explain_room,
    with_priority,
)
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest

SHOWN_NODES: Final = 200  # in full; the rest is counted
FITS: Final = "fits"
BARRED: Final = "barred"
HELD: Final = "held"  # by something else than the nodes
_FITS: Final = "fits: "  # before what it would get
_WORDS: Final = {
    FITS: ("would take it", "would take it"),
    Unfit.ROOM.value: ("has no room now", "have no room now"),
    BARRED: ("keeps it off", "keep it off"),
    Unfit.NEVER.value: ("could not hold it even if empty", "could not hold it even if empty"),
    Unfit.KEPT.value: ("is kept for a larger pod", "are kept for a larger pod"),
    Unfit.QUOTA.value: ("is closed to it by quota", "are closed to it by quota"),
    Unfit.REFUSED.value: ("refused this amount a moment ago", "refused this amount a moment ago"),
    Unfit.NODE.value: ("has no cards for it", "have no cards for it"),
}  # of one node, of several


@dataclass(frozen=True, slots=True)
class CardLine:
    """One card: its index and UUID, what is free, and what that means for this pod."""

    index: int
    uuid: str
    free: Amount
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node. ``outcome`` is ``fits``, ``barred`` or the value of :class:`Unfit`; ``line`` is the full
    reason.

    ``barred`` is why kube-scheduler would not consider the node (a cordon, a taint, a label), empty if it
    would. ``victims`` are the pods whose eviction would make room, empty if there are none.
    """

    node: str
    outcome: str
    line: str
    cards: tuple[CardLine, ...] = ()
    victims: tuple[str, ...] = ()
    barred: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one pod: ``line`` is one sentence, ``change`` the smallest change that would let it
    run.

    ``counts`` add up to ``total`` nodes, of which ``nodes`` has the first. ``nearest`` is the pod with that
    change, if it changes one of the pod's amounts. ``held``: what holds the pod apart from the cards, a value
    of :class:`~gpu_manager.domain.cluster.pod_holder.HeldBy`.
    """

    pod: str
    asks: str
    line: str
    change: str
    counts: Mapping[str, int]
    total: int
    nodes: tuple[NodeLine, ...] = ()
    quota: tuple[str, ...] = ()
    nearest: PodRequest | None = None
    held: str = ""


def explain(
    occupant: PodView,
    snapshot: Snapshot,
    quota: Quota | None,
    judge: FeasibilityJudge,
    minimum_cores: int = 1,
    *,
    everywhere: bool = False,
    schedulers: frozenset[str] = frozenset(),
    gang: GangState | None = None,
) -> Explanation:
    """Why the pod waits or where it would go; the pod may not exist yet.

    ``everywhere``: the reader may get pods in all namespaces; otherwise pods of others are counted, not
    named. ``schedulers``: names of those that call this service, empty for any. ``gang``: the pod's gang.
    """
    facts = HoldFacts(occupant.gates, occupant.said, schedulers, gang=gang.lacks if gang else "")
    own = _explain(occupant, snapshot, quota, judge, minimum_cores, facts, everywhere=everywhere)
    if gang is None or own.held == HeldBy.GANG.value:
        return own
    return replace(own, line=f"{own.line}. It is of {gang.line}"[:LINE_LIMIT])


def _explain(
    occupant: PodView,
    snapshot: Snapshot,
    quota: Quota | None,
    judge: FeasibilityJudge,
    minimum_cores: int,
    facts: HoldFacts,
    *,
    everywhere: bool,
) -> Explanation:
    pod = occupant.pod
    total = len(snapshot.nodes)
    try:
        request = judged_request(pod, snapshot.unit, minimum_cores)
    except RequestInvalid as error:
        text = str(error)[:LINE_LIMIT]
        if pod.node:
            return _illegal(occupant, text, snapshot)
        return Explanation(
            pod.key, "", f"never runs: {text}", "Change the pod as said", {Unfit.NEVER.value: total}, total
        )
    if not request.containers:
        barred = {v.name: bars for v in snapshot.nodes.values() if (bars := v.bars(occupant))}
        line, told = explain_without_cards(pod, tuple(snapshot.nodes.values()), barred)
        cure = "Change the pod as said" if Unfit.NEVER.value in told else ""
        return Explanation(pod.key, "", line[:LINE_LIMIT], cure, told, total)
    mine = quota.of(pod.namespace, request.priority) if quota else None
    lines = tuple(map(str, quota.lines(pod.namespace, snapshot.used, snapshot.protected))) if quota else ()
    if pod.node:
        return _placed(occupant, request, snapshot, lines)
    case = WaitingPod(
        occupant,
        request,
        snapshot,
        mine,
        judge,
        None if everywhere else pod.namespace,
        quota.largest_of(pod.namespace) if quota else ANY_SIZE,
    )
    question = case.ask(request)
    if hold := find_holder(pod, facts):
        return _held(hold, pod, request, total, lines)
    views = (_opened(question, view) for view in snapshot.nodes.values())
    found = [_judged(view, question.on(view), occupant) for view in views]
    found.sort(key=lambda one: (_ORDER.index(one.outcome), one.view.name))
    counts = Counter(one.outcome for one in found)
    facts = replace(facts, fits=bool(counts[FITS]))
    if not facts.fits:
        older, spent = _older_in_the_way(question, occupant, found), _spent(question, snapshot, minimum_cores)
        facts = replace(facts, older=older, spent=spent)
    hold = find_holder(pod, facts)
    if hold and (not hold.by.is_told or hold.by is HeldBy.GANG):
        return _held(hold, pod, request, total, lines)
    nodes = tuple(_node(case, question, one) for one in found[:SHOWN_NODES])
    change = None if counts[FITS] else cheapest_remedy(case, question, found)
    barred = {one.view.name: one.bars for one in found if one.outcome == BARRED}
    explanation = Explanation(
        pod=pod.key,
        asks=describe(request),
        line=_line(pod, counts, total, change, nodes, barred, _own(pod, snapshot)),
        change=change.text if change else "",
        counts=dict(counts),
        total=total,
        nodes=nodes,
        quota=lines,
        nearest=change.nearest if change else None,
    )
    if hold is None or (hold.by is HeldBy.QUOTA and change is None):  # no grant would let it run
        return explanation
    cure, nearest = hold.cure, None
    if hold.by is HeldBy.QUOTA and change is not None:
        cure, nearest = plain_change(change.text), change.nearest
    line = f"{hold.line}. What helps: {cure}"[:LINE_LIMIT]
    return replace(explanation, line=line, change=cure, nearest=nearest, held=hold.by.value)


def _held(hold: Hold, pod: Pod, request: PodRequest, total: int, quota: tuple[str, ...]) -> Explanation:
    return Explanation(
        pod.key,
        describe(request),
        f"{hold.line}. What helps: {hold.cure}"[:LINE_LIMIT],
        hold.cure,
        {HELD: total},
        total,
        quota=quota,
        held=hold.by.value,
    )


def _older_in_the_way(
    question: FeasibilityCheck, occupant: PodView, found: Sequence[JudgedNode]
) -> tuple[str, ...]:
    """The pods of its workload's older templates on a node that would have room without them."""
    pod = occupant.pod
    for one in found:
        if one.fit is not Unfit.ROOM or one.bars:
            continue
        bound = one.view.bound.values()
        older = [o.pod for o in bound if is_older(o.pod, pod)]
        if older and question.without(one.view, [each.uid for each in older]) is not None:
            return tuple(each.key for each in older)
    return ()


def _spent(question: FeasibilityCheck, snapshot: Snapshot, minimum_cores: int) -> str:
    """The quota's sums with what the pod asks for, where not even the smallest part of a card that it may use
    passes them.
    """
    if question.quota is None or question.request.priority is Priority.PROTECTED:
        return ""  # without that priority it may pass
    least, reasons = Amount(minimum_cores, snapshot.unit), dict[str, str]()
    cards = {s.card.model: s.card for view in snapshot.nodes.values() for s in view.node.cards}
    for model, card in sorted(cards.items()):
        if question.request.allows_model(model):
            if not question.quota.passed(question.used, {model: least}, question.protected):
                return ""
            asked = least_charge(question.request, card.capacity(snapshot.unit).memory)
            reasons |= question.quota.passed(question.used, {model: asked}, question.protected)
    return refused_by_quota(question.pod.namespace, reasons.values()) if reasons else ""


_ORDER = [
    FITS,
    Unfit.ROOM.value,
    Unfit.REFUSED.value,
    Unfit.KEPT.value,
    Unfit.QUOTA.value,
    BARRED,
    Unfit.NEVER.value,
    Unfit.NODE.value,
]


def _opened(question: FeasibilityCheck, view: NodeView) -> NodeView:
    """The node as if it were kept for nobody, where even so the pod could not come: that is the reason."""
    if view.kept is None or question.on(view) is not Unfit.KEPT:
        return view
    opened = replace(view, kept=None)
    return opened if question.on(opened) in (Unfit.NEVER, Unfit.QUOTA) else view


def _judged(view: NodeView, fit: Fit | Unfit, occupant: PodView) -> JudgedNode:
    bars = view.bars(occupant)
    if bars and (isinstance(fit, Fit) or not fit.lasting):
        return JudgedNode(view, fit, bars, BARRED)
    return JudgedNode(view, fit, bars, FITS if isinstance(fit, Fit) else fit.value)


def _placed(
    occupant: PodView, request: PodRequest, snapshot: Snapshot, quota: tuple[str, ...]
) -> Explanation:
    pod = occupant.pod
    line = explain_on_node(pod, snapshot.nodes.get(pod.node))
    counts = counts_of_bound(pod.node, snapshot)
    return Explanation(pod.key, describe(request), line, "", counts, len(snapshot.nodes), (), quota)


def _illegal(occupant: PodView, rule: str, snapshot: Snapshot) -> Explanation:
    """One that is on a node though no node would take it as it is now."""
    pod, request = occupant.pod, occupant.request(snapshot.unit)
    line = explain_on_node(pod, snapshot.nodes.get(pod.node), rule)[:LINE_LIMIT]
    asks, change = (describe(request), "") if request else ("", "Make it anew, changed as said")
    return Explanation(pod.key, asks, line, change, counts_of_bound(pod.node, snapshot), len(snapshot.nodes))


def counts_of_bound(node: str, snapshot: Snapshot) -> dict[str, int]:
    """The counts for a pod on that node, or on none that is known."""
    total = len(snapshot.nodes)
    return {"bound": 1, "not asked": total - 1} if node in snapshot.nodes else {"not asked": total}


def _node(case: WaitingPod, question: FeasibilityCheck, one: JudgedNode) -> NodeLine:
    view, fit, bars, outcome = one
    if outcome == BARRED:
        room = "has room for it, but " if isinstance(fit, Fit) else ""
        return NodeLine(printable(view.name), BARRED, f"{room}{bars}", barred=bars)
    cards, ledger = view.node.cards, question.ledger(view)
    free = {s.card.uuid: ledger.free(s.card.uuid).peak(ZERO) for s in cards}
    if isinstance(fit, Fit):
        placement = question.placement(view, fit)
        text = explain_placement(placement, cards)
        text += with_priority(view.explain_priority(case.occupant.pod, placement))
        taken = {cards[at].card.uuid: amount for at, amount in fit.taken}
        lines = tuple(
            CardLine(
                s.card.index,
                printable(s.card.uuid),
                free[s.card.uuid],
                f"would hold {taken[s.card.uuid]}" if s.card.uuid in taken else f"{free[s.card.uuid]} free",
            )
            for s in cards
        )
        return NodeLine(printable(view.name), FITS, f"{_FITS}{text}", lines)
    refused = refusal(question, view) if fit is not Unfit.NODE else None
    lines = tuple(
        CardLine(seen.index, printable(seen.uuid), free.get(seen.uuid, ZERO), reason)
        for seen, reason in (refused.cards if refused else ())
    )
    victims = case.names(view, case.leaving(question, view)) if fit is Unfit.ROOM else ()
    kept = view.kept if fit is Unfit.KEPT else None
    text = kept_for(kept, case.reader) if kept is not None else why(question, view)
    return NodeLine(printable(view.name), fit.value, text, lines, victims, bars)


def _line(
    pod: Pod,
    counts: Counter[str],
    total: int,
    change: Remedy | None,
    nodes: Sequence[NodeLine],
    barred: Mapping[str, str],
    own: str,
) -> str:
    if not total:
        return "waits: the cluster has no node with cards"
    if counts[FITS]:
        first = next(n for n in nodes if n.outcome == FITS)
        scheduler = pod.scheduler if pod.phase else None  # a draft has no phase
        where = first.line.removeprefix(_FITS)
        room = explain_room(counts[FITS], total, first.node, where, scheduler)
        return f"{room}{not_counted(barred)}"[:LINE_LIMIT]
    parts = [
        f"{counts[word]} {_WORDS[word][counts[word] > 1]}"
        + (f" ({shown_bars(barred)})" if word == BARRED else "")
        + (f" ({_kept_for(nodes)})" if word == Unfit.KEPT.value else "")
        + (f" ({BY_CLAIMS})" if word == Unfit.NODE.value and _by_claims(nodes) else "")
        for word in _ORDER
        if counts[word]
    ]
    cure = f". Smallest change: {change.text}" if change else ". No change of its amounts helps"
    return f"waits: of {nodes_words(total)}, {', '.join(parts)}{own}{cure}"[:LINE_LIMIT]


def _kept_for(nodes: Sequence[NodeLine]) -> str:
    return next((one.line for one in nodes if one.outcome == Unfit.KEPT.value), "")


def _own(pod: Pod, snapshot: Snapshot) -> str:
    """Which node is closed to smaller pods for this one."""
    for view in snapshot.nodes.values():
        if view.kept is not None and view.kept.pod.uid == pod.uid:
            where = f". Node {printable(view.name)} is closed to smaller pods for it"
            return f"{where} until {until_open(view.kept)}"
    return ""


def _by_claims(nodes: Sequence[NodeLine]) -> bool:
    return any(one.line == BY_CLAIMS for one in nodes)


def nodes_words(count: int) -> str:
    """A number of nodes."""
    return "1 node" if count == 1 else f"{count} nodes"
