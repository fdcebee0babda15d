"""Which replica lets ResourceClaims pass: the leader, once it knows all that others have let pass.

What one that led before let pass may still be on its way into the API server, which ends a request after
:data:`~admission.quota.claim_creations.REQUEST_SECONDS`. So a new leader lets nothing pass until a list of
all claims that was asked for so long after it became the only one; unless the Lease was given back, which a
leader does once everything that it let pass is stored: then a list that is asked for from then on will do.
"""

from __future__ import annotations

from typing import Protocol

from admission.cluster.snapshot import ClusterState
from admission.extender.leader_election import Leader
from admission.quota.claim_creations import REQUEST_SECONDS


class ClaimWatch(Protocol):
    """The watch of claims: when its last full list was asked for (monotonic), and why it is down."""

    @property
    def listed(self) -> float | None:
        """None before the first."""

    @property
    def error(self) -> str | None:
        """None while it is up."""

    def relist(self) -> None:
        """Take in a full list that is asked for from now on."""


class ClaimLeadership:
    """Thread-safe but for :meth:`look`, which is one thread's.

    ``own``: a Lease that is given back does not say that all is stored: it is the kube-scheduler's, or none.
    """

    def __init__(self, leader: Leader, watch: ClaimWatch, cluster: ClusterState, *, own: bool) -> None:
        self._leader = leader
        self._watch = watch
        self._cluster = cluster
        self._own = own
        self.knew_all = False  # at the last look: then it may give its Lease back, as nothing is on its way
        self._asked = float("-inf")  # the moment for which a list has been asked for

    def leads(self) -> bool:
        """True if this replica alone lets claims pass, and has a list of all that others did."""
        listed = self._watch.listed
        return self._leader.leads() and listed is not None and listed >= self._known_from

    def look(self, now: float) -> None:
        """Ask for the list, and end the wait for claims that nobody created. Call this each second."""
        self.knew_all = self.leads()
        if self._watch.error is None:
            self._cluster.expire_claims(now)
        listed, known_from = self._watch.listed, self._known_from
        if listed is not None and listed < known_from <= now and self._asked != known_from:
            self._asked = known_from
            self._watch.relist()

    @property
    def _known_from(self) -> float:
        stored_from = self._leader.alone_since(own=self._own) + REQUEST_SECONDS
        return max(stored_from, self._leader.led_since)  # a watch is never quite up to date
