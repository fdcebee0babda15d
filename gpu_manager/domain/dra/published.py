"""What a node publishes to DRA: its cards as devices, in the order in which the scheduler is to take them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_CORDONED, DRA_DRIVER, DRA_HELD, DRA_UNHEALTHY
from gpu_manager.domain.dra.claim import Taint
from gpu_manager.domain.dra.device import Attribute, SharedDevice, Version, capacities_of
from gpu_manager.domain.dra.sides import Side, Sides
from gpu_manager.domain.ids import prefixes
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import PlacementPolicy

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
    """Return the node's devices in published order; cards in MIG mode are left out.

    The scheduler takes the first device that fits, so the order is the placement policy: the fullest card in
    use first and idle ones last, or with ``spread`` the emptiest first. Cards that are closed come last, with
    a taint that says why.

    Args:
        states: all cards of the node.
        used: what is booked of each card.
        policy: the placement policy of the node.
        unit: bytes of one unit of memory.
        minimum_cores: the smallest part of a card that the cluster gives, in hundredths.
        versions: attribute → version of a driver, such as ``driverVersion`` → ``615.10.02``.
        sides: of a split node, the side of each card: those that are not given by claims are left out.
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
        if not state.card.mig
    )


def for_claims(sides: Sides | None, state: CardState) -> CardState | None:
    """Return the card as claims see it: what the node's split closes to pods is open to them. None for a card
    that is not on their side; a node without ``sides`` has one front for all its cards.
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
    """Return what is published of the card itself; versions of drivers are the node's."""
    known: dict[str, Attribute | None] = {
        "uuid": card.uuid[:LONGEST_STRING],
        "productName": card.model[:LONGEST_STRING],
        "index": card.index,
        "numa": card.numa,
        "resource.kubernetes.io/pciBusID": card.pci_bus_id[:LONGEST_STRING] or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _version(text: str) -> Version | None:
    """Return a driver's version as the three numbers that the API server takes; None if it has none."""
    found = _NUMBERS.match(text)
    if found is None:
        return None
    numbers = [int(number) for number in found[0].split(".")]
    return Version(".".join(str(number) for number in (*numbers, 0, 0)[:3]))


def _label(stem: str) -> str:
    return re.sub(r"[^0-9a-z]+", "-", stem.removeprefix("GPU-").lower()).strip("-")[:50]
