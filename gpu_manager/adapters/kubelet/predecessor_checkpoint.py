"""Reads ``gpumanager_internal_checkpoint``, the predecessor's books, for an upgrade in place.

JSON: ``PodGPUMapping``, pod UID → container → ``{"Devices": ["/dev/nvidia0"], "Cores": 30, "Memory": 1}``
(bytes). It has no version and no checksum and may contain pods that have ended, so it is only used for
containers that the kubelet or the API server shows too. It is read if the agent has no ledger yet, and never
written.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

import structlog

from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import LARGEST_COUNT, Amount
from gpu_manager.ports.kubelet import PredecessorPod

FILE_NAME: Final = "gpumanager_internal_checkpoint"
MAX_BYTES: Final = 16 << 20  # a container takes some 200 bytes
_MINOR: Final = re.compile(r"/dev/nvidia(\d{1,4})")

log = structlog.get_logger(__name__)


def read_old_checkpoint(directory: Path) -> tuple[PredecessorPod, ...]:
    """Return what the predecessor had granted to each container.

    A record, or a file, that cannot be read is skipped with a warning: the upgrade goes on.
    """
    path = directory / FILE_NAME
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
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
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
