"""The most that a ResourceClaim may take before it is allocated, for quotas; and which container uses it.

No hook is called when Kubernetes allocates a claim. So a claim counts with the most that it could be given:
each of its requests (the largest alternative) with its count or all cards of the largest node, and whole
cards if it names no amount.

A container's share of a claim is mounted at fixed paths. So a container may use at most one request of this
driver: a second one would hide the limits of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Any, Final

from gpu_manager.domain.card import Card, CardState
from gpu_manager.domain.contract import CORE, DRA_DRIVER
from gpu_manager.domain.dra.allocation import MOST_RESULTS
from gpu_manager.domain.dra.claim import ClaimSpec, DeviceRequest
from gpu_manager.domain.dra.device import CORES, MEMORY
from gpu_manager.domain.dra.parameters import Configured, ShareTerms, terms_of
from gpu_manager.domain.dra.selectors import SOME_CARD, card_of_model, selected_card, takes
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.untrusted import mapping, mappings, text

Classes = Mapping[str, tuple[str, ...]]
"""Name of a DeviceClass → its selectors."""

ClassConfig = Mapping[str, tuple[Configured, ...]]
"""Name of a DeviceClass → its parameters for this driver."""

NO_CONFIG: Final[ClassConfig] = MappingProxyType({})

_LARGEST: Final = 1 << 60  # bytes; no card has as many


@dataclass(frozen=True, slots=True)
class OfferedCard:
    """A card that claims may be allocated, with its node and the node's pool. ``room`` is all of the card."""

    node: str
    pool: str
    card: Card
    room: Amount


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """What a claim may take of cards of one of ``models`` (empty: of any), on nodes of ``pools``.

    ``protected``: the shares may be protected ones.
    """

    models: frozenset[str]
    amount: Amount
    pools: frozenset[str]
    protected: bool = False


class OfferedCards:
    """All cards that claims may be allocated: those whose owner is the DRA driver. Immutable."""

    def __init__(self, nodes: Iterable[tuple[str, str, int, Sequence[CardState]]]) -> None:
        """``nodes``: for each node its name, pool, bytes of a unit of memory, and cards."""
        self._models: dict[str, list[OfferedCard]] = {}
        for node, pool, unit, states in nodes:
            for state in states:
                if state.held == DRA_DRIVER and state.card.undivided:
                    card = OfferedCard(node, pool, state.card, state.card.capacity(unit))
                    self._models.setdefault(state.card.model, []).append(card)

    def open_to(self, selectors: Sequence[str]) -> list[OfferedCard]:
        """The cards that the selectors accept, or may accept."""
        found: list[OfferedCard] = []
        for model, cards in self._models.items():
            verdict = takes(selectors, card_of_model(model))
            if verdict is None:
                found += (one for one in cards if takes(selectors, selected_card(one.card)) is not False)
            elif verdict:
                found += cards
        return found


def is_ours(request: DeviceRequest, classes: Classes) -> bool:
    """True if the request may be given a card of this driver, judged by its class's selectors, not its name.

    A class that is not known yet may select anything.
    """
    return takes((*classes.get(request.device_class, ()), *request.selectors), SOME_CARD) is not False


def demands(
    spec: ClaimSpec, classes: Classes, cards: OfferedCards, unit: int, told: ClassConfig = NO_CONFIG
) -> tuple[ClaimDemand, ...]:
    """The most that the claim may take of this driver's cards, for each request that may be given any.

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
    """The priority that shares for this request, of a claim with this spec, would have."""
    try:
        return judged_terms(request, spec, told).priority
    except RequestInvalid:
        return Priority.NORMAL  # nothing of it is prepared


def judged_terms(request: DeviceRequest, spec: ClaimSpec, told: ClassConfig = NO_CONFIG) -> ShareTerms:
    """The terms for a request or an alternative, from the parameters of the claim and the class.

    Raises:
        RequestInvalid: the parameters are illegal for it.
    """
    asked = request.capacities.get(CORES)
    cores = CORES_PER_CARD if asked is None else _rounded(asked, 1, CORES_PER_CARD)
    return terms_of((*told.get(request.device_class, ()), *spec.config), request.name, cores)


def check_parameters(spec: ClaimSpec, classes: Classes, told: ClassConfig) -> None:
    """Judge the parameters of a claim for each request, and each alternative, that may be given a card here.

    Raises:
        RequestInvalid: the parameters cannot be read, or are illegal.
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
    """What Kubernetes takes of a card: an omitted capacity whole, any other rounded up."""
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


UsedRequest = tuple[str, str]
"""Entry of ``spec.resourceClaims`` and the name of a request in its claim."""


def requests_of_containers(
    pod: Mapping[str, Any], spec_of: Callable[[Mapping[str, Any]], ClaimSpec | None], classes: Classes
) -> Mapping[str, tuple[UsedRequest, ...]]:
    """This driver's requests that each container uses, by container, init containers first.

    ``spec_of``: the spec of the claim or template that an entry of ``spec.resourceClaims`` names; None if it
    is not known. A container that names a claim without a request uses all of them.
    """
    spec = mapping(pod.get("spec"))
    known = {
        text(entry.get("name")): _ours(found, classes)
        for entry in mappings(spec.get("resourceClaims"))
        if (found := spec_of(entry)) is not None
    }
    containers = (*mappings(spec.get("initContainers")), *mappings(spec.get("containers")))
    return {
        text(container.get("name")): tuple(dict.fromkeys(_used(container, known))) for container in containers
    }


def _ours(spec: ClaimSpec, classes: Classes) -> tuple[str, ...]:
    """Names of requests that get a card of this driver, or admin access to one, by one of their
    alternatives.
    """
    return tuple(
        alternatives[0].name.partition("/")[0]
        for alternatives in spec.requests
        if any(_names_us(one, classes) for one in alternatives)
    )


def _names_us(request: DeviceRequest, classes: Classes) -> bool:
    """True if the request, or its class, names this driver; False if it only might."""
    selectors = (*classes.get(request.device_class, ()), *request.selectors)
    return any(DRA_DRIVER in one for one in selectors) and is_ours(request, classes)


def _used(container: Mapping[str, Any], known: Mapping[str, tuple[str, ...]]) -> Iterator[UsedRequest]:
    for one in mappings(mapping(container.get("resources")).get("claims")):
        entry, named = text(one.get("name")), text(one.get("request"))
        yield from ((entry, request) for request in known.get(entry, ()) if named in {"", request})


def double_uses(used: Mapping[str, tuple[UsedRequest, ...]], parts: Collection[str]) -> list[tuple[str, str]]:
    """Each container that uses several requests of this driver, or one beside a part of a card in its limits
    (``parts``), and a text that names them.
    """
    return [
        (
            container,
            f"{_named(requests)} and {CORE} in its limits" if container in parts else _named(requests),
        )
        for container, requests in used.items()
        if len(requests) > 1 or (requests and container in parts)
    ]


def shared_uses(used: Mapping[str, tuple[UsedRequest, ...]]) -> list[str]:
    """A text for each request of this driver that several containers use."""
    users: dict[UsedRequest, list[str]] = {}
    for container, requests in used.items():
        for one in requests:
            users.setdefault(one, []).append(container)
    return [
        f"containers {', '.join(map(quoted, containers))} share {_named((one,))}"
        for one, containers in users.items()
        if len(containers) > 1
    ]


def _named(requests: tuple[UsedRequest, ...]) -> str:
    return ", ".join(f"request {quoted(request)} of claim {quoted(entry)}" for entry, request in requests)
