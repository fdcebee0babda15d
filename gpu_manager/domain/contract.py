"""Every string promised outside, and the JSON written under them; encode and decode stand side by side.

Nothing else in the tree spells a resource, annotation, label, environment variable or path of the
contract. Decoders treat their input as hostile: what they cannot read is absent, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.topology import Link, Topology

# Resources (spec: device plugin API; the names are the predecessor's).
CORE: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
CORE_SOCKET: Final = "vcore.sock"
MEMORY_SOCKET: Final = "vmemory.sock"

# Pod annotations, read.
CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
GPU_MODEL: Final = "tencent.com/gpu-model"
GPU_UUID: Final = "tencent.com/gpu-uuid"
PLACEMENT: Final = "tencent.com/placement"
PRELOAD: Final = "tencent.com/vcuda-preload"
# Pod annotations, written (guarded: only the two service accounts may set or change them).
ALLOCATION: Final = "tencent.com/vcuda-allocation"
PREDICATE_NODE: Final = "tencent.com/predicate-node"
PREDICATE_TIME: Final = "tencent.com/predicate-time"
PREDICATE_INDEX: Final = "tencent.com/predicate-gpu-idx-"
ASSIGNED: Final = "tencent.com/gpu-assigned"
# Annotations of the CRI container (the predecessor's).
CRI_CORE: Final = CORE
CRI_MEMORY: Final = MEMORY
CRI_DEVICE: Final = "tencent.com/vcuda-device"

# Node annotations and labels.
INVENTORY: Final = "tencent.com/vcuda-inventory"
CORDON: Final = "tencent.com/vcuda-cordon"
MODEL_LABEL: Final = "tencent.com/gpu-model"
MODEL_LABEL_GAIA: Final = "gaia.tencent.com/gpu-model"
POOL_LABEL: Final = "gaia.tencent.com/gpu-pool"

# In the container.
LIMITS_PATH: Final = "/etc/vcuda/limits"
USAGE_PATH: Final = "/etc/vcuda/usage"
LIBRARY_DIR: Final = "/usr/local/vcuda"
PRELOAD_PATH: Final = "/etc/ld.so.preload"
CARDS_ENV: Final = "VCUDA_CARDS"
VISIBLE_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
CDI_KIND: Final = "tencent.com/vcuda"

# On the host.
STATE_DIR: Final = "/var/lib/gpu-manager"
PAGES_DIR: Final = "/run/gpu-manager/pages"
KUBELET_DIR: Final = "/var/lib/kubelet"
HTTP_PORT: Final = 5678

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """Cards for each container of a pod, as an annotation carries them.

    ``directory`` names the container's control pages; only the copy in the kubelet's checkpoint has it.
    """

    node: str
    pod: str
    containers: Mapping[str, tuple[tuple[CardUuid, Amount], ...]]
    directory: str = ""


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
        },
        separators=(",", ":"),
    )


def decode_assignment(text: str | None) -> Assignment | None:
    """Read :data:`ALLOCATION`; None when absent, of another version or malformed."""
    data = _json_object(text)
    if data is None or data.get("v") != VERSION or not isinstance(data.get("containers"), dict):
        return None
    try:
        return Assignment(
            node=_text(data["node"]),
            pod=_text(data["pod"]),
            containers={
                _text(name): tuple(
                    (CardUuid(_text(s["uuid"])), Amount(_count(s["cores"]), _count(s["memory"]))) for s in shares
                )
                for name, shares in data["containers"].items()
            },
            directory=_text(data.get("dir", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node publishes of itself: cards with their state, how they are joined, the unit in bytes.

    ``refused`` lists shapes (cores, memory bytes) that the node refused in the last 30 s.
    """

    unit: int
    cards: tuple[CardState, ...]
    topology: Topology
    refused: tuple[Amount, ...] = ()


def encode_inventory(inventory: Inventory) -> str:
    """The value of :data:`INVENTORY`."""
    return json.dumps(
        {
            "v": VERSION,
            "unit": inventory.unit,
            "cards": [
                {
                    "i": s.card.index,
                    "uuid": s.card.uuid,
                    "model": s.card.model,
                    "memory": s.card.capacity(inventory.unit).memory if not s.card.mig else s.card.memory,
                    "numa": s.card.numa,
                    "healthy": s.healthy,
                    "cordoned": s.cordoned,
                    "mig": s.card.mig,
                }
                for s in inventory.cards
            ],
            "links": [[str(link) for link in row] for row in inventory.topology.links],
            "refused": [{"cores": a.cores, "memory": a.memory} for a in inventory.refused],
        },
        separators=(",", ":"),
    )


def decode_inventory(text: str | None) -> Inventory | None:
    """Read :data:`INVENTORY`; None when absent, of another version or malformed."""
    data = _json_object(text)
    if data is None or data.get("v") != VERSION:
        return None
    try:
        cards = tuple(
            CardState(
                card=Card(
                    index=_count(c["i"]),
                    uuid=CardUuid(_text(c["uuid"])),
                    model=_text(c["model"]),
                    memory=_count(c["memory"]),
                    numa=None if c.get("numa") is None else _count(c["numa"]),
                    mig=bool(c.get("mig", False)),
                ),
                healthy=bool(c.get("healthy", True)),
                cordoned=bool(c.get("cordoned", False)),
            )
            for c in data["cards"]
        )
        topology = Topology(tuple(tuple(Link.parse(_text(cell)) for cell in row) for row in data["links"]))
        if len(topology.links) != len(cards) or len({c.card.uuid for c in cards}) != len(cards):
            return None
        refused = tuple(Amount(_count(a["cores"]), _count(a["memory"])) for a in data.get("refused", ()))
        return Inventory(_count(data["unit"]) or 1, cards, topology, refused)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def decode_uuids(text: str | None) -> frozenset[CardUuid]:
    """A comma-separated list of card UUIDs (:data:`CORDON`, :data:`GPU_UUID`)."""
    return frozenset(CardUuid(part.strip()) for part in (text or "").split(",") if part.strip())


def encode_uuids(uuids: Sequence[CardUuid] | frozenset[CardUuid]) -> str:
    """The inverse of :func:`decode_uuids`, sorted."""
    return ",".join(sorted(uuids))


def _json_object(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value
