"""The most that a ResourceClaim may take before anybody knows what it is allocated; for quotas.

None of us is asked when Kubernetes allocates a claim, so what counts is what it could be given: every request
of it, of alternatives the largest, with count or all cards of the largest node, and whole what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Final

from gpu_manager.domain.card import Card, CardState
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import MOST_RESULTS
from gpu_manager.domain.dra.claim import ClaimSpec, DeviceRequest
from gpu_manager.domain.dra.device import CORES, MEMORY
from gpu_manager.domain.dra.parameters import Configured, ShareTerms, terms_of
from gpu_manager.domain.dra.selectors import SOME_CARD, card_of_model, selected_card, takes
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount

Classes = Mapping[str, tuple[str, ...]]
"""Name of a DeviceClass → its selectors."""

ClassConfig = Mapping[str, tuple[Configured, ...]]
"""Name of a DeviceClass → its parameters for this driver."""

NO_CONFIG: Final[ClassConfig] = MappingProxyType({})

_LARGEST: Final = 1 << 60  # bytes: as much as no card has


@dataclass(frozen=True, slots=True)
class OfferedCard:
    """A card that claims may be allocated, its node and the pool of that node. ``room`` is all of it."""

    node: str
    pool: str
    card: Card
    room: Amount


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """What a claim may take of cards of one of ``models`` (none: of any), in nodes of ``pools``.

    ``protected``: the shares may be protected ones.
    """

    models: frozenset[str]
    amount: Amount
    pools: frozenset[str]
    protected: bool = False


class OfferedCards:
    """All cards that claims may be allocated: those which are given by claims. Immutable."""

    def __init__(self, nodes: Iterable[tuple[str, str, int, Sequence[CardState]]]) -> None:
        """``nodes``: name, pool, bytes of a unit of memory, and cards of each."""
        self._models: dict[str, list[OfferedCard]] = {}
        for node, pool, unit, states in nodes:
            for state in states:
                if state.held == DRA_DRIVER and not state.card.mig:
                    card = OfferedCard(node, pool, state.card, state.card.capacity(unit))
                    self._models.setdefault(state.card.model, []).append(card)

    def open_to(self, selectors: Sequence[str]) -> list[OfferedCard]:
        """Return the cards that the selectors take, or may take."""
        found: list[OfferedCard] = []
        for model, cards in self._models.items():
            verdict = takes(selectors, card_of_model(model))
            if verdict is None:
                found += (one for one in cards if takes(selectors, selected_card(one.card)) is not False)
            elif verdict:
                found += cards
        return found


def is_ours(request: DeviceRequest, classes: Classes) -> bool:
    """Return whether the request may be given a card of ours: by what its class selects, not by its name.

    A class that is not known yet may select anything.
    """
    return takes((*classes.get(request.device_class, ()), *request.selectors), SOME_CARD) is not False


def demands(
    spec: ClaimSpec, classes: Classes, cards: OfferedCards, unit: int, told: ClassConfig = NO_CONFIG
) -> tuple[ClaimDemand, ...]:
    """Return the most that the claim may take of our cards, for each of its requests that may be given any.

    Admin access books nothing. ``unit``: bytes of a unit of memory; ``told``: the parameters of classes.
    """
    return tuple(
        _largest(
            [
                replace(
                    _demand(one, classes, cards, unit),
                    protected=asked_priority(one, spec, told) is Priority.PROTECTED,
                )
                for one in ours
            ]
        )
        for alternatives in spec.requests
        if (ours := [one for one in alternatives if not one.is_admin and is_ours(one, classes)])
    )


def asked_priority(request: DeviceRequest, spec: ClaimSpec, told: ClassConfig = NO_CONFIG) -> Priority:
    """Return the priority that shares for the request, of a claim with this spec, would have."""
    try:
        return judged_terms(request, spec, told).priority
    except RequestInvalid:
        return Priority.NORMAL  # nothing of it is prepared


def judged_terms(request: DeviceRequest, spec: ClaimSpec, told: ClassConfig = NO_CONFIG) -> ShareTerms:
    """Return what the parameters of a claim, and of the class, say of a request or an alternative.

    Raises:
        RequestInvalid: they cannot hold for it.
    """
    asked = request.capacities.get(CORES)
    cores = CORES_PER_CARD if asked is None else _rounded(asked, 1, CORES_PER_CARD)
    return terms_of((*told.get(request.device_class, ()), *spec.config), request.name, cores)


def check_parameters(spec: ClaimSpec, classes: Classes, told: ClassConfig) -> None:
    """Judge the parameters of a claim for each request, and each alternative, that may be given a card here.

    Raises:
        RequestInvalid: they cannot be read, or cannot hold.
    """
    if spec.odd_config:
        raise RequestInvalid(spec.odd_config)
    for alternatives in spec.requests:
        for one in alternatives:
            if is_ours(one, classes) and not one.is_admin:
                judged_terms(one, spec, told)


def _demand(request: DeviceRequest, classes: Classes, cards: OfferedCards, unit: int) -> ClaimDemand:
    found = cards.open_to((*classes.get(request.device_class, ()), *request.selectors))
    each = _of_one_card(request, max((one.room.memory for one in found), default=0), unit)
    count = _most_of_a_node(found) if request.count is None else request.count
    count = min(count, MOST_RESULTS)
    return ClaimDemand(
        frozenset(one.card.model for one in found),
        Amount(each.cores * count, each.memory * count),
        frozenset(one.pool for one in found),
    )


def _of_one_card(request: DeviceRequest, largest: int, unit: int) -> Amount:
    """What Kubernetes takes of a card: a capacity that is left out whole, any other rounded up."""
    cores, memory = request.capacities.get(CORES), request.capacities.get(MEMORY)
    return Amount(
        CORES_PER_CARD if cores is None else _rounded(cores, 1, CORES_PER_CARD),
        largest if memory is None else _rounded(memory, unit, largest or _LARGEST),
    )


def _rounded(asked: Fraction, step: int, most: int) -> int:
    return min(max(ceil(asked / step), 1) * step, most)


def _most_of_a_node(cards: Iterable[OfferedCard]) -> int:
    nodes: dict[str, int] = {}
    for one in cards:
        nodes[one.node] = nodes.get(one.node, 0) + 1
    return max(nodes.values(), default=MOST_RESULTS)


def _largest(alternatives: Sequence[ClaimDemand]) -> ClaimDemand:
    amount = ZERO
    for one in alternatives:
        amount = amount.peak(one.amount)
    unknown = any(not one.models for one in alternatives)
    return ClaimDemand(
        frozenset() if unknown else frozenset(_each(one.models for one in alternatives)),
        amount,
        frozenset(_each(one.pools for one in alternatives)),
        any(one.protected for one in alternatives),
    )


def _each(sets: Iterable[frozenset[str]]) -> Iterator[str]:
    return (name for one in sets for name in one)
