"""What happens to cards beside modelled gangs: processes outlive their pod, cards close, agents are away."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, Amount
from tests.fakes.extender import UNIT, Obj, node, uuid

_LINGER: Final = (0.5, 3.0)  # seconds for which a pod's processes outlive it
_LATE: Final = (0.0, 1.0)  # seconds until an agent has said so
_WHOLE: Final = Amount(CORES_PER_CARD, 16 * GIB // UNIT)


class Kind(Enum):
    """What keeps pods off a card."""

    LINGERS = "processes of a pod that is gone hold it"
    CLOSES = "it is closed"
    LEAVES = "the agent of its node is away"


@dataclass(frozen=True, slots=True)
class Fault:
    """It begins with the ``at``-th call to the extender, and is over after ``seconds``.

    It concerns card ``card`` of each of the first ``nodes`` nodes.
    """

    kind: Kind
    at: int
    seconds: float
    card: int = 0
    nodes: int = 1


@dataclass(slots=True)
class _State:
    lingering: list[TerminatingShare] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)  # once for each reason
    away: list[int] = field(default_factory=list)


class NodeStates:
    """The nodes as their agents report them; ``show`` is called with a node's object whenever that changes.

    ``after`` does something so many seconds later.
    """

    def __init__(
        self,
        names: Sequence[str],
        cards: int,
        dice: random.Random,
        after: Callable[[float, Callable[[], None]], None],
        show: Callable[[Obj], None],
    ) -> None:
        self._cards, self._dice, self._after, self._show = cards, dice, after, show
        self._states = {name: _State() for name in names}

    def all(self) -> list[Obj]:
        """Every node."""
        return [self._object(name) for name in self._states]

    def break_some(self, kind: Kind, seconds: float) -> None:
        """It happens to any card."""
        self.break_(self._dice.choice(list(self._states)), kind, self._dice.randrange(self._cards), seconds)

    def break_(self, name: str, kind: Kind, card: int, seconds: float) -> None:
        """It happens to that card, for so long."""
        state = self._states[name]
        if kind is Kind.LINGERS:
            self._lingers(name, TerminatingShare("gone", uuid(name, card), _WHOLE), seconds)
        elif kind is Kind.CLOSES:
            state.closed.append(card)
            self._until(seconds, name, lambda: state.closed.remove(card))
        else:
            state.away.append(card)
            self._until(seconds, name, lambda: state.away.remove(card))

    def outlive(self, name: str, uid: str, held: Iterable[Allocation]) -> None:
        """A pod that held this ends before its processes do, and its node's agent says so somewhat later."""
        for share in [share for one in held for share in one.shares]:
            left = TerminatingShare(uid, share.card, share.amount)
            seconds = self._dice.uniform(*_LINGER)
            self._after(self._dice.uniform(*_LATE), partial(self._lingers, name, left, seconds))

    def _lingers(self, name: str, share: TerminatingShare, seconds: float) -> None:
        state = self._states[name]
        state.lingering.append(share)
        self._until(seconds, name, lambda: state.lingering.remove(share))

    def _until(self, seconds: float, name: str, end: Callable[[], None]) -> None:
        self._show(self._object(name))

        def over() -> None:
            end()
            self._show(self._object(name))

        self._after(seconds, over)

    def _object(self, name: str) -> Obj:
        state = self._states[name]
        closed, left = sorted(set(state.closed)), tuple(state.lingering)
        return node(name, self._cards, closed=closed, lingering=left, serving=not state.away)
