"""Which cards of the node another device plugin offers to pods too, by the ids that it registered; and which
pods another system has given a part of a card.

Sources of the forms of ids: NVIDIA's plugin names a card by UUID or, with ``deviceIDStrategy: index``, by
index, and a time-sliced replica by ``<id>::<n>``; HAMi, Volcano and gpushare append a suffix to the UUID;
KubeVirt's plugin names cards by PCI bus id; GKE's names them by their device node, and a time-shared or MIG
part of a card by ``<node>/<part>``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.untrusted import mapping, mappings, text

OTHER_PLUGIN: Final = (
    "another device plugin of this node"  # begins the reason of a card that is closed for it
)
_BY_INDEX: Final = "nvidia.com/"
_BY_NODE: Final = re.compile(r"nvidia([0-9]{1,3})(?:/.*)?", re.ASCII)
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}-", re.IGNORECASE)
_INDEX: Final = re.compile(r"[0-9]{1,3}(?:::[0-9]+)?$", re.ASCII)
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", re.IGNORECASE)
_SEPARATORS: Final = "-:_"
_SHARING: Final = "sharing"  # the part of the plugin's configuration that sets how often a card is given
# What another system writes to a pod that it has given a part of a card; a key with such a prefix counts.
_GIVEN: Final = {
    "runai-gpu-group": "KAI or Run:ai",
    "hami.io/vgpu-devices-allocated": "HAMi",
    "volcano.sh/vgpu-ids": "Volcano",
    "ALIYUN_COM_GPU_MEM_IDX": "gpushare",
}
_GPU_FRACTIONING: Final = re.compile(r"nvidia\.com/container\..+\.(?:gpus\.devices|gpu-memory\..+)")
_BUS_ID_LENGTH: Final = len("3b:00.0")


def offered_elsewhere(offers: Mapping[str, Collection[str]], cards: Sequence[Card]) -> dict[CardUuid, str]:
    """Card → the resource under which another plugin offers it. ``offers``: resource → device ids.

    A card is offered by an id that is its UUID, alone or with a suffix, or its PCI bus id; under a resource
    of NVIDIA also by its index, or by its number among the device nodes.
    """
    found: dict[CardUuid, str] = {}
    for resource, ids in sorted(offers.items()):
        for card in cards:
            if card.uuid not in found and any(_names(one, card, resource) for one in ids):
                found[card.uuid] = resource
    return found


def may_name_cards(resource: str, ids: Collection[str]) -> bool:
    """True if these ids are of a form that names NVIDIA's cards, whichever cards a node has."""
    ours = resource.startswith(_BY_INDEX)
    forms = (_UUID, *((_BY_NODE, _INDEX, _BUS_ID) if ours else ()))
    return any(form.match(device) for device in ids for form in forms)


def given_by(labels: Mapping[str, object], annotations: Mapping[str, object]) -> str:
    """The system that has given a pod a part of a card, by its labels or annotations; empty if there is
    none.
    """
    keys = [*labels, *annotations]
    if any(map(_GPU_FRACTIONING.fullmatch, keys)):
        return "gpu-fractioning"
    return next((who for begin, who in _GIVEN.items() for key in keys if key.startswith(begin)), "")


@dataclass(frozen=True, slots=True)
class SlicedCard:
    """A resource that NVIDIA's plugin offers ``replicas`` times per card, by time slicing or as clients of
    MPS.
    """

    name: str
    replicas: int
    mps: bool = False


def shared_cards(tree: object, read: Callable[[str], list[object]]) -> Iterator[SlicedCard]:
    """The shared resources in the configurations of NVIDIA's plugin in a document; ``read`` parses nested
    texts.
    """
    if isinstance(tree, str):
        tree = read(tree) if _SHARING in tree else []
    elif isinstance(tree, dict):
        yield from _shared(mapping(tree.get(_SHARING)))
        tree = list(tree.values())
    for entry in tree if isinstance(tree, list) else ():
        yield from shared_cards(entry, read)


def _shared(sharing: Mapping[str, Any]) -> Iterator[SlicedCard]:
    for way in ("timeSlicing", "mps"):
        said = mapping(sharing.get(way))
        for resource in mappings(said.get("resources")):
            name, count = text(resource.get("name")), str(resource.get("replicas"))
            full = (name if "/" in name else _BY_INDEX + name) + ".shared" * bool(said.get("renameByDefault"))
            if name and count.isdecimal() and 1 < int(count) <= CORES_PER_CARD:
                yield SlicedCard(text(resource.get("rename")) or full, int(count), mps=way == "mps")


def _names(device: str, card: Card, resource: str) -> bool:
    lowered, uuid = device.lower(), card.uuid.lower()
    if lowered.startswith(uuid) and lowered[len(uuid) : len(uuid) + 1] in ("", *_SEPARATORS):
        return True
    # "00000000:3B:00.0" and "0000:3b:00.0" are one address.
    if card.pci_bus_id and lowered.endswith(card.pci_bus_id.lower()[-_BUS_ID_LENGTH:]):
        return _domain(lowered) == _domain(card.pci_bus_id.lower())
    if not resource.startswith(_BY_INDEX):
        return False
    if node := _BY_NODE.fullmatch(device.partition("::")[0]):
        return card.minor == int(node[1])
    return device.partition("::")[0] == str(card.index)


def _domain(bus_id: str) -> int | None:
    try:
        return int(bus_id[: -_BUS_ID_LENGTH - 1], 16)
    except ValueError:
        return None
