"""Where the ResourceClaims of a waiting pod would go: node by node, and card by card why not.

Each node is judged by the domain's model of kube-scheduler's allocator, over this service's accounting;
selectors that cannot be read here count as accepting a card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import Snapshot
from admission.explain.explanation import FITS, CardLine, NodeLine, nodes_words
from admission.extender.feasibility import Unfit
from gpu_manager.domain.card import CardState
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import AllocatedShare, allocate
from gpu_manager.domain.dra.claim import ClaimSpec, DeviceRequest
from gpu_manager.domain.dra.demand import ClassConfig, Classes, asked_priority
from gpu_manager.domain.dra.device import (
    CORES,
    LONGEST_STRING,
    MEMORY,
    CapacityRange,
    SharedDevice,
    published_devices,
)
from gpu_manager.domain.dra.selectors import card_of_model, selected_card, takes
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, printable
from gpu_manager.domain.placement.explain import LINE_LIMIT, explain_priority, neighbours, with_priority
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import ZERO, Amount, format_bytes, format_number
from gpu_manager.domain.rules.request import PlacementPolicy

_MOST_STEPS: Final = 2_000  # of the search on one node: a few hundredths of a second
_SHOWN: Final = 4  # claims, requests, holders in one line
_NOTHING_FREE: Final = "No part of an open card is free now"
_WORDS: Final = {
    FITS: "would take it",
    Unfit.ROOM.value: "without room now",
    Unfit.NEVER.value: "could not hold it even if empty",
    Unfit.NODE.value: "without cards for claims",
}
_ORDER: Final = {outcome: place for place, outcome in enumerate(_WORDS)}


@dataclass(frozen=True, slots=True)
class _Device:
    """A card as it is published, and what is booked of it."""

    device: SharedDevice
    state: CardState
    booked: Amount

    @property
    def consumed(self) -> Mapping[str, int]:
        """The booked amounts, as Kubernetes counts them."""
        return {CORES: self.booked.cores, MEMORY: self.booked.memory}


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What Kubernetes would find on a node; ``text`` is empty if its cards have the reasons."""

    view: NodeView
    outcome: str
    text: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        """Its position in the list."""
        return _ORDER[self.outcome], self.view.name


@dataclass(frozen=True, slots=True)
class WaitingClaims:
    """The waiting claims of one pod in ``namespace``; with ``everywhere``, holders in others are named too.

    Results for nodes and cards are cached in the object.
    """

    namespace: str
    claims: Sequence[KnownClaim]
    classes: Classes
    minimum_cores: int
    everywhere: bool
    class_config: ClassConfig
    _known_devices: dict[str, Mapping[str, _Device]] = field(default_factory=dict)
    _taken: dict[tuple[int, str], bool] = field(default_factory=dict)
    _models: dict[tuple[int, str], bool | None] = field(default_factory=dict)
    _empty: dict[Hashable, bool] = field(default_factory=dict)
    _ranks: dict[tuple[str, str], Priority] = field(default_factory=dict)  # by claim and request

    @property
    def _specs(self) -> list[ClaimSpec]:
        return [claim.spec for claim in self.claims if claim.spec is not None]

    def _requests(self) -> Iterator[tuple[str, DeviceRequest]]:
        for claim in self.claims:
            for alternatives in claim.spec.requests if claim.spec else ():
                yield from ((claim.name, one) for one in alternatives)

    def asks(self) -> str:
        """A phrase for each request."""
        return "; ".join(
            f"claim {printable(claim)}, request {printable(one.name)}: {asked_words(one, priority)}"
            for claim, one, priority in list(self._ranked())[:_SHOWN]
        )

    def _ranked(self) -> Iterator[tuple[str, DeviceRequest, Priority]]:
        """Each request and alternative with its claim and its priority."""
        for claim in self.claims:
            spec = claim.spec
            for alternatives in spec.requests if spec else ():
                for one in alternatives:
                    told = asked_priority(one, spec, self.class_config) if spec else Priority.NORMAL
                    yield claim.name, one, told

    def on(self, view: NodeView) -> NodeFinding:
        """What Kubernetes would find on the node."""
        cards = self._devices(view)
        if not cards:
            return NodeFinding(view, Unfit.NODE.value, view.problem or _no_cards(view))
        used = {one.device.name: one.consumed for one in cards.values()}
        try:
            found = self._allocated(cards, used)
            if found is None:
                unfit = Unfit.ROOM if self._fits_if_empty(cards) else Unfit.NEVER
                return NodeFinding(view, unfit.value)
        except (RequestInvalid, DoesNotFit) as error:
            return NodeFinding(view, Unfit.ROOM.value, str(error))
        given = ", ".join(
            ("a look at" if share.is_admin else f"{_consumed(share)} of")
            + f" card {cards[share.device].state.card.index}"
            for shares in found
            for share in shares
        )
        return NodeFinding(view, FITS, f"fits: {given}{self._worth(view, cards, found)}")

    def _worth(
        self, view: NodeView, cards: Mapping[str, _Device], found: Sequence[Sequence[AllocatedShare]]
    ) -> str:
        """Sentences on what priorities would be worth on these cards; empty where they change nothing."""
        if not self._ranks:
            self._ranks.update({(claim, one.name): rank for claim, one, rank in self._ranked()})
        if not view.ledger.prioritised and set(self._ranks.values()) <= {Priority.NORMAL}:
            return ""
        said = dict.fromkeys(
            explain_priority(
                self._ranks.get((claim.name, share.request), Priority.NORMAL),
                neighbours(view.ledger, claim.uid, {cards[share.device].state.card.uuid}),
                gates=view.node.gates,
            )
            for claim, shares in zip(self.claims, found, strict=True)
            for share in shares
        )
        return "".join(map(with_priority, said))

    def shown(self, found: NodeFinding) -> NodeLine:
        """The finding for people, card by card where the claims do not fit."""
        name, cards = printable(found.view.name), self._devices(found.view)
        if found.outcome == FITS or not cards:
            return NodeLine(name, found.outcome, found.text)
        lines = self._lines(found.view, cards)
        words = found.text or "; ".join(f"card {one.index}: {one.reason}" for one in lines)
        return NodeLine(name, found.outcome, words[:LINE_LIMIT], lines)

    def _fits_if_empty(self, cards: Mapping[str, _Device]) -> bool:
        """Whether the pod would fit if nothing were booked; nodes with cards of a kind are judged once."""
        if any(spec.constraints for spec in self._specs):
            return self._allocated(cards, {}) is not None
        requests = [one for _, one in self._requests()]
        kind = tuple(
            (
                tuple(one.device.capacities.items()),
                one.device.taints,
                tuple(self._takes(asked, one.state) for asked in requests),
            )
            for one in cards.values()
        )
        if kind not in self._empty:
            self._empty[kind] = self._allocated(cards, {}) is not None
        return self._empty[kind]

    def line(self, nodes: Sequence[NodeLine], counts: Counter[str], snapshot: Snapshot) -> str:
        """Why the pod waits, or where there is room now: one sentence over all nodes."""
        if not nodes:
            return "waits: the cluster has no node with cards"
        if counts[FITS]:
            first = next(one for one in nodes if one.outcome == FITS)
            where = f"{counts[FITS]} of {nodes_words(counts.total())}: on {first.node}"
            return f"there is room now on {where} it would get {first.line.removeprefix('fits: ')}"
        parts = ", ".join(f"{counts[word]} {_WORDS[word]}" for word in _WORDS if counts[word])
        return f"waits: {self.asks()}. Of {nodes_words(counts.total())}: {parts}. {self._largest(snapshot)}"

    def _largest(self, snapshot: Snapshot) -> str:
        """The largest part of one card that is free for one of the requests, and the rounding there is."""
        best, where = ZERO, ""
        for view in snapshot.nodes.values():
            for one in self._devices(view).values():
                free = view.ledger.free(one.state.card.uuid).peak(ZERO)
                open_to = any(self._takes(asked, one.state) for _, asked in self._requests())
                usable = not one.device.taints and open_to and free.cores and free.memory
                if usable and (free.cores, free.memory) > (best.cores, best.memory):
                    best, where = free, f"card {one.state.card.index} of {printable(view.name)}"
        rounded = [text for _, one in self._requests() if (text := rounding_words(one, snapshot.unit))]
        largest = f"The largest part that is free now: {best} on {where}" if where else _NOTHING_FREE
        return ". ".join([largest, *rounded[:_SHOWN]])

    def _devices(self, view: NodeView) -> Mapping[str, _Device]:
        """The cards that are given by claims, by device name in the order in which they are published."""
        if view.name not in self._known_devices:
            self._known_devices[view.name] = self._published(view)
        return self._known_devices[view.name]

    def _published(self, view: NodeView) -> Mapping[str, _Device]:
        states = {s.card.uuid: s for s in view.node.cards if s.held == DRA_DRIVER and not s.card.mig}
        used = {uuid: view.ledger.booked(uuid) for uuid in states}
        plain = [replace(state, held="") for state in states.values()]
        found = published_devices(plain, used, PlacementPolicy.BINPACK, view.node.unit, self.minimum_cores)
        by_uuid = {uuid[:LONGEST_STRING]: uuid for uuid in states}
        shown = ((device, by_uuid[str(device.attributes["uuid"])]) for device in found)
        return {device.name: _Device(device, states[uuid], used[uuid]) for device, uuid in shown}

    def _allocated(
        self, cards: Mapping[str, _Device], used: Mapping[str, Mapping[str, int]]
    ) -> tuple[tuple[AllocatedShare, ...], ...] | None:
        return allocate(
            [one.device for one in cards.values()],
            used,
            self._specs,
            MINOR,
            lambda request, device: self._takes(request, cards[device.name].state),
            _MOST_STEPS,
        )

    def _takes(self, request: DeviceRequest, state: CardState) -> bool:
        """Whether the selectors leave the card to it; where the model decides, cards are not judged one by
        one.
        """
        of_model = id(request), state.card.model
        if of_model not in self._models:
            self._models[of_model] = takes(self._selectors(request), card_of_model(state.card.model))
        if (known := self._models[of_model]) is not None:
            return known
        key = id(request), state.card.uuid
        if key not in self._taken:
            self._taken[key] = takes(self._selectors(request), selected_card(state.card)) is not False
        return self._taken[key]

    def _selectors(self, request: DeviceRequest) -> tuple[str, ...]:
        return *self.classes.get(request.device_class, ()), *request.selectors

    def _lines(self, view: NodeView, cards: Mapping[str, _Device]) -> tuple[CardLine, ...]:
        return tuple(
            CardLine(
                one.state.card.index,
                printable(one.state.card.uuid),
                view.ledger.free(one.state.card.uuid).peak(ZERO),
                self._reason(view, one.device, one.state),
            )
            for one in sorted(cards.values(), key=lambda one: one.state.card.index)
        )

    def _reason(self, view: NodeView, device: SharedDevice, state: CardState) -> str:
        if device.taints:
            why = ", ".join(taint.key.rpartition("/")[2] for taint in device.taints)
            return f"closed: {why}"
        free = view.ledger.free(state.card.uuid).peak(ZERO)
        if not any(self._takes(one, state) for _, one in self._requests()):
            return f"selectors leave it out ({free} free)"
        held = self._holders(view, state)
        return f"{free} free{f'; held by {held}' if held else ''}"

    def _holders(self, view: NodeView, state: CardState) -> str:
        names: list[str] = []
        others = 0
        for one in view.ledger.holders(state.card.uuid):
            if self.everywhere or one.namespace == self.namespace:
                amount = sum((s.amount for s in one.shares if s.card == state.card.uuid), ZERO)
                names.append(f"{printable(one.pod_key)} ({amount})")
            else:
                others += 1
        if len(names) > _SHOWN:
            names = [*names[:_SHOWN], f"{len(names) - _SHOWN} more"]
        if others:
            names.append("1 of another namespace" if others == 1 else f"{others} of other namespaces")
        return ", ".join(names)


def _no_cards(view: NodeView) -> str:
    if any(state.held == DRA_DRIVER and state.card.mig for state in view.node.cards):
        return "its cards are in MIG mode: their instances are not given by claims"
    return "its cards are not given by claims"


def _consumed(share: AllocatedShare) -> Amount:
    return Amount(share.consumed[CORES], share.consumed.get(MEMORY, 0))


MINOR: Final = 36
"""Of the Kubernetes 1 whose rounding is followed."""


def asked_words(request: DeviceRequest, priority: Priority = Priority.NORMAL) -> str:
    """A phrase for a request's amounts, and its priority unless that is normal."""
    return _amounts(request) + ("" if priority is Priority.NORMAL else f", {priority.value}")


def _amounts(request: DeviceRequest) -> str:
    if not request.is_admin:
        return _part(request)
    return f"admin access, for which Kubernetes wants as much free, and takes nothing: {_part(request)}"


def _part(request: DeviceRequest) -> str:
    cores, memory = request.capacities.get(CORES), request.capacities.get(MEMORY)
    parts = []
    if cores is not None:
        parts.append(f"{format_number(cores)} cores")
    if memory is not None:
        parts.append(format_bytes(int(memory)))
    if cores is not None and memory is None:
        parts.append("all the memory")
    if memory is not None and cores is None:
        parts.append("all the cores")
    what = ", ".join(parts)
    if request.count is None:
        return f"{what or 'all'} of every card" if what else "every card of a node, whole"
    cards = "one card" if request.count == 1 else f"each of {request.count} cards"
    return (
        f"{what} of {cards}"
        if what
        else ("one whole card" if request.count == 1 else f"{request.count} whole cards")
    )


def rounding_words(request: DeviceRequest, unit: int) -> str:
    """A phrase for what Kubernetes rounds an odd amount to; empty if it does not round."""
    steps = {CORES: CapacityRange(1, 1, 100), MEMORY: CapacityRange(unit, unit, unit << 40)}
    words = []
    for name, span in steps.items():
        asked = request.capacities.get(name)
        if asked is None:
            continue
        try:
            taken = span.consumed(asked, MINOR)
        except RequestInvalid as error:
            return str(error)
        if taken is not None and taken != asked:
            shown = format_bytes(taken) if name == MEMORY else f"{taken}"
            words.append(
                f"Kubernetes rounds {name} {format_number(asked)} of request {request.name} to {shown}"
            )
    return "; ".join(words)
