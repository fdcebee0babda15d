"""The kubelet's device checkpoint, written and read in its present format (since 1.20)."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse

WITHOUT_NODE = -1


@dataclass(frozen=True, slots=True)
class CheckpointGrant:
    """What a container holds of one resource: its ids with their NUMA nodes, and the plugin's answer.

    ``row`` is its entry in the file, made once: the file is written whole for every container.
    """

    pod: str
    container: str
    resource: str
    ids: Mapping[str, tuple[int, ...]]
    response: ContainerAllocateResponse
    row: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row", json.dumps(_row(self), separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class Saved:
    """The file's content. Of the registered resources only the names count when it is read back."""

    grants: tuple[CheckpointGrant, ...] = ()
    registered: Mapping[str, Sequence[str]] | None = None


def write(path: Path, saved: Saved) -> None:
    """Replace the file atomically, as the kubelet does."""
    rows = ",".join(grant.row for grant in saved.grants)
    registered = {name: sorted(ids) for name, ids in (saved.registered or {}).items()}
    text = (
        f'{{"PodDeviceEntries":{f"[{rows}]" if rows else "null"},'
        f'"RegisteredDevices":{json.dumps(registered, separators=(",", ":"))}}}'
    )
    # The kubelet's sum is one over its own memory layout, which nobody else can make or check.
    whole = f'{{"Data":{text},"Checksum":{zlib.crc32(text.encode())}}}'
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(whole)
    fresh.replace(path)


def read(path: Path) -> Saved:
    """Read the file back; what is absent or torn is empty, with which the kubelet starts as well."""
    try:
        data = json.loads(path.read_bytes())["Data"]
        grants = tuple(_grant(row) for row in data["PodDeviceEntries"] or ())
        return Saved(grants, {str(name): list(ids or ()) for name, ids in data["RegisteredDevices"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DecodeError):
        return Saved()


def _row(grant: CheckpointGrant) -> dict[str, Any]:
    nodes: dict[int, list[str]] = {}
    for one, places in sorted(grant.ids.items()):
        for node in places or (WITHOUT_NODE,):
            nodes.setdefault(node, []).append(one)
    return {
        "PodUID": grant.pod,
        "ContainerName": grant.container,
        "ResourceName": grant.resource,
        "DeviceIDs": {str(node): ids for node, ids in sorted(nodes.items())},
        "AllocResp": base64.b64encode(grant.response.SerializeToString(deterministic=True)).decode(),
    }


def _grant(row: Mapping[str, Any]) -> CheckpointGrant:
    ids: dict[str, tuple[int, ...]] = {}
    for node, some in row["DeviceIDs"].items():
        for one in some:
            ids[one] = (*ids.get(one, ()), *(() if int(node) == WITHOUT_NODE else (int(node),)))
    response = ContainerAllocateResponse.FromString(base64.b64decode(row["AllocResp"]))
    return CheckpointGrant(row["PodUID"], row["ContainerName"], row["ResourceName"], ids, response)
