"""What real cards offer, for parts of a card whose size is given by its name or its nominal memory.

Total memory as ``nvidia-smi`` reports it, in MiB, with error correction where the card has it, less what the
driver keeps. A node's own figures are better: ``--like NODE``.
"""

from __future__ import annotations

import re
from typing import Final

from gpu_manager.cli.kubectl.login import Access
from gpu_manager.cli.kubectl.migrate.model import CardSize
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import GIB, MIB

_GB: Final = 10**9
# Model: (GB in its name, MiB that it has, MiB that the driver keeps).
_CARDS: Final = {
    "T4": (16, 15_360, 449),
    "P4": (8, 7_680, 200),
    "P100-PCIE-16GB": (16, 16_384, 250),
    "V100-SXM2-16GB": (16, 16_384, 256),
    "V100-SXM2-32GB": (32, 32_768, 256),
    "A2": (16, 15_356, 400),
    "A10": (24, 23_028, 500),
    "A16": (16, 15_356, 400),
    "A30": (24, 24_576, 512),
    "A40": (48, 46_068, 600),
    "A100-SXM4-40GB": (40, 40_960, 580),
    "A100-SXM4-80GB": (80, 81_920, 750),
    "A800-SXM4-80GB": (80, 81_920, 750),
    "L4": (24, 23_034, 500),
    "L20": (48, 46_068, 600),
    "L40": (48, 46_068, 600),
    "L40S": (48, 46_068, 600),
    "H20": (96, 97_871, 600),
    "H100-80GB-HBM3": (80, 81_559, 600),
    "H800": (80, 81_559, 600),
    "H200": (141, 143_771, 603),
    "GH200-480GB": (96, 97_871, 600),
    "B200": (180, 183_359, 1_000),
    "GeForce-RTX-3090": (24, 24_576, 350),
    "GeForce-RTX-4090": (24, 24_564, 350),
    "GeForce-RTX-5090": (32, 32_607, 400),
    "RTX-6000-Ada": (48, 49_140, 600),
}


def of_memory(size: int) -> CardSize:
    """Return the card of a nominal size, the one that offers least; of another size, exactly that."""
    same = [name for name, (gb, _, _) in _CARDS.items() if size in (gb * GIB, gb * _GB)]
    if not same:
        return CardSize(size, size, "--card-memory")
    least = min((of_model(name) for name in same), key=lambda card: card.offered)
    return CardSize(least.offered, max(size, least.nominal), f"{least.title}, the least of that size")


def of_model(words: str) -> CardSize:
    """Return the card whose model has all these words. Raises RequestInvalid if not one size has."""
    asked = set(_words(words))
    found = {name: one for name, one in _CARDS.items() if asked and asked <= set(_words(name))}
    sizes = {total - kept for _, total, kept in found.values()}
    if len(sizes) != 1:
        known = ", ".join(found or _CARDS)
        raise RequestInvalid(f"--card-model is {quoted(words)}: use one of {known}, or --like NODE")
    name, (gb, total, kept) = next(iter(found.items()))
    return CardSize((total - kept) * MIB, max(gb * GIB, total * MIB), name)


def of_node(name: str, access: Access) -> CardSize:
    """Return the smallest card of a node of the cluster, or of a profile. Raises RequestInvalid."""
    from gpu_manager.cli.kubectl import cluster_view, requested_pods  # noqa: PLC0415  # asks the API server

    view = cluster_view.read_view("", access)
    cards = [state.card for state in requested_pods.kind_of_node(name, view).cards if not state.card.mig]
    if not cards:
        raise RequestInvalid(f"--like is {quoted(name)}: the node publishes no card that can be shared")
    least = min(cards, key=lambda card: card.memory - card.reserved)
    return CardSize(least.memory - least.reserved, least.memory, f"{least.model} of {name}")


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("nvidia", "").replace("tesla", ""))
