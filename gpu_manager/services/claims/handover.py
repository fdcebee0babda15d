"""Hands the cards of a split node over between the device plugin and DRA, one stored step at a time.

A card that leaves goes out of what its side tells schedulers first. It is nobody's until that side's copies
have surely been renewed and nothing that was decided by the old ones is still on its way: no bound pod names
the card, or no allocated claim does. Only then it comes to the other side. What arrives later all the same is
refused by the books, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.dra.published import device_names
from gpu_manager.domain.dra.sides import SETTLE_SECONDS, ClaimCards, Side, cards_to_move, side_by_evidence
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.ports.claims import Claims, Slices
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.inventory import NodeStatus
from gpu_manager.ports.pods import Pods
from gpu_manager.services.allocation import planner
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.claims.slices import SlicePublisher
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

ASK_SECONDS: Final = 3.0  # between two looks at the claims of the cluster
PERIOD_SECONDS: Final = 1.0


def in_claims(claims: Claims, slices: Slices, node: str) -> bool:
    """True if cards are in the node's slice, or in allocated claims. Raises NodeUnready."""
    return bool(slices.published() or claims.allocated(node))


class _Step(NamedTuple):
    """A step, and since when the side that the card leaves has been told so."""

    side: Side
    since: float


class CardHandover:
    """``look`` is called by one thread; ``waiting`` may be read by any."""

    def __init__(
        self,
        state: NodeState,
        claims: Claims,
        slices: Slices,
        publisher: SlicePublisher,
        status: NodeStatus,
        pods: Pods,
        clock: Clock,
        metrics: ServiceMetrics,
        wanted: ClaimCards,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        """``wanted`` cards are to be given by claims; ``settle`` is for schedulers' copies, in seconds."""
        self._settle = settle
        self._state = state
        self._claims = claims
        self._slices = slices
        self._publisher = publisher
        self._status = status
        self._pods = pods
        self._clock = clock
        self._metrics = metrics
        self._wanted = wanted
        self._steps: dict[CardUuid, _Step] = {}
        self._asked_at = float("-inf")
        self.waiting: Mapping[CardUuid, str] = {}
        """For what each card that is nobody's waits."""

    def look(self) -> None:
        """Take every step that is due.

        Raises:
            NodeUnready: the API server does not answer, or the books cannot be written. Cards stay where they
                are.
        """
        self._place_unknown()
        waiting = self._arrive()
        for uuid in waiting.keys() - {uuid for uuid, why in self.waiting.items() if waiting.get(uuid) == why}:
            log.info("card_waits", card=self._state.node.index(uuid), uuid=uuid, reason=waiting[uuid])
        self.waiting = waiting
        self._steps = {uuid: step for uuid, step in self._steps.items() if uuid in waiting}
        view = self._state.view
        moves = cards_to_move(
            view.node.cards, view.sides or {}, view.ledger, self._wanted, self._ids_elsewhere(view)
        )
        for uuid, side in moves.items():
            self._set(uuid, side)

    def _place_unknown(self) -> None:
        """Give cards without a side the one that they have had."""
        view = self._state.view
        sides = view.sides or {}
        unknown = [s.card.uuid for s in view.node.cards if s.card.uuid not in sides]
        placed = {uuid: side_by_evidence(uuid, view.ledger, None) for uuid in unknown}
        if None in placed.values():
            names = device_names([s.card for s in view.node.cards])
            try:
                shown = self._slices.published() | self._claims.allocated(view.node.name).keys()
            except NodeUnready:
                self._place(placed)
                raise
            by_claims = {uuid for uuid, name in names.items() if name in shown}
            placed = {uuid: side_by_evidence(uuid, view.ledger, by_claims) for uuid in unknown}
        self._place(placed)

    def _place(self, placed: Mapping[CardUuid, Side | None]) -> None:
        if known := {uuid: side for uuid, side in placed.items() if side is not None}:
            self._state.set_sides(known)
            log.info("card_sides_found", sides={uuid: side.value for uuid, side in known.items()})

    def _arrive(self) -> dict[CardUuid, str]:
        """Let cards come to their new side where nothing is on its way to the old one; returns the others."""
        view, now = self._state.view, self._clock.monotonic()
        moving = {uuid: side for uuid, side in (view.sides or {}).items() if side.is_moving}
        waits: dict[CardUuid, str] = {}
        settled: list[CardUuid] = []
        for uuid, side in moving.items():
            if view.node.card(uuid) is None:
                continue
            step = self._steps.get(uuid)
            if step is None or step.side is not side:
                step = self._steps[uuid] = _Step(side, now)
            why = self._in_pods(view, uuid) if side is Side.TO_DRA else self._in_slice(view, uuid)
            if why and side is Side.TO_PLUGIN:
                self._steps[uuid] = _Step(side, now)  # copies grow old from its leaving the slice on
            if why:
                waits[uuid] = why
            elif now - step.since < self._settle:
                waits[uuid] = "schedulers act on copies that are seconds old"
            else:
                settled.append(uuid)
        return waits | self._come(view, {uuid: moving[uuid] for uuid in settled})

    def _come(self, view: StateView, settled: Mapping[CardUuid, Side]) -> dict[CardUuid, str]:
        waits: dict[CardUuid, str] = {}
        to_plugin = {uuid for uuid, side in settled.items() if side is Side.TO_PLUGIN}
        if to_plugin:
            waits = self._in_claims(view, to_plugin)
        for uuid, side in settled.items():
            if uuid not in waits:
                self._set(uuid, Side.DRA if side is Side.TO_DRA else Side.PLUGIN)
                self._steps.pop(uuid, None)
        return waits

    def _in_pods(self, view: StateView, uuid: CardUuid) -> str:
        """Why pods may still be on their way to a card that leaves the plugin; empty if none are."""
        for resource in (CORE, MEMORY):
            offered, shown = self._state.offer.healthy_ids(resource), self._status.allocatable(resource)
            if shown is None or shown > offered:
                return f"the node's status shows {shown} allocatable {resource}, and {offered} are left"
        for found in (one for named in self._pods.local().values() for one in named):
            pod = found.pod
            if found.tombstone or pod.terminal or view.ledger.granted(pod.uid):
                continue
            chosen = planner.assignment(view.node, pod) or {}
            if any(card == uuid for shares in chosen.values() for card, _ in shares):
                return "a pod that is bound to the card has not been admitted yet"
        return ""

    def _in_slice(self, view: StateView, uuid: CardUuid) -> str:
        name = device_names([s.card for s in view.node.cards])[uuid]
        return "the slice of the node still has the card" if self._publisher.shows(name) else ""

    def _in_claims(self, view: StateView, cards: set[CardUuid]) -> dict[CardUuid, str]:
        """Cards that the API server still shows in the slice or in allocated claims, and what it shows."""
        now = self._clock.monotonic()
        if now - self._asked_at < ASK_SECONDS:
            return {uuid: self.waiting.get(uuid, "claims are looked at every few seconds") for uuid in cards}
        self._asked_at = now
        claims, shown = self._claims.allocated(view.node.name), self._slices.published()
        names = device_names([s.card for s in view.node.cards])
        waits = {}
        for uuid in cards:
            if names[uuid] in shown:
                waits[uuid] = "the slice of the node still has the card"
            elif names[uuid] in claims:
                waits[uuid] = "a claim is allocated on the card"
        return waits

    def _set(self, uuid: CardUuid, side: Side) -> None:
        try:
            self._state.set_sides({uuid: side})
        except DoesNotFit as error:
            log.info("card_not_moved", card=self._state.node.index(uuid), side=side.value, reason=str(error))
            return
        self._metrics.card_steps.labels(side.value).inc()
        log.info("card_moved", card=self._state.node.index(uuid), uuid=uuid, side=side.value)

    def _ids_elsewhere(self, view: StateView) -> dict[CardUuid, int]:
        """Ids of each card that containers hold."""
        of_card, counts = view.node.ids.card_of, dict[CardUuid, int]()
        for grant in view.grants.values():
            for resource, ids in grant.ids.items():
                for device in ids:
                    if (card := of_card.get(resource, {}).get(device)) is not None:
                        counts[card] = counts.get(card, 0) + 1
        return counts
