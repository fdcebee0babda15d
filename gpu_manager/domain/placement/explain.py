"""Messages about placement: why a pod does not fit, card by card, what would fit, and what its priority
changes.

:mod:`gpu_manager.domain.placement.place` determines the facts. Every text has a limited length, because it is
used in Events, scheduler responses and annotations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER, GPU_MODEL, GPU_UUID
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Ledger, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.resources import format_bytes as _of
from gpu_manager.domain.rules.request import PodRequest, Request, admits_model
from gpu_manager.domain.untrusted import mappings

LINE_LIMIT = 900  # characters; an Event's message may have 1,024
_WORD_LIMIT = 120  # characters kept of an untrusted text (a card's reason, a model)


@dataclass(frozen=True, slots=True)
class CardView:
    """A card as seen by one request. ``closed`` is why the pod may not use it, empty if it may; ``outside``
    is memory held by processes of no pod.
    """

    index: int
    uuid: CardUuid
    free: Amount
    idle: bool
    closed: str = ""
    outside: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a pod does not fit: rule and value, one reason for each card, and what would fit.

    ``nearest`` is a smaller request of the pod that fits now; None if there is none.
    """

    headline: str
    cards: tuple[tuple[CardView, str], ...]
    advice: str
    nearest: PodRequest | None = None

    def line(self, limit: int = LINE_LIMIT) -> str:
        """Format as one line of at most ``limit`` characters, grouping cards with the same reason."""
        together: dict[str, list[int]] = {}
        for view, reason in self.cards:
            together.setdefault(reason, []).append(view.index)
        parts = [f"{_cards(indices)}: {reason}" for reason, indices in together.items()]
        room = limit - len(self.headline) - len(self.advice) - 40
        kept: list[str] = []
        for part in parts:
            room -= len(part) + 3
            if room < 0:
                kept.append(f"and {len(parts) - len(kept)} more reasons")
                break
            kept.append(part)
        return _cut(f"{self.headline}: {' | '.join(kept) or 'the node has no card'}. {self.advice}", limit)

    def text(self) -> str:
        """Format as several lines: the headline, a line for each card, the advice."""
        lines = (f"  card {view.index} ({_clean(view.uuid)}): {reason}" for view, reason in self.cards)
        return "\n".join((self.headline, *lines, self.advice))

    def __str__(self) -> str:
        return self.line()


def closed_because(state: CardState, request: PodRequest, *, listed: bool = True) -> str:
    """Return why the pod may not use the card; empty if it may. ``listed``: the ledger has the card."""
    terms = request.uuids or request.models or state.card.whole_only or state.card.instance
    if listed and state.open and not terms:
        return ""  # nearly always
    if state.card.mig:
        return "in MIG mode: no share of the card itself, only of its instances (agent.migInstances)"
    if not state.healthy:
        return f"unhealthy ({_clean(state.reason)})" if state.reason else "unhealthy"
    if state.cordoned:
        return _clean(state.reason) or "cordoned"
    if state.held == DRA_DRIVER:
        return "given by ResourceClaims alone"
    if state.held:
        return f"given away whole as {_clean(state.held)}"
    if not listed:
        return "not in the books of this node"
    if state.card.whole_only and any(0 < c.request.cores < CORES_PER_CARD for c in request.containers):
        return f"given whole alone, ask for {CORES_PER_CARD} cores: {_clean(state.card.whole_only)}"
    return "" if request.allows(state.card) else _not_allowed(state.card, request)


def _not_allowed(card: Card, request: PodRequest) -> str:
    if request.uuids and request.uuids.isdisjoint(card.names):
        return "not among the cards that the pod allows"
    if card.instance and not (request.uuids or request.models):
        return f"a MIG instance, given to pods that name its profile ({GPU_MODEL}) or UUID ({GPU_UUID})"
    if card.instance and (not request.models or admits_model(request.models, card.model)):
        return "a MIG instance, of which a container gets one, and one of this pod asks for several cards"
    wanted = _clean(", ".join(request.models))
    return f"model {_clean(card.model)}, the pod allows {wanted}"


def card_reason(ask: Amount, whole: int, view: CardView) -> str:
    """Return why one card refuses ``ask``, or cannot be one of ``whole`` whole cards if that is not 0."""
    if view.closed:
        return view.closed
    free = view.free.peak(ZERO)  # negative if existing grants over-commit the card
    if whole:
        return "idle" if view.idle else f"not idle, {free} free"
    if view.idle and ask.memory and not free.memory:
        return f"no memory of its own to share: it is given whole, ask for {CORES_PER_CARD} cores"
    others = f" ({_of(view.outside)} held by processes of no pod)" if view.outside else ""
    cores = f"{ask.cores} cores asked, {free.cores} free"
    return f"{cores}; {_of(ask.memory)} asked, {_of(free.memory)} free{others}"


def refuse(
    who: str,
    ask: Amount,
    whole: int,
    views: Sequence[CardView],
    advice: str,
    nearest: PodRequest | None = None,
    *,
    policy: str = "",
    together: int = 0,
    parts: int = 1,
) -> Refusal:
    """Build a refusal. ``who`` names the container, or the containers that must share cards; ``policy`` is
    the kubelet's NUMA policy if it is strict, under which a container can have at most ``together`` whole
    cards. ``parts``: the number of cards of each of which ``ask`` is requested.
    """
    if whole:
        idle = sum(view.idle and not view.closed for view in views)
        headline = f"{who}: {whole} whole card{'s'[: whole - 1]} asked, {idle} of {len(views)} idle and open"
        if policy and together < whole:
            headline += f"; the kubelet's NUMA policy {policy} lets it have {together} here at most"
        elif policy and idle >= whole > 1:
            headline += f", but not on NUMA nodes that the kubelet's policy {policy} lets it have together"
    elif parts > 1:
        have = sum(not view.closed and ask.fits_in(view.free) for view in views)
        headline = f"{who}: {ask} of each of {parts} cards asked, {have} of {len(views)} have room for that"
    else:
        headline = f"{who}: no card has room for {ask}"
    reasons = tuple((view, card_reason(ask, whole, view)) for view in views)
    return Refusal(_cut(headline, LINE_LIMIT // 3), reasons, advice, nearest)


def nearest_request(ask: Request, views: Iterable[CardView], unit: int) -> Request | None:
    """Return the largest legal request below ``ask`` that one card (or several whole ones) can hold now.

    For a fraction: as much of each amount as is free on the nearest card, or on as many of the nearest cards
    as it has parts. For whole cards: as many as are idle, else the largest fraction. ``unit`` is the memory
    unit in bytes.
    """
    usable = [view for view in views if not view.closed]
    idle = sum(view.idle for view in usable)
    if ask.cards and idle:
        return Request(min(idle, ask.cards) * CORES_PER_CARD, 0)
    most = Amount(CORES_PER_CARD - 1, max((view.free.memory for view in usable), default=0))
    wanted = most if ask.cards else ask.amount
    found: list[tuple[float, float, Amount]] = []
    for view in usable:
        cores, memory = (
            min(wanted.cores, view.free.cores),
            min(wanted.memory, view.free.memory) // unit * unit,
        )
        if cores < 1 or memory < unit:
            continue
        parts = cores / wanted.cores, memory / wanted.memory
        found.append((min(parts), sum(parts), Amount(cores, memory)))
    nearest = sorted(found, key=lambda each: each[:2], reverse=True)[: ask.parts]
    if len(nearest) < ask.parts:
        return None
    cores, memory = min(a.cores for *_, a in nearest), min(a.memory for *_, a in nearest)
    return Request(cores * ask.parts, memory * ask.parts, ask.parts)


def advise(
    smaller: Mapping[str, Request], where: Mapping[str, Sequence[Share]], cards: Sequence[CardState]
) -> str:
    """Format what would fit now: the containers that must request less, and their cards then."""
    parts = (f"{explain_shares(where[name], cards)} for {quoted(name)}" for name in smaller)
    return _cut(f"Would fit now: {'; '.join(parts)}", LINE_LIMIT // 2)


def advise_none(views: Sequence[CardView]) -> str:
    """Format the advice if no smaller request fits: the largest free amount, or that nothing is free."""
    free = [(view.free.peak(ZERO), view) for view in views if not view.closed]
    if not free:
        return "No card of this node is open to this pod"
    if not any(amount.cores and amount.memory for amount, _ in free):
        return "Nothing is free here for this pod now"
    amount, view = max(free, key=lambda pair: (pair[0].cores, pair[0].memory, -pair[1].index))
    return f"The most that is free is {amount}, on card {view.index}"


def explain_shares(shares: Sequence[Share], cards: Sequence[CardState]) -> str:
    """Format a container's shares: ``30 cores, 5 GiB of card 3``, ``… of each of cards 0, 1``, ``whole cards
    0, 1``.
    """
    if not shares:
        return "nothing"
    where = _cards(_indices(shares, cards))
    each = "each of " if len(shares) > 1 else ""
    return f"whole {where}" if shares[0].whole else f"{shares[0].amount} of {each}{where}"


def explain_placement(placement: Mapping[str, Sequence[Share]], cards: Sequence[CardState]) -> str:
    """Format the shares of a pod's containers in one line; a single container's name is omitted."""
    if len(placement) == 1:
        return explain_shares(next(iter(placement.values())), cards)
    parts = (f"{_clean(name)}: {explain_shares(shares, cards)}" for name, shares in placement.items())
    return _cut("; ".join(parts), LINE_LIMIT)


def explain_bound(node: str, where: str, *, guessed: bool) -> str:
    """Format the shares of a pod on a node; ``guessed`` if its annotation does not name any with room."""
    why = " (by the node's rules: its annotation names no card with room for it)" if guessed else ""
    return f"bound to node {_clean(node)}: {where}{why}"


def with_priority(sentence: str) -> str:
    """Format a sentence on a pod's priority to follow its location; empty for none."""
    return f". {sentence}" if sentence else ""


def explain_room(fitting: int, total: int, node: str, where: str, scheduler: str | None = None) -> str:
    """Format where a pending pod has room now; ``scheduler`` names its scheduler if the pod exists."""
    nodes = "" if total == 1 else f" on {fitting} of {total} nodes"
    room = f"there is room now{nodes}: on {_clean(node)} it would get {where}"
    if scheduler is None:
        return _cut(room, LINE_LIMIT)
    rest = (
        f"Its scheduler {quoted(scheduler or 'default-scheduler')} has not placed it yet: its Events say "
        "what else it needs (CPU, host memory, a taint, an affinity, a volume); if there are none, no such "
        "scheduler runs"
    )
    return f"{_cut(f'waits, but not for cards: {room}', LINE_LIMIT - len(rest) - 2)}. {rest}"


def _indices(shares: Sequence[Share], cards: Sequence[CardState]) -> list[int | str]:
    index = {state.card.uuid: state.card.index for state in cards}
    return [index.get(share.card, _clean(share.card)) for share in shares]


def _cards(indices: Sequence[int | str]) -> str:
    return f"card{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _clean(text: str) -> str:
    """Return an untrusted text on one line, printable and shortened."""
    return _cut(printable(text[:_WORD_LIMIT]), _WORD_LIMIT)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


_OUTCOMES = {
    "fits": "room now",
    "room": "no room now",
    "never": "no room, even if it were empty",
    "kept": "kept for a larger pod",
    "quota": "closed by quota",
    "refused": "refused this amount a moment ago",
}


def explanation_lines(answer: Mapping[str, Any], most: int, hint: str) -> list[str]:
    """The lines for people of an explanation in the admission service's JSON, which may have any shape.

    ``most`` nodes are shown; ``hint`` ends the line that counts the others.
    """
    asks = f" asks {answer['asks']}" if answer.get("asks") else ""
    lines = [f"pod {answer.get('pod')}{asks}", str(answer.get("line"))]
    lines += [f"quota: {words}" for words in answer.get("quota") or ()]
    nodes = mappings(answer.get("nodes"))
    for node in nodes[:most]:
        cards = mappings(node.get("cards"))
        barred = f", and {node['barred']}" if cards and node.get("barred") else ""
        words = _OUTCOMES.get(str(node.get("outcome")), "no room") if cards else node.get("line")
        lines.append(f"{node.get('node')}: {words}{barred}")
        lines += _card_lines(cards)
        if node.get("victims"):
            lines.append(f"  would have room without: {', '.join(map(str, node['victims']))}")
    total = answer.get("total")
    rest = total - min(len(nodes), most) if isinstance(total, int) else 0
    if nodes and rest > 0:
        lines.append(f"and {rest} more node{'s' if rest > 1 else ''}{hint}")
    return [printable(line) for line in lines]


_APART: Final = 3  # cards of one reason that have a line each


def _card_lines(cards: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each card, with its UUID; one line for all of the same reason where they are many."""
    together: dict[str, list[Mapping[str, Any]]] = {}
    for card in cards:
        together.setdefault(str(card.get("reason")), []).append(card)
    for reason, those in together.items():
        if len(those) > _APART:
            yield f"  {_cards([str(card.get('index')) for card in those])}: {reason}"
        else:
            yield from (f"  card {card.get('index')} ({card.get('uuid')}): {reason}" for card in those)


# The effect of a pod's priority on its cards: which work waits for it, and which neighbours do not.


LONG_KERNEL: Final = 0.05
"""Seconds; beside longer kernels a protected tenant waits noticeably, since none is interrupted."""


def neighbours(ledger: Ledger, pod: PodUid, cards: Collection[CardUuid]) -> Counter[Priority]:
    """Return how many other pods and claims hold a share of these cards, by priority.

    A claim whose requests have several priorities counts under each.
    """
    beside = {(a.pod, a.priority) for a in ledger if a.pod != pod and not set(cards).isdisjoint(a.cards)}
    return Counter(priority for _, priority in beside)


def is_protected(beside: Counter[Priority]) -> bool:
    """True if protection holds for a protected pod beside these: only best-effort neighbours wait."""
    return not (beside[Priority.NORMAL] or beside[Priority.PROTECTED])


def explain_unprotected(priority: Priority, beside: Counter[Priority]) -> str:
    """Return a sentence if nothing protects a pod from neighbours, or these from it; else empty."""
    protected, normal = (_tenants(beside, each) for each in (Priority.PROTECTED, Priority.NORMAL))
    if priority is Priority.NORMAL and protected:
        have = "has" if beside[Priority.PROTECTED] == 1 else "have"
        return f"Priority normal: {protected} beside it {have} no protection from it"
    if priority is Priority.PROTECTED and not is_protected(beside):
        others = " and ".join(filter(None, (normal, protected)))
        return f"Priority protected, but not from {others} beside it: best-effort tenants alone wait"
    return ""


def explain_priority(priority: Priority, beside: Counter[Priority], *, gates: bool) -> str:
    """Return a sentence on a pod's priority beside these neighbours; empty if it has no effect.

    ``gates``: the agent of its node makes best-effort tenants wait.
    """
    if (said := explain_unprotected(priority, beside)) or priority is Priority.NORMAL:
        return said
    if not gates:
        return (
            f"Priority {priority.value} counts in placement alone: the agent of the node makes no tenant wait"
            " (it is of an earlier release, or cannot)"
        )
    if priority is Priority.BEST_EFFORT:
        protected = _tenants(beside, Priority.PROTECTED)
        return f"Priority best-effort: waits for {protected or 'protected tenants; none is beside it'}"
    best_effort = _tenants(beside, Priority.BEST_EFFORT)
    if not best_effort:
        return "Priority protected: no other tenant is beside it"
    wait = "waits" if beside[Priority.BEST_EFFORT] == 1 else "wait"
    return f"Priority protected: {best_effort} beside it {wait} for it"


def explain_wait(longest: float | None, ungated: int = 0) -> str:
    """Return what breaks protection beside best-effort neighbours; empty for nothing.

    ``longest``: seconds of their longest kernel, None if unknown; ``ungated``: number of them created before
    the node's agent supported priorities.
    """
    said = []
    if ungated:
        tenants = f"{ungated} best-effort tenant{'s'[: ungated - 1]}"
        was, waits = ("was", "waits") if ungated == 1 else ("were", "wait")
        said.append(f"{tenants} beside it {was} made before the agent knew priorities and {waits} for nobody")
    if longest is not None and longest > LONG_KERNEL:
        said.append(
            f"A best-effort tenant beside it has run a kernel or graph of {longest:.2g} s, and none is"
            " interrupted: a launch may wait that long"
        )
    return ". ".join(said)


def _tenants(beside: Counter[Priority], priority: Priority) -> str:
    count = beside[priority]
    return f"{count} {priority.value} tenant{'s'[: count - 1]}" if count else ""
