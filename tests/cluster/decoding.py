"""Reads the formats of agent, kubelet and library by code of the tests' own.

The auditor compares books with each other. Were they read by the product's decoders, a fault of a decoder would
read every book alike. So nothing here imports the product: the formats are those of docs/reference/annotations.md,
vcuda_page.h, the ledger's header line, and the kubelet's checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

Shares = frozenset[tuple[str, int, int]]  # card, cores, bytes

_LEDGER: Final = re.compile(rb"gpu-manager ledger v1 generation=(\d+) sha256=([0-9a-f]{64}) bytes=(\d+)\n")
_COPY: Final = 4096  # bytes of one of the two copies of a limits page
_HEADER: Final = struct.Struct(
    "<8sHHIQIHHI"
)  # magic, major, minor, crc, generation, size, header, card, count
_CARD: Final = struct.Struct(
    "<16sQ24xI36xII"
)  # UUID, memory limit, core limit x 256, mode, how a MIG instance is named: up to that field
_MEMORY_LIMITED, _CORES_LIMITED = 1, 2
_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reflected


@dataclass(frozen=True, slots=True)
class Written:
    """What an allocation annotation says."""

    node: str
    pod: str  # UID
    containers: Mapping[str, Shares]


def annotation(text: str | None) -> Written | None:
    """The value of ``tencent.com/vcuda-allocation``; None where there is none."""
    if text is None:
        return None
    found = json.loads(text)
    rows = {
        name: frozenset((share["uuid"], share["cores"], share["memory"]) for share in shares)
        for name, shares in found.get("containers", {}).items()
    }
    return Written(found.get("node", ""), found.get("pod", ""), rows)


def answered(text: str | None, uid: str) -> Mapping[str, tuple[int, int]]:
    """Container → cores and bytes, by the value of ``tencent.com/vcuda-resized`` on the pod of this UID."""
    found = json.loads(text) if text is not None else {}
    if found.get("pod") != uid:
        return {}
    return {name: (size["cores"], size["memory"]) for name, size in found["containers"].items()}


def ledger(directory: Path) -> bytes | None:
    """The newest state that lies there whole; None where there is none."""
    states: dict[int, bytes] = {}
    for name in ("ledger.a", "ledger.b"):
        try:
            content = (directory / name).read_bytes()
        except FileNotFoundError:
            continue
        if header := _LEDGER.match(content):
            state = content[header.end() : header.end() + int(header[3])]
            if hashlib.sha256(header[1] + b":" + state).hexdigest().encode() == header[2]:
                states[int(header[1])] = state
    return states[max(states)] if states else None


def checkpoint(text: bytes) -> Iterator[tuple[tuple[str, str, str], frozenset[str], str | None]]:
    """(pod UID, container, resource), its ids and the annotation in its response, of every plugin's entries."""
    for row in json.loads(text)["Data"]["PodDeviceEntries"] or ():
        ids = frozenset(device for devices in row["DeviceIDs"].values() for device in devices)
        answer = dict(_annotations(base64.b64decode(row["AllocResp"] or "")))
        key = row["PodUID"], row["ContainerName"], row["ResourceName"]
        yield key, ids, answer.get("tencent.com/vcuda-allocation")


def _annotations(message: bytes) -> Iterator[tuple[str, str]]:
    """Field 4 of a ContainerAllocateResponse: a map of strings."""
    for number, value in _fields(message):
        if number == 4:
            entry = dict(_fields(value))
            yield entry.get(1, b"").decode(), entry.get(2, b"").decode()


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message, which are all that this one has."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _varint(message, at)
        assert tag & 7 == 2, f"wire type {tag & 7} in a message of strings and messages"
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def limits(image: bytes) -> Shares:
    """The newest valid copy of a limits page: cards with cores and bytes, 0 where a limit is not in force.

    Raises:
        ValueError: neither copy is valid.
    """
    found: dict[int, Shares] = {}
    for start in (0, _COPY):
        copy = image[start : start + _COPY]
        magic, major, _, crc, generation, size, header, length, count = _HEADER.unpack_from(copy)
        if magic != b"VCUDALIM" or major != 1 or size > _COPY or crc != _crc(copy[:size]):
            continue
        rows = (_CARD.unpack_from(copy, header + at * length) for at in range(count))
        found[generation] = frozenset(
            (
                f"{'MIG' if instance else 'GPU'}-{uuid.UUID(bytes=card)}",
                (cores >> 8) if mode & _CORES_LIMITED else 0,
                size_ if mode & _MEMORY_LIMITED else 0,
            )
            for card, size_, cores, mode, instance in rows
        )
    if not found:
        raise ValueError("neither copy of the limits page is valid")
    return found[max(found)]


def _crc(text: bytes) -> int:
    """CRC-32C with the field that holds it taken as zero."""
    value = 0xFFFFFFFF
    for byte in text[:12] + bytes(4) + text[16:]:
        value = value >> 8 ^ _remainder((value ^ byte) & 0xFF)
    return value ^ 0xFFFFFFFF


@cache
def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


def holders(graph: Mapping[str, Any]) -> Mapping[tuple[str, str, str, str], tuple[int, int]]:
    """(namespace, pod, container, card) → cores and bytes, of a node as ``/graph`` and kubectl show one."""
    return {
        (one["namespace"], one["pod"], one["container"], card["uuid"]): (one["cores"], one["memory"])
        for card in graph["cards"]
        for one in card["holders"]
    }
