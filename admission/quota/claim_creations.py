"""The quota of ResourceClaims: judged at creation, because no hook is called at allocation.

One replica judges, the leader, whose state has every claim that any replica admitted. The judgement and the
count are one step under the cluster's lock, as for Bindings, and the count is recorded for the next leader
before the answer. An admitted claim counts until the watch shows it, or until no API server can store it any
more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from admission.cluster.claims import add_demands, protected_demands
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.quota.admitted_claims import KEPT_SECONDS
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.claims import KnownClaim, read_claim
from gpu_manager.domain.cluster.quota import ANY_SIZE, NamespaceQuota, Quota, refusal
from gpu_manager.domain.dra.demand import ClaimDemand
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class NoClaim:
    """Why a claim is not created. ``again``: temporarily; a retry may succeed."""

    text: str
    again: bool = False


class ClaimCreations:
    """Judges creations. Thread-safe. ``leads``: True while only this replica answers, and knows all
    admissions. ``keep`` records the counted claims; False if it could not.
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
        """Why the ResourceClaim cannot be created; None if it can, and then it counts from now on.

        A dry run counts nothing.
        """
        quota = self._quota.current
        if quota is None:
            return NoClaim(self._quota.missing(), again=True)
        claim = read_claim(obj)
        if claim is None:
            return None
        if not (self._cluster.synced and self._cluster.knows_claims):
            is_judged = quota.of(namespace) is not None or says_protected(claim)
            is_judged = is_judged or quota.largest_of(namespace) != ANY_SIZE
            return NoClaim(_NOT_KNOWN, again=True) if is_judged else None
        with self._cluster.lock:
            demanded = self._cluster.claims.demand_of(claim.spec)
            if claim.spec is None or not demanded:
                return None  # nothing of ours
            try:
                self._cluster.claims.check_parameters(claim.spec)
            except RequestInvalid as error:
                return NoClaim(str(error))
            sized = (("a request", _of_one_container(one.amount)) for one in demanded)
            if large := quota.too_large(namespace, sized):
                return NoClaim(refusal(namespace, large))
            limits = limits_of_claims(quota, namespace, demanded)
            if limits is None:
                return None
            snapshot = self._cluster.snapshot()
            if not self._leads():
                if _asks_more_than_is_granted(limits, demanded):  # then no leader would let it pass either
                    return NoClaim(quota_reasons(limits, snapshot, namespace, demanded))
                return NoClaim(_NOT_LEADER, again=True)
            if reasons := quota_reasons(limits, snapshot, namespace, demanded):
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


def _of_one_container(amount: Amount) -> Amount:
    """Of whole cards the memory does not count, as it does not for a pod's, whose cards are not known yet."""
    return amount if amount.cores < CORES_PER_CARD else Amount(amount.cores, 0)


def says_protected(claim: KnownClaim) -> bool:
    """True if the claim itself, regardless of its classes, requests protected shares."""
    return claim.spec is not None and any(
        one.parameters.priority is Priority.PROTECTED for one in claim.spec.config
    )


def limits_of_claims(quota: Quota, namespace: str, demanded: Iterable[ClaimDemand]) -> NamespaceQuota | None:
    """The quota that applies to claims with these demands; None if they are not limited."""
    is_protected = any(one.protected for one in demanded)
    return quota.of(namespace, Priority.PROTECTED if is_protected else Priority.NORMAL)


def quota_reasons(
    limits: NamespaceQuota, snapshot: Snapshot, namespace: str, demanded: Sequence[ClaimDemand]
) -> str:
    """Why the namespace's quota does not admit claims with these demands; empty if it does."""
    used, protected = (sums.get(namespace, {}) for sums in (snapshot.used, snapshot.protected))
    reasons = tuple(dict.fromkeys(_reasons(limits, used, protected, demanded)))
    return f"{refusal(namespace, reasons)}{_hint(demanded)}" if reasons else ""


def _asks_more_than_is_granted(limits: NamespaceQuota, demanded: Sequence[ClaimDemand]) -> bool:
    """Return whether the claim would be refused even if its namespace held nothing."""
    return any(_reasons(limits, {}, {}, demanded))


def _reasons(
    limits: NamespaceQuota,
    used: Mapping[str, Amount],
    protected: Mapping[str, Amount],
    demanded: Sequence[ClaimDemand],
) -> Iterator[str]:
    right = replace(limits, limited=False)  # is of the protected ones alone
    yield from right.passed({}, add_demands({}, protected_demands(demanded)), protected).values()
    if not limits.limited:
        return
    yield from replace(limits, protected=None).passed(used, add_demands({}, demanded)).values()
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
    "this replica does not lead, or does not know yet what the one before let pass, which takes a minute at "
    "most: create the claim again"
)
_NOT_RECORDED: Final = (
    "what counts could not be recorded for the replica that leads next: create the claim again"
)
_NOT_KNOWN: Final = "nodes, pods and claims are not known here yet: create the claim again"
