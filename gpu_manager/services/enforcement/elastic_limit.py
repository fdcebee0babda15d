"""The elastic ceiling is what its annotation says, also while the pod runs.

Nothing is asked at a start but what the books say. So they follow the annotation: when the pod changes, when
an agent that starts finds it changed, and where books rebuilt without the pod knew of no ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of
from gpu_manager.ports import ControlPages
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.books import Books, Grant, Key
from gpu_manager.services.allocation.grant import limits_of

log = structlog.get_logger(__name__)


class ElasticLimit:
    """Thread-safe. What fails is done at the pod's next change."""

    def __init__(self, allocator: Allocator, tenants: ControlPages) -> None:
        self._allocator = allocator
        self._tenants = tenants

    def follow(self, pod: Pod) -> None:
        """Bring this pod's pages and the books to its annotation; one that is not legal changes nothing."""
        ceiling = legal_ceiling_of(pod)
        if ceiling is None or pod.terminal:
            return
        stale = self._allocator.read(lambda books, _: _others(books, pod, ceiling))
        if not stale:
            return
        now = [replace(grant, ceiling=ceiling) for grant in stale]
        try:
            for grant in now:
                self._tenants.open(grant.directory, limits_of(grant))
            self._allocator.change(
                lambda books, _: _set(books, {g.key: g.ceiling for g in now}),
                undo=lambda books: _set(books, {g.key: g.ceiling for g in stale}),
            )
        except NodeUnready as error:
            log.warning("ceiling not changed", pod=pod.key, ceiling=ceiling, reason=str(error))
            return
        log.info("ceiling changed", pod=pod.key, before=stale[0].ceiling, now=ceiling)


def _others(books: Books, pod: Pod, ceiling: int) -> Sequence[Grant]:
    """The pod's fractions that the books have with another ceiling."""
    grants = (books.grants.get(a.key) for a in books.ledger.of_pod(pod.uid).values())
    return [g for g in grants if g and g.directory and g.ceiling != ceiling and limits_of(g)]


def _set(books: Books, ceilings: dict[Key, int]) -> None:
    for key, ceiling in ceilings.items():
        if key in books.grants:
            books.grants[key] = replace(books.grants[key], ceiling=ceiling)
