"""Names that other programs rely on, and the JSON stored under them, with encoders and decoders.

No other module spells a resource, annotation, label, environment variable or path of the contract.
Decoders treat their input as hostile: they return None for what they cannot read, and never raise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.errors import printable
from gpu_manager.domain.mig import MigInstance
from gpu_manager.domain.resources import LARGEST_COUNT, Amount
from gpu_manager.domain.topology import MAX_CARDS, Link, LinkKind, NumaPolicy, Topology

# Resources (spec: device plugin API; the names are the predecessor's).
CORE: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
CORE_SOCKET: Final = "vcore.sock"
MEMORY_SOCKET: Final = "vmemory.sock"
# Another vendor's name that the agent may serve too (docs/adr/0004): whole cards, the UUID is the id.
NVIDIA: Final = "nvidia.com/gpu"
NVIDIA_SOCKET: Final = "vnvidia.sock"
RESOURCES: Final = (CORE, MEMORY, NVIDIA)
CARRIERS: Final = (CORE, NVIDIA)  # their Allocate responses carry the cards; that of memory is empty

# Pod annotations, read.
CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
GPU_MODEL: Final = "tencent.com/gpu-model"
GPU_UUID: Final = "tencent.com/gpu-uuid"
PLACEMENT: Final = "tencent.com/placement"
PRELOAD: Final = "tencent.com/vcuda-preload"
PREEMPTION_DELAY: Final = "tencent.com/vcuda-preemption-delay"
PRIORITY: Final = "tencent.com/vcuda-priority"
CARDS: Final = "tencent.com/vcuda-cards"  # on how many cards a container lies in equal parts
RESIZE: Final = "tencent.com/vcuda-resize"
ADVICE: Final = "tencent.com/vcuda-advice"
ADVISED: Final = "tencent.com/vcuda-advised"  # when a container was last given the advised size
TEMPLATE_SIZE: Final = "tencent.com/vcuda-template-size"  # by /mutate if an owner requests another size
# Pod annotations, written (guarded: only the two service accounts may set or change them).
ALLOCATION: Final = "tencent.com/vcuda-allocation"
PREDICATE_NODE: Final = "tencent.com/predicate-node"
PREDICATE_TIME: Final = "tencent.com/predicate-time"
PREDICATE_INDEX: Final = "tencent.com/predicate-gpu-idx-"
ASSIGNED: Final = "tencent.com/gpu-assigned"
RESIZED: Final = "tencent.com/vcuda-resized"
EVICT: Final = "tencent.com/vcuda-evict"  # by the agent of the pod's node, for the evictor
GUARDED: Final = (ALLOCATION, PREDICATE_NODE, PREDICATE_TIME, ASSIGNED, RESIZED, EVICT)
# Written into a pending pod when its namespace's quota changes, so that schedulers requeue it.
QUOTA_SEEN: Final = "tencent.com/vcuda-quota-seen"
# Written into a pod whose claims are not prepared yet, so that the kubelet retries at once.
PREPARE_AGAIN: Final = "tencent.com/vcuda-prepare-again"
POD_ANNOTATIONS: Final = (
    CORE_LIMIT,
    GPU_MODEL,
    GPU_UUID,
    PLACEMENT,
    PRELOAD,
    PREEMPTION_DELAY,
    PRIORITY,
    CARDS,
    RESIZE,
    ADVICE,
    TEMPLATE_SIZE,
    ALLOCATION,
    PREDICATE_NODE,
    PREDICATE_TIME,
    ASSIGNED,
    RESIZED,
    EVICT,
    QUOTA_SEEN,
    PREPARE_AGAIN,
)
OUR_PREFIX: Final = "tencent.com/"
LONGEST_NAME: Final = 317  # characters of a qualified name of Kubernetes: prefix, slash, name
# Resources by which other systems share cards; this project does not count them.
FOREIGN_RESOURCES: Final = (
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/gpu.shared",
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-core.percentage",
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
)
# Annotations of the CRI container (the predecessor's).
CRI_CORE: Final = CORE
CRI_MEMORY: Final = MEMORY
CRI_DEVICE: Final = "tencent.com/vcuda-device"

# Node annotations and labels.
INVENTORY: Final = "tencent.com/vcuda-inventory"
CORDON: Final = "tencent.com/vcuda-cordon"
FORGET: Final = "tencent.com/vcuda-forget"
MODEL_LABEL: Final = "tencent.com/gpu-model"
MODEL_LABEL_GAIA: Final = "gaia.tencent.com/gpu-model"
POOL_LABEL: Final = "gaia.tencent.com/gpu-pool"
MULTI_CARD: Final = "multi-card"  # a feature of agents and of admission: equal parts of several cards
MULTI_CARD_RESIZE: Final = "multi-card-resize"  # and their sizes change
RELEASE_FEATURES: Final = frozenset({MULTI_CARD, MULTI_CARD_RESIZE})  # of this release
FEATURES: Final = "tencent.com/vcuda-features"  # annotation of admission's pods: what their release can do
# Label of the admission pod that is the leader, which a Service selects.
LEADER_LABEL: Final = "tencent.com/admission-leader"
# Annotation of the pod of a replica that begins to lead, so that its watch of pods shows how far it has come.
LEADER_SINCE: Final = "tencent.com/admission-leader-since"
# Lease of the admission service, and its annotation with admitted claims that the watch has not shown yet.
CLAIM_RECORD: Final = "gpu-quota-admission-claims"
ADMITTED_CLAIMS: Final = "tencent.com/admitted-claims"

# In the container.
LIMITS_PATH: Final = "/etc/vcuda/limits"
USAGE_PATH: Final = "/etc/vcuda/usage"
GATES_DIR: Final = "/etc/vcuda/gates"  # of a best-effort container: a file for each of its cards
LIBRARY_DIR: Final = "/usr/local/vcuda"
PRELOAD_PATH: Final = "/etc/ld.so.preload"
CARDS_ENV: Final = "VCUDA_CARDS"
VISIBLE_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
NO_VISIBLE_DEVICES: Final = ("", "void", "none")  # its values that give no card
# Read from the pod: the driver capabilities that a container requests, as NVIDIA's runtime defines them.
CAPABILITIES_ENV: Final = "NVIDIA_DRIVER_CAPABILITIES"
# Where Triton, and torch.compile through it, searches for the driver before it calls ldconfig.
TRITON_ENV: Final = "TRITON_LIBCUDA_PATH"
CDI_KIND: Final = "tencent.com/vcuda"
WHOLE_CARD: Final = "tencent.com/vcuda-card"  # of DeviceClass vcuda-card, by DRA: whole cards without a claim
DRA_DRIVER: Final = "vcuda.tencent.com"  # of ResourceSlices, and the domain of their attributes
# Taint of a node that has just joined; its agent removes it once pods can be given cards there.
# Label of pods that stand for cards of nodes that are to be added; its value is the kind of those cards.
PLACEHOLDER: Final = "tencent.com/vcuda-placeholder"
STARTUP_TAINT: Final = "tencent.com/vcuda-not-ready"
# Taints of devices that take no further claims.
DRA_UNHEALTHY: Final = "vcuda.tencent.com/unhealthy"
DRA_CORDONED: Final = "vcuda.tencent.com/cordoned"
DRA_HELD: Final = "vcuda.tencent.com/held"
# Below the kubelet's directory: where it discovers the driver, and the driver's own socket.
DRA_REGISTRY_SOCKET: Final = f"plugins_registry/{DRA_DRIVER}-reg.sock"
DRA_SOCKET: Final = f"plugins/{DRA_DRIVER}/dra.sock"
# Of a node that gives cards by claims: dra, or split. Of a namespace whose pods are converted: dra.
FRONT_LABEL: Final = f"{OUR_PREFIX}vcuda-front"
# Of a node, by its operator: true or false, before the agent's own setting.
MIG_LABEL: Final = f"{OUR_PREFIX}mig-instances"
# Of the ResourceClaimTemplates of such pods: a label, and when a pod last needed it, in seconds since 1970.
TURNED_LABEL: Final = f"{OUR_PREFIX}vcuda-turned"
TEMPLATE_NEEDED: Final = f"{OUR_PREFIX}vcuda-needed"

# Reasons of Events.
EVENT_ALLOCATED: Final = "VcudaAllocated"
EVENT_RESIZED: Final = "VcudaResized"
EVENT_RESIZE_WAITS: Final = "VcudaResizeWaits"
EVENT_RESIZE_REFUSED: Final = "VcudaResizeRefused"
EVENT_REFUSED: Final = "VcudaRefused"
EVENT_START_REFUSED: Final = "VcudaStartRefused"
EVENT_WITHOUT_DEVICES: Final = "VcudaStranded"
EVENT_EVADER: Final = "VcudaEvader"
EVENT_ACCOUNT_DIFFERS: Final = "VcudaAccountDiffers"
EVENT_EVICTED: Final = "VcudaEvicted"
EVENT_LIBRARY_MESSAGE: Final = "VcudaLibraryMessage"
EVENT_OTHER_PLUGIN: Final = "VcudaOtherPlugin"
EVENT_MIG_CHANGED: Final = "VcudaMigChanged"
EVENT_NOT_INJECTED: Final = "VcudaNotInjected"
EVENT_LEDGER_REBUILT: Final = "VcudaLedgerRebuilt"
EVENT_UNREADABLE: Final = "VcudaUnreadable"
EVENT_NOT_PLACED: Final = "GPUNotPlaced"
EVENT_BYPASSED: Final = "GPUBypassed"
EVENT_QUOTA_UNUSABLE: Final = "GPUQuotaUnusable"

# Objects of an installation with the chart's defaults.
NAMESPACE: Final = "kube-system"
QUOTA_MAP: Final = "gpuquota"  # ConfigMap with the namespaces' quotas (the predecessor's), and its key
QUOTA_KEY: Final = "gpu_quota"
AGENT_NAME: Final = "gpu-manager"  # service account and component of the agent
AGENT_DAEMONSET: Final = "gpu-manager-daemonset"
EVICTOR_NAME: Final = "gpu-manager-evictor"  # Deployment, service account and component
ADMISSION_NAME: Final = "gpu-quota-admission"  # Deployment, Service, service account and Lease
ADMISSION_SECRET: Final = "gpu-quota-admission-certs"  # noqa: S105  # a name

# On the host.
PODS_API_SOCKET: Final = "pods-api/pods-api.sock"  # below the kubelet's directory, from Kubernetes 1.37 on
KUBELET_SOCKET: Final = "kubelet.sock"  # of device plugins' registration, and of PodResources
CDI_DIR: Final = "/var/run/cdi"
STATE_DIR: Final = "/var/lib/gpu-manager"
PAGES_DIR: Final = "/run/gpu-manager/pages"
KUBELET_DIR: Final = "/var/lib/kubelet"
OLD_CHECKPOINT_DIR: Final = "/etc/gpu-manager/checkpoint"  # the predecessor's
HTTP_PORT: Final = 5678
# Header of a caller's token to the admission service: API servers remove Authorization when they proxy.
TOKEN_HEADER: Final = "X-Vcuda-Authorization"  # noqa: S105  # a header's name

VERSION: Final = 1
_LONGEST_REASON = 160  # characters of the reason why a card is closed
_LONGEST_WHY: Final = 400  # characters of a reason that stands once in an inventory or on a pod
_LONGEST_MARK = 8192  # characters of a mark, which is read every second
_LONGEST_JSON = 1 << 20  # characters; Kubernetes holds all annotations of an object under 256 KiB


@dataclass(frozen=True, slots=True)
class Assignment:
    """Cards for each container of a pod, as an annotation carries them.

    ``directory`` names the container's control pages; only the copy in the kubelet's checkpoint has it.
    ``numa_ids``: container → NUMA node → device ids of cores and of memory, of containers that hold ids
    of other NUMA nodes than those of their cards.
    """

    node: str
    pod: str
    containers: Mapping[str, tuple[tuple[CardUuid, Amount], ...]]
    directory: str = ""
    numa_ids: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)


def encode_assignment(assignment: Assignment) -> str:
    """The value of :data:`ALLOCATION` (memory in bytes)."""
    return json.dumps(
        {
            "v": VERSION,
            "node": assignment.node,
            "pod": assignment.pod,
            "containers": {
                name: [{"uuid": uuid, "cores": a.cores, "memory": a.memory} for uuid, a in shares]
                for name, shares in assignment.containers.items()
            },
            **({"dir": assignment.directory} if assignment.directory else {}),
            **({"numa": assignment.numa_ids} if assignment.numa_ids else {}),
        },
        separators=(",", ":"),
    )


def decode_assignment(text: str | None) -> Assignment | None:
    """Read :data:`ALLOCATION`; None when absent, of another version or malformed."""
    data = versioned_json(text)
    if data is None:
        return None
    try:
        return Assignment(
            node=_text(data["node"]),
            pod=_text(data["pod"]),
            containers={
                _text(name): tuple((_uuid(s["uuid"]), _amount(s)) for s in map(_map, _list(shares)))
                for name, shares in _map(data["containers"]).items()
            },
            directory=_text(data.get("dir", "")),
            numa_ids={
                _text(name): {int(node): _pair(counts) for node, counts in _map(nodes).items()}
                for name, nodes in _map(data.get("numa", {})).items()
            },
        )
    except (KeyError, TypeError, ValueError):
        return None


def _pair(counts: object) -> tuple[int, int]:
    cores, units = map(_count, _list(counts))
    return cores, units


@dataclass(frozen=True, slots=True)
class EvictionMark:
    """A node agent's request to evict a pod: its UID, the reason, and when that was last true (seconds since
    1970).
    """

    uid: str
    reason: str
    at: float


def encode_eviction_mark(mark: EvictionMark) -> str:
    """The value of :data:`EVICT`."""
    reason = printable(mark.reason)[:_LONGEST_WHY]
    return json.dumps(
        {"v": VERSION, "uid": mark.uid, "reason": reason, "at": int(mark.at)}, separators=(",", ":")
    )


def decode_eviction_mark(text: str | None) -> EvictionMark | None:
    """Read :data:`EVICT`; None when absent, of another version or malformed."""
    data = versioned_json(text, _LONGEST_MARK)
    if data is None:
        return None
    try:
        return EvictionMark(_text(data["uid"]), _text(data["reason"])[:_LONGEST_WHY], _count(data["at"]))
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class TerminatingShare:
    """The share of one card held by a pod that the API has deleted but whose processes still run.

    ``pod`` is its UID, so that a reader that still has the pod counts it once; empty for several pods.
    """

    pod: str
    card: CardUuid
    amount: Amount


@dataclass(frozen=True, slots=True)
class Inventory:
    """The inventory of a node: cards with their state, the links between them, the memory unit in bytes.

    ``refused`` lists amounts (cores, memory bytes) that the node refused in the last 30 s, ``lingering`` the
    shares of pods that the API no longer has or that cannot be read. ``released`` lists, for 120 s, the UIDs
    of pods that were deleted before they ended and that no longer hold anything; None if the agent does not
    publish it. ``serving`` is False while the node's agent starts or stops or its kubelet is away, and after
    the agent has left: the kubelet may then refuse a pod bound there. ``resizes``: the agent follows answers
    to resize requests, which agents of earlier releases ignore. ``gates``: it makes best-effort tenants wait
    for protected ones, which agents of earlier releases do not. ``stranded``: UIDs of pods with containers
    that cannot be started again, because the kubelet has no devices for them. ``no_injection``: why no
    container can be given a card now, empty if one can; ``injects_by``: the injection strategy, empty from
    agents of earlier releases. ``features``: what the agent can do that those cannot, such as
    :data:`MULTI_CARD`.
    """

    unit: int
    cards: tuple[CardState, ...]
    topology: Topology
    refused: tuple[Amount, ...] = ()
    lingering: tuple[TerminatingShare, ...] = ()
    serving: bool = True
    released: tuple[str, ...] | None = None
    resizes: bool = True
    gates: bool = True
    stranded: tuple[str, ...] = ()
    no_injection: str = ""
    injects_by: str = ""
    features: frozenset[str] = frozenset()


def encode_inventory(inventory: Inventory) -> str:
    """The value of :data:`INVENTORY`."""
    policy = inventory.topology.numa_policy
    return json.dumps(
        {
            "v": VERSION,
            "unit": inventory.unit,
            "cards": [
                {
                    "i": s.card.index,
                    "uuid": s.card.uuid,
                    "model": s.card.model,
                    "memory": s.card.memory if s.card.mig else s.card.capacity(inventory.unit).memory,
                    "numa": s.card.numa,
                    "healthy": s.healthy,
                    "cordoned": s.cordoned,
                    "mig": not s.card.undivided,  # what a release without instances leaves alone
                    **({"instance": asdict(s.card.instance)} if s.card.instance else {}),
                    **({"held": s.held} if s.held else {}),
                    **({"missing": True} if s.missing else {}),
                    **({"wholeOnly": s.card.whole_only[:_LONGEST_REASON]} if s.card.whole_only else {}),
                    **_outside(s.card, inventory.unit),
                    **({"why": s.reason[:_LONGEST_REASON]} if s.reason and not s.open else {}),
                }
                for s in inventory.cards
            ],
            "links": [[str(link) for link in row] for row in inventory.topology.links],
            **_paths(inventory.topology),
            **({"numaPolicy": policy.value} if policy is not NumaPolicy.NONE else {}),
            "refused": [{"cores": a.cores, "memory": a.memory} for a in inventory.refused],
            **({"lingering": [_left(one) for one in inventory.lingering]} if inventory.lingering else {}),
            **({} if inventory.serving else {"serving": False}),
            **({} if inventory.released is None else {"released": list(inventory.released)}),
            **({"resizes": True} if inventory.resizes else {}),
            **({"gates": True} if inventory.gates else {}),
            **({"features": sorted(inventory.features)} if inventory.features else {}),
            **({"stranded": list(inventory.stranded)} if inventory.stranded else {}),
            "injection": {
                "ok": not inventory.no_injection,
                **({"by": inventory.injects_by} if inventory.injects_by else {}),
                **({"why": inventory.no_injection[:_LONGEST_WHY]} if inventory.no_injection else {}),
            },
        },
        separators=(",", ":"),
    )


def decode_inventory(text: str | None) -> Inventory | None:
    """Read :data:`INVENTORY`; None when absent, of another version or malformed."""
    data = versioned_json(text)
    if data is None:
        return None
    try:
        if len(listed := _list(data["cards"])) > MAX_CARDS:
            return None
        cards = tuple(map(_card_state, map(_map, listed)))
        links = _links(_list(data["links"]), _list(data.get("paths", [])))
        unit, injection = _count(data["unit"]), _map(data.get("injection", {}))
        if unit == 0 or len(links) != len(cards) or len({c.card.uuid for c in cards}) != len(cards):
            return None
        return Inventory(
            unit=unit,
            cards=cards,
            topology=Topology(links, _numa_policy(data.get("numaPolicy"))),
            refused=tuple(_amount(_map(a)) for a in _list(data.get("refused", []))),
            lingering=tuple(
                left
                for left in (_lingering(_map(one)) for one in _list(data.get("lingering", [])))
                if any(state.card.uuid == left.card for state in cards)
            ),
            serving=_flag(data.get("serving", True)),
            released=tuple(map(_text, _list(data["released"]))) if "released" in data else None,
            resizes=_flag(data.get("resizes", False)),
            gates=_flag(data.get("gates", False)),
            features=frozenset(map(_text, _list(data.get("features", [])))),
            stranded=tuple(map(_text, _list(data.get("stranded", [])))),
            no_injection=_text(injection.get("why", "")),
            injects_by=_text(injection.get("by", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _paths(topology: Topology) -> dict[str, Any]:
    """The PCIe paths beside NVLinks, empty if there are none; nothing if none is known."""
    paths = [[link.path.value if link.path else "" for link in row] for row in topology.links]
    return {"paths": paths} if any(map(any, paths)) else {}


def _links(rows: list[Any], paths: list[Any]) -> tuple[tuple[Link, ...], ...]:
    links = [[Link.parse(_text(cell)) for cell in _list(row)] for row in rows]
    if paths:
        links = [
            [replace(link, path=LinkKind(path) if _text(path) else None) for link, path in pairs]
            for pairs in (
                zip(row, _list(beside), strict=True) for row, beside in zip(links, paths, strict=True)
            )
        ]
    return tuple(map(tuple, links))


def _numa_policy(value: object) -> NumaPolicy:
    """The kubelet's policy; an unknown one, of a newer agent, counts as none."""
    return next((policy for policy in NumaPolicy if policy.value == value), NumaPolicy.NONE)


def _left(one: TerminatingShare) -> dict[str, Any]:
    amount = {"cores": one.amount.cores, "memory": one.amount.memory}
    return {**({"pod": one.pod} if one.pod else {}), "uuid": one.card, **amount}


def _lingering(one: dict[str, Any]) -> TerminatingShare:
    return TerminatingShare(_text(one.get("pod", "")), _uuid(one["uuid"]), _amount(one))


def _outside(card: Card, unit: int) -> dict[str, int]:
    """Memory held by processes of no pod, if any; readers of earlier releases ignore it."""
    taken = card.size(unit).memory - card.capacity(unit).memory
    return {"outside": taken} if taken else {}


def _card_state(card: dict[str, Any]) -> CardState:
    outside = _count(card.get("outside", 0))
    place = _map(card["instance"]) if "instance" in card else None
    instance = place and MigInstance(_text(place["parent"]), _count(place["gi"]), _count(place["ci"]))
    return CardState(
        card=Card(
            index=_count(card["i"]),
            uuid=_uuid(card["uuid"]),
            model=_text(card["model"]),
            memory=_count(card["memory"]) + outside,
            numa=None if card.get("numa") is None else _count(card["numa"]),
            mig=_flag(card.get("mig", False)) and instance is None,
            whole_only=_text(card.get("wholeOnly", ""))[:_LONGEST_REASON],
            outside=outside,
            instance=instance or None,
        ),
        healthy=_flag(card.get("healthy", True)),
        cordoned=_flag(card.get("cordoned", False)),
        reason=_text(card.get("why", ""))[:_LONGEST_REASON],
        held=_text(card.get("held", "")),
        missing=_flag(card.get("missing", False)),
    )


def model_labels(cards: Sequence[CardState]) -> dict[str, str | None]:
    """The model as a label, under both names, if all cards are of one model; otherwise None, because a pod
    that selects a model must not land on another. No labels while no card was ever listed.
    """
    models = {s.card.model for s in cards if s.card.instance is None}
    if not models:
        return {}
    value = re.sub(r"[^A-Za-z0-9._-]+", "-", models.pop())[:63].strip("-_.") if len(models) == 1 else ""
    return dict.fromkeys((MODEL_LABEL, MODEL_LABEL_GAIA), value or None)


def decode_uuids(text: str | None) -> frozenset[CardUuid]:
    """Decode a comma-separated list of card UUIDs (:data:`CORDON`, :data:`FORGET`, :data:`GPU_UUID`)."""
    parts = (part.strip() for part in (text or "").split(","))
    return frozenset(CardUuid(part) for part in parts if part and part.isprintable())


def encode_uuids(uuids: Sequence[CardUuid] | frozenset[CardUuid]) -> str:
    """The inverse of :func:`decode_uuids`, sorted."""
    return ",".join(sorted(uuids))


def versioned_json(text: str | None, longest: int = _LONGEST_JSON) -> dict[str, Any] | None:
    """The JSON object of an annotation of at most ``longest`` characters; None unless its version is
    :data:`VERSION`.
    """
    if not text or len(text) > longest:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    version = data.get("v") if isinstance(data, dict) else None
    return data if type(version) is int and version == VERSION else None


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    """Return the text if it has no control characters or lone surrogates; TypeError otherwise."""
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(value)
    return value


def _uuid(value: object) -> CardUuid:
    if not value:
        raise TypeError(value)
    return CardUuid(_text(value))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _amount(value: dict[str, Any]) -> Amount:
    return Amount(_count(value["cores"]), _count(value["memory"]))


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_COUNT:
        raise ValueError
    return value
