"""Placement of a pod on the cards of a node; agent, extender and command line share it.

:meth:`TrialPlacement.room` decides whether a card has room, in cores and in memory;
:mod:`gpu_manager.domain.placement.explain` writes the reason if it has none.

A pod is placed as a whole, its containers in the kubelet's order. A fraction lies on one card, or in equal
parts on several different ones (:func:`several_cards`); whole cards are idle cards, charged with all their
memory. Several whole cards are the best-linked set that the kubelet admits (:func:`numa.admitted_set`); for
everything else the pod's annotation ``tencent.com/placement`` picks one of :data:`POLICIES`.

Among the cards with room for a fraction, those on which protection holds are preferred
(:mod:`gpu_manager.domain.priority`): never at the price of room, nor under ``topology`` of links.

If these choices, one after the other, leave no room for a later container, an exact search decides: a pod of
at most :data:`SEARCHED` fractions is placed whenever that is possible. Parts of several cards are laid out
before that search, by their policy.

**Ordinary init containers.** The kubelet passes the ids of an ordinary init container to the containers after
it, so these must use the same cards: all one card, or, if all request the same number of whole cards, each
the cards that the last init container left (a later one gets other cards once an app container or sidecar
keeps those). A sidecar that starts before the first such init container is not bound by this.

**Policies** are one function each, and a table that names them. A policy chooses the card of a container that
requests part of one card or one whole card. Among the cards with room for a fraction, ``binpack`` and
``spread`` consider only those that suit its priority best. Under every policy
:func:`gpu_manager.domain.placement.card_sets.best_set` chooses several whole cards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Final

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import Bug, DoesNotFit, quoted
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.card_sets import (
    admitted_set,
    aligned,
    fragment,
    most_together,
    several_cards,
)
from gpu_manager.domain.placement.explain import Refusal, advise, advise_none, nearest_request, refuse
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.placement.trial_placement import ContainerGroup, LeastNeed, TrialPlacement, groups_of
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PlacementPolicy, PodRequest, Request
from gpu_manager.domain.topology import NumaPolicy, Topology

Policy = Callable[[TrialPlacement, ContainerGroup, Topology], int | None]
"""The position of the chosen card in ``trial.cards``, or None where no open card has room for the group."""

_NOWHERE: Final = (None,)


def binpack(trial: TrialPlacement, group: ContainerGroup, topology: Topology) -> int | None:
    """Choose, for a fraction, the card with the fewest free cores, then the least free memory, then the
    lowest index. The default.

    A whole card is the idle one whose loss leaves the best-linked sets to later pods.
    """
    if group.cards:
        return fragment(topology, _idle(trial), trial.numa)
    return min(trial.suiting(group), default=_NOWHERE)[-1]


def spread(trial: TrialPlacement, group: ContainerGroup, topology: Topology) -> int | None:
    """Choose, for a fraction, the card with the most free cores, then the most free memory, then the
    lowest index.

    A whole card is chosen as by :func:`binpack`, since it is never shared.
    """
    if group.cards:
        return fragment(topology, _idle(trial), trial.numa)
    ranked = ((-cores, -memory, at) for cores, memory, at in trial.suiting(group))
    return min(ranked, default=_NOWHERE)[-1]


def topology(trial: TrialPlacement, group: ContainerGroup, topology: Topology) -> int | None:
    """Choose the card closest to those of the pod's other containers; :func:`binpack` chooses the first.

    A fraction goes to a card that the pod already uses, else to the best-linked one, else to the one that
    suits its priority, else to the one with the least left.
    """
    suits = trial.unprotected
    if not trial.positions:
        return binpack(trial, group, topology)
    if group.cards:
        return min(_idle(trial), key=lambda at: (-_joined(trial, topology, at), at), default=None)
    ranked = (
        (-bool(trial.held(at)), -_joined(trial, topology, at), suits[at] if suits else 0, cores, memory, at)
        for cores, memory, at in trial.with_room(group)
    )
    return min(ranked, default=_NOWHERE)[-1]


POLICIES: Final[Mapping[PlacementPolicy, Policy]] = {
    PlacementPolicy.BINPACK: binpack,
    PlacementPolicy.SPREAD: spread,
    PlacementPolicy.TOPOLOGY: topology,
}


def _idle(trial: TrialPlacement) -> frozenset[int]:
    return frozenset(at for at in trial.open if trial.idle(at))


def _joined(trial: TrialPlacement, topology: Topology, at: int) -> int:
    """Return how near a card is to those that the pod already uses: the sum of the links' ranks."""
    return sum(topology.ranks[at][other] for other in range(topology.size) if trial.held(other))


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
    groups = groups_of(request)
    if groups is None:
        views = TrialPlacement(request, cards, ledger).views()
        free = tuple((view, view.closed or f"{view.free} free") for view in views)
        return Refusal(_fits_nowhere(request), free, "Change the pod")
    trial = TrialPlacement(request, cards, ledger)
    found = _solve(request, groups, trial, topology, ledger)
    return (
        _refusal(request, groups, trial, found, topology, ledger)
        if isinstance(found, ContainerGroup)
        else found.shares
    )


def find(
    request: PodRequest, cards: Sequence[CardState], topology: Topology, ledger: Ledger
) -> Placement | None:
    """Place a pod like :func:`place`, but return None if there is no room."""
    trial = PodPlacer(request).trial(cards, topology, ledger)
    return None if trial is None else trial.shares


class PodPlacer:
    """:func:`find` for one pod and thousands of nodes: values that depend on the pod alone are computed
    once.
    """

    def __init__(self, request: PodRequest) -> None:
        self._request = request
        self._groups = groups_of(request)
        self._least = LeastNeed.of(self._groups or ())

    def trial(self, cards: Sequence[CardState], topology: Topology, ledger: Ledger) -> TrialPlacement | None:
        """The cards with the pod laid out on them; None if there is no room."""
        if self._groups is None:
            return None
        trial = TrialPlacement(self._request, cards, ledger)
        if len(self._groups) > 1 and trial.lacks(self._least):  # one group needs only one pass
            return None
        found = _solve(self._request, self._groups, trial, topology, ledger)
        return found if isinstance(found, TrialPlacement) else None


def _solve(
    request: PodRequest,
    groups: Sequence[ContainerGroup],
    trial: TrialPlacement,
    topology: Topology,
    ledger: Ledger,
) -> TrialPlacement | ContainerGroup:
    """``trial``, or a changed one, with all groups placed; else the first group that found no room."""
    if topology.size != len(trial.cards):
        raise Bug(f"a topology of {topology.size} cards was given for {len(trial.cards)} cards")
    failed = _lay_out(trial, groups, request.placement, topology)
    if failed is None:
        return trial
    if len(groups) == 1:
        return failed
    second = TrialPlacement(request, trial.cards, ledger)
    if _lay_out(second, [g for g in groups if g.parts > 1], request.placement, topology) is not None:
        return failed
    seats = _search(second, [g for g in groups if g.parts == 1])
    if seats is None:
        return failed
    for group, at in seats:
        second.put(group, (at,))
    if _lay_out(second, [group for group in groups if group.cards], request.placement, topology) is not None:
        return failed  # enough idle cards, but not on NUMA nodes that the policy admits together
    second.positions = {c.name: second.positions[c.name] for group in groups for c in group.members}
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
    groups = groups_of(request)
    if groups is None:
        raise DoesNotFit(_fits_nowhere(request))
    trial = TrialPlacement(request, [replace(state, cordoned=False) for state in cards], ledger)
    position = {state.card.uuid: at for at, state in enumerate(cards)}
    for group in groups:
        where = [_named(container, assignment, position) for container in group.members]
        if any(set(other) != set(where[0]) for other in where):
            raise DoesNotFit(f"{_who(group)}: the scheduler named different cards for them. {_INIT_RULE}")
        for at in where[0]:
            _check(trial, group, at)
        for container, positions in zip(group.members, where, strict=True):
            trial.put(ContainerGroup((container,), group.cards), positions)
    return trial.shares


_INIT_RULE = (
    "The containers from the first ordinary init container on must lie on one card,"
    " or ask for the same number of whole cards"
)


def _fits_nowhere(request: PodRequest) -> str:
    asks = ", ".join(f"{quoted(c.name)} {c.request}" for c in request.containers if c.request.cores)
    return f"the pod asks {asks}: this fits nowhere. {_INIT_RULE}"


def _who(group: ContainerGroup) -> str:
    if not any(c.name for c in group.members):  # Allocate reports ids, not the container
        return "a container whose name the kubelet has not told yet"
    names = ", ".join(quoted(c.name) for c in group.members)
    return f"container {names}" if len(group.members) == 1 else f"containers {names} together"


def _named(
    container: ContainerRequest,
    assignment: Mapping[str, Sequence[tuple[CardUuid, Amount]]],
    position: Mapping[CardUuid, int],
) -> list[int]:
    """Return the positions of the cards named for a container."""
    uuids = [uuid for uuid, _ in assignment.get(container.name, ())]
    wanted = container.request.width
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


def _check(trial: TrialPlacement, group: ContainerGroup, at: int) -> None:
    card = trial.cards[at].card
    where = f"{_who(group)}: the scheduler named card {card.index} ({card.uuid})"
    if trial.closed[at]:
        raise DoesNotFit(f"{where}: {trial.closed[at]}")
    if not trial.fits(at, group.members):
        asked = "a whole card is" if group.cards else f"{_ask(group)}"
        raise DoesNotFit(f"{where}: {asked} asked, {trial.left(at)} free")


def _lay_out(
    trial: TrialPlacement, groups: Sequence[ContainerGroup], policy: PlacementPolicy, topology: Topology
) -> ContainerGroup | None:
    """Place the groups one after the other; returns the first group for which no cards were found."""
    for parts, run in groupby(groups, key=lambda group: group.need is not None):
        if (
            parts
            and not _aligns(topology)
            and policy is PlacementPolicy.BINPACK
            and trial.summed
            and trial.unprotected is None
        ):
            if (failed := trial.put_best_fit(list(run))) is not None:  # as binpack, at once
                return failed
            continue
        for group in run:
            positions = _choose(trial, group, policy, topology)
            if positions is None:
                return group
            trial.put(group, positions)
    return None


def _aligns(topology: Topology) -> bool:
    return topology.numa_policy is not NumaPolicy.NONE


def _choose(
    trial: TrialPlacement, group: ContainerGroup, policy: PlacementPolicy, topology: Topology
) -> tuple[int, ...] | None:
    """Return cards on which the kubelet's preferred ids lie, if one has room there; else any."""
    if _aligns(topology):
        first = group.members[0].request  # the ids of an init container pass to the others
        near = aligned(topology, trial.cards, trial.free_ids, first.cores, -(-first.memory // trial.unit))
        if near is not None:
            everywhere = trial.open
            trial.open = [at for at in everywhere if at in near]
            found = _choose_open(trial, group, policy, topology)
            trial.open = everywhere
            if found is not None:
                return found
    return _choose_open(trial, group, policy, topology)


def _choose_open(
    trial: TrialPlacement, group: ContainerGroup, policy: PlacementPolicy, topology: Topology
) -> tuple[int, ...] | None:
    if group.cards > 1:
        idle = frozenset(at for at in trial.open if trial.idle(at))
        return admitted_set(topology, trial.cards, idle, group.cards)
    if group.parts > 1:
        return several_cards(trial, group, policy, topology)
    one = POLICIES[policy](trial, group, topology)
    return None if one is None else (one,)


def _search(
    trial: TrialPlacement, groups: Sequence[ContainerGroup]
) -> list[tuple[ContainerGroup, int]] | None:
    """Place the fractions so that enough idle cards are left for the whole cards; None if impossible.

    Goes card by card over every set of unplaced groups that fits, and keeps for each set placed so far the
    way that uses the fewest idle cards. Exact, since only the number of idle cards matters for whole cards.
    """
    parts = [group for group in groups if group.cards == 0]
    idle = sum(trial.idle(at) for at in trial.open)
    spare = idle - sum(group.cards for group in groups)
    if not 0 < len(parts) <= SEARCHED or spare < 0:
        return None  # impossible, or too large
    if not all(any(trial.fits(at, group.members) for at in trial.open) for group in parts):
        return None
    everyone = (1 << len(parts)) - 1
    members = [
        tuple(c for i, group in enumerate(parts) if taken >> i & 1 for c in group.members)
        for taken in range(everyone + 1)
    ]
    ways: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {0: (0, ())}
    for at in trial.open:
        sets: list[int] = []
        for taken in range(1, everyone + 1):
            # What holds a set holds each subset with one group less.
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
    return [(group, at) for taken, at in seats for i, group in enumerate(parts) if taken >> i & 1]


def _refusal(
    request: PodRequest,
    groups: Sequence[ContainerGroup],
    trial: TrialPlacement,
    failed: ContainerGroup,
    topology: Topology,
    ledger: Ledger,
) -> Refusal:
    views = trial.views()
    nearest = _nearest(request, groups, TrialPlacement(request, trial.cards, ledger), topology)
    found = None if nearest is None else find(nearest, trial.cards, topology, ledger)
    policy = topology.numa_policy.value if topology.numa_policy.strict else ""
    together = most_together(topology, trial.cards)
    refused = partial(
        refuse,
        _who(failed),
        _ask(failed),
        failed.cards,
        views,
        policy=policy,
        together=together,
        parts=failed.parts,
    )
    if nearest is None or found is None:
        return refused(advise_none(views))
    less = {c.name: c.request for c in nearest.containers if c not in request.containers}
    advice = advise(less, found, trial.cards)
    return refused(advice, nearest)


def _nearest(
    request: PodRequest, groups: Sequence[ContainerGroup], trial: TrialPlacement, topology: Topology
) -> PodRequest | None:
    """Return a smaller request of the pod that fits: less for each container without room, in order."""
    for group in groups:
        if _lay_out(trial, [group], request.placement, topology) is None:
            continue
        container = group.members[0]
        less = nearest_request(container.request, trial.views(), trial.unit)
        if less is None or len(group.members) > 1:
            return None
        while (
            less.cards > 1
            and _choose(trial, ContainerGroup(group.members, less.cards), request.placement, topology) is None
        ):
            less = Request(less.cores - CORES_PER_CARD, 0)
        request = request.asking(container.name, less)
        _lay_out(
            trial,
            [ContainerGroup((replace(container, request=less),), less.cards)],
            request.placement,
            topology,
        )
    return request


def _ask(group: ContainerGroup) -> Amount:
    """Return the peak amount that a group needs of one card; for a whole card without its memory."""
    card = CardUuid("")
    return peak(
        (
            Allocation(PodUid(""), c.name, c.kind, c.order, (Share(card, c.request.amount),))
            for c in group.members
        ),
        card,
    )
