"""A pod as the domain sees it: its identity, the requests of its containers, the phases in which they run.

:func:`parse_pod` reads an untrusted Kubernetes object once; later code uses these types only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import Final, NewType

from gpu_manager.domain.contract import (
    CAPABILITIES_ENV,
    CARDS,
    CORE,
    FOREIGN_RESOURCES,
    LONGEST_NAME,
    MEMORY,
    NO_VISIBLE_DEVICES,
    NVIDIA,
    OUR_PREFIX,
    VISIBLE_ENV,
    WHOLE_CARD,
)
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.kube.several_cards import read_parts
from gpu_manager.domain.resources import CORES_PER_CARD, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, strict_list, strict_mapping, strict_text, text

PodUid = NewType("PodUid", str)

_GRAPHICS = frozenset({"graphics", "display", "ngx", "all"})
_SHOWN = 8  # complaints about one pod in one text

# A static pod comes from a file of the node. The kubelet knows it by a digest of that file (MD5: 32 hex), and
# makes a copy of it in the API, its mirror, which has a UID of its own and names the digest twice.
MIRROR = "kubernetes.io/config.mirror"
_DIGEST = "kubernetes.io/config.hash"
# The condition by which a scheduler reports that it has found no node.
POD_SCHEDULED = "PodScheduled"
UNSCHEDULABLE = "Unschedulable"
_STATIC_UID = re.compile(r"[0-9a-f]{32}")


class ContainerKind(Enum):
    """When a container runs: ordinary init containers one by one, sidecars from their turn on, apps last."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Container:
    """A container's resources as written; :mod:`gpu_manager.domain.rules.legal_values` checks them.

    ``core`` is hundredths of a card, ``memory_units`` counts units; ``None`` means not written.
    """

    name: str
    kind: ContainerKind
    core: Fraction | None = None
    memory_units: Fraction | None = None
    core_request: Fraction | None = None
    memory_units_request: Fraction | None = None
    privileged: bool = False
    visible_devices: str = ""  # NVIDIA_VISIBLE_DEVICES, as written in the pod, if it shows a card
    env_from: bool = False  # that variable may come from envFrom, since env, which has precedence, lacks it
    graphics: bool = False  # NVIDIA_DRIVER_CAPABILITIES, as written in the pod, requests graphics
    running: bool = False
    over: bool = False  # an ordinary init container that has done its work
    gpus: Fraction | None = None  # whole cards under NVIDIA's name, as written in limits
    lent: bool = False  # ``core`` stands for ``gpus``: this node offers whole cards under that name too
    strange: tuple[str, ...] = ()  # resources that share cards under a name unknown here
    claims: tuple[tuple[str, str], ...] = ()  # ResourceClaims: name, and the request in it; empty for all
    claim_entries: tuple[str, ...] = ()  # of spec.resourceClaims, also where the claim is yet to be made
    stuck: str = ""  # why the kubelet does not run it, such as CrashLoopBackOff
    runtime_id: str = ""  # the container id without its "containerd://", once the runtime made it
    parts: int = 1  # cards on which it lies in equal parts; above 1 ``core`` and ``memory_units`` are totals

    @property
    def asks(self) -> bool:
        """True if the container requests any part of a card."""
        return bool(self.core or self.memory_units)

    @property
    def is_part(self) -> bool:
        """True if the container requests a part of one card, or of each of several, and no whole card."""
        return self.core is not None and self.core > 0 and (self.parts > 1 or self.core < CORES_PER_CARD)

    def wants(self, resource: str) -> int:
        """Return the number of ids of ``resource`` that the kubelet will request, 0 for none."""
        wanted = {NVIDIA: self.gpus} if self.lent else {CORE: self.core, MEMORY: self.memory_units}
        value = wanted.get(resource)
        return int(value) if value is not None and value.denominator == 1 and value > 0 else 0


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. ``containers`` are in the kubelet's order: init containers, then app containers.

    ``twin`` is the second UID of a static pod, if it is known: one of the two is ``uid``.
    """

    uid: PodUid
    namespace: str
    name: str
    containers: tuple[Container, ...]
    node: str = ""
    phase: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    started: bool = False  # status.startTime is set: the kubelet has admitted it once
    controlled: bool = False  # a controller will replace the pod
    owner: str = ""  # that controller, as kind/name
    priority: int = 0
    scheduler: str = ""
    created: str = ""
    started_at: str = ""  # status.startTime: when the kubelet admitted it; RFC 3339, as is ``created``
    twin: PodUid = PodUid("")
    restarts_never: bool = False  # restartPolicy Never: no container that has started is started again
    refused: str = ""  # status.message of a pod that the kubelet's managers refused at its admission
    affinity_bytes: int = field(default=0, compare=False)  # nodeAffinity as JSON; not from the kubelet

    @property
    def key(self) -> str:
        """``namespace/name``, for messages; the ledger's key is ``uid``."""
        return f"{self.namespace}/{self.name}"

    @property
    def asks(self) -> bool:
        """True if any container requests a part of a card."""
        return any(c.asks for c in self.containers)

    @property
    def began(self) -> str:
        """The time for ordering pods by age: the kubelet's admission, else the creation (RFC 3339)."""
        return self.started_at or self.created

    @property
    def workload(self) -> str:
        """``kind/name`` of the pod's workload: its Deployment, its other controller, else the pod itself."""
        kind, _, name = self.owner.partition("/")
        template = self.labels.get("pod-template-hash", "")
        if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
            return f"Deployment/{name.removesuffix(f'-{template}')}"
        return self.owner or f"Pod/{self.name}"

    @property
    def graphics(self) -> bool:
        """True if any container requests the driver's graphics libraries."""
        return any(c.graphics for c in self.containers)

    @property
    def static(self) -> bool:
        """True for a static pod, whose manifest is a file on its node and which cannot be evicted."""
        return bool(self.twin or _STATIC_UID.fullmatch(self.uid))

    @property
    def api_uid(self) -> PodUid:
        """The UID of the pod's object in the API, if it is known; else ``uid``."""
        return self.twin if _STATIC_UID.fullmatch(self.uid) and self.twin else self.uid

    def as_on_node(self) -> Pod:
        """Return the pod under the UID that the kubelet, its checkpoint and its cgroups use."""
        mirror = self.twin and not _STATIC_UID.fullmatch(self.uid)
        return replace(self, uid=self.twin, twin=self.uid) if mirror else self

    @property
    def lent(self) -> bool:
        """True if the pod requests cards only as ``nvidia.com/gpu``, and this node offers whole cards under
        that name.
        """
        return any(c.lent for c in self.containers) and all(c.lent or not c.asks for c in self.containers)

    def with_lent_cards(self) -> Pod:
        """Return the pod for a node that offers whole cards as ``nvidia.com/gpu``: containers with only that
        resource request as many whole cards.
        """
        if not any(c.gpus for c in self.containers):
            return self
        return replace(
            self,
            containers=tuple(
                replace(c, core=c.gpus * CORES_PER_CARD, lent=True) if c.gpus and not c.asks else c
                for c in self.containers
            ),
        )

    @property
    def terminal(self) -> bool:
        """True once all its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def ended_inits(self) -> frozenset[str]:
        """The ordinary init containers that have ended: they no longer hold a share; the pod still holds its
        peak.
        """
        return frozenset(c.name for c in self.containers if c.over)

    def container(self, name: str) -> Container | None:
        """Return the container of that name, or None."""
        return next((c for c in self.containers if c.name == name), None)


def parse_pod(obj: object) -> Pod:
    """Read a core/v1 Pod in its JSON form (wire names).

    Raises:
        RequestInvalid: an amount of our resources is not a quantity, or the object is not a pod.
    """
    pod = _mapping([] if obj is None else obj, "the pod")
    meta, spec = _mapping(pod.get("metadata"), "metadata"), _mapping(pod.get("spec"), "spec")
    status = _mapping(pod.get("status"), "status")
    owners = _mappings(meta.get("ownerReferences"), "metadata.ownerReferences")
    annotations = _texts(meta.get("annotations"), "annotation")
    node = _text(spec.get("nodeName"), "spec.nodeName")
    controllers = [o for o in owners if o.get("controller") is True and o.get("kind") != "Node"]
    return Pod(
        uid=PodUid(_text(meta.get("uid"), "metadata.uid")),
        namespace=_text(meta.get("namespace"), "metadata.namespace") or "default",
        name=_text(meta.get("name"), "metadata.name")
        or _text(meta.get("generateName"), "metadata.generateName"),
        containers=_in_parts(_containers(spec, status), annotations.get(CARDS)),
        node=node,
        phase=_text(status.get("phase"), "status.phase"),
        refused=text(status.get("message")) if status.get("reason") == "UnexpectedAdmissionError" else "",
        annotations=annotations,
        labels=_texts(meta.get("labels"), "label"),
        deleting=bool(meta.get("deletionTimestamp")),
        started=bool(status.get("startTime")),
        started_at=text(status.get("startTime")),
        controlled=bool(controllers),
        owner=next((f"{text(o.get('kind'))}/{text(o.get('name'))}" for o in controllers), ""),
        priority=_priority(spec.get("priority")),
        scheduler=_text(spec.get("schedulerName"), "spec.schedulerName"),
        created=_text(meta.get("creationTimestamp"), "metadata.creationTimestamp"),
        twin=_mirrored(annotations, owners, node),
        restarts_never=spec.get("restartPolicy") == "Never",
        affinity_bytes=affinity_bytes(spec),
    )


def _in_parts(containers: tuple[Container, ...], written: str | None) -> tuple[Container, ...]:
    """The containers with their numbers of cards; an unreadable annotation is left to the rules."""
    try:
        parts = read_parts(written, [c.name for c in containers if c.core]) if written is not None else {}
    except RequestInvalid:
        return containers
    return tuple(replace(c, parts=parts[c.name]) if parts.get(c.name, 1) > 1 else c for c in containers)


def affinity_bytes(spec: Mapping[str, object]) -> int:
    """Return the size of a pod's node affinity as JSON; 0 without one."""
    node = mapping(spec.get("affinity")).get("nodeAffinity")
    return len(json.dumps(node, separators=(",", ":"))) if node else 0


def _mirrored(annotations: Mapping[str, str], owners: Sequence[Mapping[str, object]], node: str) -> PodUid:
    """Return the kubelet's UID of the static pod whose mirror this object is; empty if it is no mirror.

    The kubelet makes its node the mirror's owner. A forged mirror can only name a digest, never the UID of
    a pod that the API server knows.
    """
    digest = annotations.get(MIRROR, "")
    of_node = any(owner.get("kind") == "Node" and owner.get("name") == node for owner in owners)
    genuine = of_node and node and digest == annotations.get(_DIGEST) and _STATIC_UID.fullmatch(digest)
    return PodUid(digest if genuine else "")


def _containers(spec: Mapping[str, object], status: Mapping[str, object]) -> tuple[Container, ...]:
    statuses = {
        _text(entry.get("name"), f"status.{group}"): entry
        for group in ("containerStatuses", "initContainerStatuses")
        for entry in _mappings(status.get(group), f"status.{group}")
    }
    unreadable: list[str] = []
    claims = _claim_names(spec, status)
    extended = _extended_claim(status)
    for kind, amounts in mapping(spec.get("resources")).items():
        unreadable += [
            f"spec.resources.{kind}: no whole pod asks for {name}: write it in the container that uses it"
            for name in (CORE, MEMORY)
            if name in mapping(amounts)
        ]
    containers = tuple(
        _container(entry, plain, statuses, claims, extended, unreadable)
        for group, plain in (("initContainers", ContainerKind.INIT), ("containers", ContainerKind.APP))
        for entry in _mappings(spec.get(group), f"spec.{group}")
    )
    if unreadable:
        more = f"; and {len(unreadable) - _SHOWN} more" if len(unreadable) > _SHOWN else ""
        raise RequestInvalid("; ".join(unreadable[:_SHOWN]) + more)
    return containers


def _container(
    entry: Mapping[str, object],
    plain: ContainerKind,
    statuses: Mapping[str, Mapping[str, object]],
    claims: Mapping[str, str],
    extended: Mapping[str, tuple[tuple[str, str], ...]],
    unreadable: list[str],
) -> Container:
    name = _text(entry.get("name"), "a container's name")
    where = f"container {quoted(name)}"
    resources = _mapping(entry.get("resources"), f"{where}: resources")
    security = _mapping(entry.get("securityContext"), f"{where}: securityContext")
    limits, requests = (_mapping(resources.get(kind), f"{where}: {kind}") for kind in ("limits", "requests"))
    state = _mapping(statuses.get(name), f"{where}: status")

    def quantity(values: Mapping[str, object], key: str, kind: str) -> Fraction | None:
        value = values.get(key)
        try:
            # Like the API server, accept blanks around a quantity (Quantity.UnmarshalJSON), and null for
            # none.
            return (
                None
                if value is None
                else parse_quantity(value.strip(" \t\r\n") if isinstance(value, str) else value)
            )
        except RequestInvalid as error:
            unreadable.append(f"{where}: {key} in {kind}: {error}")
            return None

    sidecar = plain is ContainerKind.INIT and entry.get("restartPolicy") == "Always"
    kind = ContainerKind.SIDECAR if sidecar else plain
    now = _mapping(state.get("state"), f"{where}: state")
    return Container(
        name=name,
        kind=kind,
        core=quantity(limits, CORE, "limits"),
        memory_units=quantity(limits, MEMORY, "limits"),
        core_request=quantity(requests, CORE, "requests"),
        memory_units_request=quantity(requests, MEMORY, "requests"),
        gpus=_gpus(limits.get(NVIDIA)),
        strange=_strange((*limits, *requests)),
        visible_devices=_visible_devices(entry.get("env")),
        env_from=bool(entry.get("envFrom")) and not _names_visible_devices(entry.get("env")),
        graphics=_wants_graphics(entry.get("env")),
        privileged=security.get("privileged") not in (None, False),
        running=now.get("running") is not None,
        over=kind is ContainerKind.INIT and _succeeded(now.get("terminated"), f"{where}: terminated"),
        claims=(
            *(
                (claims[used], text(one.get("request")))
                for one in mappings(resources.get("claims"))
                if (used := text(one.get("name"))) in claims
            ),
            *extended.get(name, ()),
        ),
        claim_entries=tuple(text(one.get("name")) for one in mappings(resources.get("claims"))),
        stuck=stuck_reason(now),
        runtime_id=_text(state.get("containerID"), f"{where}: containerID").rpartition("://")[2],
    )


_STARTING: Final = ("ContainerCreating", "PodInitializing")


def stuck_reason(state: Mapping[str, object]) -> str:
    """Why the kubelet does not run a container whose turn has come, by its state; empty if it does."""
    ended = mapping(state.get("terminated"))
    if ended:
        return (text(ended.get("reason")) or "Error") if ended.get("exitCode") else ""
    reason = text(mapping(state.get("waiting")).get("reason"))
    return "" if reason in _STARTING else reason


def _claim_names(spec: Mapping[str, object], status: Mapping[str, object]) -> dict[str, str]:
    """Entry of ``spec.resourceClaims`` → the name of its ResourceClaim; the status has it if Kubernetes
    creates the claim from a template.
    """
    entries = [*mappings(spec.get("resourceClaims")), *mappings(status.get("resourceClaimStatuses"))]
    named = {text(one.get("name")): text(one.get("resourceClaimName")) for one in entries}
    return {entry: claim for entry, claim in named.items() if claim}


def _extended_claim(status: Mapping[str, object]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Container → claim and request by which kube-scheduler gives it the resource of a DeviceClass."""
    made = mapping(status.get("extendedResourceClaimStatus"))
    claim, found = text(made.get("resourceClaimName")), dict[str, tuple[tuple[str, str], ...]]()
    for one in mappings(made.get("requestMappings")) if claim else ():
        container = text(one.get("containerName"))
        found[container] = (*found.get(container, ()), (claim, text(one.get("requestName"))))
    return found


def _strange(names: Iterable[object]) -> tuple[str, ...]:
    found = {name for name in names if isinstance(name, str) and len(name) <= LONGEST_NAME}
    ours = {name for name in found if name.startswith(OUR_PREFIX)} - {CORE, MEMORY, WHOLE_CARD}
    return tuple(sorted(ours | (found & set(FOREIGN_RESOURCES)))[:_SHOWN])


def _succeeded(terminated: object, where: str) -> bool:
    """True for the end of a container that will not be restarted: its exit code is 0."""
    return terminated is not None and _mapping(terminated, where).get("exitCode") == 0


def _gpus(value: object) -> Fraction | None:
    """Read the count of ``nvidia.com/gpu``, or None if unreadable: the API server refuses that itself."""
    try:
        return None if value is None else parse_quantity(value)
    except RequestInvalid:
        return None


def _visible_devices(env: object) -> str:
    """The first value of NVIDIA_VISIBLE_DEVICES that shows a card; empty if there is none, ``valueFrom`` if
    the value comes from another object.
    """
    for variable in env if isinstance(env, list | tuple) else ():
        if isinstance(variable, Mapping) and variable.get("name") == VISIBLE_ENV:
            if variable.get("valueFrom") is not None:
                return "valueFrom"
            value = variable.get("value")
            if isinstance(value, str) and value not in NO_VISIBLE_DEVICES:
                return value
    return ""


def _names_visible_devices(env: object) -> bool:
    return any(variable.get("name") == VISIBLE_ENV for variable in mappings(env))


def _wants_graphics(env: object) -> bool:
    """True if NVIDIA_DRIVER_CAPABILITIES requests graphics; False for any value that cannot be read."""
    values = [
        variable.get("value")
        for variable in (env if isinstance(env, list | tuple) else ())
        if isinstance(variable, Mapping) and variable.get("name") == CAPABILITIES_ENV
    ]
    words = values[-1].split(",") if values and isinstance(values[-1], str) else ()
    return any(word.strip() in _GRAPHICS for word in words)


def _mapping(value: object, where: str) -> Mapping[str, object]:
    return strict_mapping(value, where, "a map of fields: this is not a pod")


def _mappings(value: object, where: str) -> tuple[Mapping[str, object], ...]:
    entries = strict_list(value, where, "a list: this is not a pod")
    return tuple(_mapping(entry, f"{where}[{i}]") for i, entry in enumerate(entries))


def _text(value: object, where: str) -> str:
    if not _is_text(found := strict_text(value, where)):
        raise RequestInvalid(f"{where} is {quoted(value)}, not a text")
    return found


def _texts(value: object, what: str) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for key, entry in _mapping(value, f"metadata.{what}s").items():
        if not isinstance(key, str) or not _is_text(key):
            raise RequestInvalid(f"the {what} key {quoted(key)} is not a text")
        if entry is not None and (not isinstance(entry, str) or not _is_text(entry)):
            cure = f', write it in quotes: "{quoted(entry)}"' if isinstance(entry, int | float) else ""
            raise RequestInvalid(f"{what} {printable(key)} is {quoted(entry)}, not a text{cure}")
        texts[key] = entry or ""
    return texts


def _is_text(value: str) -> bool:
    """True unless the text has a lone surrogate, which UTF-8 (log, gRPC, file) cannot encode."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _priority(value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 31) <= value < 1 << 31:
        raise RequestInvalid(f"spec.priority is {quoted(value)}, not a 32-bit number")
    return value
