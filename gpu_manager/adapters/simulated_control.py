"""The control file of simulated cards: what another program says of them at run time.

It is YAML::

    driver: ""                         # not empty: the driver cannot be asked, with this reason
    hangs: false                       # true: the driver does not answer, and whoever asks it waits
    cards:
      3:                               # an index or a UUID
        healthy: false
        reason: "XID 79: fallen off the bus"
        error: the card does not answer    # it is listed, unhealthy, and tells no figures
        xids: {31: 2}                  # how often the driver has reported each XID so far
        removed: true                  # gone from the list
        mig: true                      # MIG mode is on; else as in the profile
        instances: [[1g.18gb, 18432Mi, 9]]   # the layout of a card in MIG mode
        load:
        - {pid: 4711, memory: 5Gi, utilisation: 30}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_manager.adapters import profiles
from gpu_manager.adapters.profiles import InstanceKind
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.resources import parse_quantity

_LARGEST = 1 << 20  # bytes of a control file


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one process on a card: bytes, SM percent."""

    pid: int
    memory: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class CardOrder:
    """The desired state of a card; the default is a healthy idle card."""

    healthy: bool = True
    reason: str = ""
    error: str = ""
    removed: bool = False
    xids: Mapping[int, int] = field(default_factory=dict)
    load: tuple[Load, ...] = ()
    mig: bool | None = None  # None: as in the profile
    instances: tuple[InstanceKind, ...] | None = None  # as above

    @property
    def health(self) -> tuple[bool, str]:
        """Healthy, and why not."""
        if self.removed:
            return False, "the card was removed"
        if self.error:
            return False, self.error
        return self.healthy, "" if self.healthy else self.reason or "closed by order"


@dataclass(frozen=True, slots=True)
class DriverOrder:
    """The desired state of the driver: why it cannot be asked, empty if it can; whether it hangs."""

    error: str = ""
    hangs: bool = False


def parse_control(
    path: Path, cards: Mapping[CardUuid, Card]
) -> tuple[DriverOrder, dict[CardUuid, CardOrder]]:
    """The order for the driver, and for each card that the file names; the defaults if there is no file.

    Raises:
        RequestInvalid: it is malformed; the text names file, key and value.
    """
    if not path.exists():
        return DriverOrder(), {}
    data = _load_control(path)
    unknown = set(data) - {"driver", "hangs", "cards"}
    if unknown:
        raise RequestInvalid(f"{path}: unknown key {unknown.pop()!r}: it takes driver, hangs and cards")
    entries = data.get("cards") or {}
    if not isinstance(entries, dict):
        raise RequestInvalid(f"{path}: cards: {entries!r} is no mapping of cards")
    by_key = {str(c.index): uuid for uuid, c in cards.items()} | {str(uuid): uuid for uuid in cards}
    orders = {}
    for key, value in entries.items():
        if str(key) not in by_key:
            raise RequestInvalid(f"{path}: cards: there is no card {key!r}: give an index or a UUID")
        orders[by_key[str(key)]] = _parse_order(value, f"{path}: cards: {key}")
    return DriverOrder(str(data.get("driver") or ""), bool(data.get("hangs"))), orders


def write_control(
    path: Path, cards: Mapping[str, Mapping[str, Any]], driver: str = "", *, hangs: bool = False
) -> None:
    """Replace a control file atomically. ``cards``: index or UUID → healthy, reason, error, removed, xids,
    load.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    orders = {"driver": driver, "hangs": hangs, "cards": {k: dict(v) for k, v in cards.items()}}
    text = yaml.safe_dump(orders, sort_keys=False)
    try:
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    except OSError as error:
        raise NodeUnready(f"cannot write the control file {path}: {error.strerror}") from None


def read_control(path: Path) -> dict[str, dict[str, Any]]:
    """The cards of a control file as :func:`write_control` takes them; empty if there is none."""
    if not path.exists():
        return {}
    cards = _load_control(path).get("cards") or {}
    return {str(key): dict(value or {}) for key, value in cards.items()}


def _load_control(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = yaml.safe_load(file.read(_LARGEST))
    except OSError as error:
        raise RequestInvalid(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: dates, bad UTF-8
        raise RequestInvalid(f"{path} is no YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise RequestInvalid(f"{path}: {data!r} is no mapping: it takes driver, hangs and cards")
    return data


def _parse_order(value: object, where: str) -> CardOrder:
    fields = value if value is not None else {}
    if not isinstance(fields, dict):
        raise RequestInvalid(f"{where}: {value!r} is no mapping")
    kinds = {"healthy": bool, "reason": str, "error": str, "removed": bool, "xids": dict, "load": list}
    kinds |= {"instances": list, "mig": bool}
    for key, entry in fields.items():
        if key not in kinds:
            raise RequestInvalid(f"{where}: unknown key {key!r}: it takes {', '.join(kinds)}")
        if not isinstance(entry, kinds[key]):
            raise RequestInvalid(f"{where}: {key}: {entry!r} is no {kinds[key].__name__}")
    for number in (n for pair in fields.get("xids", {}).items() for n in pair):
        if type(number) is not int or number < 0:
            raise RequestInvalid(f"{where}: xids: {number!r} is no whole number: it takes XID: how often")
    load = tuple(_parse_load(entry, f"{where}: load") for entry in fields.get("load", ()))
    layout = fields.get("instances")
    instances = None if layout is None else profiles.parse_layout(layout, where, "instances")
    return CardOrder(**{**fields, "load": load, "instances": instances})


def _parse_load(value: object, where: str) -> Load:
    if not isinstance(value, dict) or not set(value) <= {"pid", "memory", "utilisation"}:
        raise RequestInvalid(
            f"{where}: {value!r} is not of the form {{pid: 1, memory: 5Gi, utilisation: 30}}"
        )
    pid, utilisation = value.get("pid"), value.get("utilisation")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        raise RequestInvalid(f"{where}: pid: {pid!r} is no process id")
    if utilisation is not None and (
        not isinstance(utilisation, int | float)
        or isinstance(utilisation, bool)
        or not 0 <= utilisation <= 100
    ):
        raise RequestInvalid(f"{where}: utilisation: {utilisation!r} is no percentage")
    try:
        memory = None if value.get("memory") is None else int(parse_quantity(value["memory"]))
    except RequestInvalid as error:
        raise RequestInvalid(f"{where}: memory: {error}") from None
    return Load(pid, memory, None if utilisation is None else float(utilisation))
