"""The links between cards, from PCIe ancestry and NVLink, in the terms of ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpu_manager.adapters.nvml.errors import maybe
from gpu_manager.domain.topology import SELF, Link, LinkKind

# nvmlGpuTopologyLevel_t. INTERNAL is two chips on one board: nvidia-smi prints PIX for it too.
_LEVELS = {
    0: LinkKind.PIX,
    10: LinkKind.PIX,
    20: LinkKind.PXB,
    30: LinkKind.PHB,
    40: LinkKind.NODE,
    50: LinkKind.SYS,
}

_FAR = Link(LinkKind.SYS)
_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_SWITCH = -1


def bus_key(bus_id: str | bytes) -> str:
    """Return a PCI address, such as ``00000000:3B:00.0``, as sysfs spells it: ``0000:3b:00.0``."""
    text = (bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id).strip().lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest and _is_hex(domain) else text


def read_links(nvml: Any, handles: Sequence[Any | None], bus_ids: Sequence[str]) -> list[list[Link]]:
    """Return the matrix of links, ``X`` on the diagonal; NVLinks with the PCIe path beside them.

    A card that cannot be read counts as SYS to all others, the weakest link.
    """
    size = len(handles)
    cells = [[SELF if a == b else _FAR for b in range(size)] for a in range(size)]
    places = {bus_key(bus): i for i, bus in enumerate(bus_ids) if bus}
    ends = [_far_ends(nvml, handle, places) if handle is not None else Counter() for handle in handles]
    for a in range(size):
        for b in range(a + 1, size):
            direct = max(ends[a][b], ends[b][a])
            # Links to a switch reach every card on it: a pair has as many as the poorer of the two.
            links = direct + min(ends[a][_SWITCH], ends[b][_SWITCH])
            path = _pcie(nvml, handles[a], handles[b])
            cells[a][b] = cells[b][a] = Link(LinkKind.NVLINK, links, path) if links else Link(path)
    return cells


def _pcie(nvml: Any, a: Any | None, b: Any | None) -> LinkKind:
    if a is None or b is None:
        return LinkKind.SYS
    try:
        level = maybe(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, a, b)
    except nvml.NVMLError:
        level = None
    return _LEVELS.get(level, LinkKind.SYS)


def _far_ends(nvml: Any, handle: Any, places: dict[str, int]) -> Counter[int]:
    """Return the number of active NVLinks by their far end: a card's position, or :data:`_SWITCH`."""
    ends: Counter[int] = Counter()
    try:
        for link in range(_MAX_LINKS):
            if maybe(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) == nvml.NVML_FEATURE_ENABLED:
                end = _far_end(nvml, handle, link, places)
                if end is not None:
                    ends[end] += 1
    except nvml.NVMLError:
        return Counter()  # a card that breaks in the middle of the answer has no links that can be relied on
    return ends


def _far_end(nvml: Any, handle: Any, link: int, places: dict[str, int]) -> int | None:
    """Return where an NVLink ends: the index of a card, or _SWITCH; None if it cannot be told.

    Drivers before R460 do not report the kind of the remote device. There, an end that is no known card
    counts as a switch.
    """
    kind = maybe(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return _SWITCH
    pci = maybe(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    place = places.get(bus_key(pci.busId)) if pci is not None else None
    if place is not None:
        return place
    return _SWITCH if kind in (None, nvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN) and pci is not None else None


def _is_hex(text: str) -> bool:
    return bool(text) and all(c in "0123456789abcdef" for c in text)
