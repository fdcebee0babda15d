"""Reads the ConfigMap of quotas. Its form stands in :mod:`gpu_manager.domain.cluster.quota`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Final

from gpu_manager.domain.cluster.quota import (
    LARGEST,
    NO_QUOTA,
    QUOTA_PLACE,
    ContainerMax,
    NamespaceQuota,
    Quota,
)
from gpu_manager.domain.contract import QUOTA_KEY
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, MIB
from gpu_manager.domain.untrusted import mapping

_LONGEST = 1 << 20  # characters; a ConfigMap holds 1 MiB
_BESIDE: Final = {"protected", "containerMax", "priority"}  # they limit nothing of what is held in all
_KEYS: Final = ("quota", "memory", "pool", "protected", "containerMax", "priority")
_PARTS: Final = ("cores", "memory")
_ALIKE: Final = 0.7  # of difflib's ratio


def read_quota(obj: Mapping[str, Any] | None, place: tuple[str, str] = QUOTA_PLACE) -> Quota:
    """Read the ConfigMap; without one, or with an empty one, no namespace is limited.

    ``place``: its namespace and name, for messages.

    Raises:
        NodeUnready: it has another form; the text names the place.
    """
    written = mapping((obj or {}).get("data")).get(QUOTA_KEY)
    try:
        return parse_quota(written) if isinstance(written, str) and written.strip() else NO_QUOTA
    except RequestInvalid as error:
        where = f"ConfigMap {'/'.join(place)}, key {QUOTA_KEY}"
        raise NodeUnready(f"the quota in {where}, cannot be used: {error}") from error


def parse_quota(text: str) -> Quota:
    """Read the value of the key. Raises RequestInvalid: it has another form."""
    try:
        read = json.JSONDecoder(parse_float=_fraction, object_pairs_hook=_once).decode
        data = read(text) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RequestInvalid("not a map of namespaces")
    entries = {namespace: _namespace(namespace, entry) for namespace, entry in data.items()}
    return Quota(
        # An entry with nothing but these leaves all else as "*" says.
        {
            name: replace(each, protected=None)
            for name, each in entries.items()
            if not data[name] or data[name].keys() - _BESIDE
        },
        {name: each.protected for name, each in entries.items() if each.protected is not None},
        largest={
            name: _container_max(entry["containerMax"], f"namespace {quoted(name)}: containerMax")
            for name, entry in data.items()
            if entry.get("containerMax") is not None
        },
        best_effort=frozenset(name for name, entry in data.items() if _is_best_effort(name, entry)),
    )


def _is_best_effort(namespace: str, entry: Mapping[str, Any]) -> bool:
    value = entry.get("priority")
    if value not in (None, Priority.BEST_EFFORT.value):
        text = f"namespace {quoted(namespace)}: priority is {quoted(value)}: use {Priority.BEST_EFFORT.value}"
        raise RequestInvalid(f'{text}, or leave it out; protected shares are granted under "protected"')
    return value is not None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated keys. JSON parsers keep the last of them, which would drop a limit."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RequestInvalid(f"{quoted(key)} is written twice in one map: make one of the two")
        found[key] = value
    return found


def _fraction(text: str) -> Fraction:
    """The number exactly; -1, which is refused later, for one that would fill memory (``1e999999999``)."""
    return Fraction(text) if len(text.lower().partition("e")[2]) <= 4 else Fraction(-1)


def _namespace(namespace: str, entry: object) -> NamespaceQuota:
    where = f"namespace {quoted(namespace)}"
    if not isinstance(entry, dict):
        raise RequestInvalid(f"{where} is {quoted(entry)}, not a map of quota, memory, pool and protected")
    for key in sorted(entry.keys() - set(_KEYS)):  # unknown keys are ignored, as by the predecessor
        if meant := get_close_matches(key.lower(), _KEYS, n=1, cutoff=_ALIKE):
            raise RequestInvalid(f"{where}: {quoted(key)} means nothing: did you mean {meant[0]}?")
    pools = entry.get("pool")
    if pools is not None and not (isinstance(pools, list) and all(isinstance(p, str) for p in pools)):
        raise RequestInvalid(f"{where}: pool is {quoted(pools)}, not a list of names")
    return NamespaceQuota(
        cores=_amounts(entry.get("quota"), f"{where}: quota", CORES_PER_CARD, "cards"),
        memory=_amounts(entry.get("memory"), f"{where}: memory", MIB, "MiB"),
        pools=tuple(pools or ()),
        protected=_amounts(entry.get("protected"), f"{where}: protected", CORES_PER_CARD, "cards"),
    )


def _container_max(value: object, where: str) -> ContainerMax:
    if not isinstance(value, dict):
        raise RequestInvalid(f"{where} is {quoted(value)}, not a map of cores and memory")
    if unknown := sorted(value.keys() - set(_PARTS)):
        raise RequestInvalid(f"{where}: {quoted(unknown[0])} means nothing: use cores and memory")
    cores, memory = (value.get(part) for part in _PARTS)
    return ContainerMax(
        None if cores is None else _amount(cores, f"{where}: cores", 1, "hundredths of a card"),
        None if memory is None else _amount(memory, f"{where}: memory", MIB, "MiB"),
    )


def _amounts(value: object, where: str, scale: int, unit: str) -> Mapping[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RequestInvalid(f"{where} is {quoted(value)}, not a map of models to {unit}")
    return {
        model: _amount(amount, f"{where} of {quoted(model)}", scale, unit) for model, amount in value.items()
    }


def _amount(value: object, where: str, scale: int, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise RequestInvalid(f"{where} is {quoted(value)}, not a number of {unit}")
    number = Fraction(value)
    scaled = number * scale
    if not Fraction(0) <= number <= Fraction(LARGEST) or scaled.denominator != 1:
        raise RequestInvalid(f"{where} is no count: use a number of {unit}, 0 or more, two decimals at most")
    return int(scaled)
