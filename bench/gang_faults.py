"""What happens to cards beside modelled gangs: processes outlive their pod, cards close, agents are away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, Amount
from tests.fakes.extender import UNIT, Obj, node, uuid

_WHOLE = Amount(CORES_PER_CARD, 16 * GIB // UNIT)


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
    away: int = 0  # how many reasons there are


class NodeStates:
    """The nodes as their agents report them. Each change returns the node's object."""

    def __init__(self, names: Sequence[str], cards: int) -> None:
        self._cards = cards
        self._states = {name: _State() for name in names}

    def all(self) -> list[Obj]:
        """Every node."""
        return [self._object(name) for name in self._states]

    def begin(self, name: str, kind: Kind, card: int) -> Obj:
        """It happens on that node."""
        state = self._states[name]
        if kind is Kind.LINGERS:
            return self.hold(name, TerminatingShare(f"gone-{card}", uuid(name, card), _WHOLE))
        if kind is Kind.CLOSES:
            state.closed.append(card)
        else:
            state.away += 1
        return self._object(name)

    def end(self, name: str, kind: Kind, card: int) -> Obj:
        """It is over there."""
        state = self._states[name]
        if kind is Kind.LINGERS:
            return self.free(name, TerminatingShare(f"gone-{card}", uuid(name, card), _WHOLE))
        if kind is Kind.CLOSES:
            state.closed.remove(card)
        else:
            state.away -= 1
        return self._object(name)

    def hold(self, name: str, share: TerminatingShare) -> Obj:
        """Processes of a pod that is gone hold it."""
        self._states[name].lingering.append(share)
        return self._object(name)

    def free(self, name: str, share: TerminatingShare) -> Obj:
        """They have ended."""
        self._states[name].lingering.remove(share)
        return self._object(name)

    def _object(self, name: str) -> Obj:
        state = self._states[name]
        closed, left = sorted(set(state.closed)), tuple(state.lingering)
        return node(name, self._cards, closed=closed, lingering=left, serving=not state.away)
