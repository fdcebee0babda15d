"""Brings the settings of pages (``--oversubscribe``, ``--fail-open``, ``--context-mib``) to running pods."""

from __future__ import annotations

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState

log = structlog.get_logger(__name__)


def apply_page_settings(state: NodeState, pages: ControlPages) -> None:
    """Write the limits of every fraction anew, with the settings of this agent; its library follows at once.

    Pages that are not there are left to the start of their container. A page that cannot be written is
    logged, and keeps the settings that it has.
    """
    try:
        there = frozenset(pages.names())
    except NodeUnready as error:
        log.warning("page_settings_not_applied", reason=str(error))
        return
    for grant in state.view.grants.values():
        limits = limits_of(grant)
        if not limits or grant.directory not in there:
            continue
        try:
            pages.open(grant.directory, limits)
        except NodeUnready as error:
            log.warning("page_settings_not_applied", directory=grant.directory, reason=str(error))
