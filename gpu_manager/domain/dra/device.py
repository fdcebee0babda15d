"""A card as the agent publishes it to DRA: a device of a ResourceSlice that several claims may share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from gpu_manager.domain.card import Card
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.capacity import CapacityRange
from gpu_manager.domain.dra.claim import Taint
from gpu_manager.domain.resources import CORES_PER_CARD

CORES: Final = "cores"
MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of three numbers, as Semantic Versioning 2.0.0 writes it: ``615.10.2``."""

    text: str


Attribute = str | int | Version


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A device that several claims may share. ``attributes`` have their names as published: ``uuid`` is short
    for ``vcuda.tencent.com/uuid``.
    """

    name: str
    capacities: Mapping[str, CapacityRange]
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[Taint, ...] = ()

    def attribute(self, name: str) -> Attribute | None:
        """Return the attribute of a full name, such as ``vcuda.tencent.com/uuid``; None if there is none."""
        if name in self.attributes:
            return self.attributes[name]
        domain, _, short = name.partition("/")
        return self.attributes.get(short) if domain == DRA_DRIVER else None

    def as_json(self) -> dict[str, Any]:
        """Return the device as an entry of ``spec.devices`` of a ResourceSlice (resource.k8s.io/v1)."""
        shown: dict[str, Any] = {
            "name": self.name,
            "allowMultipleAllocations": True,
            "attributes": {name: _attribute_json(value) for name, value in self.attributes.items()},
            "capacity": {name: _capacity_json(one) for name, one in self.capacities.items()},
        }
        if self.taints:
            shown["taints"] = [
                {"key": taint.key, "effect": taint.effect} | ({"value": taint.value} if taint.value else {})
                for taint in self.taints
            ]
        return shown


def capacities_of(card: Card, unit: int, minimum_cores: int) -> Mapping[str, CapacityRange]:
    """Return what claims may take of a card: cores from the cluster's smallest fraction, and units of memory.

    A card without memory of its own is given whole: it has no capacity of memory, and one claim takes all its
    cores. A capacity of 0 is never published: a claim that names none would be allocated nothing.
    """
    return _capacities(card.capacity(unit).memory, unit, minimum_cores)


@lru_cache(maxsize=256)
def _capacities(memory: int, unit: int, minimum_cores: int) -> Mapping[str, CapacityRange]:
    smallest = minimum_cores if memory else CORES_PER_CARD
    cores = {CORES: CapacityRange(smallest, 1, CORES_PER_CARD)}
    return MappingProxyType(cores | ({MEMORY: CapacityRange(unit, unit, memory)} if memory else {}))


def _attribute_json(value: Attribute) -> dict[str, Any]:
    if isinstance(value, Version):
        return {"version": value.text}
    return {"int" if isinstance(value, int) else "string": value}


def _capacity_json(one: CapacityRange) -> dict[str, Any]:
    span = {"min": str(one.minimum), "max": str(one.value), "step": str(one.step)}
    return {"value": str(one.value), "requestPolicy": {"default": str(one.value), "validRange": span}}
