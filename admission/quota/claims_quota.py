"""The quota of ResourceClaims: judged at creation, because no hook is called at allocation; and the claims
that were admitted and may not be stored yet.

One replica judges, the leader, whose state has every claim that any replica admitted. The judgement and the
count are one step under the cluster's lock, as for Bindings, and the count is recorded for the next leader
before the answer. An admitted claim counts until the watch shows it, or until no API server can store it any
more.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import structlog

from admission.cluster.claims import CLAIMS, AdmittedSums, add_demands, protected_demands
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.claims import KnownClaim, read_claim
from gpu_manager.domain.cluster.quota import ANY_SIZE, NamespaceQuota, Quota, refusal
from gpu_manager.domain.dra.demand import ClaimDemand
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.untrusted import mapping
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)


# Admitted but possibly unstored ResourceClaims, recorded at the API server so that a new leader knows them.
# An API server ends a request within :data:`REQUEST_SECONDS`; until then an admitted ResourceClaim may
# still be stored. Each is recorded before its creation is admitted, in one object that is written only if
# its version is unchanged: once another replica has taken the record over, this one admits nothing.


REQUEST_SECONDS: Final = 60.0
"""An API server ends a request by then (``--request-timeout``): what it asked about comes no later."""

KEPT_SECONDS: Final = REQUEST_SECONDS + 15.0
"""How long a claim that was let pass counts: until nobody can store it, and the watch has shown it."""

_PROTECTED: Final = "/protected"
"""After the UID of a claim: the part of it that may be protected shares. A replica one release older counts
it as a claim of its own: more, for a minute, and never less.
"""

_SHOWN_CLAIMS: Final = "/shown/"
"""Before the resourceVersion of the newest claim that the writer's watch has shown: what has left the record
is not newer. A replica one release older takes it for a claim of nothing.
"""

_LARGEST: Final = 200_000  # bytes: an object's annotations have 256 KiB


class SharedText(Protocol):
    """A text that all replicas share."""

    def read(self) -> str | None:
        """The present text, None if there is none. Raises NodeUnready: no answer."""

    def write(self, text: str) -> bool:
        """Replace the text last read or written; False if another replica has changed it since.

        Raises NodeUnready: no answer, so it may have been replaced.
        """


class AdmittedClaims:
    """The record. Thread-safe. ``taken``: when this replica took it over (monotonic), None while it has not.
    ``shown``: the version that the watch of claims must reach for all claims to be known; None if the record
    does not name one.
    """

    def __init__(self, record: SharedText, cluster: ClusterState, clock: Clock) -> None:
        self._record = record
        self._cluster = cluster
        self._clock = clock
        self._turn = threading.Lock()  # one write at a time
        self._count = threading.Lock()
        self._asked = 0  # claims that were to be recorded, and up to which that is done
        self._done = 0
        self._text = ""
        self.taken: float | None = None
        self.shown: int | None = None

    def take(self) -> bool:
        """Take the record over, and count the claims in it. False if another replica was quicker.

        Without a record the earlier admissions are unknown: it then counts as taken once all of them are
        stored. Raises NodeUnready: no answer.
        """
        with self._turn:
            self.taken = None
            found = self._record.read()
            until = self._clock.monotonic() + KEPT_SECONDS
            named, self.shown = tuple(_decoded(found or "")), _shown(found or "")
            self._cluster.change_claims(lambda claims: claims.inherit(named, until))
            text = self._encoded()
            if not self._record.write(self._with_shown(text)):
                return False
            self._text = text
            self.taken = self._clock.monotonic() + (REQUEST_SECONDS if found is None else 0.0)
            log.info("claim_record_taken", claims=self._cluster.claims.admitted)
            return True

    def complete(self) -> None:
        """From now on this replica knows all that has ever left the record."""
        self.shown = self.shown or 0

    def give_up(self) -> None:
        """Forget that the record is this replica's: it leads no more."""
        self.taken = None

    def keep(self) -> bool:
        """Record every claim that counts by now as let pass; False if they may not be let pass after all."""
        with self._count:
            self._asked += 1
            mine = self._asked
        with self._turn:
            if self._done >= mine:
                return True  # a write that began later has recorded it
            with self._count:
                asked = self._asked
            if self.taken is None or not self._written(self._encoded()):
                return False
            self._done = asked
            return True

    def tidy(self) -> None:
        """Remove from the record the claims that the watch has shown since."""
        with self._turn:
            text = self._encoded()
            if self.taken is not None and text != self._text:
                self._written(text)

    def _written(self, text: str) -> bool:
        if len(text) > _LARGEST:
            return False
        try:
            done = self._record.write(self._with_shown(text))
        except NodeUnready as error:
            log.warning("claim_record_unwritten", reason=str(error))
            done = False
        self._text = text
        if not done:
            self.taken = None  # it is read again before anything is let pass
        return done

    def _with_shown(self, text: str) -> str:
        """The record as it is written: what leaves it with this text has been shown here by now."""
        version = 0 if self.shown is None else max(self.shown, self._cluster.shown(CLAIMS))
        return (
            json.dumps({**json.loads(text), f"{_SHOWN_CLAIMS}{version}": ["", {}]}, separators=(",", ":"))
            if version
            else text
        )

    def _encoded(self) -> str:
        with self._cluster.lock:
            sums = self._cluster.claims.admitted_sums()
        return json.dumps(
            {
                key: [one.namespace, {model: [amount.cores, amount.memory] for model, amount in part.items()}]
                for uid, one in sorted(sums.items())
                for key, part in ((uid, one.models), (f"{uid}{_PROTECTED}", one.protected))
                if part or key == uid
            },
            separators=(",", ":"),
        )


def _decoded(text: str) -> Iterator[tuple[PodUid, AdmittedSums]]:
    """Read what was recorded; an entry that is none, as somebody's edit may leave, is passed over."""
    sums: dict[str, tuple[str, dict[str, Amount]]] = {}
    for uid, row in _rows(text).items():
        if uid.startswith(_SHOWN_CLAIMS):
            continue
        try:
            namespace, models = row
            sums[uid] = str(namespace), dict(_amounts(mapping(models)))
        except (ValueError, TypeError):
            log.warning("claim_record_malformed", uid=uid)
    for uid, (namespace, models) in sums.items():
        if not uid.endswith(_PROTECTED):
            _, protected = sums.get(f"{uid}{_PROTECTED}", ("", {}))
            yield PodUid(uid), AdmittedSums(namespace, models, protected)


def _rows(text: str) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}


def _shown(text: str) -> int | None:
    versions = [key.removeprefix(_SHOWN_CLAIMS) for key in _rows(text) if key.startswith(_SHOWN_CLAIMS)]
    return max((int(version) for version in versions if version.isdecimal()), default=None)


def _amounts(models: Mapping[str, Any]) -> Iterator[tuple[str, Amount]]:
    for model, (cores, memory) in models.items():
        yield model, Amount(max(0, int(cores)), max(0, int(memory)))


_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class NoClaim:
    """Why a claim is not created. ``again``: temporarily; a retry may succeed."""

    text: str
    again: bool = False


@dataclass(eq=False, repr=False)
class ClaimCreations:
    """Judges creations. Thread-safe. ``leads``: True while only this replica answers, and knows all
    admissions. ``keep`` records the counted claims; False if it could not.
    """

    cluster: ClusterState
    quota: QuotaBook
    clock: Clock
    leads: Callable[[], bool]
    keep: Callable[[], bool]

    def refuse(self, obj: Mapping[str, Any], namespace: str, *, dry_run: bool) -> NoClaim | None:
        """Why the ResourceClaim cannot be created; None if it can, and then it counts from now on.

        A dry run counts nothing.
        """
        quota = self.quota.current
        if quota is None:
            return NoClaim(self.quota.missing(), again=True)
        claim = read_claim(obj)
        if claim is None:
            return None
        if not (self.cluster.synced and self.cluster.knows_claims):
            is_judged = quota.of(namespace) is not None or says_protected(claim)
            is_judged = is_judged or quota.largest_of(namespace) != ANY_SIZE
            return NoClaim(_NOT_KNOWN, again=True) if is_judged else None
        with self.cluster.lock:
            demanded = self.cluster.claims.demand_of(claim.spec)
            if claim.spec is None or not demanded:
                return None  # nothing of ours
            try:
                self.cluster.claims.check_parameters(claim.spec)
            except RequestInvalid as error:
                return NoClaim(str(error))
            sized = (("a request", _of_one_container(one.amount)) for one in demanded)
            if large := quota.too_large(namespace, sized):
                return NoClaim(refusal(namespace, large))
            limits = limits_of_claims(quota, namespace, demanded)
            if limits is None:
                return None
            snapshot = self.cluster.snapshot()
            if not self.leads():
                if _asks_more_than_is_granted(limits, demanded):  # then no leader would let it pass either
                    return NoClaim(quota_reasons(limits, snapshot, namespace, demanded))
                return NoClaim(_NOT_LEADER, again=True)
            if reasons := quota_reasons(limits, snapshot, namespace, demanded):
                return NoClaim(reasons)
            if dry_run:
                return None
            until = self.clock.monotonic() + KEPT_SECONDS
            self.cluster.change_claims(lambda claims: claims.admit(claim, until))
        return self._recorded(claim, namespace)

    def _recorded(self, claim: KnownClaim, namespace: str) -> NoClaim | None:
        if not self.keep():
            self.cluster.change_claims(lambda claims: claims.withdraw(claim.uid))
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
