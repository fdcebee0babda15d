"""Whether the node gives MIG instances as cards, and what a layout that changes leaves pods with.

The node's label counts before the setting. What pods hold is not taken from under them: until they have left,
a node on which instances are turned off keeps listing them, closed, and is not ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from gpu_manager.domain.contract import EVENT_MIG_CHANGED
from gpu_manager.domain.mig import is_instance
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.services.allocation.node_state import NodeState, StateView

log = structlog.get_logger(__name__)

_SHOWN: Final = 5  # pods that a text names
_LABEL: Final = {"true": True, "false": False}


@dataclass(eq=False, repr=False)
class MigInstances:
    """One thread calls :meth:`look`; any may ask the rest.

    ``label``: the value of the node's label, empty without one. ``event`` records a reason and a message
    about the node. ``relist``: have the cards listed anew, soon.
    """

    state: NodeState
    setting: bool
    label: Callable[[], str]
    event: Callable[[str, str], None]
    relist: Callable[[], object]

    def __post_init__(self) -> None:
        self._listed = False
        self.assumed = False
        """Instances are listed, until the books say whether pods hold some."""
        self._said = ""
        self._holders: tuple[StateView | None, Sequence[Allocation]] = (None, ())

    def given(self) -> bool:
        """True if instances are listed as cards: they are wanted, or pods hold some still."""
        self._listed = self.assumed or self._wanted() or bool(self._held())
        return self._listed

    @property
    def trouble(self) -> str:
        """Why instances are not turned off as wanted; empty if they are as wanted."""
        if self._wanted() or not (held := self._held()):
            return ""
        return (
            f"MIG instances stay listed though they are turned off: {_names(held)} still hold some: end "
            "these pods, or turn --mig-instances on again"
        )

    def look(self) -> None:
        """Say, once each, what pods have lost by a changed layout or mode, and who holds up the setting. Have
        a changed setting followed.
        """
        if self._listed != (self._wanted() or bool(self._held())):
            self.relist()
        said = "; ".join((*filter(None, (self.trouble,)), *self._lost()))
        if said != self._said:
            self._said = said
            if said:
                log.warning("mig_changed_under_pods", why=said)
                self.event(EVENT_MIG_CHANGED, said)

    def _wanted(self) -> bool:
        return _LABEL.get(self.label(), self.setting)

    def _held(self) -> Sequence[Allocation]:
        view, (before, held) = self.state.view, self._holders
        if view is not before:
            held = [a for a in view.ledger if any(map(is_instance, a.cards))]
            self._holders = view, held
        return held

    def _lost(self) -> Iterator[str]:
        view = self.state.view
        for state in view.node.cards:
            card = state.card
            holders = view.ledger.holders(card.uuid) if card.mig or (card.instance and state.missing) else ()
            if holders:
                now = "is in MIG mode now" if card.mig else f"({card.model}, {card.uuid}) has vanished"
                yield f"card {card.index} {now}, of which {_names(holders)} hold a part: end these pods"


def _names(allocations: Iterable[Allocation]) -> str:
    names = sorted({allocation.pod_key for allocation in allocations})
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
