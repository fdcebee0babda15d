"""Reads ``kubelet_internal_checkpoint``: which device ids the kubelet has given to which container, by pod
UID.

The file is internal to the kubelet, has no version, and holds the resources of all plugins. Three layouts
are in use: ids by NUMA node under ``Data`` (since 1.20), a flat list under ``Data``, and the flat list
without ``Data`` (up to 1.10). Entries of other resources are not parsed.

Reads ``gpumanager_internal_checkpoint``, the predecessor's books, for an upgrade in place.

JSON: ``PodGPUMapping``, pod UID → container → ``{"Devices": ["/dev/nvidia0"], "Cores": 30, "Memory": 1}``
(bytes). It has no version and no checksum and may contain pods that have ended, so it is only used for
containers that the kubelet or the API server shows too. It is read if the agent has no ledger yet, and never
written.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import structlog
from google.protobuf.message import DecodeError

from gpu_manager.domain.contract import ALLOCATION, CRI_DEVICE
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import LARGEST_COUNT, Amount
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from gpu_manager.ports.records import CheckpointEntry, PredecessorPod

log = structlog.get_logger(__name__)

FILE_NAME: Final = "kubelet_internal_checkpoint"
MAX_BYTES: Final = 32 << 20  # 8 cards with 5,312 ids and 800 pods take about 4 MiB
_NODE: Final = re.compile(r"/dev/nvidia(\d{1,9})", re.ASCII)
_CDI: Final = "cdi.k8s.io/"  # annotations by which a runtime is told of CDI devices


def parse_checkpoint(text: bytes, resources: Collection[str]) -> tuple[CheckpointEntry, ...]:
    """Return the entries of ``resources``, in the file's order.

    Raises:
        ValueError: the text is incomplete, or an entry of these resources has no readable owner or ids. There
            is no partial answer: a missing entry would mean that a container holds nothing.
    """
    try:
        top = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(top, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # one kind of failure for the caller: not readable
    data = top.get("Data", top)
    if not isinstance(data, dict) or "PodDeviceEntries" not in data:
        raise ValueError("no PodDeviceEntries")
    rows = data["PodDeviceEntries"]
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise ValueError("PodDeviceEntries is no list")  # noqa: TRY004  # as above
    return tuple(_entry(row) for row in rows if isinstance(row, dict) and _resource(row) in resources)


def _resource(row: dict[str, Any]) -> str:
    name = row.get("ResourceName")
    return name if isinstance(name, str) else ""


def _entry(row: dict[str, Any]) -> CheckpointEntry:
    pod, container = row.get("PodUID"), row.get("ContainerName")
    if not isinstance(pod, str) or not isinstance(container, str) or not pod or not container:
        raise ValueError("an entry names no container")
    response = _response(row.get("AllocResp"))
    return CheckpointEntry(
        pod=PodUid(pod),
        container=container,
        resource=row["ResourceName"],
        ids=_ids(row.get("DeviceIDs")),
        annotation=response.annotations.get(ALLOCATION),
        nodes=_nodes(response),
    )


def _ids(value: object) -> frozenset[str]:
    groups = list(value.values()) if isinstance(value, dict) else [value]
    ids: set[str] = set()
    for group in groups:
        if group is None:
            continue
        if not isinstance(group, list) or not all(isinstance(one, str) for one in group):
            raise ValueError("an entry's DeviceIDs are no ids")
        ids.update(group)
    return frozenset(ids)


def _response(value: object) -> ContainerAllocateResponse:
    """Return the Allocate response that the kubelet stores; an empty one if it cannot be read."""
    if not isinstance(value, str):
        return ContainerAllocateResponse()
    try:
        return ContainerAllocateResponse.FromString(base64.b64decode(value, validate=True))
    except (DecodeError, binascii.Error, ValueError):
        return ContainerAllocateResponse()


def _nodes(response: ContainerAllocateResponse) -> frozenset[int]:
    """Return the minor numbers of the cards' device nodes, from the response or the CDI spec that it
    names.
    """
    paths = [device.container_path for device in response.devices]
    if any(key.startswith(_CDI) for key in response.annotations):
        paths += response.annotations.get(CRI_DEVICE, "").split(",")
    return frozenset(int(match[1]) for match in map(_NODE.fullmatch, paths) if match)


OLD_FILE_NAME: Final = "gpumanager_internal_checkpoint"
OLD_MAX_BYTES: Final = 16 << 20  # a container takes some 200 bytes
_MINOR: Final = re.compile(r"/dev/nvidia(\d{1,4})")


def read_old_checkpoint(directory: Path) -> tuple[PredecessorPod, ...]:
    """Return what the predecessor had granted to each container.

    A record, or a file, that cannot be read is skipped with a warning: the upgrade goes on.
    """
    path = directory / OLD_FILE_NAME
    try:
        data = json.loads(_read(path))
        pods = data["PodGPUMapping"] or {}
        rows = [(uid, name, row) for uid, held in pods.items() for name, row in held.items()]
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        log.warning("predecessor_checkpoint_ignored", path=str(path), reason=_reason(error))
        return ()
    found = []
    for uid, name, row in rows:
        try:
            found.append(_inherited(uid, name, row))
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "predecessor_checkpoint_record_ignored",
                pod=str(uid)[:64],
                container=str(name)[:64],
                reason=_reason(error),
            )
    return tuple(found)


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("no plain file")
        text = file.read(OLD_MAX_BYTES + 1)
    if len(text) > OLD_MAX_BYTES:
        raise ValueError(f"larger than {OLD_MAX_BYTES >> 20} MiB")
    return text


def _inherited(uid: str, container: str, row: dict[str, Any]) -> PredecessorPod:
    devices, cores, memory = row["Devices"], row["Cores"], row["Memory"]
    if not uid or not container or not uid.isprintable() or not container.isprintable():
        raise ValueError("it names no container")
    if not isinstance(devices, list) or not devices:
        raise ValueError("it names no device")
    minors = [_MINOR.fullmatch(device) for device in devices]
    if not all(minors):
        raise ValueError("a device is no /dev/nvidia<number>")
    if not _is_count(cores) or not _is_count(memory) or cores == 0:
        raise ValueError("Cores or Memory is no amount")
    numbers = tuple(int(match[1]) for match in minors if match)
    if len(set(numbers)) != len(numbers) or (len(numbers) > 1 and cores < 100 * len(numbers)):
        raise ValueError(f"{cores} cores do not lie on {len(numbers)} cards")
    return PredecessorPod(PodUid(uid), container, numbers, Amount(cores, memory))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
