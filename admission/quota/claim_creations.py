"""The quota of ResourceClaims: judged when one is created, for nobody is asked when it is allocated.

One replica judges, the leader, over books that have every claim which anybody let pass: the judgement and
the count are one step under the cluster's lock, where Bindings are judged, too, and the count is recorded for
the next leader before the answer. A claim that was let pass counts until the watch shows it, or until no API
server can store it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from admission.cluster.claims import add_demands
from admission.cluster.snapshot import ClusterState
from admission.quota.admitted_claims import KEPT_SECONDS
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.claims import KnownClaim, read_claim
from gpu_manager.domain.cluster.held_sums import Used
from gpu_manager.domain.cluster.quota import NamespaceQuota, refusal
from gpu_manager.domain.dra.demand import ClaimDemand
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class NoClaim:
    """Why a claim is not created. ``again``: not for good; whoever asks again may be let pass."""

    text: str
    again: bool = False


class ClaimCreations:
    """Thread-safe. ``leads``: True while this replica alone answers, and knows all that others let pass.
    ``keep`` records what counts by now; False if it could not.
    """

    def __init__(
        self,
        cluster: ClusterState,
        quota: QuotaBook,
        clock: Clock,
        leads: Callable[[], bool],
        keep: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._quota = quota
        self._clock = clock
        self._leads = leads
        self._keep = keep

    def refuse(self, obj: Mapping[str, Any], namespace: str, *, dry_run: bool) -> NoClaim | None:
        """Say why the ResourceClaim cannot be created; None if it can, and then it counts from now on.

        At a dry run nothing is counted.
        """
        quota = self._quota.current
        if quota is None:
            return NoClaim(self._quota.missing(), again=True)
        limits = quota.of(namespace)
        claim = read_claim(obj)
        if limits is None or claim is None:
            return None
        if not (self._cluster.synced and self._cluster.knows_claims):
            return NoClaim(_NOT_KNOWN, again=True)
        with self._cluster.lock:
            demanded = self._cluster.claims.demand_of(claim.spec)
            if not demanded:
                return None  # nothing of ours
            if not self._leads():
                return NoClaim(_NOT_LEADER, again=True)
            used = self._cluster.snapshot().used
            if reasons := quota_reasons(limits, used, namespace, demanded):
                return NoClaim(reasons)
            if dry_run:
                return None
            until = self._clock.monotonic() + KEPT_SECONDS
            self._cluster.change_claims(lambda claims: claims.admit(claim, until))
        return self._recorded(claim, namespace)

    def _recorded(self, claim: KnownClaim, namespace: str) -> NoClaim | None:
        if not self._keep():
            self._cluster.change_claims(lambda claims: claims.withdraw(claim.uid))
            return NoClaim(_NOT_RECORDED, again=True)
        log.info("claim_admitted", claim=f"{printable(namespace)}/{printable(claim.name)}", uid=claim.uid)
        return None


def quota_reasons(limits: NamespaceQuota, used: Used, namespace: str, demanded: Sequence[ClaimDemand]) -> str:
    """Say why the namespace's quota does not let claims pass that may take so much; empty if it does."""
    reasons = tuple(dict.fromkeys(_reasons(limits, used, namespace, demanded)))
    return f"{refusal(namespace, reasons)}{_hint(demanded)}" if reasons else ""


def _reasons(
    limits: NamespaceQuota, used: Used, namespace: str, demanded: Iterable[ClaimDemand]
) -> Iterator[str]:
    demanded = tuple(demanded)
    yield from limits.passed(used.get(namespace, {}), add_demands({}, demanded)).values()
    closed = {pool for one in demanded for pool in one.pools if not limits.allows_pool(pool)}
    if closed:
        allowed = ", ".join(map(printable, limits.pools[:_SHOWN]))
        others = ", ".join(quoted(pool) for pool in sorted(closed)[:_SHOWN])
        yield (
            f"it may use nodes of the pools {allowed}, and the claim may be given cards in pools {others}: "
            "select cards by uuid or productName that are in its own"
        )


def _hint(demanded: Iterable[ClaimDemand]) -> str:
    """What counts, where that is more than may be meant."""
    models = sorted({model for one in demanded for model in one.models})
    if len(models) < 2:
        return ". A claim counts from its creation, at the most that it may take"
    named = ", ".join(printable(model) for model in models[:_SHOWN])
    return (
        ". A claim counts from its creation, at the most that it may take, under each model that its "
        f"selectors leave open ({named}): select one by device.attributes['vcuda.tencent.com'].productName"
    )


_NOT_LEADER: Final = (
    "this replica does not lead, or does not know yet what the one before let pass: create the claim again"
)
_NOT_RECORDED: Final = (
    "what counts could not be recorded for the replica that leads next: create the claim again"
)
_NOT_KNOWN: Final = "nodes, pods and claims are not known here yet: create the claim again"
