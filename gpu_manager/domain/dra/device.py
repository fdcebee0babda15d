"""A card as the agent publishes it to DRA: a device of a ResourceSlice that several claims may share, and the
order in which the scheduler must take the devices.

A claim consumes of each capacity what Kubernetes' allocator rounds its request to. Source:
k8s.io/dynamic-resource-allocation/structured, v0.36.3 and v0.37.2; ``bench/dra.py`` compares with both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial
from math import ceil
from types import MappingProxyType
from typing import Any, Final

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_CORDONED, DRA_DRIVER, DRA_HELD, DRA_UNHEALTHY
from gpu_manager.domain.dra.claim import Taint
from gpu_manager.domain.dra.sides import Side, Sides
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.ids import prefixes
from gpu_manager.domain.resources import CORES_PER_CARD, LARGEST_COUNT, ZERO, Amount, format_number
from gpu_manager.domain.rules.request import PlacementPolicy

CORES: Final = "cores"
MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of three numbers, as Semantic Versioning 2.0.0 writes it: ``615.10.2``."""

    text: str


Attribute = str | int | Version


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A device that several claims may share. ``attributes`` have their published names: ``uuid`` is short
    for ``vcuda.tencent.com/uuid``.
    """

    name: str
    capacities: Mapping[str, CapacityRange]
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[Taint, ...] = ()

    def attribute(self, name: str) -> Attribute | None:
        """The attribute of a full name, such as ``vcuda.tencent.com/uuid``; None if there is none."""
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
    """What claims may take of a card: cores from the cluster's smallest fraction up, and units of memory.

    A card without memory of its own is given whole: it has no capacity of memory, and one claim takes all its
    cores. A capacity of 0 is never published: a claim that names none would be allocated nothing.
    """
    return _capacities(card.capacity(unit).memory, unit, CORES_PER_CARD if card.whole_only else minimum_cores)


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


FIRST_FRACTIONAL_MINOR: Final = 37
"""Kubernetes 1.37 rounds in thousandths (gate DRAFractionalCapacityRange)."""


@dataclass(frozen=True, slots=True)
class CapacityRange:
    """One capacity of a card in a ResourceSlice: whole numbers from ``minimum`` to ``value`` in steps.

    ``value`` is also the most that one claim may take, and the amount for a claim that does not name the
    capacity: the whole card. Cores are hundredths of a card, memory is bytes.
    """

    minimum: int
    step: int
    value: int

    def consumed(self, asked: Fraction | None, minor: int) -> int | None:
        """What a request consumes on Kubernetes 1.``minor``; None if no card of this size can give it.

        Kubernetes never refuses an odd value: it raises it to the minimum, or rounds it up to the next step.

        Raises:
            RequestInvalid: the value ends the whole scheduling attempt instead of skipping the card.
        """
        return self.value if asked is None else _rounded(self, asked, minor)


@lru_cache(maxsize=4096)  # the same few requests are computed for every card of a cluster
def _rounded(span: CapacityRange, asked: Fraction, minor: int) -> int | None:
    if asked < span.minimum:
        return span.minimum
    _check_countable(asked, span.step, minor)
    rounded = span.minimum + ceil((asked - span.minimum) / span.step) * span.step
    return rounded if rounded <= span.value else None


def _check_countable(asked: Fraction, step: int, minor: int) -> None:
    """Refuse an amount that the allocator of Kubernetes 1.``minor`` cannot count. Raises RequestInvalid.

    The allocator of 1.36 counts in int64 and lets an overflow pass: a request of 8Ei of memory consumes -8Ei
    of the card, and one of 1e20 consumes nothing. The allocator of 1.37 counts in thousandths, and ends the
    scheduling attempt if an amount exceeds that range.
    """
    if minor < FIRST_FRACTIONAL_MINOR:
        if asked > LARGEST_COUNT - step:
            raise RequestInvalid(
                f"{format_number(asked)} is more than Kubernetes 1.{minor} can count: "
                "its scheduler would allocate an amount that was not asked for"
            )
    elif (asked * 1000).denominator != 1 or asked * 1000 > LARGEST_COUNT:
        raise RequestInvalid(
            f"Kubernetes 1.{minor} cannot count {format_number(asked)} in thousandths: "
            "it gives up on the pod on every node"
        )


LONGEST_STRING: Final = 64  # of an attribute, by the API server
_NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,2}")


def device_names(cards: Sequence[Card]) -> dict[CardUuid, str]:
    """Return the device name of each card: ``gpu-`` and the start of its UUID, a DNS label.

    An index would name another card after one is replaced; the UUID does not.
    """
    return {uuid: f"gpu-{_label(stem)}" for uuid, stem in prefixes(card.uuid for card in cards).items()}


def published_devices(
    states: Sequence[CardState],
    used: Mapping[CardUuid, Amount],
    policy: PlacementPolicy,
    unit: int,
    minimum_cores: int,
    versions: Mapping[str, str] = MappingProxyType({}),
    sides: Sides | None = None,
) -> tuple[SharedDevice, ...]:
    """The node's devices in published order; cards in MIG mode and their instances are left out.

    The scheduler takes the first device that fits, so the order is the placement policy: the fullest card in
    use first and idle ones last, or with ``spread`` the emptiest first. Closed cards come last, with a taint
    that names the reason.

    Args:
        states: all cards of the node.
        used: what is booked of each card.
        policy: the placement policy of the node.
        unit: bytes of one unit of memory.
        minimum_cores: the smallest part of a card that the cluster gives, in hundredths.
        versions: attribute → version of a driver, such as ``driverVersion`` → ``615.10.02``.
        sides: on a node of mode ``split``, the owner of each card: only cards given by claims are published.
    """
    names = device_names([state.card for state in states])
    states = [state for state in map(partial(for_claims, sides), states) if state is not None]
    shown = {name: version for name, text in versions.items() if (version := _version(text))}
    ordered = sorted(states, key=lambda state: _rank(state, used.get(state.card.uuid, ZERO), policy, unit))
    return tuple(
        SharedDevice(
            name=names[state.card.uuid],
            capacities=capacities_of(state.card, unit, minimum_cores),
            attributes=attributes_of(state.card) | shown,
            taints=_taints(state),
        )
        for state in ordered
        if state.card.undivided
    )


def for_claims(sides: Sides | None, state: CardState) -> CardState | None:
    """The card as claims see it: a card closed to pods only because its owner is the DRA driver is open to
    claims. None for a card of the other owner; a node without ``sides`` has one owner for all its cards.
    """
    if sides is None:
        return state
    if sides.get(state.card.uuid) is not Side.DRA:
        return None
    return replace(state, held="") if state.held == DRA_DRIVER else state


def _rank(
    state: CardState, used: Amount, policy: PlacementPolicy, unit: int
) -> tuple[bool, bool, int, int, int]:
    room = state.card.capacity(unit) - used
    if policy is PlacementPolicy.SPREAD:
        return (not state.open, False, -room.cores, -room.memory, state.card.index)
    return (not state.open, used == ZERO, room.cores, room.memory, state.card.index)


def _taints(state: CardState) -> tuple[Taint, ...]:
    reasons = (
        (DRA_UNHEALTHY, not state.healthy or state.missing),
        (DRA_CORDONED, state.cordoned),
        (DRA_HELD, bool(state.held)),
    )
    return tuple(Taint(key, "NoSchedule") for key, applies in reasons if applies)


def attributes_of(card: Card) -> dict[str, Attribute]:
    """The published attributes of the card itself; driver versions are the node's."""
    known: dict[str, Attribute | None] = {
        "uuid": card.uuid[:LONGEST_STRING],
        "productName": card.model[:LONGEST_STRING],
        "index": card.index,
        "numa": card.numa,
        "resource.kubernetes.io/pciBusID": card.pci_bus_id[:LONGEST_STRING] or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _version(text: str) -> Version | None:
    """A driver's version as the three numbers that the API server accepts; None if it has none."""
    found = _NUMBERS.match(text)
    if found is None:
        return None
    numbers = [int(number) for number in found[0].split(".")]
    return Version(".".join(str(number) for number in (*numbers, 0, 0)[:3]))


def _label(stem: str) -> str:
    return re.sub(r"[^0-9a-z]+", "-", stem.removeprefix("GPU-").lower()).strip("-")[:50]
