"""What the node is, told to whoever must know: the allocator, the kubelet's streams, the API server.

Health says which cards are open; this service joins that with the topology, and publishes the result as
the node's inventory annotation and labels whenever it differs from what was published last.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from gpu_manager import threads
from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import (
    INVENTORY,
    MODEL_LABEL,
    MODEL_LABEL_GAIA,
    NVIDIA,
    Inventory,
    encode_inventory,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports import InventoryPublisher
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.reclaim import DepartedPods
from gpu_manager.services.cards.health import Health

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 5.0  # refusals leave the inventory within this time after their 30 s
STARTING_SECONDS = 0.25  # pods wait until it is published that the kubelet has our devices
LINGERING_SECONDS = 1.0  # what deleted pods' processes held does, after the last of them has ended


class InventoryService:
    """Thread-safe. ``run`` publishes; ``cards_changed`` is Health's listener."""

    def __init__(
        self,
        state: NodeState,
        allocator: Allocator,
        departed: DepartedPods,
        health: Health,
        inventory: InventoryPublisher,
        announce: Callable[[], None],
        labels: Mapping[str, str],
        offering: Callable[[], bool] = lambda: True,
    ) -> None:
        """``offering``: the kubelet has been sent our devices; until it first has, no pod may come."""
        self._state = state
        self._allocator = allocator
        self._departed = departed
        self._health = health
        self._inventory = inventory
        self._announce = announce
        self._labels = dict(labels)
        self._published: tuple[str, Mapping[str, str]] | None = None
        self._news = threading.Event()
        self._period = PERIOD_SECONDS
        self._offering = offering
        self._served = False  # offered once: a kubelet that restarts keeps its pods waiting itself
        self._leaving = False

    def leave(self) -> None:
        """Tell schedulers that this agent ends: no pod is to come any more. Returns at once."""
        self._leaving = True
        self.changed()

    def cards_changed(self, states: tuple[CardState, ...]) -> None:
        """Cards came, went, or changed their state."""
        self._state.refit(states, self._health.topology(states))
        self._announce()
        self.changed()

    def changed(self) -> None:
        """Something that is published may differ; returns at once."""
        self._news.set()

    def publish(self) -> bool:
        """Publish if anything differs; True if something was sent."""
        node, lent = self._state.node, self._state.offer.lent
        cards = tuple(replace(s, held=NVIDIA) if s.card.uuid in lent else s for s in node.cards)
        lingering = self._departed.lingering()
        self._served = self._served or self._offering()
        serving = self._served and not self._leaving
        self._period = LINGERING_SECONDS if lingering else PERIOD_SECONDS
        if not self._served:
            self._period = STARTING_SECONDS
        text = encode_inventory(
            Inventory(node.unit, cards, node.topology, self._allocator.refused(), lingering, serving)
        )
        labels = {**self._labels, **model_labels(node.cards)}
        if self._published == (text, labels):
            return False
        self._inventory.publish({INVENTORY: text}, labels)
        self._published = (text, labels)
        return True

    def forget_vanished(self) -> None:
        """Drop the cards that the driver no longer lists, once nobody holds anything of them."""
        view = self._state.view
        for state in view.node.cards:
            if not state.healthy and not view.ledger.holders(state.card.uuid):
                self._health.forget(state.card.uuid)

    def run(self, stop: threading.Event) -> None:
        """Publish on news, and look now and then for what has passed: refusals, processes of deleted pods."""
        while not stop.is_set():
            self._news.wait(self._period)
            self._news.clear()
            if stop.is_set():
                return
            try:
                self.forget_vanished()
                self.publish()
            except NodeUnready as error:
                log.warning("inventory_not_published", reason=str(error))
            except Exception:  # noqa: BLE001 - a run loop: the next round publishes
                threads.failed("inventory_failed")

    def wake(self) -> None:
        """Let ``run`` see that it is to stop."""
        self._news.set()


def model_labels(cards: Sequence[CardState]) -> dict[str, str]:
    """The model as a label, under both names, where all cards are of one model; else none."""
    models = {s.card.model for s in cards}
    if len(models) != 1:
        return {}
    value = re.sub(r"[^A-Za-z0-9._-]+", "-", models.pop())[:63].strip("-_.")
    return {MODEL_LABEL: value, MODEL_LABEL_GAIA: value} if value else {}
