"""ResourceClaims of the cluster: those that are allocated, by node, and what the others may take. Not
thread-safe: :class:`~admission.cluster.snapshot.ClusterState` holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from admission.cluster.claim_templates import TurnedTemplate, read_turned_template
from gpu_manager.domain.cluster.claims import KnownClaim, read_claim
from gpu_manager.domain.cluster.node_books import Used, one_of
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.claim import ClaimSpec, parse_claim_spec
from gpu_manager.domain.dra.demand import ClaimDemand, ClassConfig, OfferedCards, check_parameters, demands
from gpu_manager.domain.dra.parameters import Configured, read_config
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.untrusted import mapping, mappings, text

CLAIMS: Final = "resourceclaims"
CLASSES: Final = "deviceclasses"
TEMPLATES: Final = "resourceclaimtemplates"
OF_CLAIMS: Final = frozenset({CLAIMS, CLASSES, TEMPLATES})
_META: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "ownerReferences")


@dataclass(frozen=True, slots=True)
class AdmittedSums:
    """Namespace of a claim, and the most that it may take by card model; ``protected`` is the part that may
    be in protected shares.
    """

    namespace: str
    models: Mapping[str, Amount]
    protected: Mapping[str, Amount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A claim whose creation was let pass; it counts until the watch shows it, or ``until``.

    ``said``: what it may take, where another replica let it pass and said so.
    """

    namespace: str
    claim: KnownClaim | None
    until: float
    said: AdmittedSums | None = None


class ClusterClaims:
    """Accounts for the cluster's claims. ``unit``: bytes of one unit of memory; ``cards``: all cards that
    claims may be allocated, the same object until they change.
    """

    def __init__(self, unit: int, cards: Callable[[], OfferedCards]) -> None:
        self._unit = unit
        self._cards = cards
        self._claims: dict[PodUid, KnownClaim] = {}
        self._waiting: set[PodUid] = set()  # those that are not allocated
        self._admitted: dict[PodUid, _Admitted] = {}
        self._at: dict[str, dict[PodUid, KnownClaim]] = {}
        self._names: dict[tuple[str, str], PodUid] = {}
        self._classes: dict[str, tuple[str, ...]] = {}
        self._told: dict[str, tuple[Configured, ...]] = {}  # parameters of classes
        self._templates: dict[tuple[str, str], ClaimSpec] = {}
        self._turned: dict[tuple[str, str], TurnedTemplate] = {}
        self._demands: dict[PodUid, tuple[OfferedCards, tuple[ClaimDemand, ...]]] = {}
        self._used: tuple[OfferedCards, tuple[Used, Used]] | None = None

    def copy(self, cards: Callable[[], OfferedCards]) -> ClusterClaims:
        """An independent copy."""
        other = ClusterClaims(self._unit, cards)
        other._claims, other._waiting = self._claims.copy(), self._waiting.copy()
        other._admitted, other._names = self._admitted.copy(), self._names.copy()
        other._at = {node: claims.copy() for node, claims in self._at.items()}
        other._classes, other._templates = self._classes.copy(), self._templates.copy()
        other._told = self._told.copy()
        other._turned = self._turned.copy()
        return other

    # What the watch shows. Each returns the nodes on which something changed.

    def take(self, obj: Mapping[str, Any]) -> set[str]:
        """Apply the claim's present object."""
        claim = read_claim(obj)
        if claim is None:
            return set()
        self._admitted.pop(claim.uid, None)
        before = self._claims.get(claim.uid)
        if before == claim:
            return set()
        touched = self._forget(claim.uid)
        if claim.allocated and not (claim.devices or claim.admin_devices):
            return touched  # allocated, and nothing of ours
        self._claims[claim.uid] = claim
        self._names[claim.namespace, claim.name] = claim.uid
        if not claim.allocated:
            self._waiting.add(claim.uid)
        for node in claim.nodes:
            self._at.setdefault(node, {})[claim.uid] = claim
        return touched | claim.nodes

    def drop(self, uid: PodUid) -> set[str]:
        """The claim is gone."""
        self._admitted.pop(uid, None)
        return self._forget(uid)

    def apply(self, kind: str, obj: Mapping[str, Any], *, gone: bool) -> set[str]:
        """One change of a claim, a class or a template."""
        if kind == CLAIMS:
            return self.drop(_uid(obj)) if gone else self.take(obj)
        (self.class_of if kind == CLASSES else self.template)(obj, gone=gone)
        return set()

    def keep(self, kind: str, listed: Collection[Any]) -> set[str]:
        """Whatever is not listed is gone: claims by UID, classes by name, templates by namespace and name."""
        if kind == CLAIMS:
            for uid in self._admitted.keys() & listed:
                del self._admitted[uid]
            self._used = None
            return set().union(*map(self.drop, self._claims.keys() - listed))
        if kind == CLASSES:
            for name in self._classes.keys() - listed:
                del self._classes[name]
                self._told.pop(name, None)
            self._changed()
        else:
            for key in self._templates.keys() - listed:
                del self._templates[key]
            for key in self._turned.keys() - listed:
                del self._turned[key]
        return set()

    def class_of(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        """Apply a DeviceClass's present object."""
        name = text(mapping(obj.get("metadata")).get("name"))
        selectors = mappings(mapping(obj.get("spec")).get("selectors"))
        self._told.pop(name, None)
        if gone:
            self._classes.pop(name, None)
        else:
            with suppress(RequestInvalid):  # then nothing of that class is prepared
                config = mapping(obj.get("spec")).get("config")
                self._told[name] = tuple(replace(one, of_class=True) for one in read_config(config))
            self._classes[name] = tuple(
                text(mapping(one.get("cel")).get("expression")) for one in selectors if "cel" in one
            )
        self._changed()

    def template(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        """Apply a ResourceClaimTemplate's present object."""
        meta, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
        key = text(meta.get("namespace")), text(meta.get("name"))
        self._templates.pop(key, None)
        self._turned.pop(key, None)
        turned = None if gone else read_turned_template(obj)
        if turned is not None:
            self._turned[key] = turned
        with suppress(RequestInvalid):
            if not gone:
                self._templates[key] = parse_claim_spec(spec.get("spec"))

    # What is about to be created.

    def admit(self, claim: KnownClaim, until: float) -> None:
        """Count the claim, whose creation is admitted, until the watch shows it."""
        if claim.uid not in self._claims:
            self._admitted[claim.uid] = _Admitted(claim.namespace, claim, until)
            self._used = None

    def inherit(self, named: Iterable[tuple[PodUid, AdmittedSums]], until: float) -> None:
        """Count claims that another replica admitted according to its record, until the watch shows them."""
        for uid, said in named:
            if uid not in self._claims and uid not in self._admitted:
                self._admitted[uid] = _Admitted(said.namespace, None, until, said)
        self._used = None

    def withdraw(self, uid: PodUid) -> None:
        """Count a claim no more: its creation is not let pass after all."""
        if self._admitted.pop(uid, None) is not None:
            self._demands.pop(uid, None)
            self._used = None

    def admitted_sums(self) -> dict[PodUid, AdmittedSums]:
        """The most that each admitted claim may take which the watch has not shown."""
        return {uid: self._sums(one) for uid, one in self._admitted.items()}

    def _sums(self, one: _Admitted) -> AdmittedSums:
        if one.said is not None or one.claim is None:
            return one.said or AdmittedSums(one.namespace, {})
        return self._sums_of(one.claim)

    def _sums_of(self, claim: KnownClaim) -> AdmittedSums:
        demanded = self._demand(claim)
        return AdmittedSums(
            claim.namespace, add_demands({}, demanded), add_demands({}, protected_demands(demanded))
        )

    def expire(self, now: float) -> bool:
        """Drop admitted claims that were not created in time; True if there were any."""
        gone = [uid for uid, one in self._admitted.items() if one.until <= now]
        for uid in gone:
            self._forget(uid)
            del self._admitted[uid]
        return bool(gone)

    @property
    def admitted(self) -> int:
        """Number of admitted claims that the watch has not shown."""
        return len(self._admitted)

    # What is known.

    def on(self, node: str) -> tuple[KnownClaim, ...]:
        """Claims that are allocated devices of the node."""
        return tuple(self._at.get(node, {}).values())

    def named(self, namespace: str, name: str) -> KnownClaim | None:
        """The claim of that name; None if no device of it is, or may be, this driver's."""
        uid = self._names.get((namespace, name))
        return None if uid is None else self._claims.get(uid)

    def spec_of(self, namespace: str, entry: Mapping[str, Any]) -> ClaimSpec | None:
        """The spec for an entry of a pod's ``spec.resourceClaims``; None if it is not known."""
        claim = self.named(namespace, text(entry.get("resourceClaimName")))
        return (
            claim.spec
            if claim
            else self._templates.get((namespace, text(entry.get("resourceClaimTemplateName"))))
        )

    @property
    def turned(self) -> tuple[TurnedTemplate, ...]:
        """The templates that were made for pods which were turned into claims."""
        return tuple(self._turned.values())

    @property
    def classes(self) -> Mapping[str, tuple[str, ...]]:
        """DeviceClass → its selectors."""
        return self._classes

    @property
    def class_config(self) -> ClassConfig:
        """DeviceClass → its parameters for this driver."""
        return self._told

    def _demand(self, claim: KnownClaim) -> tuple[ClaimDemand, ...]:
        """The most that the claim may take, request by request; nothing if none of it can be ours."""
        cards = self._cards()
        known = self._demands.get(claim.uid)
        if known is None or known[0] is not cards:
            known = self._demands[claim.uid] = cards, self.demand_of(claim.spec)
        return known[1]

    def demand_of(self, spec: ClaimSpec | None) -> tuple[ClaimDemand, ...]:
        """The most that a claim may take which does not exist yet."""
        return demands(spec, self._classes, self._cards(), self._unit, self._told) if spec else ()

    def check_parameters(self, spec: ClaimSpec) -> None:
        """Judge a claim's parameters together with its classes. Raises RequestInvalid: they are illegal."""
        check_parameters(spec, self._classes, self._told)

    def used(self) -> Used:
        """The most that unallocated claims may take, by namespace and model."""
        return self._both()[0]

    def protected(self) -> Used:
        """The part of :meth:`used` that may be in protected shares."""
        return self._both()[1]

    def _both(self) -> tuple[Used, Used]:
        if not self._waiting and not self._admitted:
            return {}, {}
        cards = self._cards()
        if self._used is None or self._used[0] is not cards:
            used: dict[str, dict[str, Amount]] = {}
            within: dict[str, dict[str, Amount]] = {}
            waiting = (self._sums_of(self._claims[uid]) for uid in self._waiting)
            for one in (*waiting, *map(self._sums, self._admitted.values())):
                for sums, more in ((used, one.models), (within, one.protected)):
                    models = sums.setdefault(one.namespace, {})
                    for model, amount in more.items():
                        models[model] = models.get(model, ZERO) + amount
            self._used = cards, (_filled(used), _filled(within))
        return self._used[1]

    def _forget(self, uid: PodUid) -> set[str]:
        self._demands.pop(uid, None)
        self._waiting.discard(uid)
        self._used = None
        before = self._claims.pop(uid, None)
        if before is None:
            return set()
        if self._names.get((before.namespace, before.name)) == uid:
            del self._names[before.namespace, before.name]
        for node in before.nodes:
            self._at[node].pop(uid, None)
            if not self._at[node]:
                del self._at[node]
        return set(before.nodes)

    def _changed(self) -> None:
        self._demands.clear()
        self._used = None


def _uid(obj: Mapping[str, Any]) -> PodUid:
    return PodUid(text(mapping(obj.get("metadata")).get("uid")))


def _filled(used: Mapping[str, Mapping[str, Amount]]) -> Used:
    return {namespace: models for namespace, models in used.items() if models}


def protected_demands(demanded: Iterable[ClaimDemand]) -> Iterator[ClaimDemand]:
    """Yield the demands that may be for protected shares."""
    return (one for one in demanded if one.protected)


def add_demands(models: dict[str, Amount], demanded: Iterable[ClaimDemand]) -> dict[str, Amount]:
    """Add claims' demands to sums by model, in place; returns the sums."""
    for one in demanded:
        key = one_of(one.models)
        models[key] = models.get(key, ZERO) + one.amount
    return models


def slim_claim(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """A ResourceClaim reduced to the fields that are read here."""
    meta, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    given = mapping(mapping(status.get("allocation")).get("devices"))
    results: Sequence[Mapping[str, Any]] = mappings(given.get("results"))
    allocated = isinstance(status.get("allocation"), Mapping)
    ours = [one for one in results if one.get("driver") == DRA_DRIVER]
    return {
        "metadata": {key: meta[key] for key in _META if key in meta},
        "spec": {} if allocated and not ours else {"devices": mapping(obj.get("spec")).get("devices")},
        "status": {
            **({"allocation": {"devices": {"results": ours, **_config(given)}}} if allocated else {}),
            "reservedFor": status.get("reservedFor"),
        },
    }


def _config(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters for this driver, as they are written."""
    entries = mappings(holder.get("config"))
    ours = [one for one in entries if mapping(one.get("opaque")).get("driver") == DRA_DRIVER]
    return {"config": ours} if ours else {}


def slim_template(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """A ResourceClaimTemplate reduced to the fields that are read here."""
    devices = mapping(mapping(obj.get("spec")).get("spec")).get("devices")
    meta = mapping(obj.get("metadata"))
    kept = ["name", "namespace", "resourceVersion"]
    if read_turned_template(obj) is not None:
        kept += ["uid", "labels", "annotations"]
    return {"metadata": {key: meta.get(key) for key in kept}, "spec": {"spec": {"devices": devices}}}


def slim_class(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """A DeviceClass reduced to the fields that are read here."""
    meta = mapping(obj.get("metadata"))
    return {
        "metadata": {key: meta[key] for key in ("name", "resourceVersion") if key in meta},
        "spec": {"selectors": mapping(obj.get("spec")).get("selectors"), **_config(mapping(obj.get("spec")))},
    }
