"""The one writer of limits into the pages of admitted containers.

A container's start, its elastic limit, a resize and new settings of the agent all write the whole page. Each
holds :attr:`LimitPages.changing` from reading the books to the page, so that none writes what another has
changed meanwhile. Allocate creates the pages before that, without waiting: PreStartContainer writes them
again, from the books, before the container runs.
"""

from __future__ import annotations

import threading

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState

log = structlog.get_logger(__name__)


class LimitPages:
    """Thread-safe. Who holds ``changing`` may take the locks of :class:`NodeState`, never the reverse."""

    def __init__(self, state: NodeState, pages: ControlPages) -> None:
        self._state = state
        self._pages = pages
        self.changing = threading.RLock()

    def write(self, grant: Grant) -> None:
        """Put these limits in force. The caller holds ``changing`` since it read the grant.

        Raises:
            NodeUnready: the page cannot be written.
        """
        self._pages.open(grant.directory, limits_of(grant))

    def apply_settings(self) -> None:
        """Write the limits of every fraction anew, with the settings of this agent (``--oversubscribe``,
        ``--fail-open``, ``--context-mib``); its library follows at once.

        Pages that are not there are left to the start of their container. A page that cannot be written is
        logged, and keeps the settings that it has.
        """
        try:
            there = frozenset(self._pages.names())
        except NodeUnready as error:
            log.warning("page_settings_not_applied", reason=str(error))
            return
        for key in self._state.view.grants:
            with self.changing:
                grant = self._state.view.grants.get(key)
                if grant is None or grant.directory not in there or not limits_of(grant):
                    continue
                try:
                    self.write(grant)
                except NodeUnready as error:
                    log.warning("page_settings_not_applied", directory=grant.directory, reason=str(error))

    def start(self, grant: Grant) -> None:
        """Before the container starts: its limits as the books have them now, and no usage.

        Raises:
            NodeUnready: a page cannot be written.
        """
        with self.changing:
            now = self._state.view.grants.get(grant.key, grant)
            if limits_of(now):
                self.write(now)
                self._pages.reset(now.directory)
