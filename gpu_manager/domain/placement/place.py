"""Placement of a pod on the cards of a node; agent, extender and command line share it.

A pod is placed as a whole, its containers in the kubelet's order. A fraction lies on one card; whole cards
are idle cards, charged with all their memory. Several whole cards are the best-linked set that
the kubelet admits (:func:`numa.admitted_set`); for the rest the pod's annotation ``tencent.com/placement``
picks one of
:data:`gpu_manager.domain.placement.policies.POLICIES`.

Of the cards with room for a fraction those are preferred on which protection holds
(:mod:`gpu_manager.domain.priority`): never at the price of room, nor under ``topology`` of links.

If these choices, one after the other, leave no room for a later container, an exact search decides: a pod of
at most :data:`SEARCHED` fractions is placed whenever that is possible.

**Ordinary init containers.** The kubelet passes the ids of an ordinary init container to the containers after
it, so these must use the same cards: all one card, or, if all request the same number of whole cards, each
the cards that the last init container left (a later one gets other cards once an app container or sidecar
keeps those). A sidecar that starts before the first such init container is not bound by this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import Bug, DoesNotFit, quoted
from gpu_manager.domain.placement.explain import Refusal, advise, advise_none, nearest_request, refuse
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.placement.numa import admitted_set, aligned, most_together
from gpu_manager.domain.placement.policies import POLICIES
from gpu_manager.domain.placement.trial_placement import LeastNeed, TrialPlacement, Unit, units_of
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PlacementPolicy, PodRequest, Request
from gpu_manager.domain.topology import NumaPolicy, Topology

SEARCHED = 6  # fractions of one pod; the exact search takes up to 3 ** SEARCHED steps a card, 15 ms in all

Placement = dict[str, tuple[Share, ...]]


def place(request: PodRequest, cards: Sequence[CardState], topology: Topology, ledger: Ledger) -> Placement:
    """Return the shares of each container by name. ``cards`` and ``topology`` use the same positions.

    Nothing is booked; the caller commits the result to the ledger.

    Raises:
        DoesNotFit: there is no room; the message says why, card by card, and what would fit.
    """
    verdict = judge(request, cards, topology, ledger)
    if isinstance(verdict, Refusal):
        raise DoesNotFit(verdict.line())
    return verdict


def judge(
    request: PodRequest, cards: Sequence[CardState], topology: Topology, ledger: Ledger
) -> Placement | Refusal:
    """Place a pod like :func:`place`, but return a refusal instead of raising it."""
    units = units_of(request)
    if units is None:
        views = TrialPlacement(request, cards, ledger).views()
        free = tuple((view, view.closed or f"{view.free} free") for view in views)
        return Refusal(_torn(request), free, "Change the pod")
    trial = TrialPlacement(request, cards, ledger)
    found = _solve(request, units, trial, topology, ledger)
    return (
        _refusal(request, units, trial, found, topology, ledger) if isinstance(found, Unit) else found.shares
    )


def find(
    request: PodRequest, cards: Sequence[CardState], topology: Topology, ledger: Ledger
) -> Placement | None:
    """Place a pod like :func:`place`, but return None if there is no room."""
    trial = PodPlacer(request).trial(cards, topology, ledger)
    return None if trial is None else trial.shares


class PodPlacer:
    """:func:`find` for one pod and thousands of nodes: computes what depends on the pod alone once."""

    def __init__(self, request: PodRequest) -> None:
        self._request = request
        self._units = units_of(request)
        self._least = LeastNeed.of(self._units or ())

    def trial(self, cards: Sequence[CardState], topology: Topology, ledger: Ledger) -> TrialPlacement | None:
        """The cards with the pod laid out on them; None if there is no room."""
        if self._units is None:
            return None
        trial = TrialPlacement(self._request, cards, ledger)
        if len(self._units) > 1 and trial.lacks(self._least):  # of one the cards are looked at just once
            return None
        found = _solve(self._request, self._units, trial, topology, ledger)
        return found if isinstance(found, TrialPlacement) else None


def _solve(
    request: PodRequest, units: Sequence[Unit], trial: TrialPlacement, topology: Topology, ledger: Ledger
) -> TrialPlacement | Unit:
    """``trial`` or another one with all units laid out, or the first unit for which ``trial`` has no room."""
    if topology.size != len(trial.cards):
        raise Bug(f"a topology of {topology.size} cards was given for {len(trial.cards)} cards")
    failed = _lay_out(trial, units, request.placement, topology)
    if failed is None:
        return trial
    if len(units) == 1:
        return failed
    second = TrialPlacement(request, trial.cards, ledger)
    seats = _search(second, units)
    if seats is None:
        return failed
    for unit, at in seats:
        second.put(unit, (at,))
    if _lay_out(second, [unit for unit in units if unit.cards], request.placement, topology) is not None:
        return failed  # idle cards are enough in number, but not on NUMA nodes that go together
    second.positions = {c.name: second.positions[c.name] for unit in units for c in unit.members}
    return second


def follow(
    request: PodRequest,
    assignment: Mapping[str, Sequence[tuple[CardUuid, Amount]]],
    cards: Sequence[CardState],
    ledger: Ledger,
) -> Placement:
    """Place a pod on the cards that the scheduler named; the amounts are the request's, not the named ones.

    A cordoned card is accepted: the pod was bound before.

    Raises:
        DoesNotFit: a named card does not fit; the message names container, card and reason.
    """
    units = units_of(request)
    if units is None:
        raise DoesNotFit(_torn(request))
    trial = TrialPlacement(request, [replace(state, cordoned=False) for state in cards], ledger)
    position = {state.card.uuid: at for at, state in enumerate(cards)}
    for unit in units:
        where = [_named(container, assignment, position) for container in unit.members]
        if any(set(other) != set(where[0]) for other in where):
            raise DoesNotFit(f"{_who(unit)}: the scheduler named different cards for them. {_INIT_RULE}")
        for at in where[0]:
            _check(trial, unit, at)
        for container, positions in zip(unit.members, where, strict=True):
            trial.put(Unit((container,), unit.cards), positions)
    return trial.shares


_INIT_RULE = (
    "The containers from the first ordinary init container on must lie on one card,"
    " or ask for the same number of whole cards"
)


def _torn(request: PodRequest) -> str:
    asks = ", ".join(f"{quoted(c.name)} {c.request}" for c in request.containers if c.request.cores)
    return f"the pod asks {asks}: this fits nowhere. {_INIT_RULE}"


def _who(unit: Unit) -> str:
    if not any(c.name for c in unit.members):  # Allocate says which ids, and not for whom
        return "a container whose name the kubelet has not told yet"
    names = ", ".join(quoted(c.name) for c in unit.members)
    return f"container {names}" if len(unit.members) == 1 else f"containers {names} together"


def _named(
    container: ContainerRequest,
    assignment: Mapping[str, Sequence[tuple[CardUuid, Amount]]],
    position: Mapping[CardUuid, int],
) -> list[int]:
    """Return the positions of the cards named for a container."""
    uuids = [uuid for uuid, _ in assignment.get(container.name, ())]
    wanted = container.request.cards or 1
    if len(uuids) != wanted or len(set(uuids)) != wanted:
        raise DoesNotFit(
            f"container {quoted(container.name)} asks for {container.request}:"
            f" the scheduler named {len(set(uuids))} cards, {wanted} expected"
        )
    for uuid in uuids:
        if uuid not in position:
            who = f"container {quoted(container.name)}"
            raise DoesNotFit(f"{who}: the scheduler named card {quoted(uuid)}, not on this node")
    return [position[uuid] for uuid in uuids]


def _check(trial: TrialPlacement, unit: Unit, at: int) -> None:
    card = trial.cards[at].card
    where = f"{_who(unit)}: the scheduler named card {card.index} ({card.uuid})"
    if trial.closed[at]:
        raise DoesNotFit(f"{where}: {trial.closed[at]}")
    if not trial.fits(at, unit.members):
        asked = "a whole card is" if unit.cards else f"{_ask(unit)}"
        raise DoesNotFit(f"{where}: {asked} asked, {trial.left(at)} free")


def _lay_out(
    trial: TrialPlacement, units: Sequence[Unit], policy: PlacementPolicy, topology: Topology
) -> Unit | None:
    """Lay the units out one after the other; the first that finds no cards is returned."""
    for parts, group in groupby(units, key=lambda unit: unit.need is not None):
        if (
            parts
            and not _aligns(topology)
            and policy is PlacementPolicy.BINPACK
            and trial.summed
            and trial.unprotected is None
        ):
            if (failed := trial.put_best_fit(list(group))) is not None:  # as binpack puts each, but at once
                return failed
            continue
        for unit in group:
            positions = _choose(trial, unit, policy, topology)
            if positions is None:
                return unit
            trial.put(unit, positions)
    return None


def _aligns(topology: Topology) -> bool:
    return topology.numa_policy is not NumaPolicy.NONE


def _choose(
    trial: TrialPlacement, unit: Unit, policy: PlacementPolicy, topology: Topology
) -> tuple[int, ...] | None:
    """Return cards where the kubelet's ids will be, if one has room there; else any."""
    if _aligns(topology):
        first = unit.members[0].request  # the ids of an init container go on to the others
        near = aligned(topology, trial.cards, trial.free_ids, first.cores, -(-first.memory // trial.unit))
        if near is not None:
            everywhere = trial.open
            trial.open = [at for at in everywhere if at in near]
            found = _choose_open(trial, unit, policy, topology)
            trial.open = everywhere
            if found is not None:
                return found
    return _choose_open(trial, unit, policy, topology)


def _choose_open(
    trial: TrialPlacement, unit: Unit, policy: PlacementPolicy, topology: Topology
) -> tuple[int, ...] | None:
    if unit.cards > 1:
        idle = frozenset(at for at in trial.open if trial.idle(at))
        return admitted_set(topology, trial.cards, idle, unit.cards)
    one = POLICIES[policy](trial, unit, topology)
    return None if one is None else (one,)


def _search(trial: TrialPlacement, units: Sequence[Unit]) -> list[tuple[Unit, int]] | None:
    """Place the fractions so that enough idle cards are left for the whole cards; None if impossible.

    Goes card by card over every set of unplaced units that fits, and keeps for each set placed so far the way
    that uses the fewest idle cards. Exact, since only the number of idle cards matters for whole cards.
    """
    parts = [unit for unit in units if unit.cards == 0]
    idle = sum(trial.idle(at) for at in trial.open)
    spare = idle - sum(unit.cards for unit in units)
    if not 0 < len(parts) <= SEARCHED or spare < 0:
        return None  # it is impossible, or too large
    if not all(any(trial.fits(at, unit.members) for at in trial.open) for unit in parts):
        return None
    everyone = (1 << len(parts)) - 1
    members = [
        tuple(c for i, unit in enumerate(parts) if taken >> i & 1 for c in unit.members)
        for taken in range(everyone + 1)
    ]
    ways: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {0: (0, ())}
    for at in trial.open:
        sets: list[int] = []
        for taken in range(1, everyone + 1):
            # What holds a set holds each set that lacks one of it.
            less = taken & (taken - 1)
            if (not less or less in sets) and trial.fits(at, members[taken]):
                sets.append(taken)
        cost = int(trial.idle(at))
        for seated, (spoiled, seats) in list(ways.items()):
            for taken in sets:
                if not seated & taken and spoiled + cost <= spare:
                    way = (spoiled + cost, (*seats, (taken, at)))
                    ways[seated | taken] = min(ways.get(seated | taken, way), way, key=lambda w: w[0])
    if everyone not in ways:
        return None
    seats = ways[everyone][1]
    return [(unit, at) for taken, at in seats for i, unit in enumerate(parts) if taken >> i & 1]


def _refusal(
    request: PodRequest,
    units: Sequence[Unit],
    trial: TrialPlacement,
    failed: Unit,
    topology: Topology,
    ledger: Ledger,
) -> Refusal:
    views = trial.views()
    nearest = _nearest(request, units, TrialPlacement(request, trial.cards, ledger), topology)
    found = None if nearest is None else find(nearest, trial.cards, topology, ledger)
    policy = topology.numa_policy.value if topology.numa_policy.strict else ""
    together = most_together(topology, trial.cards)
    refused = partial(
        refuse, _who(failed), _ask(failed), failed.cards, views, policy=policy, together=together
    )
    if nearest is None or found is None:
        return refused(advise_none(views))
    less = {c.name: c.request for c in nearest.containers if c not in request.containers}
    advice = advise(less, found, trial.cards)
    return refused(advice, nearest)


def _nearest(
    request: PodRequest, units: Sequence[Unit], trial: TrialPlacement, topology: Topology
) -> PodRequest | None:
    """Return a smaller request of the pod that fits: less for each container without room, in order."""
    for unit in units:
        if _lay_out(trial, [unit], request.placement, topology) is None:
            continue
        container = unit.members[0]
        less = nearest_request(container.request, trial.views(), trial.unit)
        if less is None or len(unit.members) > 1:
            return None
        while (
            less.cards > 1
            and _choose(trial, Unit(unit.members, less.cards), request.placement, topology) is None
        ):
            less = Request(less.cores - CORES_PER_CARD, 0)
        request = request.asking(container.name, less)
        _lay_out(trial, [Unit((replace(container, request=less),), less.cards)], request.placement, topology)
    return request


def _ask(unit: Unit) -> Amount:
    """Return the peak amount that a unit needs of one card; for a whole card without its memory."""
    card = CardUuid("")
    return peak(
        (
            Allocation(PodUid(""), c.name, c.kind, c.order, (Share(card, c.request.amount),))
            for c in unit.members
        ),
        card,
    )
