"""Which replica admits ResourceClaims: the leader, once it knows all that other replicas have admitted.

What a previous leader admitted is in a record that the new leader takes over
(:class:`~admission.quota.claims_quota.AdmittedClaims`) until its watch has shown the claims. So once this
replica has the record and its watch has caught up with it, no admitted claim is unknown. If the record does
not name a resource version, or the watch does not reach it, all claims are listed.
"""

from __future__ import annotations

from typing import Final, Protocol

import structlog

from admission.cluster.claims import CLAIMS
from admission.cluster.snapshot import ClusterState
from admission.extender.leader_election import Leader
from admission.quota.claims_quota import AdmittedClaims
from gpu_manager.domain.errors import NodeUnready

log = structlog.get_logger(__name__)

_TIDY_SECONDS: Final = 5.0
_CATCH_UP_SECONDS: Final = 3.0  # for a watch that shows changes at once


class ClaimWatch(Protocol):
    """The watch of claims: when its last full list was requested (monotonic), and its present error."""

    @property
    def listed(self) -> float | None:
        """When the last full list was requested, monotonic; None before the first."""

    @property
    def error(self) -> str | None:
        """Why the watch is down; None while it is up."""

    def relist(self) -> None:
        """Request a full list now and read it."""


class ClaimLeadership:
    """Decides whether this replica admits claims. Thread-safe, except that one thread calls :meth:`look`."""

    def __init__(
        self, leader: Leader, watch: ClaimWatch, cluster: ClusterState, record: AdmittedClaims
    ) -> None:
        self._leader = leader
        self._watch = watch
        self._cluster = cluster
        self._record = record
        self._asked = float("-inf")  # the moment for which a list has been requested
        self._tidied = float("-inf")

    def leads(self) -> bool:
        """True if only this replica admits claims, and it knows all that others admitted."""
        return self._leader.leads() and self._knows(self._record.taken)

    def _knows(self, taken: float | None) -> bool:
        listed, shown = self._watch.listed, self._record.shown
        if taken is None or listed is None:
            return False
        return listed >= taken or (shown is not None and self._cluster.shown(CLAIMS) >= shown)

    def look(self, now: float) -> None:
        """Take the record over, request the list, and drop admitted claims that were never created.

        Call this each second.
        """
        if self._watch.error is None:
            self._cluster.expire_claims(now)
        if not self._leader.leads():
            self._record.give_up()
            return
        if self._record.taken is None:
            self._take()
        taken = self._record.taken
        if taken is None:
            return
        if self._knows(taken):
            self._record.complete()
        elif self._asked != taken and now >= taken + (_CATCH_UP_SECONDS if self._record.shown else 0.0):
            self._asked = taken
            self._watch.relist()
        if now - self._tidied >= _TIDY_SECONDS:
            self._tidied = now
            self._record.tidy()

    def _take(self) -> None:
        try:
            self._record.take()
        except NodeUnready as error:
            log.warning("claim_record_unreadable", reason=str(error))
