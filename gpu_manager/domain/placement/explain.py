"""The arithmetic of a decision in words: why a pod does not fit, card by card, and what would.

Pure text making: :mod:`gpu_manager.domain.placement.place` finds the facts. Every text is bounded, for
it ends in Events, in scheduler answers and in annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.resources import format_bytes as _of
from gpu_manager.domain.rules.request import PodRequest, Request

LINE_LIMIT = 900  # characters; an Event's message may have 1,024
_WORD_LIMIT = 120  # characters of a foreign text (a card's reason, a model) that go into ours


@dataclass(frozen=True, slots=True)
class CardView:
    """A card as one request meets it. ``closed`` says why it takes nothing of this pod, empty if it may."""

    index: int
    uuid: CardUuid
    free: Amount
    idle: bool
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod does not fit: the rule and the value, one reason for each card, and what would fit.

    ``nearest`` is the pod with less asked, which fits now as it stands; None if there is no such pod.
    """

    headline: str
    cards: tuple[tuple[CardView, str], ...]
    advice: str
    nearest: PodRequest | None = None

    def line(self, limit: int = LINE_LIMIT) -> str:
        """One line of at most ``limit`` characters; cards with the same reason stand together."""
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
        """Several lines: the headline, a line for each card, the advice."""
        lines = (f"  card {view.index} ({_clean(view.uuid)}): {reason}" for view, reason in self.cards)
        return "\n".join((self.headline, *lines, self.advice))

    def __str__(self) -> str:
        return self.line()


def closed_because(state: CardState, request: PodRequest, *, listed: bool = True) -> str:
    """Why the card takes nothing of this pod; empty if it may. ``listed``: the books know the card."""
    if state.card.mig:
        return "in MIG mode, left alone"
    if not state.healthy:
        return f"unhealthy ({_clean(state.reason)})" if state.reason else "unhealthy"
    if state.cordoned:
        return _clean(state.reason) or "cordoned"
    if state.held:
        return f"given away whole as {_clean(state.held)}"
    if not listed:
        return "not in the books of this node"
    if request.uuids and state.card.uuid not in request.uuids:
        return "not among the cards that the pod allows"
    if not request.allows(state.card):
        wanted = _clean(", ".join(request.models))
        return f"model {_clean(state.card.model)}, the pod allows {wanted}"
    return ""


def card_reason(ask: Amount, whole: int, view: CardView) -> str:
    """One card's part in the refusal of ``ask`` of one card, or of ``whole`` cards if that is not 0."""
    if view.closed:
        return view.closed
    free = view.free.peak(ZERO)  # negative where a fact of the world broke the books
    if whole:
        return "idle" if view.idle else f"not idle, {free} free"
    return f"{ask.cores} cores asked, {free.cores} free; {_of(ask.memory)} asked, {_of(free.memory)} free"


def refuse(
    who: str,
    ask: Amount,
    whole: int,
    views: Sequence[CardView],
    advice: str,
    nearest: PodRequest | None = None,
) -> Refusal:
    """Put a refusal together. ``who`` names the container, or those that must lie together."""
    if whole:
        idle = sum(view.idle and not view.closed for view in views)
        headline = f"{who}: {whole} whole card{'s'[: whole - 1]} asked, {idle} of {len(views)} idle and open"
    else:
        headline = f"{who}: no card has room for {ask}"
    reasons = tuple((view, card_reason(ask, whole, view)) for view in views)
    return Refusal(_cut(headline, LINE_LIMIT // 3), reasons, advice, nearest)


def nearest_request(ask: Request, views: Iterable[CardView], unit: int) -> Request | None:
    """The legal request nearest below ``ask`` that one of these cards (or several whole ones) can hold now.

    For a fraction: as much of each amount as there is, on the card that comes nearest. For whole cards: as
    many as are idle, else the largest fraction. ``unit`` is that of memory, in bytes.
    """
    usable = [view for view in views if not view.closed]
    idle = sum(view.idle for view in usable)
    if ask.cards and idle:
        return Request(min(idle, ask.cards) * CORES_PER_CARD, 0)
    most = Amount(CORES_PER_CARD - 1, max((view.free.memory for view in usable), default=0))
    wanted = most if ask.cards else ask.amount
    best: tuple[float, float] = (0.0, 0.0)
    found: Request | None = None
    for view in usable:
        cores, memory = (
            min(wanted.cores, view.free.cores),
            min(wanted.memory, view.free.memory) // unit * unit,
        )
        if cores < 1 or memory < unit:
            continue
        parts = cores / wanted.cores, memory / wanted.memory
        if (rank := (min(parts), sum(parts))) > best:
            best, found = rank, Request(cores, memory)
    return found


def advise(
    smaller: Mapping[str, Request], where: Mapping[str, Sequence[Share]], cards: Sequence[CardState]
) -> str:
    """What would fit now: the containers that must ask for less, and where they would lie."""
    parts = []
    for name, request in smaller.items():
        whole = "whole " if request.cards else ""
        amount = "" if request.cards else f"{request} of "
        parts.append(f"{amount}{whole}{_cards(_indices(where[name], cards))} for {quoted(name)}")
    return _cut(f"Would fit now: {'; '.join(parts)}", LINE_LIMIT // 2)


def advise_none(views: Sequence[CardView]) -> str:
    """The same where no smaller request of this shape fits: the most there is, or that there is nothing."""
    free = [(view.free.peak(ZERO), view) for view in views if not view.closed]
    if not free:
        return "No card of this node is open to this pod"
    if not any(amount.cores and amount.memory for amount, _ in free):
        return "Nothing is free here for this pod now"
    amount, view = max(free, key=lambda pair: (pair[0].cores, pair[0].memory, -pair[1].index))
    return f"The most that is free is {amount}, on card {view.index}"


def explain_shares(shares: Sequence[Share], cards: Sequence[CardState]) -> str:
    """What one container got: ``30 cores, 5 GiB of card 3``, ``whole cards 0, 1``."""
    if not shares:
        return "nothing"
    where = _cards(_indices(shares, cards))
    return f"whole {where}" if shares[0].whole else f"{shares[0].amount} of {where}"


def explain_placement(placement: Mapping[str, Sequence[Share]], cards: Sequence[CardState]) -> str:
    """What every container of a pod got, in one line; the name is left out where there is but one."""
    if len(placement) == 1:
        return explain_shares(next(iter(placement.values())), cards)
    parts = (f"{_clean(name)}: {explain_shares(shares, cards)}" for name, shares in placement.items())
    return _cut("; ".join(parts), LINE_LIMIT)


def explain_bound(node: str, where: str, *, guessed: bool) -> str:
    """What a pod that is on a node holds; ``guessed`` where its annotation does not say so."""
    why = " (by the node's rules: the pod's annotation does not say)" if guessed else ""
    return f"bound to node {_clean(node)}: {where}{why}"


def explain_room(fitting: int, total: int, node: str, where: str, scheduler: str | None = None) -> str:
    """Where a pod that is on no node has room now; ``scheduler`` is whose turn it is if the pod exists."""
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
    """A foreign text on one line, printable, bounded."""
    return _cut(printable(text[:_WORD_LIMIT]), _WORD_LIMIT)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
