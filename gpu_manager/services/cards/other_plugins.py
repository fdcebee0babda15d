"""Cards that another device plugin of this node offers too are closed here: two ledgers know nothing of each
other, and would give one card out twice.

The kubelet is asked which devices it may hand out, under whatever name. It is asked only while the socket of
another plugin is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import EVENT_OTHER_PLUGIN
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.other_plugins import offered_elsewhere
from gpu_manager.ports.clock import Clock
from gpu_manager.services.cards.health import Health

log = structlog.get_logger(__name__)

PERIOD_SECONDS: Final = 0.5
# A plugin that is restarted is away for a moment, and so are all when the kubelet restarts.
REOPEN_SECONDS: Final = 15.0


class OtherPlugins:
    """What other plugins offer of our cards. One thread calls :meth:`look`; any may read."""

    def __init__(
        self,
        ask: Callable[[], Mapping[str, Collection[str]]],
        health: Health,
        event: Callable[[str, str], None],
        clock: Clock,
        rest: Callable[[float, bool], object],
    ) -> None:
        """``ask``: resource → device ids of other plugins, as the kubelet has them; raises NodeUnready.
        ``rest`` waits so many seconds or, if true and no other plugin is there, until one may have come.
        ``event`` records a reason and a message about the node.
        """
        self._ask = ask
        self._health = health
        self._event = event
        self._clock = clock
        self._rest = rest
        self._seen: dict[CardUuid, tuple[str, float]] = {}  # resource, and when it was last offered
        self._unasked = ""

    @property
    def offers(self) -> Mapping[CardUuid, str]:
        """Card → the resource under which another plugin offers it, now or moments ago."""
        return {uuid: resource for uuid, (resource, _) in self._seen.items()}

    @property
    def trouble(self) -> str:
        """In words, for /readyz; empty while every card is ours alone."""
        resources = sorted(set(self.offers.values()))
        if not resources:
            return ""
        return (
            f"{len(self.offers)} cards are offered by another device plugin as {', '.join(resources)}, and "
            "not by this agent while that lasts: remove that plugin from this node, or this agent"
        )

    def round(self) -> None:
        """Look, and wait until there may be something else to see."""
        try:
            self.look()
        finally:
            self._rest(PERIOD_SECONDS, not self._seen and not self._unasked)

    def look(self) -> None:
        """Ask the kubelet, and have the cards closed and opened accordingly."""
        try:
            offers = self._ask()
        except NodeUnready as error:  # what was seen last holds
            if self._unasked != str(error):
                log.info("other_plugins_unasked", reason=str(error))
            self._unasked = str(error)
            return
        self._unasked = ""
        now = self._clock.monotonic()
        before = self.offers
        found = offered_elsewhere(offers, [state.card for state in self._health.states()])
        kept = {uuid: seen for uuid, seen in self._seen.items() if now - seen[1] < REOPEN_SECONDS}
        self._seen = kept | {uuid: (resource, now) for uuid, resource in found.items()}
        if self.offers != before:
            self._health.offered_elsewhere(self.offers)
            self._tell()

    def _tell(self) -> None:
        if self.trouble:
            log.warning("cards_offered_elsewhere", cards=self.offers)
            self._event(EVENT_OTHER_PLUGIN, self.trouble)
        else:
            log.info("cards_ours_alone")
